"""How codes of four and six bits lie in bytes.

four bits    two codes a byte, the first in the lower half
six bits     sixteen codes in twelve bytes: eight bytes of their lower four bits, as above, then four bytes, of which
             byte i has the upper two bits of codes i, i + 4, i + 8 and i + 12, the lowest of the first
"""

import torch
from torch import Tensor
from torch.nn import functional


def pack_pairs(codes: Tensor) -> Tensor:
    """Return codes [..., columns] uint8 of 0 to 15 as [..., columns / 2] uint8, the first of two in the lower half."""
    if codes.shape[-1] % 2:
        codes = functional.pad(codes, (0, 1))
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack_pairs(values: Tensor) -> Tensor:
    """Return the codes, uint8 [..., 2 * bytes], of values [..., bytes]."""
    return torch.stack([values & 15, values >> 4], dim=-1).flatten(-2)


def pack_sixes(codes: Tensor) -> Tensor:
    """Return codes [..., columns] uint8 of 0 to 63, of a multiple of 16 columns, as [..., columns * 3 / 4] uint8."""
    units = codes.reshape(*codes.shape[:-1], -1, 4, 4)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=codes.device)
    upper = (units >> 4 << shifts.unsqueeze(-1)).sum(dim=-2, dtype=torch.uint8)
    return torch.cat([pack_pairs(units.flatten(-2) & 15), upper], dim=-1).flatten(-2)


def unpack_sixes(values: Tensor) -> Tensor:
    """Return the codes, uint8 [..., bytes * 4 / 3], of values [..., bytes], a multiple of 12 bytes."""
    units = values.reshape(*values.shape[:-1], -1, 12)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=values.device)
    upper = (units[..., 8:].unsqueeze(-2) >> shifts.unsqueeze(-1) & 3).flatten(-2)
    codes = unpack_pairs(units[..., :8]) | upper << 4
    return codes.flatten(-2)


def widen_pairs(values: Tensor) -> Tensor:
    """Return the codes of values [..., bytes], of a multiple of 16 codes, plus 32, as `pack_sixes` packs them."""
    units = values.reshape(*values.shape[:-1], -1, 8)
    return functional.pad(units, (0, 4), value=0b10101010).flatten(-2)
