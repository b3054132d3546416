"""`TokenizerPool`: the threads that tokenize, off the event loop. Knows executors; knows no text and no vocabulary."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
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
        self._is_shut = False

    async def run(self, calls: Sequence[tuple[int, Callable[[], _T]]]) -> list[_T]:
        """Return the results of `calls`, each with the number of characters that it reads.

        Once one has failed, those that have not begun never do.

        Raises:
            EngineUnavailableError: no threads can be had, or `shutdown` came first.
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
        """Begin no more calls; those that wait for a thread are refused."""
        self._is_shut = True
        self._threads.shutdown(wait=False)

    async def _run(self, calls: Sequence[tuple[int, Callable[[], _T]]], threads: Executor) -> list[_T]:
        tasks = [asyncio.ensure_future(self._call(size, call, threads)) for size, call in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # not for threads: until no call can begin any more

    async def _call(self, size: int, call: Callable[[], _T], threads: Executor) -> _T:
        if size <= LONG_CHARACTERS:
            return await asyncio.wrap_future(self._begin(call, threads))
        await self._long_turn.acquire()
        try:
            future = self._begin(call, threads)
        except BaseException:
            self._long_turn.release()
            raise
        # Not when its caller goes away: the thread is busy for as long as the text takes.
        future.add_done_callback(partial(self._release_long_turn, asyncio.get_running_loop()))
        return await asyncio.wrap_future(future)

    def _begin(self, call: Callable[[], _T], threads: Executor) -> Future[_T]:
        self._check_open()
        return threads.submit(self._unless_shut, call)

    def _unless_shut(self, call: Callable[[], _T]) -> _T:
        self._check_open()
        return call()

    def _check_open(self) -> None:
        if self._is_shut:
            raise EngineUnavailableError("The engine is stopped; it tokenizes no more.")

    def _release_long_turn(self, loop: asyncio.AbstractEventLoop, _: Future[_T]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits for a turn
            loop.call_soon_threadsafe(self._long_turn.release)
