"""Measures the memory that the largest step takes beside weights and KV cache, by running one."""

import torch
from torch import Tensor

from infer_engine.core.request import Request
from infer_engine.ipc.messages import Submit
from infer_engine.protocol import SamplingParams
from infer_engine.protocol.sampling import MAX_LOGPROBS
from infer_engine.sampling.prompt_logprobs import compute_prompt_logprobs, find_prompt_logprob_rows
from infer_engine.sampling.sampler import Sampler
from infer_kernels import QKNorm, Rotary
from infer_models import AttentionSpec, CausalLM

# Rows that are cut need scratch memory, penalised ones keep state, and log-probabilities a copy of the logits.
_COSTLIEST = SamplingParams(
    max_tokens=1, top_p=0.9, frequency_penalty=0.1, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS
)


def profile_activation_bytes(model: CausalLM, *, max_tokens: int, max_batch_size: int, device: torch.device) -> int:
    """Return the bytes that a step of the largest size takes on a GPU; 0 on a CPU, whose memory is not shared out.

    The costliest kind of sampling is part of it, for every request of the batch: what penalised requests leave on the
    device between steps is room that the KV cache does not take, whether or not one ever comes.
    """
    if device.type == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run_largest_step(model, max_tokens=max_tokens, max_batch_size=max_batch_size, device=device)
    taken = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return taken


@torch.inference_mode()
def run_largest_step(model: CausalLM, *, max_tokens: int, max_batch_size: int, device: torch.device) -> None:
    """Compute `max_tokens` tokens without a cache and their log-probabilities; sample for `max_batch_size` requests."""
    ids = torch.zeros(max_tokens, dtype=torch.int32, device=device)
    rows = [_request(row) for row in range(max_batch_size)]
    vocab_size = model.config.vocab_size
    sampler = Sampler(vocab_size=vocab_size, max_rows=len(rows), eos_token_ids=frozenset(), device=device)
    hidden = model.hidden_states(ids, ids, _NoCacheView())
    wanted = find_prompt_logprob_rows([(_request(0, num_tokens=max_tokens + 1), max_tokens)], [0])
    measured = compute_prompt_logprobs(wanted, hidden, logits_of=model.logits, sampler=sampler)
    logits = model.logits(hidden, ids[:max_batch_size])
    del measured  # it is read once those logits are there
    # Half of them before the whole: the penalties' state grows by a copy of itself.
    for num_rows in (-(-len(rows) // 2), len(rows)):
        sampler.sample(logits[:num_rows], rows[:num_rows])


def _request(row: int, *, num_tokens: int = 1) -> Request:
    submitted = Submit(request_id=str(row), prompt_token_ids=[0] * num_tokens, max_tokens=1, seed=0, params=_COSTLIEST)
    request = Request(submitted, arrival=row)
    request.row = row
    return request


class _NoCacheView:
    """A view that attends to nothing: what attention itself needs is its kernel's business."""

    def attend(
        self,
        layer: int,
        qkv: Tensor,
        spec: AttentionSpec,
        *,
        rotary: Rotary | None = None,
        norm: QKNorm | None = None,
    ) -> Tensor:
        """Return something of the right shape: [tokens, q_heads, head_dim]."""
        del layer, rotary, norm
        return qkv.new_zeros(qkv.shape[0], spec.q_heads, spec.head_dim)
