"""`Placement`: where weights live and in which dtype. Knows allocation; knows no layer."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Allocates a model's parameters; none requires a gradient until it is asked to."""

    device: torch.device
    dtype: torch.dtype

    def matrix(self, rows: int, columns: int) -> nn.Parameter:
        """Return a parameter [rows, columns] whose elements are still to be loaded or drawn."""
        storage = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        return nn.Parameter(storage, requires_grad=False)

    def vector(self, size: int, *, fill: float) -> nn.Parameter:
        """Return a parameter [size] that holds `fill` everywhere: the value that makes its layer neutral."""
        storage = torch.full((size,), fill, dtype=self.dtype, device=self.device)
        return nn.Parameter(storage, requires_grad=False)
