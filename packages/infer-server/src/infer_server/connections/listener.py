"""The TCP socket to listen on: bound before the model loads, so that a port in use is an error at once."""

import errno
import shlex
import socket
from dataclasses import dataclass

_MAX_UNSENT_BYTES = 64 * 1024


class AddressUnusableError(Exception):
    """The server cannot listen on its address; the message is one line that says why."""


def bind_listener(host: str, port: int) -> socket.socket:
    """Return a socket bound to `host` and `port` that does not listen yet; port 0 takes any free one.

    Raises:
        AddressUnusableError: the port is in use, or the address is not this machine's or not permitted.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressUnusableError(f"`--host` is {host!r}, which cannot be listened on: {error.strerror}.") from error
    except UnicodeError as error:
        raise AddressUnusableError(f"`--host` is {host!r}, which is no address and no name of a host.") from error
    try:
        _bind(listener, address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"Port {port} of {host} is in use; stop what listens there, or choose another with `--port`."
        else:
            reason = f"Cannot listen on port {port} of {host}: {error.strerror}."
        raise AddressUnusableError(reason) from error
    # Accepted connections inherit this. Without it the system buffers megabytes that a client does not read, and a
    # client that has stopped reading is noticed late.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)
    return listener


def allow_address_reuse(listener: socket.socket) -> None:
    """Set SO_REUSEADDR, so that the next server can bind the port while this one's connections end."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _bind(listener: socket.socket, address: tuple[str | int, ...] | tuple[int, bytes]) -> None:
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


def address_of(listener: socket.socket, *, scheme: str) -> Address:
    """Return the address of `listener`; `scheme` is `http` or `https`."""
    if listener.family is socket.AF_UNIX:
        path = listener.getsockname()
        return Address(text=f"unix:{path}", curl=f"--unix-socket {shlex.quote(path)} {scheme}://localhost")
    url = url_of(listener, scheme=scheme)
    return Address(text=url, curl=url)


def url_of(listener: socket.socket, *, scheme: str = "http") -> str:
    """Return the URL of the TCP `listener` for clients on this machine."""
    host, port = listener.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared with, not bound to
    return f"{scheme}://[{reachable}]:{port}" if ":" in reachable else f"{scheme}://{reachable}:{port}"
