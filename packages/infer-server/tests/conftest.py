"""An engine without a model, and a client of the application around it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from infer_server.testing import FakeEngine
from infer_server.testing.client import client_of


@pytest.fixture
def engine() -> FakeEngine:
    """An engine that says hello."""
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application around `engine`."""
    async with client_of(engine) as client:
        yield client
