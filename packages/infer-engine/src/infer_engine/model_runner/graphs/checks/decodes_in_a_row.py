"""Decodes the same sequences for some steps by captured ones, as an engine does that schedules ahead, or with waits.

host      stage 1, launch │ stage 2, launch │ stage 3, launch │ ...        the ids of step 2 are those that step 1
device    ──── 1 ─────────┼───────────────── 2 ──────────────┼── 3 ...     leaves on the device: -1 - row says so
"""

from collections.abc import Callable

import torch
from torch import Tensor

from infer_engine.model_runner.graphs.checks.dummy_batches import DummyBatches
from infer_engine.model_runner.graphs.checks.dummy_states import DummyStates
from infer_engine.model_runner.graphs.cuda_graphs import CUDAGraphs
from infer_engine.model_runner.inputs.forward_batch import BatchShape
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.sampling.draw_buffers import dummy_draws
from infer_kernels import resolve_token_ids

NUM_STEPS = 8
"""Steps in a row: the first half greedy, the others drawn."""


def decode_in_a_row(
    graphs: CUDAGraphs,
    batches: DummyBatches,
    states: DummyStates,
    input_buffers: InputBuffers,
    shape: BatchShape,
    *,
    wait: Callable[[], None] | None,
) -> Tensor | None:
    """Return the tokens of `NUM_STEPS` captured steps of decodes, [steps, rows] int64; None without room for them.

    Every call decodes the same sequences in the same blocks, from states that lie there. With `wait` the host waits for
    each step, and stages the tokens that it has read. Without, it stages and launches a step while the device computes
    those before.
    """
    filled = batches.fill(shape, variant=0, num_more=NUM_STEPS)
    if filled is None:
        return None
    items, edits = filled
    chosen: list[Tensor] = []
    latest = torch.empty(0)
    for number in range(NUM_STEPS):
        states.move(items, step=number)
        batch = input_buffers.build(items, [] if number else edits)
        if batch.has_pending_tokens:
            resolve_token_ids(batch.input_ids, latest)
        hidden, choose = graphs.replay(batch), graphs.choice(batch)
        assert hidden is not None, "the batch is larger than the buffers"
        assert choose is not None
        draws = dummy_draws(batch.num_tokens, seed=number) if number >= NUM_STEPS // 2 else None
        latest = choose(draws).token_ids
        if wait is not None:
            wait()
        chosen.append(latest.clone())
        for row, (request, _) in enumerate(items):
            request.num_computed_tokens += 1
            request.pending_row = row if wait is None else -1
            if wait is not None:
                request.token_ids.append(int(latest[row]))
    return torch.stack(chosen)
