"""What a captured step launches does not depend on the batch, and the host reads nothing of the device meanwhile.

The real launch code runs over a mock driver, for sm_90.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from infer_cache import KVPool
from infer_engine.model_runner.graph_runner import DeviceSteps, allocate_device_steps
from infer_engine.model_runner.graphs import gpu_graphs
from infer_engine.model_runner.graphs.checks.dummy_batches import DummyBatches
from infer_engine.model_runner.graphs.cuda_graphs import CUDAGraphs
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.inputs.forward_batch import BatchShape
from infer_engine.model_runner.loading.rank_loading import LoadedRank, load_rank
from infer_engine.protocol import EngineConfig
from infer_proofs.engine.models import save_servable
from infer_proofs.engine.recorded_steps import REFUSED, RecordingCapture
from infer_proofs.kernels.compiled.ahead_of_time import Launch, LaunchLog, compile_only

MAX_BATCH_SIZE, MAX_SEQ_LEN = 6, 300
DECODES, MIXED = BatchShape(6, 6, is_decode_only=True), BatchShape(16, 6, is_decode_only=False)


class OnlyQueued(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Refuses operators by which the host would wait for the device, and counts the others that compute something."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        del types
        assert func not in REFUSED, f"{func} {REFUSED[func]}"
        if not func.is_view and "empty" not in func.__name__:
            self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


@dataclass
class Captured:
    """A model's steps, as an engine on a GPU has them."""

    loaded: LoadedRank
    pool: KVPool
    steps: DeviceSteps
    graphs: CUDAGraphs
    batches: DummyBatches
    log: LaunchLog

    def launches(self, shape: BatchShape, *, variant: int) -> tuple[list[Launch], list[str]]:
        """Return the kernels and the operators that a step of a batch of this shape launches."""
        filled = self.batches.fill(shape, variant=variant)
        assert filled is not None
        assert self.steps.input_buffers.build(*filled).shape == shape
        del self.log.launches[:]
        with OnlyQueued() as operators:
            self.graphs.compute(shape)
            if shape.is_decode_only:
                self.graphs.choose(shape)
        return list(self.log.launches), operators.names

    def fixed_memory(self) -> list[Tensor]:
        """Return the memory that stays where it is."""
        inputs = [self.steps.input_buffers.inputs(shape) for shape in (DECODES, MIXED)]
        metadata = [each for of_shape in inputs for each in of_shape.metadata or ()]
        layers = range(self.pool.num_layers)
        return [
            *self.loaded.rank_model.model.parameters(),
            *self.loaded.rank_model.model.buffers(),
            *(cache(layer) for layer in layers for cache in (self.pool.key_cache, self.pool.value_cache)),
            *(tensor for each in inputs for tensor in (each.input_ids, each.position_ids, *each.slots)),
            *(tensor for each in metadata for tensor in (each.query_start, each.seq_lens, each.is_prefill)),
            *(tensor for each in metadata for tensor in (each.block_rows, each.block_table)),
        ]


@contextmanager
def captured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Captured]:
    monkeypatch.setitem(gpu_graphs.GRAPH_CAPTURES, "cpu", RecordingCapture)
    config = EngineConfig(
        max_seq_len=MAX_SEQ_LEN, max_batch_size=MAX_BATCH_SIZE, max_num_batched_tokens=12, prefill_chunk_size=12
    )
    with compile_only(90) as log:
        loaded = load_rank(config, folder, device=torch.device("cpu"))
        pool = loaded.allocate_pool([64] * len(loaded.groups.windows))
        steps = allocate_device_steps(loaded)
        assert steps.graphs is not None
        graphs = steps.graphs.over(steps.views(pool), RecordingCapture(), vocab_size=loaded.model_config.vocab_size)
        batches = DummyBatches(
            pool,
            PaddedShapes(max_seqs=MAX_BATCH_SIZE, max_tokens=loaded.max_step_tokens),
            windows=loaded.groups.windows,
            max_rows=MAX_BATCH_SIZE,
            max_seq_len=MAX_SEQ_LEN,
            vocab_size=loaded.model_config.vocab_size,
        )
        yield Captured(loaded, pool, steps, graphs, batches, log)


PARTIAL_ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
OTHERS = ("ministral3", "phi3", "granite", "olmo3", "qwen3_moe")
FIELDS: dict[str, dict[str, Any]] = {"phi3": {"rope_parameters": PARTIAL_ROTARY}}


@pytest.mark.parametrize(
    "family",
    [
        *("gemma3", "llama", "qwen3", "gpt_oss"),
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("ministral3", "phi3", "granite", "olmo3", "qwen3_moe")
        ),
    ],
)
@pytest.mark.parametrize("shape", [DECODES, MIXED], ids=["decodes", "mixed"])
def test_two_batches_of_a_shape_launch_the_same_kernels_on_the_same_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, shape: BatchShape
) -> None:
    fields = {"head_dim": 64, "max_position_embeddings": 512} | FIELDS.get(family, {})
    save_servable(family, tmp_path, dtype=torch.bfloat16, **fields)
    with captured(tmp_path, monkeypatch) as step:
        (first, operators), (second, others) = (step.launches(shape, variant=variant) for variant in range(2))
        fixed = {tensor.data_ptr() for tensor in step.fixed_memory()}
    assert operators == others
    assert len(first) > 10
    assert (first[-1].name == "_join_largest_kernel") == shape.is_decode_only
    assert [(launch.name, launch.grid) for launch in first] == [(launch.name, launch.grid) for launch in second]
    num_fixed = 0
    for one, other in zip(first, second, strict=True):
        for name, value in one.arguments.items():
            is_address = isinstance(value, int) and value > 2**32
            if not is_address or value in fixed:
                assert other.arguments[name] == value, (one.name, name)
            num_fixed += value in fixed
    assert num_fixed > len(first)
