"""Runs one part: `python -m infer_engine.doctor PART REQUEST FD`.

REQUEST is a `DoctorRequest` as JSON, FD the number of an open file for the messages. Standard input is a pipe from the
process that asks: when that ends, this process ends with all that it started.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from infer_engine.doctor.reporter import Reporter
from infer_engine.protocol.doctor import DoctorRequest, PartName


def run_environment(reporter: Reporter) -> None:
    """Run the part `environment`."""
    from infer_engine.doctor.environment import examine_environment  # noqa: PLC0415 - each part imports its own

    examine_environment(reporter)


def run_model(reporter: Reporter) -> None:
    """Run the part `model`."""
    from infer_engine.doctor.checkpoint import examine_checkpoint  # noqa: PLC0415 - each part imports its own

    examine_checkpoint(reporter)


def run_kernels(reporter: Reporter) -> None:
    """Run the part `kernels`."""
    from infer_engine.doctor.kernels import examine_kernels  # noqa: PLC0415 - each part imports its own

    examine_kernels(reporter)


def run_engine(reporter: Reporter) -> None:
    """Run the part `engine`."""
    from infer_engine.doctor.engine import examine_engine  # noqa: PLC0415 - each part imports its own

    examine_engine(reporter)


PARTS: Mapping[PartName, Callable[[Reporter], None]] = MappingProxyType(
    {"environment": run_environment, "model": run_model, "kernels": run_kernels, "engine": run_engine}
)


def main(name: PartName, request: str, file: str) -> None:
    """Run the part called `name`."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with os.fdopen(int(file), "wb", buffering=0) as messages:
        PARTS[name](Reporter(msgspec.json.decode(request, type=DoctorRequest), messages.write))


def _end_with_parent() -> None:
    """End this process when standard input closes, with the group of processes that it leads."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]  # our own server wrote them
