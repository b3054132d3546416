"""Captures a model's steps where Triton's kernels are interpreted, and lets captures go wrong. Judges nothing.

    TRITON_INTERPRET=1 python -m infer_engine.testing.interpreted_graphs CHECKPOINT [SABOTAGE ...]

Prints a line of JSON for each sabotage: what came of capturing. `nothing` is none.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from unittest.mock import patch

import torch
from torch import Tensor

from infer_cache import KVPool
from infer_engine.model_runner.device_steps import DeviceSteps, allocate_device_steps
from infer_engine.model_runner.forward_batch import BatchShape, DeviceInputs
from infer_engine.model_runner.graphs import gpu_graphs
from infer_engine.model_runner.graphs.graph_capture import Replay
from infer_engine.model_runner.input_buffers import InputBuffers
from infer_engine.model_runner.rank_loading import load_rank
from infer_engine.protocol import EngineConfig
from infer_engine.sampling.draw_buffers import DrawBuffers
from infer_engine.testing.interpreted import compute_as_a_gpu
from infer_engine.testing.recorded_steps import RecordingCapture
from infer_kernels import AttentionBuffers, Largest
from infer_models import CausalLM

MAX_SEQ_LEN = 520
MAX_BATCH_SIZE = 4
CONFIG = EngineConfig(
    dtype="float32",
    max_seq_len=MAX_SEQ_LEN,
    max_batch_size=MAX_BATCH_SIZE,
    max_num_batched_tokens=12,
    prefill_chunk_size=8,
    block_size=64,
)
NUM_BLOCKS = 40

Sabotage = Callable[[DeviceSteps, KVPool], None]
"""Does something wrong inside a capture, after everything else."""


def wrong_inputs(change: Callable[[DeviceInputs], DeviceInputs]) -> Callable[[], object]:
    """Return what patches the inputs that a capture reads; `change` may keep old ones."""
    true_inputs = InputBuffers.inputs

    def inputs(self: InputBuffers, shape: BatchShape) -> DeviceInputs:
        with torch._C._DisableTorchDispatch():  # noqa: SLF001 - what is kept is no part of the capture
            return change(true_inputs(self, shape))

    return lambda: patch.object(InputBuffers, "inputs", inputs)


def _with_old(name: str) -> Callable[[], object]:
    """Let captures read a copy of one tensor of the sequences, as it is when they are captured."""

    def change(inputs: DeviceInputs) -> DeviceInputs:
        assert inputs.metadata is not None
        old: dict[str, Tensor] = {name: getattr(inputs.metadata[0], name).clone()}
        return replace(inputs, metadata=tuple(replace(each, **old) for each in inputs.metadata))

    return wrong_inputs(change)


def _draw_by_old_parameters() -> object:
    """Let captures draw by copies of the parameters, as they are when they are captured."""
    true_columns = DrawBuffers.columns

    def columns(self: DrawBuffers, num_rows: int) -> dict[str, Tensor]:
        with torch._C._DisableTorchDispatch():  # noqa: SLF001 - as above
            return {name: column.clone() for name, column in true_columns(self, num_rows).items()}

    return patch.object(DrawBuffers, "columns", columns)


def _choose_from_old_hidden() -> object:
    """Let captures choose tokens from a copy of the hidden states, as they are when they are captured."""
    true_choice = CausalLM.most_probable

    def choose(self: CausalLM, hidden: Tensor, *, vocab_size: int) -> Largest:
        with torch._C._DisableTorchDispatch():  # noqa: SLF001 - as above
            hidden = hidden.clone()
        return true_choice(self, hidden, vocab_size=vocab_size)

    return patch.object(CausalLM, "most_probable", choose)


SABOTAGES: Mapping[str, Callable[[], object]] = MappingProxyType(
    {
        "nothing": lambda: patch.object(InputBuffers, "inputs", InputBuffers.inputs),
        "old token ids": wrong_inputs(lambda inputs: replace(inputs, input_ids=inputs.input_ids.clone())),
        "old positions": wrong_inputs(lambda inputs: replace(inputs, position_ids=inputs.position_ids.clone())),
        "old slots": wrong_inputs(lambda inputs: replace(inputs, slots=tuple(each.clone() for each in inputs.slots))),
        "old lengths": _with_old("seq_lens"),
        "old query starts": _with_old("query_start"),
        "old rows": _with_old("block_rows"),
        "old block table": _with_old("block_table"),
        "old hidden states": _choose_from_old_hidden,
        "old parameters of draws": _draw_by_old_parameters,
        "semaphores are not reset": lambda: patch.object(AttentionBuffers, "zero_semaphores", lambda _: None),
    }
)


class SabotagedCapture(RecordingCapture):
    """Records steps while something is wrong, or finds that they never end."""

    sabotage = "nothing"

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Record `compute`."""
        match self.sabotage:
            case "reads from the device":
                return super().capture(lambda: _both(compute, torch.zeros(1).item))
            case "writes elsewhere":
                return super().capture(lambda: _both(compute, SabotagedCapture.pool.key_cache(0)[0].zero_))
            case "never ends":
                return super().capture(compute)
            case name:
                with SABOTAGES[name]():  # type: ignore[attr-defined]  # patches are context managers
                    return super().capture(compute)

    def wait(self, timeout_s: float) -> bool:
        """Return whether a replay ended."""
        return super().wait(timeout_s) and self.sabotage != "never ends"

    pool: KVPool


def _both(compute: Callable[[], None], wrong: Callable[[], object]) -> None:
    compute()
    wrong()


@contextmanager
def sabotaged(name: str, pool: KVPool) -> Iterator[None]:
    """Let captures of this process go wrong."""
    SabotagedCapture.sabotage, SabotagedCapture.pool = name, pool
    with patch.dict(gpu_graphs.GRAPH_CAPTURES, {"cpu": SabotagedCapture}):
        yield


def capture(folder: Path, sabotage: str) -> dict[str, object]:
    """Return what came of capturing a model's steps."""
    loaded = load_rank(CONFIG, folder, device=torch.device("cpu"))
    pool = loaded.allocate_pool([NUM_BLOCKS] * len(loaded.groups.windows))
    steps = allocate_device_steps(loaded)
    assert steps.graphs is not None
    with sabotaged(sabotage, pool):
        try:
            graphs, report = steps.graphs.capture(
                steps.views(pool),
                pool,
                windows=loaded.groups.windows,
                max_batch_size=MAX_BATCH_SIZE,
                max_seq_len=MAX_SEQ_LEN,
                vocab_size=loaded.model_config.vocab_size,
            )
        except ValueError as error:
            return {"sabotage": sabotage, "error": str(error)}
    return {
        "sabotage": sabotage,
        "num_captured": report.num_captured,
        "num_exact": report.num_exact,
        "refusal": report.refusal,
        "num_used": len(graphs.shapes),
        "pool_is_zero": not any(bool(pool.key_cache(layer).any()) for layer in range(pool.num_layers)),
    }


def main() -> None:
    """Capture and print."""
    torch.set_num_threads(1)
    compute_as_a_gpu()
    for sabotage in sys.argv[2:]:
        print(json.dumps(capture(Path(sys.argv[1]), sabotage)), flush=True)


if __name__ == "__main__":
    main()
