"""Batches of rows to sample, and which tokens a draw may give."""

from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.reference import kept_tokens_reference, uniform_reference

# Seeds whose numbers at position 0 are closest to 0 and to 1 of those below 30 million: 3e-8 from each.
FIRST_SEED = 23_468_447
LAST_SEED = 26_598_937

# A draw, or a top-p, so close to a boundary between two tokens may fall to either side of it: masses are sums in fp32.
CLOSE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """The arguments of `sample` but the logits, as keywords: see `arguments`.

    Attributes:
        temperatures: [rows] fp32.
        top_k: [rows] int32.
        top_p: [rows] fp32.
        min_p: [rows] fp32.
        seeds: [rows] int64.
        positions: [rows] int32.
    """

    temperatures: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor

    @property
    def arguments(self) -> dict[str, Tensor]:
        """By name, as `sample` takes them."""
        return {name: getattr(self, name) for name in self.__slots__}

    def rows(self, index: Tensor | slice) -> "Draws":
        """Some of the rows, in another order perhaps."""
        return Draws(**{name: column[index] for name, column in self.arguments.items()})


def make_draws(
    *,
    temperatures: list[float],
    top_k: list[int] | None = None,
    top_p: list[float] | None = None,
    min_p: list[float] | None = None,
    seeds: list[int] | None = None,
    positions: list[int] | None = None,
) -> Draws:
    """One row for each temperature; what is left out limits nothing, and is seed 3 at position 0."""
    rows = len(temperatures)
    return Draws(
        temperatures=torch.tensor(temperatures, dtype=torch.float32),
        top_k=torch.tensor(top_k or [0] * rows, dtype=torch.int32),
        top_p=torch.tensor(top_p or [1.0] * rows, dtype=torch.float32),
        min_p=torch.tensor(min_p or [0.0] * rows, dtype=torch.float32),
        seeds=torch.tensor(seeds or [3] * rows, dtype=torch.int64),
        positions=torch.tensor(positions or [0] * rows, dtype=torch.int32),
    )


def random_draws(rows: int, *, vocab: int, seed: int = 0) -> Draws:
    """Rows of all kinds: greedy, whole, and with each set of filters, in turn."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.arange(rows)
    random = torch.rand(4, rows, generator=generator)
    top_k = 1 + (random[1] ** 2 * vocab).int()
    return Draws(
        temperatures=torch.where(row % 9 == 8, 0.0, 0.2 + 2 * random[0]),
        top_k=torch.where((row & 1).bool(), top_k, 0).int(),
        top_p=torch.where((row & 2).bool(), random[2], 1.0),
        min_p=torch.where((row & 4).bool(), random[3] * 0.3, 0.0),
        seeds=torch.randint(-(2**63), 2**63 - 1, (rows,), generator=generator),
        positions=torch.randint(0, 2**20, (rows,), generator=generator, dtype=torch.int32),
    )


def allowed_tokens(logits: Tensor, draws: Draws, row: int) -> set[int]:
    """The token that the definition draws from `logits` [vocab], and those as good as that, by `CLOSE`."""
    temperature, top_p = float(draws.temperatures[row]), float(draws.top_p[row])
    number = uniform_reference(int(draws.seeds[row]), int(draws.positions[row]))
    allowed: set[int] = set()
    for share in {top_p, top_p * (1 - CLOSE), min(top_p * (1 + CLOSE), 1.0)}:
        kept = kept_tokens_reference(
            logits,
            temperature=temperature,
            top_k=int(draws.top_k[row]),
            top_p=share,
            min_p=float(draws.min_p[row]),
        )
        if len(kept) == 1:
            allowed.add(int(kept[0]))
            continue
        values = logits.double()
        ids = kept.sort().values
        masses = ((values[ids] - values[kept[0]]) / temperature).exp().cumsum(0)
        low, high = ((masses <= (number + side) * masses[-1]).sum() for side in (-CLOSE, CLOSE))
        allowed.update(ids[int(low) : int(high) + 1].tolist())
    return allowed


def assert_drawn(token_ids: Tensor, logits: Tensor, draws: Draws) -> None:
    """Raise `AssertionError` unless `token_ids` [rows] may be drawn from `logits` [rows, vocab]."""
    wrong = {
        row: (token_id, allowed)
        for row, token_id in enumerate(token_ids.tolist())
        if token_id not in (allowed := allowed_tokens(logits[row], draws, row))
    }
    assert not wrong, f"row: (drawn, allowed) {wrong}"
