"""A server that may open no more files: it pauses accepting, keeps its connections, and recovers."""

import contextlib
import resource
import socket

import httpx
import pytest

from infer_proofs.server import server_process
from infer_server.connections import open_files

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"


def limited_to(soft: int, hard: int) -> str:
    """Return the statement that limits the open files of its process."""
    return f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"


def test_without_files_it_accepts_nobody_goes_on_with_those_it_has_and_recovers() -> None:
    flags = ("--max-connections", "100000", "--log-level", "warning", "--shutdown-timeout", "0")
    with server_process(*flags, setup=limited_to(32, 32)) as server, contextlib.ExitStack() as sockets:
        assert server.process.stderr
        assert "room for 16" in server.process.stderr.readline()
        host, port = server.url.removeprefix("http://").split(":")
        connections = [sockets.enter_context(socket.create_connection((host, int(port)))) for _ in range(100)]
        assert "no connection can be accepted" in server.process.stderr.readline()
        for connection in connections[:16]:
            connection.sendall(HEALTH)
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK")
        sockets.close()
        status = 503
        with httpx.Client(timeout=10, headers={"Connection": "close"}) as client:
            while status == 503:  # until it has seen the others close
                status = client.get(f"{server.url}/health").status_code
        assert status == 200


@pytest.mark.covers("command-line-and-library/max-connections")
def test_own_limit_is_raised_to_what_the_connections_need() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with server_process("--max-connections", "500", setup=limited_to(64, hard)) as server:
        soft, _ = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    assert soft >= 500


@pytest.mark.parametrize(("max_connections", "allowed", "soft"), [(4096, 4096, 4352), (20_000, 9984, 10_240)])
def test_a_system_that_refuses_a_limit_below_its_hard_one_gets_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, max_connections: int, allowed: int, soft: int
) -> None:
    """As on macOS: the hard limit is infinite, and more than `OPEN_MAX` is refused."""
    limits = [256, resource.RLIM_INFINITY]

    def set_limits(_: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits[:] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    assert open_files.raise_open_file_limit(max_connections) == allowed
    assert limits == [soft, resource.RLIM_INFINITY]
    assert ("there is room for 9984" in caplog.text) == (allowed < max_connections)
