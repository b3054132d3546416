"""What users get who set nothing: every default of the engine, of a request and of the server, in numbers."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from infer_engine import LLM, EngineConfig, SamplingParams
from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.protocol import GenerateRequest
from infer_engine.scheduling.prefill_share import FLOOR
from infer_engine.sizing import size_step
from infer_models.text import dummy_tokenizer
from infer_proofs.models import save_tiny_llama, save_tiny_tokenizer
from infer_server import ServerSettings
from infer_server.cli import main

DOCS = Path(__file__).parents[1] / "docs"

CHOSEN_BY_THE_ENGINE: dict[str, Any] = dict.fromkeys(
    [
        *("model", "max_seq_len", "max_batch_size", "max_num_batched_tokens", "seed", "block_size", "kv_cache_memory"),
        *(
            "state_cache_memory",
            "num_kv_blocks",
            "num_gpu_blocks",
            "use_chunked_prefill",
            "max_prefill_chunks_per_step",
            "use_prefix_caching",
        ),
        *(
            "use_async_scheduling",
            "speculative_config",
            "speculative_model",
            "use_cuda_graphs",
            "use_cpu_graphs",
            "use_fused_products",
            "prefill_chunk_size",
        ),
    ]
)
ENGINE: dict[str, Any] = CHOSEN_BY_THE_ENGINE | {
    "dtype": "auto",
    "device": "auto",
    "load_format": "auto",
    "max_waiting_requests": 2048,
    "batching_mode": "continuous",
    "scheduler_policy": "fcfs",
    "batch_wait_timeout_s": 0.05,
    "kv_cache_backend": "auto",
    "quantization": "auto",
    "kv_cache_dtype": "auto",
    "state_cache_dtype": "float32",
    "gpu_memory_utilization": 0.9,
    "kv_reserve": 0.2,
    "max_prefill_tokens_beside_decodes": None,
    "max_decode_slowdown": None,
    "batch_invariant": False,
    "step_timeout_s": 300.0,
    "data_parallel_size": 1,
    "tensor_parallel_size": 1,
    "routing_policy": "prefix",
    "tool_call_format": "auto",
    "reasoning_format": "auto",
    "reasoning_budget": -1,
    "reasoning_budget_message": None,
    "generation_config": "auto",
    "structured_output_whitespace": "compact",
}
REQUEST: dict[str, Any] = {
    "max_tokens": 128,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": None,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "min_tokens": 0,
    "stop": (),
    "stop_token_ids": (),
    "allowed_token_ids": None,
    "bad_words": (),
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "ignore_eos": False,
    "seed": None,
    "logprobs": None,
    "prompt_logprobs": None,
    "n": 1,
    "thinking_token_budget": None,
    "structured_outputs": None,
}
SERVER: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8000,
    "api_key": (),
    "cors_allow_origins": (),
    "served_model_name": None,
    "uds": None,
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "ssl_keyfile_password": None,
    "root_path": "",
    "max_body_size": "10MB",
    "sse_event_names": "negotiated",
    "sse_ping_interval": 15.0,
    "receive_timeout": 60.0,
    "write_timeout": 30.0,
    "timeout_keep_alive": 180.0,
    "max_connections": 4096,
    "engine_process": True,
    "shutdown_delay": 0.0,
    "shutdown_timeout": 30.0,
    "log_level": "info",
    "log_format": "text",
    "access_log": True,
    "log_prompts": False,
    "otlp_traces_endpoint": None,
}


@pytest.mark.covers(
    "configuration/max-waiting-requests-default",
    "configuration/seed-default",
    "configuration/batch-wait-timeout-default",
    "configuration/gpu-memory-utilization",
    "configuration/kv-reserve-default",
    "configuration/batch-invariant",
)
def test_engine_left_alone_has_the_promised_defaults() -> None:
    assert asdict(EngineConfig()) == ENGINE


@pytest.mark.covers("requests/temperature", "requests/top-p-top-k-min-p")
def test_request_left_alone_has_the_promised_defaults() -> None:
    assert msgspec.structs.asdict(SamplingParams()) == REQUEST


@pytest.mark.covers(
    "http/stream-ping",
    "http/max-body-size",
    "http/shutdown-timeout-default",
    "command-line-and-library/address",
    "command-line-and-library/receive-timeout",
    "command-line-and-library/write-timeout",
    "command-line-and-library/max-connections",
    "command-line-and-library/engine-process",
    "command-line-and-library/log-level-and-format",
)
def test_server_left_alone_has_the_promised_defaults() -> None:
    assert asdict(ServerSettings()) == SERVER
    assert ServerSettings().max_body_bytes == 10_000_000


@pytest.mark.covers("configuration/max-num-batched-tokens-gpu")
@pytest.mark.parametrize(("device", "num_tokens"), [("cpu", 2048), ("cuda", 8192)])
def test_step_left_alone_takes_as_many_tokens_as_its_device_likes(device: str, num_tokens: int) -> None:
    sizes = size_step(EngineConfig(), device=torch.device(device), model_max_seq_len=1000)
    assert sizes.max_num_batched_tokens == num_tokens


def test_help_and_guide_say_how_few_prompt_tokens_are_computed_beside_decodes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "600")  # each flag in one piece
    main(["--help"])
    [line] = [line for line in capsys.readouterr().out.splitlines() if "--max-decode-slowdown" in line]
    assert f"at least {FLOOR}." in line
    assert f"it has {FLOOR} of them at least |" in (DOCS / "configuration.md").read_text()


@pytest.mark.covers("configuration/dtype")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_left_alone_is_the_checkpoints(tmp_path: Path, dtype: str) -> None:
    save_tiny_llama(tmp_path, dtype=getattr(torch, dtype))
    save_tiny_tokenizer(tmp_path, vocab_size=320)
    llm = LLM(str(tmp_path), max_seq_len=32)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    [completion] = llm.generate([[5, 6, 7]], params, use_tqdm=False)
    assert (llm.info.dtype, len(completion.token_ids)) == (dtype, 4)


@pytest.mark.covers("configuration/seed-default")
def test_seed_left_alone_is_drawn_anew_at_every_start() -> None:
    request = GenerateRequest(prompt=[5], params=SamplingParams())
    fronts = [InputProcessor(dummy_tokenizer(300), InputLimits(vocab_size=300, max_seq_len=512)) for _ in range(4)]
    prepared = [
        input_processor.process(request, ids=input_processor.reserve_ids(request)) for input_processor in fronts
    ]
    assert len({sequence.submission.seed for [sequence] in prepared}) == 4
