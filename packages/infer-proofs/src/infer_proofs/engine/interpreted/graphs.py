"""Captures a model's steps where Triton's kernels are interpreted, and lets captures go wrong. Judges nothing.

    TRITON_INTERPRET=1 python -m infer_proofs.engine.interpreted.graphs CHECKPOINT [SABOTAGE ...]

Prints a line of JSON for each sabotage: what came of capturing. `nothing` is none.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from infer_cache import KVPool
from infer_engine.model_runner.graph_runner import DeviceSteps, allocate_device_steps
from infer_engine.model_runner.graphs import gpu_graphs
from infer_engine.model_runner.graphs.gpu_graphs import GPUGraphs
from infer_engine.model_runner.graphs.graph_capture import Replay
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.inputs.forward_batch import STATES, BatchShape, DeviceInputs
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.model_runner.loading.rank_loading import load_rank
from infer_engine.protocol import EngineConfig
from infer_engine.sampling.draw_buffers import DrawBuffers
from infer_kernels import AttentionBuffers, Largest
from infer_models import CausalLM
from infer_proofs.engine.interpreted.engine import compute_as_a_gpu
from infer_proofs.engine.recorded_steps import RecordingCapture

MAX_SEQ_LEN, MAX_BATCH_SIZE = 300, 2
SIZES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "long sequences are cut": (1200, 1),
        "depends on its last replay": (MAX_SEQ_LEN, 1),
        "reads what it left": (MAX_SEQ_LEN, 1),
        "replays late": (MAX_SEQ_LEN, 1),
        "results are not finite": (MAX_SEQ_LEN, 1),
    }
)
"""By sabotage, the longest sequence and the most sequences, where they are not those above."""
NUM_BLOCKS = 40

AS_A_RANK = ", as a rank"
"""Ends the name of a sabotage of one of several ranks."""
OF_ANOTHER_RANK = {"refused by another rank": "another rank refuses it"}
"""What another rank says, by sabotage."""

Sabotage = Callable[[DeviceSteps, KVPool], None]
"""Does something wrong inside a capture, after everything else."""


def wrong_inputs(change: Callable[[DeviceInputs], DeviceInputs], *, is_recorded: bool = False) -> Callable[[], object]:
    """Return what patches the inputs that a capture reads; `change` may keep old ones, or be a part of the capture."""
    true_inputs = InputBuffers.inputs

    def inputs(self: InputBuffers, shape: BatchShape) -> DeviceInputs:
        if is_recorded:
            return change(true_inputs(self, shape))
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


def _with_old_state(name: str) -> Callable[[], object]:
    """Let captures read a copy of one tensor of the slots of states, as it is when they are captured."""

    def change(inputs: DeviceInputs) -> DeviceInputs:
        assert inputs.row_starts is not None
        tensors = dict(
            zip(("query_start", "read", "write"), (inputs.row_starts, *inputs.row_parts[STATES]), strict=True)
        )
        starts, *slots = (each.clone() if each is tensors[name] else each for each in tensors.values())
        return replace(inputs, row_starts=starts, row_parts={**inputs.row_parts, STATES: tuple(slots)})

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


def _change_hidden(change: Callable[[Tensor], Tensor]) -> object:
    """Let captures compute other hidden states."""
    true_hidden = CausalLM.hidden_states

    def hidden_states(self: CausalLM, *arguments: Any) -> Tensor:
        return change(true_hidden(self, *arguments))

    return patch.object(CausalLM, "hidden_states", hidden_states)


def _add_nothing_of_the_last(hidden: Tensor) -> Tensor:
    """Add what the last replay has left, times 0."""
    with torch._C._DisableTorchDispatch():  # noqa: SLF001 - as above
        left = torch.zeros_like(hidden)
    hidden = hidden + left * 0
    left.copy_(hidden)
    return hidden


def _need_the_last(hidden: Tensor) -> Tensor:
    """Compute something else, unless the last replay was of the same capture."""
    own = float(next(_captures))
    hidden = hidden + (_last_capture - own)
    _last_capture.fill_(own)
    return hidden


_captures = itertools.count()
_last_capture = torch.zeros(1)


def _cut(inputs: DeviceInputs) -> DeviceInputs:
    """Compute the first 1,024 tokens of a sequence alone."""
    assert inputs.metadata is not None
    return replace(
        inputs, metadata=tuple(replace(each, seq_lens=each.seq_lens.clamp(max=1024)) for each in inputs.metadata)
    )


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
        "old states are read": _with_old_state("read"),
        "old states are written": _with_old_state("write"),
        "old rows of states": _with_old_state("query_start"),
        "old hidden states": _choose_from_old_hidden,
        "old parameters of draws": _draw_by_old_parameters,
        "long sequences are cut": wrong_inputs(_cut, is_recorded=True),
        "depends on its last replay": lambda: _change_hidden(_need_the_last),
        "reads what it left": lambda: _change_hidden(_add_nothing_of_the_last),
        "results are not finite": lambda: patch.object(InputBuffers, "inputs", InputBuffers.inputs),
        "semaphores are not reset": lambda: patch.object(AttentionBuffers, "zero_semaphores", lambda _: None),
    }
)


class SabotagedCapture(RecordingCapture):
    """Records steps while something is wrong, or finds that they never end."""

    sabotage = "nothing"
    late: list[Replay] = []  # noqa: RUF012 - of all captures of the process
    pool: KVPool

    def capture(self, compute: Callable[[], None]) -> Replay:
        """Record `compute`."""
        match self.sabotage:
            case "reads from the device":
                return super().capture(lambda: _both(compute, torch.zeros(1).item))
            case "writes elsewhere":
                return super().capture(lambda: _both(compute, SabotagedCapture.pool.key_cache(0)[0].zero_))
            case "replays late":
                replay = super().capture(compute)
                return lambda: self.late.append(replay)
            case "never ends":
                return super().capture(compute)
            case name:
                with SABOTAGES[name]():  # type: ignore[attr-defined]  # patches are context managers
                    return super().capture(compute)

    def wait(self, timeout_s: float) -> bool:
        """Return whether a replay ended."""
        while self.late:
            self.late.pop(0)()
        return super().wait(timeout_s) and self.sabotage != "never ends"


def _both(compute: Callable[[], None], wrong: Callable[[], object]) -> None:
    compute()
    wrong()


@contextmanager
def sabotaged(name: str, pool: KVPool) -> Iterator[None]:
    """Let captures of this process go wrong."""
    SabotagedCapture.sabotage, SabotagedCapture.pool = name, pool
    with patch.dict(gpu_graphs.GRAPH_CAPTURES, {"cpu": SabotagedCapture}):
        yield


@contextmanager
def agreeing(other: str | None) -> Iterator[None]:
    """Let another rank refuse for the reason `other`, or take whatever this one does."""

    def agree(refusal: str | None, *, device: torch.device) -> str | None:
        del device
        return refusal or other

    with patch.object(gpu_graphs, "agree", agree):
        yield


def capture(folder: Path, sabotage: str) -> dict[str, object]:
    """Return what came of capturing a model's steps."""
    max_seq_len, max_batch_size = SIZES.get(sabotage, (MAX_SEQ_LEN, MAX_BATCH_SIZE))
    config = EngineConfig(
        dtype="float32",
        max_seq_len=max_seq_len,
        max_batch_size=max_batch_size,
        max_num_batched_tokens=12,
        prefill_chunk_size=8,
        block_size=64,
    )
    loaded = load_rank(config, folder, device=torch.device("cpu"))
    if sabotage == "results are not finite":
        norm = loaded.rank_model.model.get_submodule("model.norm")
        norm.get_parameter("weight")[0] = torch.inf
    pool = loaded.allocate_pool([NUM_BLOCKS] * len(loaded.groups.windows))
    states = loaded.allocate_state_pool(2 * max_batch_size + 1)
    steps = allocate_device_steps(loaded)
    if sabotage.endswith(AS_A_RANK) or sabotage in OF_ANOTHER_RANK:
        shapes = PaddedShapes(max_seqs=max_batch_size, max_tokens=loaded.max_step_tokens)
        model, device = loaded.rank_model.model, loaded.rank_model.device
        of_rank = GPUGraphs(model, steps.input_buffers, shapes, device=device, has_ranks=True)
        steps = replace(steps, graphs=of_rank)
    assert steps.graphs is not None
    own = "nothing" if sabotage in OF_ANOTHER_RANK else sabotage.removesuffix(AS_A_RANK)
    with sabotaged(own, pool), agreeing(OF_ANOTHER_RANK.get(sabotage)):
        try:
            graphs, report = steps.graphs.capture(
                steps.views(pool, states),
                pool,
                windows=loaded.groups.windows,
                max_batch_size=max_batch_size,
                max_seq_len=max_seq_len,
                vocab_size=loaded.model_config.vocab_size,
                state_pool=states,
            )
        except ValueError as error:
            return {"sabotage": sabotage, "error": str(error)}
    return {
        "sabotage": sabotage,
        "num_captured": report.num_captured,
        "num_exact": report.num_exact,
        "refusal": report.refusal,
        "num_used": len(graphs.shapes),
        "has_choices": graphs.has_choices,
        "pool_is_zero": not any(bool(pool.key_cache(layer).any()) for layer in pool.layers),
    }


def main() -> None:
    """Capture and print."""
    torch.set_num_threads(1)
    compute_as_a_gpu()
    for sabotage in sys.argv[2:]:
        print(json.dumps(capture(Path(sys.argv[1]), sabotage)), flush=True)


if __name__ == "__main__":
    main()
