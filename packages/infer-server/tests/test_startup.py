"""Between the command and the first request: what ends a server that still loads, and what does not."""

import os
import signal
import subprocess
import sys

import httpx

LOADS_FOR_EVER = """
import sys, time
from infer_server.cli import main

def load(config):
    print("loading", flush=True)
    time.sleep(600)

sys.exit(main(sys.argv[1:], build_engine=load))
"""
SERVES = """
import sys
from infer_server.cli import main
from infer_server.testing import FakeEngine

sys.exit(main(sys.argv[1:], build_engine=lambda config: FakeEngine()))
"""


def test_sigterm_while_the_model_loads_is_exit_code_143_at_once() -> None:
    command = [sys.executable, "-c", LOADS_FOR_EVER, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout
        assert server.stdout.readline() == "loading\n"
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
    assert (server.returncode, errors) == (128 + signal.SIGTERM, "")  # the default would be -SIGTERM


def test_name_that_the_terminal_has_no_letters_for_is_spelled_out() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-c", SERVES, "--port", "0", "--served-model-name", "模型", "--log-level", "warning"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        assert server.stdout
        lines = [server.stdout.readline() for _ in range(8)]
        url = next(line.split()[-1] for line in lines if line.startswith("listens on"))
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "模型"
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=30)
    assert lines[0].startswith("model      \\u6a21\\u578b")
    assert (server.returncode, errors) == (0, "")
