"""The doctor's parts as programs: how they are asked, and that they end with the process that asked."""

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from infer_engine.doctor.__main__ import PARTS
from infer_engine.protocol.doctor import DoctorRequest, PartFinished, PartMessage

COMMAND = [sys.executable, "-P", "-m", "infer_engine.doctor"]


def start(name: str, messages: Path, request: DoctorRequest) -> "subprocess.Popen[bytes]":
    with messages.open("wb") as file:
        return subprocess.Popen(
            [*COMMAND, name, msgspec.json.encode(request).decode(), str(file.fileno())],
            pass_fds=[file.fileno()],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )


@pytest.mark.parametrize("name", ["environment", "model"])
def test_a_part_writes_messages_and_says_that_it_is_done(name: str, tmp_path: Path) -> None:
    request = DoctorRequest(model=None, device="cpu", dtype="auto", seconds=60.0)
    with start(name, tmp_path / "messages", request) as process:
        assert process.wait(timeout=100) == 0
    decoder = msgspec.json.Decoder(PartMessage)
    messages = [decoder.decode(line) for line in (tmp_path / "messages").read_bytes().splitlines()]
    assert [isinstance(message, PartFinished) for message in messages] == [False] * (len(messages) - 1) + [True]
    assert len(messages) > 3


def test_a_part_ends_when_the_process_that_asked_has_ended(tmp_path: Path) -> None:
    process = start(
        "engine", tmp_path / "messages", DoctorRequest(model=None, device="cpu", dtype="auto", seconds=60.0)
    )
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=60) == -signal.SIGKILL


def test_the_parts_are_these() -> None:
    assert list(PARTS) == ["environment", "model", "kernels", "engine"]
