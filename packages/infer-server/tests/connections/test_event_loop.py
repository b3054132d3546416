"""Which event loop serves."""

import asyncio
import sys

import pytest
import uvloop

from infer_proofs.server import server_process
from infer_server.connections.event_loop import new_event_loop


def test_uvloop_serves_where_it_is_installed() -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert isinstance(runner.get_loop(), uvloop.Loop)


def test_asyncios_loop_serves_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert type(runner.get_loop()) is asyncio.SelectorEventLoop


@pytest.mark.parametrize("setup", ["", "sys.modules['uvloop'] = None"])
def test_command_serves_on_either_and_ends_in_silence(setup: str) -> None:
    with server_process("--log-level", "warning", setup=setup) as server:
        assert server.terminate() == (0, "")
