"""Runs one published command, and gives its result the form in which it is published."""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from infer_bench.checkpoints import write_checkpoint
from infer_bench.processes import run_limited
from infer_bench.publish.declared import Json, Result
from infer_bench.quality import smollm
from infer_bench.results import COMMIT_VARIABLE, ROOT

MOST_TIMES = 5
"""A command that takes so many times its minutes, and `SPARE_S` more, hangs."""
SPARE_S = 600.0


class Checkpoints:
    """Folders that commands name as `{checkpoint:NAME}`, each made once: a shape's random weights, or SmolLM2's own."""

    def __init__(self, folder: Path) -> None:
        """Write them into `folder`."""
        self.folder = folder

    def fill(self, command: str) -> str:
        """Return the command with folders in place of names."""
        while "{checkpoint:" in command:
            before, _, rest = command.partition("{checkpoint:")
            shape, _, after = rest.partition("}")
            made = self.folder / shape
            self.folder.mkdir(parents=True, exist_ok=True)
            if not made.exists() and shape == smollm.NAME:
                made.symlink_to(smollm.smollm_folder(), target_is_directory=True)
            elif not made.exists():
                write_checkpoint(shape, made)
            command = f"{before}{made}{after}"
        return command


def words_of(result: Result, checkpoints: Checkpoints, out: Path) -> list[str]:
    """Return the program and the arguments that measure `result` into the folder `out`."""
    assert result.command is not None
    program, name, *rest = shlex.split(checkpoints.fill(result.command))
    assert program == "infer-bench"
    return [sys.executable, "-m", "infer_bench", name, "--out", str(out), *rest]


def run_command(words: Sequence[str], *, commit: str, timeout_s: float) -> int:
    """Run a command to its end; return its exit code, `TIMED_OUT` where it took longer than it may."""
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # `python` is this one
        COMMIT_VARIABLE: commit,  # as results that are written meanwhile are no changes
    }
    return run_limited(words, timeout_s=timeout_s, variables=variables)


def timeout_of(result: Result) -> float:
    """Return the seconds after which a command is ended."""
    return SPARE_S + MOST_TIMES * 60 * result.minutes


def published(text: str, result: Result, *, commit: str, load_before: float, checkpoints: Path) -> Json:
    """Return the JSON of a command as it is published: without paths of this machine, with the command as declared.

    Args:
        text: what the command saved.
        result: its declaration.
        commit: commit of the tree.
        load_before: the load average before it ran.
        checkpoints: the folder of checkpoints.
    """
    for path, name in ((f"{checkpoints}", "CHECKPOINTS"), (sys.executable, "python"), (f"{ROOT}/", "")):
        text = text.replace(path, name)
    found: Json = json.loads(text)
    facts = {"command": result.command, "commit": commit, "load_average_before": round(load_before, 2)}
    return found | {"environment": found["environment"] | facts}
