"""The Unix socket to listen on: bound before the model loads, removed at the end.

Its owner and group may connect (mode 0660), so that a proxy in the same group can. A lock file beside it tells a server
that still loads its model from one that died: neither answers.
"""

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infer_server.connections.listener import AddressUnusableError

_MODE = 0o660


@contextmanager
def unix_listener(path: str) -> Iterator[socket.socket]:
    """Yield a socket bound to `path` that does not listen yet; the file is removed when the context ends.

    The socket file of a server that died is replaced.

    Raises:
        AddressUnusableError: the path is in use, is no socket, is too long, or may not be used.
    """
    place = Path(path)
    with _lock(place), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            _remove_stale(place)
            listener.bind(path)
        except OSError as error:
            raise AddressUnusableError(f"Cannot listen on `--uds` {path!r}: {error.strerror or error}.") from error
        try:
            place.chmod(_MODE)  # no client can connect before it listens
            yield listener
        finally:
            place.unlink(missing_ok=True)


@contextmanager
def _lock(place: Path) -> Iterator[None]:
    """Hold the lock of `place` until the context or the process ends."""
    lock = Path(f"{place}.lock")
    try:
        descriptor = _locked(lock)
    except BlockingIOError:
        raise _in_use(place) from None
    except OSError as error:
        raise AddressUnusableError(f"Cannot listen on `--uds` {str(place)!r}: {error.strerror or error}.") from error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(lock: Path) -> int:
    """Return a descriptor of the file `lock`, created if it is missing, that holds the lock on it."""
    while True:
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last holder may have removed the file meanwhile: a lock on a removed file locks nothing.
            if lock.exists() and lock.stat().st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_stale(place: Path) -> None:
    """Remove the socket at `place` if no server answers on it."""
    try:
        mode = place.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressUnusableError(f"`--uds` is {str(place)!r}, which is there and is no socket; choose another path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(place))
        except ConnectionRefusedError:
            place.unlink()
        else:
            raise _in_use(place)


def _in_use(place: Path) -> AddressUnusableError:
    return AddressUnusableError(f"`--uds` {str(place)!r} is in use; stop what listens there, or choose another path.")
