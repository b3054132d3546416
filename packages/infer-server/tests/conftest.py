"""Engines without a model, and clients of applications around them."""

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from infer_proofs.server import FakeEngine
from infer_proofs.server.client import client_of
from infer_server.connections.event_loop import new_event_loop

_TESTS_OF_CONNECTIONS = frozenset(
    f"test_{subject}"
    for subject in (
        *("acceptor", "deadlines", "disconnects", "hostile_requests", "malformed_http", "methods", "shutdown"),
        *("request_smuggling", "slow_readers", "stalls", "tls"),
    )
)


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run tests on the loop that serves, and tests of connections also on asyncio's own."""
    is_of_connections = item.path.stem in _TESTS_OF_CONNECTIONS
    return {"serving": new_event_loop} | ({"asyncio": asyncio.new_event_loop} if is_of_connections else {})


@pytest.fixture
def engine() -> FakeEngine:
    """An engine of the test's own, with the default script."""
    return FakeEngine()


@pytest.fixture(scope="session")
def client() -> httpx.AsyncClient:
    """A client of an application that tests share: they send requests, and do not look at its engine."""
    return client_of(FakeEngine())


@pytest.fixture
async def own_client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application of the test's own, around `engine`."""
    async with client_of(engine) as client:
        yield client
