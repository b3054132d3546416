"""`DrawBuffers`: where a captured draw finds the parameters of its rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Draws = Mapping[str, npt.NDArray[Any]]
"""The arguments of `infer_kernels.sample` beside the logits, each [rows]."""

_DTYPES = {
    "positions": torch.int64,
    "seeds": torch.int64,
    "temperatures": torch.float32,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "top_k": torch.int32,
}
"""The widest first, so that each column is aligned."""

NO_DRAWS: Draws = {name: np.empty(0) for name in _DTYPES}
"""Draws of no rows: a rank that has no logits stages them."""


class DrawBuffers:
    """One row for each request of a step, in memory that stays where it is; rows that are not staged are greedy."""

    def __init__(self, *, max_rows: int, device: torch.device) -> None:
        """Allocate for `max_rows` rows."""
        sizes = [max_rows * dtype.itemsize for dtype in _DTYPES.values()]
        self._host = torch.zeros(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = self._host if device.type == "cpu" else torch.zeros_like(self._host, device=device)
        views = zip(_DTYPES.items(), torch.split(self._host, sizes), torch.split(self._device, sizes), strict=True)
        self._on_host: dict[str, npt.NDArray[Any]] = {}
        self._on_device: dict[str, Tensor] = {}
        for (name, dtype), host, on_device in views:
            self._on_host[name] = host.view(dtype).numpy()
            self._on_device[name] = on_device.view(dtype)
        self._copied: torch.cuda.Event | None = None
        self._num_staged = 0
        if device.type == "cuda":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types for it

    def stage(self, draws: Draws) -> None:
        """Queue the copy of all columns; the next draw reads them."""
        if self._copied is not None:
            self._copied.synchronize()  # the copy before may still read the host's memory
        num_rows = len(draws["positions"])
        for name, column in self._on_host.items():
            column[:num_rows] = draws[name]
        if num_rows < self._num_staged:
            self._on_host["temperatures"][num_rows : self._num_staged] = 0.0
        self._num_staged = num_rows
        if self._copied is not None:
            self._device.copy_(self._host, non_blocking=True)
            self._copied.record()

    def columns(self, num_rows: int) -> dict[str, Tensor]:
        """Return the first rows of each column on the device, by the name of its argument of `sample`."""
        return {name: column[:num_rows] for name, column in self._on_device.items()}


def dummy_draws(num_rows: int, *, seed: int) -> Draws:
    """Return random parameters, with every filter in some rows."""
    random = np.random.default_rng(seed)
    rows = np.arange(num_rows)
    return {
        "positions": random.integers(0, 1 << 20, num_rows),
        "seeds": random.integers(0, 1 << 60, num_rows),
        "temperatures": random.uniform(0.5, 2.0, num_rows).astype(np.float32),
        "top_p": np.where(rows % 3 == 1, 0.9, 1.0).astype(np.float32),
        "min_p": np.where(rows % 4 == 2, 0.01, 0.0).astype(np.float32),
        "top_k": np.where(rows % 5 == 3, 40, 0).astype(np.int32),
    }
