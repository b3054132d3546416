"""Steps are captured for padded shapes, prove themselves, and compute what their kernels do; without a GPU.

Captures are recorded where Triton's kernels are interpreted, in a process of its own, and hold what a CUDA graph would.
"""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.model_runner.forward_batch import BatchShape
from infer_engine.model_runner.graphs.graph_check import are_drawn_alike
from infer_engine.model_runner.graphs.padded_shapes import MAX_CAPTURED_TOKENS, PaddedShapes
from infer_engine.testing.interpreted import run_interpreted
from infer_engine.testing.models import save_servable

QUICK = [
    "nothing",
    "old lengths",
    "old hidden states",
    "old parameters of draws",
    "semaphores are not reset",
    "reads from the device",
    "never ends",
]
OTHERS = ["old token ids", "old positions", "old slots", "old query starts", "old rows", "old block table"]
OTHERS += ["writes elsewhere"]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], dict[str, dict[str, Any]]]:
    """Return a function that says what came of capturing with something wrong, by what was."""
    folder = tmp_path_factory.mktemp("long")
    save_servable("llama", folder, max_position_embeddings=600)

    @cache
    def captured(sabotages: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        return {each["sabotage"]: each for each in run_interpreted("interpreted_graphs", str(folder), *sabotages)}

    return captured


def test_sound_captures_are_used_and_leave_the_cache_as_it_was(captured: Callable[..., Any]) -> None:
    found = captured(tuple(QUICK))["nothing"]
    assert found["refusal"] is None
    assert found["num_captured"] == found["num_exact"] == found["num_used"] == 4
    assert found["pool_is_zero"]


@pytest.mark.parametrize("sabotage", [*QUICK[1:-1], *(pytest.param(each, marks=pytest.mark.full) for each in OTHERS)])
def test_a_capture_with_something_wrong_is_refused_and_none_is_used(
    captured: Callable[..., Any], sabotage: str
) -> None:
    found = captured(tuple(QUICK if sabotage in QUICK else OTHERS))[sabotage]
    assert found["refusal"], found
    assert found["num_captured"] == found["num_used"] == 0
    assert found["pool_is_zero"]


def test_a_replay_that_never_ends_ends_the_start_with_the_way_out(captured: Callable[..., Any]) -> None:
    assert "`use_cuda_graphs=False`" in captured(tuple(QUICK))["never ends"]["error"]


CASES: dict[str, dict[str, Any]] = {
    "graphs": {"use_cuda_graphs": True},
    "graphs, scheduled ahead": {"use_cuda_graphs": True, "use_async_scheduling": True},
    "batch_invariant": {"use_cuda_graphs": True, "batch_invariant": True},
    "contiguous, static": {"use_cuda_graphs": True, "batching_mode": "static"},
}
SMALL = {"dtype": "float32", "max_batch_size": 3, "max_num_batched_tokens": 12}


@pytest.mark.parametrize(
    "family", [pytest.param("gemma3"), *(pytest.param(name, marks=pytest.mark.full) for name in ("llama", "qwen3"))]
)
def test_requests_get_the_same_tokens_with_captured_steps_and_without(
    folder_of: Callable[[str], Path], family: str
) -> None:
    cases = CASES if family != "gemma3" else {name: CASES[name] for name in ("graphs, scheduled ahead",)}
    configs = [{"use_cuda_graphs": False}, *cases.values()]
    arguments = [each for config in configs for each in (str(folder_of(family)), json.dumps(SMALL | config))]
    plain, *others = run_interpreted("interpreted", *arguments)
    assert plain["cuda_graphs"] is None
    for case, found in zip(cases, others, strict=True):
        assert re.fullmatch(r"([45]) steps are captured as CUDA graphs: \1 gave equal bits", found["cuda_graphs"]), case
        assert found["tokens"] == plain["tokens"], case


def test_shapes_are_the_least_that_hold_a_batch() -> None:
    shapes = PaddedShapes(max_seqs=256, max_tokens=8448)
    assert [shape.num_tokens for shape in shapes if shape.is_decode_only][::-1] == [
        *(1, 2, 4),
        *range(8, 65, 8),
        *range(80, 129, 16),
        *range(160, 257, 32),
    ]
    assert shapes.least(3, 3, is_decode_only=True) == BatchShape(4, 4, is_decode_only=True)
    assert shapes.least(129, 129, is_decode_only=True) == BatchShape(160, 160, is_decode_only=True)
    assert shapes.least(17, 2, is_decode_only=False) == BatchShape(32, 32, is_decode_only=False)
    assert shapes.least(MAX_CAPTURED_TOKENS, 256, is_decode_only=False) == BatchShape(
        MAX_CAPTURED_TOKENS, 256, is_decode_only=False
    )


@pytest.mark.parametrize(("max_seqs", "max_tokens"), [(1, 1), (1, 600), (3, 12), (24, 124), (300, 9000)])
def test_every_batch_of_decodes_has_a_shape_and_no_shape_is_larger_than_a_step(max_seqs: int, max_tokens: int) -> None:
    shapes = PaddedShapes(max_seqs=max_seqs, max_tokens=max_tokens)
    for count in range(1, max_seqs + 1):
        shape = shapes.least(count, count, is_decode_only=True)
        assert shape is not None
        assert shape.num_tokens >= count
    assert all(shape.num_seqs <= max_seqs for shape in shapes)
    assert all(shape.num_tokens <= max(max_seqs, max_tokens) for shape in shapes)
    sizes = list(shapes)
    assert len(sizes) == len(shapes) == len(set(sizes))


def test_a_batch_that_no_shape_holds_is_not_padded() -> None:
    shapes = PaddedShapes(max_seqs=4, max_tokens=9000)
    assert shapes.least(MAX_CAPTURED_TOKENS + 1, 2, is_decode_only=False) is None
    assert shapes.least(5, 5, is_decode_only=True) is None


@pytest.mark.parametrize(("num_rows", "different", "alike"), [(8, 1, True), (8, 2, False), (7, 1, False), (1, 0, True)])
def test_a_few_drawn_tokens_may_differ_by_rounding(num_rows: int, different: int, *, alike: bool) -> None:
    expected = torch.arange(2 * num_rows).view(2, num_rows)
    found = expected.clone()
    found[1, :different] += 1
    assert are_drawn_alike(expected, found) is alike
