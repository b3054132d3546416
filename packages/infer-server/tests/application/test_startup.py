"""From the command to the first request: signals while the model loads, and the banner."""

import os
import signal
import subprocess
import sys

import httpx
import pytest

from infer_server.testing import server_process

LOADS_FOR_EVER = """
import sys, time
from infer_server.cli import main

def load(config):
    print("loading", flush=True)
    time.sleep(600)

sys.exit(main(sys.argv[1:], build_engine=load))
"""


def test_sigterm_while_the_model_loads_is_exit_code_143_at_once() -> None:
    command = [sys.executable, "-c", LOADS_FOR_EVER, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "loading\n"
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
    assert (server.returncode, errors) == (128 + signal.SIGTERM, "")  # the default would be -SIGTERM


@pytest.mark.covers("http/served-model-name")
def test_name_that_the_terminal_has_no_letters_for_is_spelled_out() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    flags = ("--served-model-name", "模型", "--log-level", "warning")
    with server_process(*flags, environment=environment) as server:
        assert httpx.get(f"{server.url}/v1/models").json()["data"][0]["id"] == "模型"
        assert server.terminate() == (0, "")
    assert server.banner[0].startswith("model      \\u6a21\\u578b")
