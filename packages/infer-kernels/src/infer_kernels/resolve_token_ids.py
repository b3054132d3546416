"""Token ids that the host does not know, filled in on the device.

For each token whose id is below 0:

    input_id = latest_tokens[-1 - input_id]

With this op before a step, the host can launch it before it knows the tokens that the step before has chosen. Bytes
moved: 4 for each token, 12 more for each that is filled in: the time is that of one launch.

Precision: integers.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

import torch
from torch import Tensor

from infer_kernels.arguments import require_dense_rows, require_device, require_dtype, require_integer, require_rank
from infer_kernels.dispatch import takes_triton
from infer_kernels.integers import cdiv
from infer_kernels.optional_triton import tl, triton

_TOKENS = 256
"""Tokens of a program."""


def resolve_token_ids_reference(input_ids: Tensor, latest_tokens: Tensor) -> Tensor:
    """The ids filled in, [tokens] int32, one by one; arguments as for `resolve_token_ids`."""
    chosen = latest_tokens.tolist()
    ids = [token_id if token_id >= 0 else chosen[-1 - token_id] for token_id in input_ids.tolist()]
    return torch.tensor(ids, dtype=torch.int32, device=input_ids.device)


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["input_ids", "latest_tokens"])
def _resolve_token_ids_kernel(
    input_ids: tl.tensor,  # [tokens]
    latest_tokens: tl.tensor,  # [rows]
    tokens: tl.tensor,
    TOKENS: tl.constexpr,
) -> None:
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    token_id = tl.load(input_ids + token, mask=token < tokens, other=0)
    is_pending = token_id < 0
    chosen = tl.load(latest_tokens + (-1 - token_id), mask=is_pending, other=0)
    tl.store(input_ids + token, chosen.to(tl.int32), mask=is_pending)


def resolve_token_ids_triton(input_ids: Tensor, latest_tokens: Tensor) -> None:
    """Launch the kernel; arguments as for `resolve_token_ids`, unchecked."""
    tokens = input_ids.shape[0]
    if tokens:
        _resolve_token_ids_kernel[(cdiv(tokens, _TOKENS),)](
            input_ids, latest_tokens, tokens, TOKENS=_TOKENS, num_warps=4, enable_fp_fusion=False
        )


def resolve_token_ids_torch(input_ids: Tensor, latest_tokens: Tensor) -> None:
    """The fastest plain PyTorch; arguments as for `resolve_token_ids`, unchecked."""
    if latest_tokens.shape[0]:
        chosen = latest_tokens[(-1 - input_ids).clamp_min_(0)].to(torch.int32)
        torch.where(input_ids < 0, chosen, input_ids, out=input_ids)


def resolve_token_ids(input_ids: Tensor, latest_tokens: Tensor) -> None:
    """Replace ids below 0, in place: `-1 - row` by the token that was chosen for row `row`.

    Args:
        input_ids: [tokens], int32, read and written.
        latest_tokens: [rows], int32 or int64: the tokens that were chosen last. Every id that is below 0 must be of one
            of its rows, which is not checked.

    Raises:
        ValueError: a shape, device or stride does not fit.
        TypeError: a dtype does not fit.
    """
    require_rank("input_ids", input_ids, "tokens")
    require_rank("latest_tokens", latest_tokens, "rows")
    require_dtype("input_ids", input_ids, torch.int32)
    require_integer("latest_tokens", latest_tokens)
    require_device("latest_tokens", latest_tokens, "input_ids", input_ids.device)
    require_dense_rows("input_ids", input_ids)
    require_dense_rows("latest_tokens", latest_tokens)
    resolve = resolve_token_ids_triton if takes_triton(input_ids) else resolve_token_ids_torch
    resolve(input_ids, latest_tokens)
