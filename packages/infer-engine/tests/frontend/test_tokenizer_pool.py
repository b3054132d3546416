"""The threads that tokenize: which call gets one, which waits, and how those that wait end with the engine."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from infer_engine.frontend.tokenizer_pool import LONG_CHARACTERS, NUM_THREADS, TokenizerPool
from infer_engine.protocol import EngineUnavailableError
from infer_proofs.engine.cores import GIVE_UP_S


class Gate:
    """Calls that say when they have begun, and wait until they are let through."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.is_open = threading.Event()

    def __call__(self) -> str:
        self.begun.release()
        assert self.is_open.wait(GIVE_UP_S)
        return "done"

    async def wait_for(self, num_calls: int) -> None:
        for _ in range(num_calls):
            assert await asyncio.to_thread(self.begun.acquire, timeout=GIVE_UP_S)


@asynccontextmanager
async def pool_and_gate() -> AsyncIterator[tuple[TokenizerPool, Gate]]:
    pool, gate = TokenizerPool(), Gate()
    async with asyncio.timeout(GIVE_UP_S):
        yield pool, gate
    gate.is_open.set()
    pool.shutdown()


def run(pool: TokenizerPool, call: Callable[[], str], *, size: int = 1) -> "asyncio.Task[list[str]]":
    return asyncio.create_task(pool.run([(size, call)]))


async def test_those_that_wait_for_a_thread_when_the_engine_ends_are_refused() -> None:
    async with pool_and_gate() as (pool, gate):
        running = [run(pool, gate) for _ in range(NUM_THREADS)]
        waiting = [run(pool, gate, size=size) for size in (1, LONG_CHARACTERS + 1, LONG_CHARACTERS + 1)]
        await gate.wait_for(NUM_THREADS)
        pool.shutdown()
        gate.is_open.set()
        assert await asyncio.gather(*running) == [["done"]] * NUM_THREADS
        for task in waiting:
            with pytest.raises(EngineUnavailableError, match="stopped"):
                await task
        with pytest.raises(EngineUnavailableError, match="stopped"):
            await run(pool, gate)


@pytest.mark.covers("http/tokenizing-off-the-loop")
async def test_long_texts_leave_a_thread_for_short_ones_even_when_their_callers_go_away() -> None:
    async with pool_and_gate() as (pool, gate):
        first = run(pool, gate, size=LONG_CHARACTERS + 1)
        await gate.wait_for(1)
        first.cancel()
        second = run(pool, gate, size=LONG_CHARACTERS + 1)
        assert await run(pool, lambda: "short") == ["short"]
        gate.is_open.set()
        assert await second == ["done"]


async def test_once_a_call_has_failed_those_that_wait_for_a_thread_never_begin() -> None:
    async with pool_and_gate() as (pool, gate):
        begun: list[int] = []

        def fail() -> str:
            raise ValueError("on purpose")

        def begin() -> str:
            begun.append(1)
            return gate()

        with pytest.raises(ValueError, match="on purpose"):
            await pool.run([(1, fail), *[(1, begin)] * 50])
        gate.is_open.set()
        await pool.run([(1, gate)] * NUM_THREADS)  # all that waited before them have had their turn
        assert len(begun) <= NUM_THREADS
