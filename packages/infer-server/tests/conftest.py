"""Engines without a model, and clients of applications around them."""

from collections.abc import AsyncIterator

import httpx
import pytest

from infer_server.testing import FakeEngine
from infer_server.testing.client import client_of


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
