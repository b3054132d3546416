"""Every field of the engine's configuration can be set by its own flag of `infer-server`."""

from dataclasses import fields
from typing import Any

import pytest

from infer_engine import EngineConfig
from infer_engine.protocol import Engine
from infer_server.cli import main

WORDS: dict[str, tuple[str, Any]] = {
    "model": ("owner/name", "owner/name"),
    "dtype": ("float16", "float16"),
    "device": ("cuda:1", "cuda:1"),
    "load_format": ("dummy", "dummy"),
    "max_seq_len": ("64", 64),
    "max_batch_size": ("3", 3),
    "max_num_batched_tokens": ("1000", 1000),
    "max_waiting_requests": ("5", 5),
    "seed": ("-7", -7),
    "batching_mode": ("static", "static"),
    "scheduler_policy": ("prefill_first", "prefill_first"),
    "kv_cache_backend": ("contiguous", "contiguous"),
    "quantization": ("int4", "int4"),
    "kv_cache_dtype": ("int8", "int8"),
    "block_size": ("16", 16),
    "kv_cache_memory": ("1GiB", "1GiB"),
    "state_cache_memory": ("1GiB", "1GiB"),
    "state_cache_dtype": ("bfloat16", "bfloat16"),
    "num_kv_blocks": ("9", 9),
    "num_gpu_blocks": ("9", 9),
    "gpu_memory_utilization": ("0.5", 0.5),
    "kv_reserve": ("0", 0.0),
    "prefill_chunk_size": ("128", 128),
    "max_prefill_chunks_per_step": ("1", 1),
    "max_prefill_tokens_beside_decodes": ("64", 64),
    "max_decode_slowdown": ("1.5", 1.5),
    "speculative_model": ("a/b", "a/b"),
    "speculative_config": ('{"method": "ngram"}', '{"method": "ngram"}'),
    "step_timeout_s": ("1.5", 1.5),
    "data_parallel_size": ("2", 2),
    "tensor_parallel_size": ("2", 2),
    "routing_policy": ("random", "random"),
    "tool_call_format": ("hermes", "hermes"),
    "reasoning_format": ("none", "none"),
    "reasoning_budget": ("256", 256),
    "reasoning_budget_message": ("So:\n", "So:\n"),
    "generation_config": ("vllm", "vllm"),
    "structured_output_whitespace": ("any", "any"),
}
SWITCHES = ["use_chunked_prefill", "use_prefix_caching", "use_async_scheduling", "use_cuda_graphs", "use_cpu_graphs"]
SWITCHES += ["use_fused_products", "batch_invariant"]
WITH_STATIC_BATCHES = "batch_wait_timeout_s"


def config_of(*arguments: str) -> EngineConfig:
    """Return the configuration that a command line makes."""
    seen: list[EngineConfig] = []

    def refuse(config: EngineConfig) -> Engine:
        seen.append(config)
        raise ValueError("seen enough")

    assert main(["--port", "0", *arguments], build_engine=refuse) == 2
    [config] = seen
    return config


def flag(field: str) -> str:
    return "--" + field.replace("_", "-")


@pytest.mark.covers("configuration/names-on-the-command-line", "command-line-and-library/flags")
def test_no_field_is_left_out_here() -> None:
    assert {field.name for field in fields(EngineConfig)} == {*WORDS, *SWITCHES, WITH_STATIC_BATCHES}


@pytest.mark.covers("configuration/names-on-the-command-line", "command-line-and-library/flags")
@pytest.mark.parametrize("field", WORDS)
def test_flag_sets_its_field_and_no_other(field: str) -> None:
    word, value = WORDS[field]
    assert config_of(flag(field), word) == EngineConfig(**{field: value})


@pytest.mark.covers("command-line-and-library/boolean-flags")
@pytest.mark.parametrize("field", SWITCHES)
def test_switch_has_a_flag_for_on_and_one_for_off(field: str) -> None:
    assert getattr(config_of(flag(field)), field) is True
    assert getattr(config_of(flag(f"no_{field}")), field) is False


def test_wait_of_a_forming_batch_has_a_flag() -> None:
    assert config_of("--batching-mode", "static", flag(WITH_STATIC_BATCHES), "0.2").batch_wait_timeout_s == 0.2
