"""Checks the values that scales, groups and shapes of quantized weights have in files."""

from collections.abc import Mapping

import torch
from torch import Tensor

from infer_models.errors import CheckpointError

SCALE_DTYPES = ("F32", "BF16", "F16")
"""Dtypes of scales in files, as safetensors spell them."""
_EXPONENT_BIAS, _NAN = 127, 255
"""Bias and NaN of E8M0, a byte that is a power of two."""


def finite_scales(name: str, scales: Tensor) -> Tensor:
    """Return scales as fp32; of bytes, powers of two whose exponents have a bias of 127.

    Scales of zero and below are possible: weights are then zeros, or have their signs changed.

    Raises:
        CheckpointError: one is NaN or infinite.
    """
    if scales.dtype == torch.uint8:
        numbers = torch.ldexp(torch.ones(scales.shape), scales.int() - _EXPONENT_BIAS).masked_fill_(
            scales == _NAN, torch.nan
        )
    else:
        numbers = scales.float()
    if not numbers.isfinite().all():
        raise CheckpointError(f"tensor `{name}` holds scales that are NaN or infinite.")
    return numbers


def checked_groups(name: str, groups: Tensor, num_groups: int) -> Tensor:
    """Return the group of each input as int64 [in_features].

    Raises:
        CheckpointError: one is negative, or `num_groups` or more.
    """
    if int(groups.min()) < 0 or int(groups.max()) >= num_groups:
        raise CheckpointError(
            f"tensor `{name}` holds groups from {int(groups.min())} to {int(groups.max())}; there are those from 0 to "
            f"{num_groups - 1}."
        )
    return groups.long()


def require_groups_in_order(name: str, groups: Tensor, group_size: int, *, because: str) -> None:
    """Raise unless input i is in group `i // group_size`.

    Raises:
        CheckpointError: it is not; the message says that `because`.
    """
    if not torch.equal(groups.long(), torch.arange(len(groups)) // group_size):
        raise CheckpointError(f"tensor `{name}` puts inputs into groups of another order, but {because}.")


def require_shape(name: str, stored: Tensor, shape: tuple[int, int]) -> None:
    """Raise unless a tensor holds the numbers `shape`.

    Raises:
        CheckpointError: it holds others.
    """
    if tuple(stored.tolist()) != shape:
        raise CheckpointError(f"tensor `{name}` holds {stored.tolist()} but `config.json` makes it {list(shape)}.")


def require_no_nan(name: str, values: Tensor) -> None:
    """Raise if float8_e4m3fn values are NaN.

    Raises:
        CheckpointError: some are.
    """
    if bool(((values.view(torch.uint8) & 127) == 127).any()):  # the one NaN of E4M3, with either sign
        raise CheckpointError(f"tensor `{name}` holds NaN.")


def require_zeros(name: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise if codes of zero of symmetric weights, which some files have all the same, are other numbers than 0.

    Raises:
        CheckpointError: they are.
    """
    if name in tensors and bool(tensors[name].any()):
        raise CheckpointError(f"tensor `{name}` holds other numbers than 0, but `config.json` has it symmetric.")
