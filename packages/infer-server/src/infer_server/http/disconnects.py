"""Notices over ASGI's `receive` that a client has closed its connection."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from infer_server.http.bodies import ClientDisconnectedError

T = TypeVar("T")


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed its connection; call this after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return the result of `work`, which is cancelled if the client disconnects first.

    Raises:
        ClientDisconnectedError: the client disconnected first.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnectedError
        return task.result()
    finally:
        await cancel_and_wait(task, watcher)


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel `tasks` and wait until none of them runs; ignore what they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
