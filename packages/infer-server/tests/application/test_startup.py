"""From the command to the first request: signals while the model loads, and the banner."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest

from infer_proofs.server import server_process

LOADS_FOR_EVER = """
import sys, time
from infer_server.cli import main

def load(config):
    print("loading", flush=True)
    while True:
        try:
            time.sleep(600)
        except BaseException:  # as some modules do while they are imported
            pass

sys.exit(main(sys.argv[1:], build_engine=load))
"""


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Let processes that the test starts heed interrupts, which tests in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_the_model_loads_ends_the_process_at_once(number: signal.Signals) -> None:
    command = [sys.executable, "-c", LOADS_FOR_EVER, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "loading\n"
        server.send_signal(number)
        _, errors = server.communicate(timeout=30)
    assert (server.returncode, errors) == (128 + number, "")  # the default would be -SIGTERM


@pytest.mark.covers("http/served-model-name")
def test_name_that_the_terminal_has_no_letters_for_is_spelled_out() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    flags = ("--served-model-name", "模型", "--log-level", "warning")
    with server_process(*flags, environment=environment) as server:
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] == "模型"
        assert server.terminate() == (0, "")
    assert server.banner[0].startswith("model      \\u6a21\\u578b")
