"""Ranks that capture steps together: all use them, or none."""

import torch
import torch.distributed as dist


def agree(refusal: str | None, *, device: torch.device) -> str | None:
    """Return why any rank refuses something, or None if none does; every rank calls this with its own reason."""
    is_refused = torch.tensor([refusal is not None], dtype=torch.int32, device=device)
    dist.all_reduce(is_refused, op=dist.ReduceOp.MAX)
    return refusal if refusal is not None or not is_refused.item() else "another rank refuses it"
