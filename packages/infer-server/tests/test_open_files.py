"""A server that may open no more files: it accepts nobody for a while, and recovers."""

import contextlib
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import httpx

COMMAND = (
    "import resource, sys; from infer_server.cli import main; from infer_server.testing import FakeEngine, Script; "
    "resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {1})); "
    "sys.exit(main(sys.argv[1:], build_engine=lambda config: FakeEngine(Script(pause_after=1))))"
)
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


@contextlib.contextmanager
def server_with(*, soft: int, hard: int, flags: tuple[str, ...] = ()) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run a server that may have so many files open; yields it and its URL."""
    command = [sys.executable, "-c", COMMAND.format(soft, hard), "--port", "0", "--shutdown-timeout", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            url = next(line.split()[-1] for line in server.stdout if line.startswith("listens on"))
            yield server, url
        finally:
            server.send_signal(signal.SIGTERM)


def test_without_files_it_accepts_nobody_goes_on_with_those_it_has_and_recovers() -> None:
    flags = ("--max-connections", "100000", "--log-level", "warning")
    with server_with(soft=32, hard=32, flags=flags) as (server, url), contextlib.ExitStack() as sockets:
        assert server.stderr
        assert "room for 16" in server.stderr.readline()
        host, port = url.removeprefix("http://").split(":")
        connections = [sockets.enter_context(socket.create_connection((host, int(port)))) for _ in range(100)]
        assert "no connection can be accepted" in server.stderr.readline()
        for connection in connections[:16]:
            connection.sendall(HEALTH)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
        sockets.close()
        status = 503
        while status == 503:  # until it has seen the others close
            status = httpx.get(f"{url}/health", timeout=10).status_code
        assert status == 200


def test_own_limit_is_raised_to_what_the_connections_need() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with server_with(soft=64, hard=hard, flags=("--max-connections", "500")) as (server, _):
        soft, _ = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    assert soft >= 500
