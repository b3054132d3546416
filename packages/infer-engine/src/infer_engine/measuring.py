"""What the largest step takes beside weights and KV cache, found by running one. Knows no scheduler."""

import torch
from torch import Tensor

from infer_engine.protocol import SamplingParams
from infer_engine.sampler import SampledRow, sample
from infer_engine.sizing import StepSizes
from infer_kernels import QKNorm, Rotary
from infer_models import AttentionSpec, CausalLM


def activation_bytes(model: CausalLM, step: StepSizes, device: torch.device) -> int:
    """Return the bytes that a step of the largest size takes on a GPU; 0 on a CPU, whose memory is not shared out.

    The costliest kind of sampling is part of it: rows that are cut need scratch memory.
    """
    if device.type == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run_largest_step(model, step, device)
    taken = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return taken


@torch.inference_mode()
def run_largest_step(model: CausalLM, step: StepSizes, device: torch.device) -> None:
    """Compute `step.max_tokens` tokens without a cache and sample for every request of the batch."""
    ids = torch.zeros(step.max_tokens, dtype=torch.int32, device=device)
    logits = model(ids, ids, _NoCacheView(), ids[: step.max_batch_size])
    row = SampledRow(SamplingParams(top_p=0.9), seed=0, position=0)
    sample(logits, [row] * step.max_batch_size)


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
