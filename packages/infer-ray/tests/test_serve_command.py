"""`infer-ray serve` that cannot work: one line on standard error and exit code 2, before a cluster is left behind."""

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PROGRAM = str(Path(sys.executable).with_name("infer-ray"))


def run(*flags: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([PROGRAM, *flags], capture_output=True, text=True, timeout=120, check=False)


def refusal(*flags: str) -> str:
    """Return the last line that `infer-ray serve` writes; it must fail and leave no process."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    found = run("serve", *flags)
    lines = [line for line in found.stderr.splitlines() if line.startswith("infer-ray: ")]
    assert (found.returncode, len(lines)) == (2, 1), found.stderr
    assert "Traceback" not in found.stderr
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= before
    return lines[0]


@pytest.mark.covers("replicas/ray-wrong-use")
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "/nowhere"], "/nowhere"),
        (["--replicas", "0"], "`replicas` is 0; it must be in [1, 10000]"),
        (["--max-replicas", "x"], "x"),
        (["--data-parallel-size", "2"], "`data_parallel_size` is 2; on a cluster set `replicas`."),
        (["--uds", "a.sock"], "`uds` is 'a.sock'; on a cluster Ray Serve has the connections"),
        (["--bogus"], "--bogus"),
    ],
)
def test_wrong_flags_are_refused_before_a_cluster_starts(flags: list[str], message: str) -> None:
    assert message in refusal(*flags)


def test_a_port_in_use_is_refused_before_a_cluster_starts() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"Port {port} of 127.0.0.1 is in use" in refusal("--port", str(port))


def test_a_cluster_without_room_for_the_replicas_is_refused_with_numbers_and_flags() -> None:
    message = refusal("--replicas", "500", "--num-cpus", "3")
    assert "500 replicas with 3 CPUs each need 1500, and the cluster has " in message
    assert message.endswith("lower `--replicas` or `--num-cpus`.")


@pytest.mark.covers("replicas/ray-wrong-use")
def test_a_cluster_that_cannot_be_reached_is_one_line() -> None:
    assert "The Ray cluster `127.0.0.1:1` cannot be reached: " in refusal("--address", "127.0.0.1:1")
    assert "The Ray cluster `auto` cannot be reached: " in refusal("--address", "auto")


def test_help_and_version_need_no_ray() -> None:
    program = (
        "import sys; from infer_ray.cli import main; code = main(sys.argv[1:]); sys.exit(code or 'ray' in sys.modules)"
    )
    for flag, expected in (("--help", "serve"), ("--version", "0.1.0")):
        found = subprocess.run([sys.executable, "-c", program, flag], capture_output=True, text=True, check=False)
        assert (found.returncode, expected in found.stdout) == (0, True), found.stderr
    assert "--max-replicas" in run("serve", "--help").stdout
