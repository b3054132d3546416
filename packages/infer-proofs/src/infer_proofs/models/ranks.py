"""Ranks of a tensor-parallel model as threads of one process, for tests."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from infer_models.tensor_parallel import Shard

T = TypeVar("T")

_GIVE_UP_S = 60.0


class ThreadCollectives:
    """Collectives of one of several threads. Implements `infer_models.tensor_parallel.Collectives`."""

    def __init__(self, rank: int, given: list[Tensor | None], barrier: threading.Barrier) -> None:
        """Be `rank`; all ranks share `given`, a place for each, and `barrier`."""
        self._rank = rank
        self._given = given
        self._barrier = barrier

    def all_reduce(self, x: Tensor) -> None:
        """Sum over the ranks, in place."""
        x.copy_(torch.stack(self._exchange(x)).sum(0))

    def gather(self, x: Tensor) -> Sequence[Tensor]:
        """Return the `x` of every rank on rank 0."""
        every = self._exchange(x)
        return () if self._rank else every

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self._given[self._rank] = x.clone()
        self._barrier.wait(_GIVE_UP_S)
        every = [each for each in self._given if each is not None]
        self._barrier.wait(_GIVE_UP_S)
        return every


def run_ranks(size: int, run: Callable[[Shard], T]) -> list[T]:
    """Return the results of `run` for each of `size` ranks, which run at the same time."""
    given: list[Tensor | None] = [None] * size
    barrier = threading.Barrier(size)

    def run_rank(rank: int) -> T:
        try:
            return run(Shard(rank=rank, size=size, collectives=ThreadCollectives(rank, given, barrier)))
        except BaseException:
            barrier.abort()  # the others must not wait for this one
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run_rank, range(size)))
