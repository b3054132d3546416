"""Measures the memory of the largest step, without weights and KV cache, by running one."""

import torch

from infer_engine.core.request import Request
from infer_engine.ipc.messages import Submit
from infer_engine.model_runner.rank_model import BatchModel
from infer_engine.protocol import SamplingParams
from infer_engine.protocol.sampling import MAX_LOGPROBS
from infer_engine.sampling.prompt_logprobs import compute_prompt_logprobs, find_prompt_logprob_rows
from infer_engine.sampling.sampler import Sampler

# Top-p needs scratch memory, penalties keep state, and log-probabilities need a copy of the logits.
_COSTLIEST = SamplingParams(
    max_tokens=1, top_p=0.9, frequency_penalty=0.1, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS
)


def profile_activation_bytes(
    model: BatchModel, *, vocab_size: int, max_tokens: int, max_batch_size: int, device: torch.device
) -> int:
    """Return the bytes that the largest step takes on a GPU; 0 on a CPU.

    All its requests use the most expensive sampling. So memory for the state of penalties is reserved, even if no
    request has penalties.
    """
    if device.type == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run_largest_step(model, vocab_size=vocab_size, max_tokens=max_tokens, max_batch_size=max_batch_size, device=device)
    taken = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return taken


@torch.inference_mode()
def run_largest_step(
    model: BatchModel, *, vocab_size: int, max_tokens: int, max_batch_size: int, device: torch.device
) -> None:
    """Compute `max_tokens` tokens without a cache and their log-probabilities; sample for `max_batch_size` requests."""
    rows = [_request(row) for row in range(max_batch_size)]
    sampler = Sampler(vocab_size=vocab_size, max_rows=len(rows), eos_token_ids=frozenset(), device=device)
    hidden = model.hidden_states_without_cache(max_tokens)
    wanted = find_prompt_logprob_rows([(_request(0, num_tokens=max_tokens + 1), max_tokens)], [0])
    measured = compute_prompt_logprobs(wanted, hidden, compute_logits=model.logits, sampler=sampler)
    logits = model.logits(hidden, torch.zeros(max_batch_size, dtype=torch.int32, device=device))
    del measured  # as in a step, where it is freed after the logits are computed
    # Half of the rows first: the state of penalties grows by copying itself.
    for num_rows in (-(-len(rows) // 2), len(rows)):
        sampler.sample(logits[:num_rows], rows[:num_rows])


def _request(row: int, *, num_tokens: int = 1) -> Request:
    submitted = Submit(request_id=str(row), prompt_token_ids=[0] * num_tokens, max_tokens=1, seed=0, params=_COSTLIEST)
    request = Request(submitted, arrival=row)
    request.row = row
    return request
