"""The kernels of sampling, compiled through the public functions for three architectures without a GPU."""

from typing import Any

import pytest
import torch

from infer_kernels.checks.inputs.draws import random_draws
from infer_kernels.sampling import apply_bitmask, apply_penalties, count_tokens, greedy, sample, topk_logprobs
from infer_proofs.kernels.compiled.ahead_of_time import (
    SHARED_MEMORY,
    LaunchLog,
    compile_afresh,
    compile_only,
    launch_only,
)
from infer_proofs.kernels.compiled.residency import count_resident_programs
from infer_proofs.kernels.pairwise import parametrize_each_value

FILTERS = ["top_k", "top_p", "min_p"]


def launch_all(rows: int, vocab: int, dtype: torch.dtype) -> None:
    logits, draws = torch.empty(rows, vocab, dtype=dtype), random_draws(rows, vocab=vocab)
    for left_out in ([], FILTERS[:2], FILTERS):
        sample(logits, **draws.arguments | dict.fromkeys(left_out))
    state: dict[str, Any] = {
        "slots": torch.zeros(rows, dtype=torch.int32),
        "in_prompt": torch.empty(4, vocab, dtype=torch.bool),
        "generated_counts": torch.empty(4, vocab, dtype=torch.int32),
    }
    columns = {"repetition": draws.top_p, "presence": draws.top_p, "frequency": draws.top_p}
    apply_penalties(logits, **state, **columns)
    count_tokens(state["generated_counts"], state["slots"], state["slots"])
    apply_bitmask(logits, torch.empty(rows, -(-vocab // 32), dtype=torch.int32), state["slots"])
    topk_logprobs(logits, state["slots"], k=3)
    greedy(logits)


@parametrize_each_value(capability=[80, 90, 120], vocab=[128_256, 50_257], dtype=[torch.bfloat16, torch.float32])
def test_sampling_compiles_once_for_all_batches(capability: int, vocab: int, dtype: torch.dtype) -> None:
    with compile_only(capability) as first:
        launch_all(7, vocab, dtype)
    with launch_only(capability) as one:
        launch_all(7, vocab, dtype)
    with launch_only(capability) as several:
        for rows in (7, 8, 16, 1):
            launch_all(rows, vocab, dtype)
    assert first.compiled
    assert several.variants == one.variants
    # On sm_120 rows that begin anywhere cost the search for candidates two registers more than its share of them.
    spilled = {kernel.name: kernel.spilled_bytes for kernel in first.compiled if kernel.spilled_bytes}
    assert spilled == ({"_candidates_kernel": 8} if (capability, vocab, dtype) == (120, 50_257, torch.bfloat16) else {})
    assert all(kernel.shared_memory <= SHARED_MEMORY[capability] for kernel in first.compiled)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_two_programs_of_sampling_fit_a_multiprocessor(dtype: torch.dtype) -> None:
    draws = random_draws(2, vocab=64_000)
    with compile_afresh(90) as log:
        sample(torch.empty(2, 64_000, dtype=dtype), **draws.arguments)
    for kernel in log.compiled:
        assert 2 * kernel.registers * 32 * kernel.num_warps <= 65_536
        assert 2 * kernel.shared_memory <= SHARED_MEMORY[90]


@pytest.mark.parametrize(
    "capability", [90, *(pytest.param(each, marks=pytest.mark.full) for each in (80, 89, 100, 120))]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_three_programs_that_find_candidates_are_resident(dtype: torch.dtype, capability: int) -> None:
    # With chunks in a loop the compiler would take registers for two, if it were not told.
    with compile_afresh(capability) as log:
        sample(torch.empty(256, 128_256, dtype=dtype), **random_draws(256, vocab=128_256).arguments)
    [kernel] = [each for each in log.compiled if each.name == "_candidates_kernel"]
    assert kernel.spilled_bytes == 0
    assert count_resident_programs(kernel, capability) >= 3


def launches_of(log: LaunchLog) -> list[tuple[str, tuple[int, int, int]]]:
    return [(launch.name, launch.grid) for launch in log.launches]


def test_a_row_is_split_in_the_same_chunks_whatever_the_batch() -> None:
    for vocab, chunks in ((1, 1), (2049, 2), (128_256, 63), (151_936, 38), (262_208, 43)):
        for rows in (1, 5):
            with launch_only(90) as log:
                sample(torch.empty(rows, vocab), **random_draws(rows, vocab=vocab).arguments)
            assert launches_of(log) == [
                ("_maxima_kernel", (rows, chunks, 1)),
                ("_candidates_kernel", (rows, chunks, 1)),
                ("_draw_kernel", (rows, 1, 1)),
            ]


@pytest.mark.parametrize(("rows", "programs"), [(16, 63), (17, 63), (32, 33), (132, 8), (1000, 8)])
def test_programs_of_many_rows_take_several_chunks(rows: int, programs: int) -> None:
    # Eight for each of 132 multiprocessors. Each of them searches the row for its candidates' distance.
    with launch_only(90) as log:
        sample(torch.empty(rows, 128_256), **random_draws(rows, vocab=128_256).arguments)
    assert launches_of(log)[:2] == [("_maxima_kernel", (rows, 63, 1)), ("_candidates_kernel", (rows, programs, 1))]


def test_launches_of_each_op() -> None:
    logits, draws = torch.empty(5, 5000), random_draws(5, vocab=5000)
    counts, slots = torch.empty(4, 5000, dtype=torch.int32), torch.zeros(5, dtype=torch.int64)
    with launch_only(90) as log:
        sample(logits)
        sample(logits, **draws.arguments, out=slots.clone())
        topk_logprobs(logits, slots, k=0)
        count_tokens(counts, slots, slots)
        apply_penalties(
            logits,
            slots=slots,
            in_prompt=counts.bool(),
            generated_counts=counts,
            repetition=draws.top_p,
            presence=draws.top_p,
            frequency=draws.top_p,
        )
    assert launches_of(log) == [
        ("_largest_of_chunk_kernel", (5, 2, 1)),
        ("_join_largest_kernel", (5, 1, 1)),
        ("_maxima_kernel", (5, 3, 1)),
        ("_candidates_kernel", (5, 3, 1)),
        ("_draw_kernel", (5, 1, 1)),
        ("_logprobs_kernel", (5, 1, 1)),
        ("_count_tokens_kernel", (1, 1, 1)),
        ("_apply_penalties_kernel", (5, 3, 1)),
    ]
