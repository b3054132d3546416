"""The TCP sockets to listen on: bound before the model loads, so that a port in use is an error at once."""

import errno
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MAX_UNSENT_BYTES = 64 * 1024
_MAX_TRIES_OF_A_FREE_PORT = 16  # one that is free on the first address may be in use on another
_SocketAddress = tuple[Any, ...]
_NOT_HERE = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class AddressUnusableError(Exception):
    """The server cannot listen on its address; the message is one line that says why."""


def bind_listeners(host: str, port: int) -> list[socket.socket]:
    """Return sockets that do not listen yet: one for each address of `host`, IPv4 first, all on one port.

    `localhost` is `127.0.0.1` and `::1` on most machines, and clients try either. Addresses that this machine does not
    have are left out as long as there is another. Port 0 takes any free one.

    Raises:
        AddressUnusableError: the port is in use, or no address is this machine's or permitted.
    """
    addresses = _addresses_of(host, port)
    for tries_left in reversed(range(_MAX_TRIES_OF_A_FREE_PORT if port == 0 else 1)):
        try:
            return _bound_to_all(addresses, port)
        except OSError as error:
            if tries_left:
                continue
            if error.errno == errno.EADDRINUSE:
                reason = f"Port {port} of {host} is in use; stop what listens there, or choose another with `--port`."
            else:
                reason = f"Cannot listen on port {port} of {host}: {error.strerror}."
            raise AddressUnusableError(reason) from error
    raise AssertionError("the last try returns or raises")


def _addresses_of(host: str, port: int) -> list[tuple[socket.AddressFamily, _SocketAddress]]:
    """Return the families and addresses of `host`, IPv4 first."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise AddressUnusableError(f"`--host` is {host!r}, which cannot be listened on: {error.strerror}.") from error
    except UnicodeError as error:
        raise AddressUnusableError(f"`--host` is {host!r}, which is no address and no name of a host.") from error
    distinct = dict.fromkeys((family, address) for family, *_, address in found)
    return sorted(distinct, key=lambda each: each[0] is socket.AF_INET6)


def _bound_to_all(addresses: Sequence[tuple[socket.AddressFamily, _SocketAddress]], port: int) -> list[socket.socket]:
    """Return sockets that are bound to all addresses that this machine has, on one port.

    Raises:
        OSError: the port is in use on one of them, or none is this machine's.
    """
    listeners: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, (name, _, *rest) in addresses:
            chosen = listeners[0].getsockname()[1] if listeners else port
            try:
                listeners.append(_bound(family, (name, chosen, *rest)))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                absent = error
        if absent is not None and not listeners:
            raise absent
    except OSError:
        for each in listeners:
            each.close()
        raise
    return listeners


def _bound(family: socket.AddressFamily, address: _SocketAddress) -> socket.socket:
    """Return a socket that is bound to an address of this machine."""
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sends small writes at once then
    try:
        _bind(listener, address)
    except OSError:
        listener.close()
        raise
    # Accepted connections inherit this. Without it the system buffers megabytes that a client does not read, and a
    # client that has stopped reading is noticed late.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)
    return listener


def allow_address_reuse(listener: socket.socket) -> None:
    """Set SO_REUSEADDR, so that the next server can bind the port while this one's connections end."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _bind(listener: socket.socket, address: _SocketAddress) -> None:
    """Bind, first without SO_REUSEADDR: with it, two servers that are still loading could both bind the port."""
    try:
        listener.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        allow_address_reuse(listener)
        listener.bind(address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a server, as text.

    Attributes:
        text: the address.
        curl: arguments for `curl`, up to the path.
    """

    text: str
    curl: str


def address_of(listeners: Sequence[socket.socket], *, scheme: str) -> Address:
    """Return the address of a server; `scheme` is `http` or `https`."""
    if listeners[0].family is socket.AF_UNIX:
        path = listeners[0].getsockname()
        return Address(text=f"unix:{path}", curl=f"--unix-socket {shlex.quote(path)} {scheme}://localhost")
    urls = [url_of(each, scheme=scheme) for each in listeners]
    return Address(text=" and ".join(urls), curl=urls[0])


def url_of(listener: socket.socket, *, scheme: str = "http") -> str:
    """Return the URL of the TCP `listener` for clients on this machine."""
    host, port = listener.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with, not bound to
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"
