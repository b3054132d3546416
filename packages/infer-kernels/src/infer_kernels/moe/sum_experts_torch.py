"""The weighted sum over each token's experts in plain PyTorch, whatever an expert computes."""

from collections.abc import Callable

import torch
from torch import Tensor


def sum_experts_torch(
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    compute: Callable[[Tensor, int], Tensor],
    *,
    experts: int,
) -> Tensor:
    """Compute expert by expert, for the rows of each at once; waits for the device. Differentiable if `compute` is.

    Args:
        x: [tokens, hidden].
        expert_ids: [tokens, experts_per_token]; a row with an id that no expert has is NaN.
        expert_weights: [tokens, experts_per_token] fp32.
        compute: from rows [some, hidden] and the expert's number to its products [some, hidden], of the dtype of `x`.
        experts: how many there are.

    Returns:
        [tokens, hidden]: the sum over k in fp32, in the order of k, rounded once.
    """
    (tokens, hidden), experts_per_token = x.shape, expert_ids.shape[1]
    ids = expert_ids.reshape(-1).long()
    outside = (ids < 0) | (ids >= experts)
    order = ids.masked_fill(outside, experts).argsort(stable=True)
    counts = ids[~outside].bincount(minlength=experts).tolist()
    products = [x.new_empty(0, hidden)]
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        rows = x[order[start : start + count] // experts_per_token]
        start += count
        products.append(compute(rows, expert))
    placed = x.new_full((len(ids), hidden), torch.nan).index_copy(0, order[:start], torch.cat(products))
    placed = placed.view(tokens, experts_per_token, hidden)
    total = torch.zeros(tokens, hidden, dtype=torch.float32, device=x.device)
    for k in range(experts_per_token):
        total = total + expert_weights[:, k, None] * placed[:, k].float()
    return total.to(x.dtype)
