"""`TokenizerPool`: runs tokenization in threads, off the event loop."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from infer_engine.protocol import ChatPrompt, EngineUnavailableError, InfillPrompt, TextPrompt

logger = logging.getLogger(__name__)

NUM_THREADS = 2
LONG_CHARACTERS = 65_536
_CHARACTERS_OF_A_TOOL = 1_000  # about: a description and a schema

_T = TypeVar("_T")


def tokenizer_threads() -> Executor:
    """Return the threads that tokenize prompts."""
    return ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="infer-tokenize")


def prompt_characters(prompt: list[int] | TextPrompt) -> int:
    """Return how many characters of `prompt` must be tokenized."""
    match prompt:
        case str():
            return len(prompt)
        case ChatPrompt():
            num_characters = sum(len(message.role) + len(message.content or "") for message in prompt.messages)
            return num_characters + _CHARACTERS_OF_A_TOOL * len(prompt.tools)
        case InfillPrompt():
            texts = (prompt.prefix, prompt.suffix, *(text for file in prompt.files or () for text in file))
            return sum(map(len, texts))
        case _:
            return 0


class TokenizerPool:
    """Runs calls in threads, and replaces the threads when they break. For one event loop.

    Only one long text is tokenized at a time, so that a thread is left for the short ones.
    """

    def __init__(self, make_threads: Callable[[], Executor] = tokenizer_threads) -> None:
        """Create the executor with `make_threads`, and again whenever it breaks."""
        self._make_threads = make_threads
        self._threads = make_threads()
        self._long_text = asyncio.Semaphore(1)
        self._is_closed = False

    async def run(self, calls: Sequence[tuple[int, Callable[[], _T]]]) -> list[_T]:
        """Return the results of `calls`, each given with the number of characters that it reads.

        When one fails, the calls that have not started are cancelled.

        Raises:
            EngineUnavailableError: no threads can be started, or the pool is shut down.
            Exception: raised by a call.
        """
        threads = self._threads
        try:
            return await self._run(calls, threads)
        except BrokenExecutor:
            logger.exception("The tokenizer's threads broke; others take their place.")
        if self._threads is threads:  # a concurrent call has not replaced them
            self._threads = self._make_threads()
        try:
            return await self._run(calls, self._threads)
        except BrokenExecutor as error:
            raise EngineUnavailableError("The tokenizer has no threads to run in; its log says why.") from error

    def shutdown(self) -> None:
        """Start no more calls; calls that wait for a thread are refused."""
        self._is_closed = True
        self._threads.shutdown(wait=False)

    async def _run(self, calls: Sequence[tuple[int, Callable[[], _T]]], threads: Executor) -> list[_T]:
        tasks = [asyncio.ensure_future(self._call(size, call, threads)) for size, call in calls]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # wait until no call can start; threads may still run

    async def _call(self, size: int, call: Callable[[], _T], threads: Executor) -> _T:
        if size <= LONG_CHARACTERS:
            return await asyncio.wrap_future(self._start(call, threads))
        await self._long_text.acquire()
        try:
            future = self._start(call, threads)
        except BaseException:
            self._long_text.release()
            raise
        # Released when the thread is done, not when the caller is cancelled: the thread is busy until then.
        future.add_done_callback(partial(self._release_long_text, asyncio.get_running_loop()))
        return await asyncio.wrap_future(future)

    def _start(self, call: Callable[[], _T], threads: Executor) -> Future[_T]:
        self._check_open()
        return threads.submit(self._call_if_open, call)

    def _call_if_open(self, call: Callable[[], _T]) -> _T:
        self._check_open()
        return call()

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineUnavailableError("The engine is stopped; it tokenizes no more.")

    def _release_long_text(self, loop: asyncio.AbstractEventLoop, _: Future[_T]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._long_text.release)
