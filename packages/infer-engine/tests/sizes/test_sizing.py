"""The cache takes no more than its memory, and each of its groups holds one sequence of the longest length."""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infer_cache import max_blocks_in_window
from infer_engine import EngineConfig
from infer_engine.sizing import (
    DECODE_SLOWDOWN,
    KVMemory,
    KVSizes,
    choose_block_size,
    kv_memory,
    size_kv_cache,
    size_step,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Group(NamedTuple):
    """A group of layers: its sliding window, and the bytes of one block in all its layers."""

    window: int | None
    bytes_per_block: int


FULL = [Group(None, 1000)]
# With blocks of 10 tokens a sequence of 1000 holds 11 blocks (the 40 + 60 tokens in reach, however they lie) and 100.
MIXED = [Group(41, 500), Group(None, 100)]


def sized(
    *,
    groups: Sequence[Group] = FULL,
    model_max_seq_len: int = 1000,
    max_chunk: int | None = 60,
    share: int = 10**9,
    free: int = 10**10,
    **values: Any,
) -> KVSizes:
    config = EngineConfig(**values)
    return size_kv_cache(
        config,
        model_max_seq_len=model_max_seq_len,
        max_batch_size=size_step(config, device=CPU, model_max_seq_len=model_max_seq_len).max_batch_size,
        block_size=choose_block_size(config, head_dim=64),
        windows=[group.window for group in groups],
        bytes_per_block=[group.bytes_per_block for group in groups],
        max_chunk=max_chunk,
        memory=KVMemory(share=share, free=free),
    )


def sized_if_it_fits(**values: Any) -> KVSizes | None:
    """Return the sizes, or None where the memory does not even hold a prompt and a token."""
    try:
        return sized(**values)
    except ValueError as error:
        if "The KV cache would hold" in str(error):
            return None
        raise


def sizes(*num_blocks: int, max_seq_len: int) -> KVSizes:
    return KVSizes(num_blocks=num_blocks, max_seq_len=max_seq_len)


@pytest.mark.covers("configuration/num-kv-blocks")
def test_the_pool_is_no_larger_than_every_request_at_full_length() -> None:
    assert sized(max_batch_size=4) == sizes(4 * 16, max_seq_len=1000)


@pytest.mark.covers("configuration/max-seq-len")
def test_little_memory_cuts_the_longest_sequence_to_what_the_pool_holds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert sized(share=5_500) == sizes(5, max_seq_len=320)
    assert "max_seq_len is cut from the model's 1000 to 320" in caplog.text


@pytest.mark.covers("configuration/kv-cache-memory", "configuration/num-kv-blocks")
def test_kv_cache_memory_and_num_kv_blocks_set_the_pool() -> None:
    assert sized(kv_cache_memory=7_000) == sizes(7, max_seq_len=448)
    assert sized(kv_cache_memory=40_999) == sizes(40, max_seq_len=1000)
    assert sized(num_kv_blocks=20) == sized(num_gpu_blocks=20) == sizes(20, max_seq_len=1000)


def test_groups_share_memory_by_what_each_needs_for_the_longest_sequence() -> None:
    # One sequence takes 11 * 500 + 100 * 100 = 15,500 bytes; 40,000 bytes hold 2.58 of them.
    assert sized(groups=MIXED, block_size=10, share=40_000) == sizes(28, 258, max_seq_len=1000)
    assert sized(groups=MIXED, block_size=10, max_batch_size=3) == sizes(33, 300, max_seq_len=1000)


def test_little_memory_cuts_the_longest_sequence_until_every_group_holds_it() -> None:
    # 11 * 500 + 34 * 100 = 8,900 bytes; one block more would be 9,000. Below 11 blocks both groups grow.
    assert sized(groups=MIXED, block_size=10, share=8_999) == sizes(11, 34, max_seq_len=340)
    assert sized(groups=MIXED, block_size=10, share=2_999) == sizes(4, 4, max_seq_len=40)


def test_prompts_computed_whole_keep_every_block_of_a_window() -> None:
    whole = sized(groups=MIXED, block_size=10, max_chunk=None, share=60_000, use_chunked_prefill=False)
    assert whole == sizes(100, 100, max_seq_len=1000)


@pytest.mark.covers("configuration/num-kv-blocks")
def test_num_kv_blocks_counts_the_group_that_holds_whole_sequences() -> None:
    assert sized(groups=MIXED, block_size=10, num_kv_blocks=250) == sizes(28, 250, max_seq_len=1000)
    assert sized(groups=MIXED, block_size=10, num_kv_blocks=40) == sizes(11, 40, max_seq_len=400)
    windows = [Group(window, 1) for window in (11, 41)]
    assert sized(groups=windows, block_size=10, num_kv_blocks=22) == sizes(16, 22, max_seq_len=1000)
    assert sized(groups=windows, block_size=10, num_kv_blocks=10) == sizes(8, 10, max_seq_len=100)


@pytest.mark.covers("configuration/max-seq-len", "configuration/order-of-derivation")
def test_contiguous_gives_each_slot_its_share_of_the_tokens() -> None:
    assert sized(kv_cache_backend="contiguous", max_batch_size=4) == sizes(64, max_seq_len=1000)
    assert sized(kv_cache_backend="contiguous", max_batch_size=4, kv_cache_memory=23_999) == sizes(20, max_seq_len=320)
    assert sized(batching_mode="static", max_seq_len=65) == sizes(8 * 2, max_seq_len=65)


@pytest.mark.covers("configuration/contiguous-ignores-blocks")
def test_contiguous_ignores_block_size_and_num_kv_blocks() -> None:
    ignored: dict[str, Any] = {"block_size": 3, "num_kv_blocks": 10**12}
    assert sized(batching_mode="static", share=16_000, **ignored) == sized(batching_mode="static", share=16_000)


def test_contiguous_refuses_a_longer_sequence_than_a_slot_holds() -> None:
    cause = r"`max_seq_len` is 900 but the KV cache holds sequences of 320 tokens; lower it to 320 or lower `max_batch_"
    with pytest.raises(ValueError, match=cause):
        sized(kv_cache_backend="contiguous", max_batch_size=4, max_seq_len=900, share=23_999)
    with pytest.raises(ValueError, match=r"hold sequences of 0 tokens.*lower `max_batch_size`"):
        sized(kv_cache_backend="contiguous", max_batch_size=30, share=23_999)


@pytest.mark.covers("configuration/max-seq-len-too-long")
def test_asking_for_a_longer_sequence_than_fits_names_the_largest_that_does() -> None:
    cause = "`max_seq_len` is 900 but the KV cache holds sequences of {0} tokens; lower it to {0}"
    with pytest.raises(ValueError, match=cause.format(320)):
        sized(max_seq_len=900, num_kv_blocks=5)
    with pytest.raises(ValueError, match=cause.format(340)):
        sized(groups=MIXED, block_size=10, max_seq_len=900, share=8_999)
    assert sized(groups=MIXED, block_size=10, max_seq_len=340, share=8_999).max_seq_len == 340


@pytest.mark.covers("configuration/max-seq-len-too-long")
def test_asking_for_more_positions_than_the_model_has_is_refused() -> None:
    with pytest.raises(ValueError, match="`max_seq_len` is 2000 but the model's positions end at 1000"):
        sized(max_seq_len=2000)


@pytest.mark.parametrize(
    ("values", "fix"),
    [
        ({"share": 10}, "raise `kv_cache_memory` or `num_kv_blocks`"),
        ({"num_kv_blocks": 1, "block_size": 1}, "raise `num_kv_blocks`"),
        ({"num_gpu_blocks": 1, "block_size": 1}, "raise `num_gpu_blocks`"),
    ],
)
def test_a_cache_without_room_for_a_prompt_and_a_token_is_refused(values: dict[str, Any], fix: str) -> None:
    with pytest.raises(ValueError, match=rf"; {fix}\.$"):
        sized(**values)


@pytest.mark.covers("configuration/num-gpu-blocks")
def test_a_cache_larger_than_the_memory_is_refused_with_the_largest_that_fits() -> None:
    with pytest.raises(ValueError, match=r"`kv_cache_memory` is 90GiB .* lower it to at most 50000\."):
        sized(kv_cache_memory="90GiB", max_batch_size=10**9, free=50_000)
    for name in ("num_kv_blocks", "num_gpu_blocks"):
        too_many: dict[str, Any] = {name: 10**11}
        with pytest.raises(ValueError, match=rf"`{name}` is 100000000000 .* lower it to at most 50\."):
            sized(**too_many, free=50_000)
    # 322 blocks come with 36 of the window: 18,000 + 32,200 bytes.
    with pytest.raises(ValueError, match=r"lower it to at most 320\."):
        sized(groups=MIXED, block_size=10, num_kv_blocks=322, free=50_000)
    assert sized(groups=MIXED, block_size=10, num_kv_blocks=320, free=50_000).num_blocks == (36, 320)


def test_sliding_windows_make_long_sequences_of_gemma_3_at_least_4_times_smaller() -> None:
    num_tokens, layer = 32_768, 32 * 2 * 256 * 2
    split = [
        Group(512, 22 * layer),
        Group(None, 4 * layer),
    ]
    one = [Group(None, 26 * layer)]

    def bytes_per_sequence(groups: list[Group]) -> int:
        values = {"block_size": 32, "max_batch_size": 1, "max_seq_len": num_tokens}
        counts = sized(groups=groups, model_max_seq_len=num_tokens, max_chunk=512, free=10**12, share=10**12, **values)
        return sum(count * group.bytes_per_block for count, group in zip(counts.num_blocks, groups, strict=True))

    assert bytes_per_sequence(one) >= 4 * bytes_per_sequence(split)


shapes = st.lists(st.integers(1, 300), max_size=3, unique=True).flatmap(
    lambda windows: st.tuples(
        *(st.builds(Group, window=st.just(window), bytes_per_block=st.integers(1, 5000)) for window in windows),
        st.builds(Group, window=st.sampled_from([None, 1000]), bytes_per_block=st.integers(1, 5000)),
    )
)


@pytest.mark.covers("configuration/order-of-derivation")
@given(
    groups=shapes,
    block_size=st.integers(1, 70),
    max_chunk=st.none() | st.integers(1, 200),
    max_batch_size=st.integers(1, 20),
    model_max_seq_len=st.integers(2, 2000),
    share=st.integers(1, 2_000_000),
    more=st.integers(0, 100_000),
)
def test_memory_is_kept_to_one_longest_sequence_fits_and_more_memory_never_holds_less(
    groups: tuple[Group, ...],
    block_size: int,
    max_chunk: int | None,
    max_batch_size: int,
    model_max_seq_len: int,
    share: int,
    more: int,
) -> None:
    values: dict[str, Any] = {
        "groups": groups,
        "model_max_seq_len": model_max_seq_len,
        "max_chunk": max_chunk,
        "block_size": block_size,
        "max_batch_size": max_batch_size,
    }
    small = sized_if_it_fits(share=share, **values)
    if small is None:
        return
    large = sized(share=share + more, **values)
    length = small.max_seq_len
    assert sum(count * group.bytes_per_block for count, group in zip(small.num_blocks, groups, strict=True)) <= share
    for count, group in zip(small.num_blocks, groups, strict=True):
        need = max_blocks_in_window(length, window=group.window, max_chunk=max_chunk, block_size=block_size)
        assert need <= count <= max_batch_size * need
    assert length <= large.max_seq_len <= model_max_seq_len
    assert all(few <= many for few, many in zip(small.num_blocks, large.num_blocks, strict=True))


@pytest.mark.covers("configuration/kv-cache-memory")
@given(
    backend=st.sampled_from(["contiguous", "paged"]),
    max_batch_size=st.integers(1, 40),
    model_max_seq_len=st.integers(2, 5000),
    memory=st.integers(1, 10**6),
)
def test_memory_that_was_set_is_kept_to_by_both_backends(
    backend: str, max_batch_size: int, model_max_seq_len: int, memory: int
) -> None:
    limits = {"kv_cache_backend": backend, "max_batch_size": max_batch_size, "kv_cache_memory": memory}
    result = sized_if_it_fits(model_max_seq_len=model_max_seq_len, **limits)
    if result is None:
        return
    (num_blocks,) = result.num_blocks
    slots = max_batch_size if backend == "contiguous" else 1
    assert num_blocks * 1000 <= memory
    assert slots * -(-result.max_seq_len // 64) <= num_blocks <= max_batch_size * -(-result.max_seq_len // 64)


@pytest.mark.covers("configuration/max-batch-size")
def test_a_step_is_sized_by_the_device_and_by_what_a_request_takes() -> None:
    def batch(device: torch.device, **values: Any) -> int:
        return size_step(EngineConfig(**values), device=device, model_max_seq_len=1000).max_batch_size

    assert (batch(CPU), batch(GPU)) == (32, 256)
    assert (batch(GPU, batching_mode="static"), batch(GPU, kv_cache_backend="contiguous")) == (8, 8)
    assert batch(GPU, batching_mode="static", max_batch_size=3) == 3


@pytest.mark.covers("configuration/max-num-batched-tokens-cpu")
@pytest.mark.parametrize("values", [{"use_chunked_prefill": False}, {"batching_mode": "static"}])
def test_prompts_computed_whole_need_buffers_for_the_longest(values: dict[str, Any]) -> None:
    whole = size_step(EngineConfig(max_batch_size=4, **values), device=CPU, model_max_seq_len=9000)
    assert (whole.max_num_batched_tokens, whole.prefill_chunk_size) == (2048, None)
    assert whole.max_step_tokens(9000) == 9004


@pytest.mark.covers("configuration/prefill-chunk-size")
def test_a_chunk_is_cut_to_what_a_step_computes() -> None:
    chunked = size_step(EngineConfig(max_batch_size=4), device=CPU, model_max_seq_len=9000)
    assert (chunked.max_step_tokens(9000), chunked.prefill_chunk_size) == (2052, 512)
    small = size_step(EngineConfig(max_num_batched_tokens=64), device=CPU, model_max_seq_len=9000)
    assert (small.max_step_tokens(9000), small.prefill_chunk_size) == (64 + 32, 64)


@pytest.mark.covers("configuration/block-size")
def test_wide_heads_get_smaller_blocks() -> None:
    assert choose_block_size(EngineConfig(), head_dim=256) == 32
    assert choose_block_size(EngineConfig(), head_dim=128) == 64
    assert choose_block_size(EngineConfig(block_size=7), head_dim=256) == 7
    assert choose_block_size(EngineConfig(block_size=7, kv_cache_backend="contiguous"), head_dim=256) == 32


@pytest.mark.covers("configuration/prefill-chunk-size")
def test_a_chunk_is_longer_on_a_gpu() -> None:
    def chunk(device: torch.device, **values: int) -> int | None:
        return size_step(EngineConfig(**values), device=device, model_max_seq_len=9000).prefill_chunk_size  # type: ignore[arg-type]  # counts only

    assert (chunk(CPU), chunk(GPU)) == (512, 2048)
    assert (chunk(CPU, prefill_chunk_size=700), chunk(GPU, prefill_chunk_size=700)) == (700, 700)
    assert chunk(GPU, max_num_batched_tokens=1000) == 1000


@pytest.mark.covers("configuration/kv-cache-memory-cpu")
def test_a_cpus_cache_takes_a_quarter_of_what_is_free() -> None:
    memory = kv_memory(EngineConfig(), device=CPU, activation_bytes=0)
    assert memory.share == memory.free // 4


@pytest.mark.covers("configuration/kv-cache-memory-cpu")
def test_ranks_on_a_cpu_divide_its_memory() -> None:
    memory = kv_memory(EngineConfig(), device=CPU, activation_bytes=0)
    of_rank = kv_memory(EngineConfig(tensor_parallel_size=4, data_parallel_size=2), device=CPU, activation_bytes=0)
    assert of_rank.share == pytest.approx(memory.share / 8, rel=0.1)  # other programs come and go
    assert of_rank.free == pytest.approx(memory.free / 4, rel=0.1)


@pytest.mark.covers("configuration/prefill-beside-decodes", "configuration/max-decode-slowdown")
@pytest.mark.parametrize(
    ("config", "on_cpu", "on_gpu"),
    [
        ({}, (None, DECODE_SLOWDOWN), (None, None)),
        ({"max_decode_slowdown": 1.5}, (None, 1.5), (None, 1.5)),
        ({"max_prefill_tokens_beside_decodes": 7}, (7, None), (7, None)),
    ],
)
def test_prompt_tokens_beside_decodes_follow_the_time_of_steps_on_a_cpu_unless_a_number_was_set(
    config: dict[str, Any], on_cpu: tuple[int | None, float | None], on_gpu: tuple[int | None, float | None]
) -> None:
    def found(device: torch.device) -> tuple[int | None, float | None]:
        limits = size_step(EngineConfig(**config), device=device, model_max_seq_len=9000)
        return limits.max_prefill_tokens_beside_decodes, limits.max_decode_slowdown

    assert (found(CPU), found(GPU)) == (on_cpu, on_gpu)
