"""Starts our server for a benchmark, in a process of its own."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from infer_bench.shapes import NO_DRAFTS_FLAGS, write_config
from infer_models.hub import DEMO_MODEL_NAME

_LISTENS = re.compile(r"listens on (\S+)")


class OwnServer(NamedTuple):
    """A running server: where it listens, what it was started with, what it printed, and its process."""

    url: str
    flags: tuple[str, ...]
    banner: str
    process: "subprocess.Popen[str]"


@contextmanager
def serving(
    flags: Sequence[str] = (), *, shape: str | None = None, stderr: IO[bytes] | None = None
) -> Iterator[OwnServer]:
    """Serve with `flags` on a free port, the demo model if they name none; `shape` has random weights.

    Args:
        flags: flags of `infer-server`.
        shape: a name in `SHAPES`; None serves what `flags` say.
        stderr: a file for the server's standard error; None leaves it where this process has its own.

    Raises:
        RuntimeError: it ended before it listened; its standard error says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        drafts = () if "--speculative-config" in flags else NO_DRAFTS_FLAGS
        dummy = ["--model", str(write_config(shape, Path(folder))), "--load-format", "dummy", *drafts] if shape else []
        named = ["--served-model-name", shape] if shape else []
        demo = [] if shape or "--model" in flags else ["--model", DEMO_MODEL_NAME]
        all_flags = (*dummy, *demo, *named, *flags)
        command = [sys.executable, "-m", "infer_server", "--port", "0", "--no-access-log", *all_flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)  # noqa: S603 - our own program
        with process:
            try:
                banner = _read_banner(process)
                yield OwnServer(url=_LISTENS.findall(banner)[0], flags=all_flags, banner=banner, process=process)
            finally:
                process.terminate()


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Return fields of `EngineConfig` as `infer-server` takes them."""
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return words


def _read_banner(process: "subprocess.Popen[str]") -> str:
    banner = ""
    for line in process.stdout or ():
        banner += line
        if _LISTENS.search(line):
            return banner
    raise RuntimeError(f"`infer-server` ended with exit code {process.wait()} before it listened.")
