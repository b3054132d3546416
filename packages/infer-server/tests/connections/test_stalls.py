"""Stalls of the event loop are logged."""

import asyncio
import logging
import time

import pytest

from infer_server.connections.stalls import LONG_STALL_S, watch_for_stalls
from infer_server.http.disconnects import cancel_and_wait


async def stall(seconds: float) -> None:
    """Hold the event loop up, once the watch has looked at its clock."""
    watch = asyncio.create_task(watch_for_stalls())
    await asyncio.sleep(0)
    time.sleep(seconds)  # noqa: ASYNC251 - the fault to be seen
    await asyncio.sleep(0.1)
    await cancel_and_wait(watch)


async def test_long_stall_is_logged_with_its_length(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await stall(2 * LONG_STALL_S)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert int(record.getMessage().split()[-2]) >= 1000 * LONG_STALL_S


async def test_short_stall_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await stall(0.0)
    assert caplog.records == []
