"""Measures the memory of the largest step, without weights and KV cache, by computing one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from infer_engine.model_runner.loading.dummy_requests import dummy_request
from infer_engine.protocol import SamplingParams
from infer_engine.protocol.sampling import MAX_LOGPROBS
from infer_engine.request import Request
from infer_engine.scheduling import Schedule
from infer_engine.step_runner import StepRunner

if TYPE_CHECKING:
    from infer_engine.model_runner.mtp_drafter import MTPDrafter

# Top-p needs scratch memory, penalties keep state, and log-probabilities need a copy of the logits.
_COSTLIEST = SamplingParams(
    max_tokens=1, top_p=0.9, frequency_penalty=0.1, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS
)


def measure_step_bytes(
    runner: StepRunner,
    *,
    max_tokens: int,
    max_batch_size: int,
    max_seq_len: int,
    device: torch.device,
    mtp_drafter: "MTPDrafter | None" = None,
) -> int:
    """Return the bytes that the largest step takes from a GPU, what torch keeps for the next one included; 0 on a CPU.

    All its requests use the most expensive sampling. So memory for the state of penalties is reserved, even if no
    request has penalties. `mtp_drafter` computes its layer for the tokens of that step, and drafts.
    """
    if device.type == "cpu":
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    run_largest_step(runner, max_tokens=max_tokens, max_batch_size=max_batch_size, max_seq_len=max_seq_len)
    if mtp_drafter is not None:
        mtp_drafter.compute_made_up([min(max_tokens, max_seq_len)], _COSTLIEST, first_row=max_batch_size - 1)
    torch.cuda.synchronize(device)
    taken = torch.cuda.max_memory_reserved(device) - before
    torch.cuda.empty_cache()
    return taken


def run_largest_step(runner: StepRunner, *, max_tokens: int, max_batch_size: int, max_seq_len: int) -> None:
    """Compute `max_tokens` tokens of `max_batch_size` prompts, measure them all, and sample for each.

    One block of each group of layers is enough for them: the block tables of `runner` must be empty, so that all
    prompts share it.
    """
    # Half of the rows first: the state of penalties grows by copying itself.
    for num_rows in (-(-max_batch_size // 2), max_batch_size):
        items = list(_prompts(max_tokens if num_rows == max_batch_size else num_rows, num_rows, max_seq_len))
        schedule = Schedule(items=items)
        computed = runner.forward(schedule)
        runner.sample(computed, schedule.needs_sampling).wait()
        computed.read_prompt_logprobs()


def _prompts(num_tokens: int, num_rows: int, longest: int) -> Iterator[tuple[Request, int]]:
    """Yield prompts of up to `longest` tokens, `num_tokens` in all as far as they can be, for each row one."""
    for row in range(num_rows):
        length = max(1, min(longest, num_tokens - (num_rows - row - 1)))
        num_tokens -= length
        yield dummy_request([0] * length, params=_COSTLIEST, row=row), length
