"""Accepting connections: what each of them gets, and the end."""

import asyncio
import socket

from infer_server.connections.acceptor import Acceptor
from infer_server.connections.listener import bind_listeners


class Recorder(asyncio.Protocol):
    """Notes the transports of its connections in `made`."""

    def __init__(self, made: "asyncio.Queue[asyncio.BaseTransport]") -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.put_nowait(transport)


async def test_small_writes_leave_at_once_and_clients_who_come_together_are_all_accepted() -> None:
    made: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()
    with bind_listeners("127.0.0.1", 0)[0] as listener:
        acceptor = Acceptor(listener, lambda: Recorder(made), tls=None, backlog=200)
        clients = [socket.create_connection(listener.getsockname()) for _ in range(150)]
        transports = [await made.get() for _ in clients]
        acceptor.close()
        options = {
            each.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in transports
        }
    assert 0 not in options
    for client in clients:
        client.close()
    for transport in transports:
        transport.close()


async def test_closed_acceptor_accepts_nobody() -> None:
    made: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()
    with bind_listeners("127.0.0.1", 0)[0] as listener:
        acceptor = Acceptor(listener, lambda: Recorder(made), tls=None, backlog=1)
        acceptor.close()
        with socket.create_connection(listener.getsockname()):
            reader, writer = await asyncio.open_connection(*listener.getsockname())  # turns of the loop
            writer.close()
            del reader
    assert made.empty()
