"""The memory of captured steps is measured at the start, over whatever the step before has left in the buffers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.model_runner.graphs.gpu_graphs import estimate_bytes
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.inputs.forward_batch import BatchShape
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.model_runner.loading.dummy_requests import dummy_request
from infer_engine.model_runner.loading.memory_profile import run_largest_step
from infer_engine.request import StepRow
from infer_engine.scheduling import Schedule
from infer_engine.step_runner import ComputedPass, SampledTokens
from infer_proofs.engine.interpreted.engine import run_interpreted
from infer_proofs.engine.models import save_servable

MIB = 1 << 20


@pytest.mark.parametrize(
    ("family", "num_tokens"),
    [("gemma3", 20), pytest.param("llama", 600, marks=pytest.mark.full)],
)
def test_measuring_computes_nothing_of_what_another_step_has_left(tmp_path: Path, family: str, num_tokens: int) -> None:
    sizes: dict[str, Any] = {"max_position_embeddings": 600, "num_hidden_layers": 2}
    if family == "gemma3":
        sizes["layer_types"] = ["sliding_attention", "full_attention"]
    save_servable(family, tmp_path, **sizes)
    [found] = run_interpreted("measuring", str(tmp_path), "2", str(num_tokens))
    assert found["num_groups"] == (2 if family == "gemma3" else 1)
    assert found["pool_is_zero"]
    assert found["bytes"] > 0


class StagingRunner:
    """Stages the inputs of steps, and computes nothing. Implements `StepRunner`."""

    def __init__(self, input_buffers: InputBuffers) -> None:
        self._input_buffers = input_buffers

    def forward(self, schedule: Schedule) -> ComputedPass:
        self._input_buffers.build(schedule.items, schedule.table_edits)
        return ComputedPass(logits=lambda: None)

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        del computed, rows
        return SampledTokens.known([])

    def probe(self) -> None: ...


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize(
    ("max_seqs", "max_tokens"),
    [(256, 8192), (256, 2048), (256, 1536), (256, 1024), (64, 1024), (256, 512), (16, 512), (1024, 2048), (4, 600)],
)
def test_idle_batch_of_any_shape_names_no_memory_after_the_largest_step(
    max_seqs: int, max_tokens: int, num_groups: int
) -> None:
    shapes = PaddedShapes(max_seqs=max_seqs, max_tokens=max_tokens)
    buffers = InputBuffers(
        max_tokens=max_tokens,
        max_seqs=max_seqs,
        max_seq_len=4096,
        block_size=64,
        num_groups=num_groups,
        device=torch.device("cpu"),
        has_metadata=True,
        padded_shapes=shapes,
    )
    for shape in shapes:
        run_largest_step(StagingRunner(buffers), max_tokens=max_tokens, max_batch_size=max_seqs, max_seq_len=4096)
        buffers.stage_idle(shape)
        inputs = buffers.inputs(shape)
        assert inputs.metadata is not None
        assert not inputs.input_ids.any()
        assert not inputs.position_ids.any()
        assert all(bool((slots == -1).all()) for slots in inputs.slots)
        for metadata in inputs.metadata:
            assert not metadata.seq_lens.any()
            assert not metadata.block_rows.any()
            starts = metadata.query_start.tolist()
            assert starts == (list(range(shape.num_seqs + 1)) if shape.is_decode_only else [0] * (shape.num_seqs + 1))


def test_the_same_decodes_are_staged_whole_after_an_idle_batch() -> None:
    shapes = PaddedShapes(max_seqs=2, max_tokens=16)
    buffers = InputBuffers(
        max_tokens=16,
        max_seqs=2,
        max_seq_len=16,
        block_size=4,
        num_groups=1,
        device=torch.device("cpu"),
        has_metadata=True,
        padded_shapes=shapes,
    )
    requests = [dummy_request([1, 2], [3], num_computed=2, row=row) for row in (1, 0)]

    def staged() -> list[list[int]]:
        batch = buffers.build([(request, 1) for request in requests], [])
        assert batch.metadata is not None
        of_first_group = batch.metadata[0]
        return [of_first_group.seq_lens.tolist(), of_first_group.block_rows.tolist(), batch.slots[0].tolist()]

    first = staged()
    buffers.stage_idle(BatchShape(2, 2, is_decode_only=True))
    assert staged() == first == [[3, 3], [1, 0], [2, 2]]


class Driver:
    """Memory as a driver gives it to captures, 2 MiB at once: all share what they compute, and each is described."""

    def __init__(self, *, bytes_per_row: int, bytes_per_description: int) -> None:
        self._bytes_per_row = bytes_per_row
        self._bytes_per_description = bytes_per_description
        self._most_rows = self._num_captured = 0

    def taken(self) -> int:
        computed = self._most_rows * self._bytes_per_row
        described = self._num_captured * self._bytes_per_description
        return sum(-(-each // (2 * MIB)) * 2 * MIB for each in (computed, described))

    def capture(self, shapes: Sequence[BatchShape]) -> int:
        before = self.taken()
        self._most_rows = max(self._most_rows, *(shape.num_tokens for shape in shapes))
        self._num_captured += len(shapes)
        return self.taken() - before


# vllm-project/vllm#57475: captures of what was not measured run out of memory; #45178 and #53013: what captures share,
# counted for each of them, left no memory for the KV cache.
@pytest.mark.parametrize("max_seqs", [1, 2, 5, 64, 256])
@pytest.mark.parametrize("bytes_per_description", [200_000, MIB, 3 * MIB])
def test_all_captures_take_about_what_a_few_say(max_seqs: int, bytes_per_description: int) -> None:
    shapes = list(PaddedShapes(max_seqs=max_seqs, max_tokens=8192))
    sizes = {"bytes_per_row": 300_000, "bytes_per_description": bytes_per_description}
    whole = Driver(**sizes).capture(shapes)
    estimate = estimate_bytes(shapes, Driver(**sizes).capture)
    described = len(shapes) * bytes_per_description
    assert whole - 2 * MIB - described // 2 <= estimate <= whole + 4 * MIB + described // 2
