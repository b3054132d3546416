"""Every invalid value and every conflict is refused; the message names the field, the value and what is allowed."""

import pytest
import torch

from infer_engine import EngineConfig, SamplingParams
from infer_engine.sizing import KVMemory, choose_block_size, resolve_device, size_kv_cache, size_step

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("dtype", "int8", "`bfloat16`"),
        ("device", "tpu", "`cuda:N`"),
        ("load_format", "pickle", "`dummy`"),
        ("model", " ", "a folder or a Hub id"),
        ("max_seq_len", 0, "at least 1"),
        ("max_batch_size", -1, "at least 1"),
        ("max_batch_size", True, "at least 1"),
        ("max_num_batched_tokens", 0, "at least 1"),
        ("max_waiting_requests", 0, "at least 1"),
        ("block_size", 0, "at least 1"),
        ("num_gpu_blocks", 0, "at least 1"),
        ("prefill_chunk_size", 0, "at least 1"),
        ("max_prefill_chunks_per_step", 0, "at least 1"),
        ("seed", 2**63, "64-bit"),
        ("gpu_memory_utilization", 0.0, "in (0, 1]"),
        ("gpu_memory_utilization", float("nan"), "in (0, 1]"),
        ("kv_reserve", 1.0, "in [0, 1)"),
        ("kv_cache_memory", "4 bananas", "`4GiB`"),
        ("kv_cache_memory", 0, "`4GiB`"),
    ],
)
def test_an_invalid_value_is_refused_by_name(field: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"`{field}` is ") as raised:
        EngineConfig(**{field: value})  # type: ignore[arg-type]  # wrong on purpose
    assert repr(value) in str(raised.value)
    assert allowed in str(raised.value)


def test_two_sizes_of_the_kv_cache_contradict_each_other() -> None:
    with pytest.raises(ValueError, match=r"`num_gpu_blocks` is 5 and `kv_cache_memory` is 1GiB"):
        EngineConfig(num_gpu_blocks=5, kv_cache_memory="1GiB")


def test_a_chunk_larger_than_a_step_contradicts_it() -> None:
    with pytest.raises(ValueError, match=r"`prefill_chunk_size` is 600 .* `max_num_batched_tokens` = 64"):
        EngineConfig(prefill_chunk_size=600, max_num_batched_tokens=64)
    assert EngineConfig(max_num_batched_tokens=64).prefill_chunk_size == 512


@pytest.mark.parametrize(
    ("text", "expected"), [("4GiB", 4 * 2**30), ("1.5 MB", 1_500_000), (1024, 1024), ("512mib", 512 * 2**20)]
)
def test_memory_takes_units(text: int | str, expected: int) -> None:
    assert EngineConfig(kv_cache_memory=text).kv_cache_bytes == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", 101.0),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("inf")),
        ("top_k", 0),
        ("min_p", 1.5),
        ("stop", ("",)),
        ("stop", ("x" * 257,)),
        ("stop", ("a",) * 17),
        ("seed", 2**70),
    ],
)
def test_a_sampling_parameter_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"`{field}`"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]  # wrong on purpose


def sizes(config: EngineConfig, *, share: int = 10**9, free: int = 10**10) -> tuple[int, int]:
    sized = size_kv_cache(
        config,
        model_max_seq_len=1000,
        max_batch_size=size_step(config, device=CPU, model_max_seq_len=1000).max_batch_size,
        block_size=choose_block_size(config, head_dim=64),
        bytes_per_block=1000,
        memory=KVMemory(share=share, free=free),
    )
    return sized.num_blocks, sized.max_seq_len


def test_the_pool_is_no_larger_than_every_slot_at_full_length() -> None:
    assert sizes(EngineConfig(max_batch_size=4)) == (4 * 16, 1000)


def test_little_memory_cuts_the_longest_sequence_to_what_the_pool_holds() -> None:
    assert sizes(EngineConfig(), share=5_500) == (5, 320)


def test_kv_cache_memory_and_num_gpu_blocks_set_the_pool() -> None:
    assert sizes(EngineConfig(kv_cache_memory=7_000)) == (7, 448)
    assert sizes(EngineConfig(num_gpu_blocks=20)) == (20, 1000)


def test_asking_for_a_longer_sequence_than_fits_names_the_largest_that_does() -> None:
    with pytest.raises(ValueError, match=r"`max_seq_len` is 900 but the KV cache holds 320 tokens; lower it to 320"):
        sizes(EngineConfig(max_seq_len=900, num_gpu_blocks=5))
    with pytest.raises(ValueError, match=r"`max_seq_len` is 2000 but the model's positions end at 1000"):
        sizes(EngineConfig(max_seq_len=2000))


def test_a_cache_without_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="raise `kv_cache_memory`"):
        sizes(EngineConfig(), share=10)


@pytest.mark.parametrize(("field", "value"), [("num_gpu_blocks", 10**11), ("kv_cache_memory", "90000GiB")])
def test_a_cache_larger_than_the_memory_is_refused_with_the_largest_that_fits(field: str, value: object) -> None:
    config = EngineConfig(max_batch_size=10**9, **{field: value})  # type: ignore[arg-type]  # one of two fields
    with pytest.raises(ValueError, match=rf"`{field}` is {value}: .* lower it to at most \d+"):
        sizes(config)


def test_prompts_computed_whole_need_buffers_for_the_longest() -> None:
    chunked = size_step(EngineConfig(max_batch_size=4), device=CPU, model_max_seq_len=9000)
    whole = size_step(EngineConfig(max_batch_size=4, use_chunked_prefill=False), device=CPU, model_max_seq_len=9000)
    assert (chunked.max_tokens, whole.max_tokens) == (2052, 9004)


def test_a_chunk_size_without_chunking_contradicts_it() -> None:
    with pytest.raises(ValueError, match="`prefill_chunk_size` is 64 but `use_chunked_prefill` is false"):
        EngineConfig(prefill_chunk_size=64, use_chunked_prefill=False)


def test_wide_heads_get_smaller_blocks() -> None:
    assert choose_block_size(EngineConfig(), head_dim=256) == 32
    assert choose_block_size(EngineConfig(), head_dim=128) == 64
    assert choose_block_size(EngineConfig(block_size=7), head_dim=256) == 7


def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="`device` is 'cuda:99'"):
        resolve_device("cuda:99")
