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

from infer_engine.model_runner.graphs.padded_shapes import MAX_CAPTURED_TOKENS, PaddedShapes
from infer_engine.model_runner.graphs.prompt_tokens import LayerWeights, most_captured_tokens
from infer_engine.model_runner.inputs.forward_batch import BatchShape
from infer_kernels.gpu import Gpu
from infer_proofs.engine.interpreted.engine import run_interpreted
from infer_proofs.engine.models import save_servable

QUICK = ["nothing", "old lengths", "old hidden states", "reads from the device", "never ends"]
OTHERS = ["old token ids", "old positions", "old slots", "old query starts", "old rows", "old block table"]
OTHERS += ["old parameters of draws", "semaphores are not reset", "writes elsewhere"]
AMONG_OTHERS = ["depends on its last replay", "reads what it left", "replays late", "long sequences are cut"]
NOT_FINITE = "results are not finite"


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], dict[str, dict[str, Any]]]:
    """Return a function that says what came of capturing with something wrong, by what was."""
    folder = tmp_path_factory.mktemp("long")
    save_servable("llama", folder, max_position_embeddings=1300)

    @cache
    def captured(sabotages: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        return {each["sabotage"]: each for each in run_interpreted("graphs", str(folder), *sabotages)}

    return captured


def test_sound_captures_are_used_and_leave_the_cache_as_it_was(captured: Callable[..., Any]) -> None:
    found = captured(tuple(QUICK))["nothing"]
    assert found["refusal"] is None
    assert found["num_captured"] == found["num_exact"] == found["num_used"] == 3
    assert found["pool_is_zero"]


@pytest.mark.covers("configuration/use-cuda-graphs")
@pytest.mark.parametrize("sabotage", [*QUICK[1:-1], *(pytest.param(each, marks=pytest.mark.full) for each in OTHERS)])
def test_a_capture_with_something_wrong_is_refused_and_none_is_used(
    captured: Callable[..., Any], sabotage: str
) -> None:
    found = captured(tuple(QUICK if sabotage in QUICK else OTHERS))[sabotage]
    assert found["refusal"], found
    assert found["num_captured"] == found["num_used"] == 0
    assert found["pool_is_zero"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("sabotage", "refusal"),
    [
        ("depends on its last replay", "computed something else after one of"),
        ("reads what it left", "computed something else"),
        ("replays late", "without a wait choose other tokens"),
        ("long sequences are cut", "computed something else"),
    ],
)
def test_a_capture_that_is_wrong_only_among_others_is_refused(
    captured: Callable[..., Any], sabotage: str, refusal: str
) -> None:
    found = captured((*AMONG_OTHERS, NOT_FINITE))[sabotage]
    assert refusal in found["refusal"]
    assert found["num_captured"] == found["num_used"] == 0


@pytest.mark.full
def test_captures_are_used_where_the_steps_themselves_are_not_finite(captured: Callable[..., Any]) -> None:
    found = captured((*AMONG_OTHERS, NOT_FINITE))[NOT_FINITE]
    assert found["refusal"] is None
    assert found["num_captured"] == found["num_exact"] == 2


def test_a_replay_that_never_ends_ends_the_start_with_the_way_out(captured: Callable[..., Any]) -> None:
    assert "`use_cuda_graphs=False`" in captured(tuple(QUICK))["never ends"]["error"]


@pytest.mark.full
def test_captures_of_a_model_with_states_are_proved_and_give_its_tokens(tmp_path: Path) -> None:
    save_servable("lfm2", tmp_path, num_hidden_layers=2, layer_types=["conv", "full_attention"])
    wrong = ("old states are read", "old states are written", "old rows of states")
    sound, *others = run_interpreted("graphs", str(tmp_path), "nothing", *wrong)
    assert (sound["refusal"], sound["num_captured"], sound["num_exact"]) == (None, 3, 3)
    assert all("computed something else" in found["refusal"] for found in others), others
    configs = [SMALL | {"use_cuda_graphs": False}, SMALL | {"use_cuda_graphs": True, "use_async_scheduling": True}]
    plain, captured = run_interpreted(
        "engine", *(each for config in configs for each in (str(tmp_path), json.dumps(config)))
    )
    assert (plain["cuda_graphs"], plain["tokens"]) == (None, captured["tokens"])
    assert re.fullmatch(r"([45]) steps are captured as CUDA graphs: \1 gave equal bits", captured["cuda_graphs"])


CASES: dict[str, list[dict[str, Any]]] = {
    "gemma3": [{"use_async_scheduling": True}],
    "llama": [{}, {"batch_invariant": True}],
    "qwen3": [{"batching_mode": "static"}],
}
"""By family, configurations of engines that replay captured steps; each takes half a minute to interpret."""
SMALL = {"dtype": "float32", "max_batch_size": 3, "max_num_batched_tokens": 12}


@pytest.mark.covers("configuration/use-cuda-graphs")
@pytest.mark.parametrize(
    "family", ["gemma3", *(pytest.param(name, marks=pytest.mark.full) for name in ("llama", "qwen3"))]
)
def test_requests_get_the_same_tokens_with_captured_steps_and_without(
    shallow_folder_of: Callable[[str], Path], family: str
) -> None:
    configs = [{"use_cuda_graphs": False}, *({"use_cuda_graphs": True} | case for case in CASES[family])]
    arguments = [each for config in configs for each in (str(shallow_folder_of(family)), json.dumps(SMALL | config))]
    plain, *others = run_interpreted("engine", *arguments)
    assert plain["cuda_graphs"] is None
    for case, found in zip(CASES[family], others, strict=True):
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


MODELS = {  # weights of the layers, and layers
    "Qwen3-0.6B": (0.44e9, 28),
    "Gemma-3-1B": (0.70e9, 26),
    "Llama-3.2-1B": (0.97e9, 16),
    "Qwen3-1.7B": (1.41e9, 28),
    "Llama-3.2-3B": (2.82e9, 28),
    "Llama-3.1-8B": (7.5e9, 32),
}


@pytest.mark.covers("configuration/prefill-beside-decodes-gpu")
@pytest.mark.parametrize(
    ("gpu", "most"),
    [
        (Gpu((9, 0), 132), [2304, 2304, 1024, 1024, 512, 512]),  # H100
        (Gpu((8, 0), 108), [1024, 512, 512, 512, 512, 512]),  # A100
        (Gpu((8, 9), 128), [512] * 6),  # 4090
        (Gpu((10, 0), 148), [2304, 2304, 2304, 2304, 1024, 512]),  # B200
        (Gpu((13, 7), 100), [512] * 6),
    ],
)
def test_larger_steps_with_prompts_are_captured_where_the_device_is_faster_than_the_host(
    gpu: Gpu, most: list[int]
) -> None:
    found = [
        most_captured_tokens(LayerWeights(num_layers=layers, of_a_token=int(weights), num_bytes=2 * int(weights)), gpu)
        for weights, layers in MODELS.values()
    ]
    assert found == most


def test_a_small_model_has_shapes_for_a_whole_chunk_and_decodes_beside_it() -> None:
    shapes = PaddedShapes(max_seqs=256, max_tokens=8448, max_prompt_tokens=2304)
    assert len(shapes) == len(PaddedShapes(max_seqs=256, max_tokens=8448)) + 3
    for num_tokens, padded in ((513, 1024), (1025, 2048), (2049, 2304), (2048 + 256, 2304)):
        assert shapes.least(num_tokens, 256, is_decode_only=False) == BatchShape(padded, 256, is_decode_only=False)
    assert max(PaddedShapes(max_seqs=4, max_tokens=600, max_prompt_tokens=2304)).num_tokens == 600


def test_a_batch_that_no_shape_holds_is_not_padded() -> None:
    shapes = PaddedShapes(max_seqs=4, max_tokens=9000)
    assert shapes.least(MAX_CAPTURED_TOKENS + 1, 2, is_decode_only=False) is None
    assert shapes.least(5, 5, is_decode_only=True) is None
