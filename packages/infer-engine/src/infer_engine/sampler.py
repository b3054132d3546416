"""From requests' parameters to one sampling call. Knows how a step's rows want to be sampled; knows no arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from infer_engine.protocol import SamplingParams
from infer_kernels.sampling import sample as sample_tokens

# One block of each, [rows], in this order: those of 8 bytes first, so that each begins at a multiple of its size.
_COLUMNS = (
    ("seeds", np.dtype(np.int64), torch.int64),
    ("positions", np.dtype(np.int64), torch.int64),
    ("temperatures", np.dtype(np.float32), torch.float32),
    ("top_p", np.dtype(np.float32), torch.float32),
    ("min_p", np.dtype(np.float32), torch.float32),
    ("top_k", np.dtype(np.int32), torch.int32),
)


@dataclass(frozen=True, slots=True)
class SampledRow:
    """How to choose one row's token: the request's parameters and seed, and the position that the token will have."""

    params: SamplingParams
    seed: int
    position: int


def sample(logits: Tensor, rows: Sequence[SampledRow]) -> list[int]:
    """Return one token id per row of `logits` [rows, vocab]: the most probable one, or one drawn from what is kept.

    `infer_kernels.sampling.sample` says what is kept and how it is drawn. A row's choice depends on its logits,
    parameters, seed and position alone: a request draws the same tokens in any batch, and again after it was preempted.
    Filters that no row asks for are left out of the call.
    """
    params = [row.params for row in rows]
    if all(each.is_greedy for each in params):
        return _listed(sample_tokens(logits))
    columns = _staged(rows, logits.device)
    used = {
        "top_k": any(each.top_k is not None for each in params),
        "top_p": any(each.top_p < 1 for each in params),
        "min_p": any(each.min_p > 0 for each in params),
    }
    return _listed(sample_tokens(logits, **{name: column for name, column in columns.items() if used.get(name, True)}))


def _listed(drawn: Tensor) -> list[int]:
    token_ids: list[int] = drawn.tolist()
    return token_ids


def _staged(rows: Sequence[SampledRow], device: torch.device) -> dict[str, Tensor]:
    """The rows' parameters as columns [rows] on `device`, in one transfer."""
    values: dict[str, list[int] | list[float]] = {
        "seeds": [_signed(row.seed) for row in rows],
        "positions": [row.position for row in rows],
        "temperatures": [0.0 if row.params.is_greedy else row.params.temperature for row in rows],
        "top_p": [row.params.top_p for row in rows],
        "min_p": [row.params.min_p for row in rows],
        "top_k": [min(row.params.top_k or 0, 2**31 - 1) for row in rows],
    }
    parts: list[npt.NDArray[np.uint8]] = [np.array(values[name], dtype).view(np.uint8) for name, dtype, _ in _COLUMNS]
    staged = torch.from_numpy(np.concatenate(parts)).to(device)
    columns = {}
    start = 0
    for name, dtype, torch_dtype in _COLUMNS:
        end = start + dtype.itemsize * len(rows)
        columns[name] = staged[start:end].view(torch_dtype)
        start = end
    return columns


def _signed(seed: int) -> int:
    """The int64 with the lower 64 bits of `seed`: a base seed plus a request's number may be larger."""
    return (seed + 2**63) % 2**64 - 2**63
