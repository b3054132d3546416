"""`TokenizerPool`: the threads that tokenize, off the event loop. Knows executors; knows no text and no vocabulary."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

from infer_engine.protocol import EngineUnavailableError

logger = logging.getLogger(__name__)

NUM_THREADS = 2
LONG_CHARACTERS = 65_536

_T = TypeVar("_T")


def tokenizer_threads() -> Executor:
    """Return the threads that tokenize prompts."""
    return ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="infer-tokenize")


class TokenizerPool:
    """Runs calls in threads that are replaced when they break. For one event loop.

    Of several long texts one is tokenized at a time, so that a thread is left for the short ones.
    """

    def __init__(self, make_threads: Callable[[], Executor] = tokenizer_threads) -> None:
        """`make_threads` makes the executor; called again where that one breaks."""
        self._make_threads = make_threads
        self._threads = make_threads()
        self._long_turn = asyncio.Semaphore(1)

    async def run(self, calls: Sequence[tuple[int, Callable[[], _T]]]) -> list[_T]:
        """Return the results of `calls`, each with the number of characters that it reads.

        Raises:
            EngineUnavailableError: no threads can be had.
            Exception: what a call has raised.
        """
        threads = self._threads
        try:
            return await self._run(calls, threads)
        except BrokenExecutor:
            logger.exception("The tokenizer's threads broke; others take their place.")
        if self._threads is threads:  # nobody else has replaced them meanwhile
            self._threads = self._make_threads()
        try:
            return await self._run(calls, self._threads)
        except BrokenExecutor as error:
            raise EngineUnavailableError("The tokenizer has no threads to run in; its log says why.") from error

    def shutdown(self) -> None:
        """Begin no more calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, calls: Sequence[tuple[int, Callable[[], _T]]], threads: Executor) -> list[_T]:
        return await asyncio.gather(*[self._call(size, call, threads) for size, call in calls])

    async def _call(self, size: int, call: Callable[[], _T], threads: Executor) -> _T:
        async with self._long_turn if size > LONG_CHARACTERS else nullcontext():
            return await asyncio.get_running_loop().run_in_executor(threads, call)
