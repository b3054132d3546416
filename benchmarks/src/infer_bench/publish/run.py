"""Runs what README and docs quote, one command after another, and fills their tables and pictures from the results.

    uv run nox -s publish                        # everything, about an hour on two quiet cores
    uv run infer-bench publish --list            # the results, their commands, and what is from elsewhere
    uv run infer-bench publish --only engine     # one result, and the tables and pictures made of it
    uv run infer-bench publish --render          # tables and pictures of the results that are there
    uv run infer-bench publish --check           # whether pages, pictures and results agree

It refuses a tree with changes, as a result names the commit that it is of. A command that fails, or misses a limit,
does not hold up the others; the exit code is 1 then. Results, pages and pictures are written as soon as each command
has ended.
"""

import argparse
import json
import os
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from infer_bench.checkpoints import write_checkpoint
from infer_bench.publish.check import problems
from infer_bench.publish.declared import Json, Result
from infer_bench.publish.published import RESULTS
from infer_bench.publish.render import pages, render_pages, render_pictures, save
from infer_bench.publish.tree import changed_files, head_commit
from infer_bench.quality import smollm
from infer_bench.results import COMMIT_VARIABLE, IMAGES, ROOT
from infer_bench.results import RESULTS as RESULTS_FOLDER
from infer_bench.server.processes import run_limited

MOST_TIMES, SPARE_S = 5, 600.0
"""A command that takes so many times its minutes, and so many seconds more, hangs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked; return 1 where a command or a check failed, 2 where the tree has changes."""
    own = {result.name: result for result in RESULTS if not result.elsewhere}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(own), help="of the results; left out: all")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="print all results, and run nothing")
    what.add_argument("--dry-run", action="store_true", help="print what would run, in order, and run nothing")
    what.add_argument("--render", action="store_true", help="fill pages and pictures from the results that are there")
    what.add_argument("--check", action="store_true", help="print what does not agree")
    args = parser.parse_args(arguments)
    chosen = [result for name, result in own.items() if name in (args.only or own)]
    if args.list or args.dry_run:
        print_plan(chosen)
        elsewhere = [result for result in RESULTS if result.elsewhere] if args.list else []
        print("".join(f"elsewhere  {result.name}: {result.elsewhere}\n" for result in elsewhere), end="")
    elif args.render:
        render([result.name for result in (chosen if args.only else RESULTS)])
    elif args.check:
        found = problems()
        print("\n".join(found) or "Results, pages and pictures agree.")
        return 1 if found else 0
    else:
        return publish(chosen)
    return 0


def publish(chosen: Sequence[Result]) -> int:
    """Run and publish all; return 1 where a command failed or missed a limit, 2 where the tree has changes."""
    if changed := changes():
        listed = "\n  ".join(changed)
        print(f"The tree has changes; commit them first, as results name the commit:\n  {listed}", file=sys.stderr)
        return 2
    commit, failed = head_commit(), list[str]()
    began_s = time.monotonic()
    print_plan(chosen)
    with tempfile.TemporaryDirectory(prefix="publish-") as made:
        for number, result in enumerate(chosen, start=1):
            minutes = (time.monotonic() - began_s) / 60
            print(
                f"\n[{number} of {len(chosen)}, minute {minutes:.0f}] {result.name}: about {result.minutes:g} minutes, "
                f"load average {os.getloadavg()[0]:.2f}\n{result.command}",
                flush=True,
            )
            try:
                problem = measure(result, Path(made) / "checkpoints", commit=commit, out=Path(made) / result.name)
            except Exception:  # noqa: BLE001 - an hour of measuring must not be lost to one table
                traceback.print_exc()
                problem = f"{result.name}: its tables or pictures could not be made; its file is written."
            if problem:
                failed.append(problem)
                print(problem, file=sys.stderr, flush=True)
    minutes = (time.monotonic() - began_s) / 60
    print(f"\n{len(chosen) - len(failed)} of {len(chosen)} commands went well, in {minutes:.0f} minutes.")
    print("".join(f"{line}\n" for line in failed), file=sys.stderr)
    if left := problems():
        print("Left to do before this is committed:\n" + "\n".join(left))
    return 1 if failed else 0


def measure(result: Result, checkpoints: Path, *, commit: str, out: Path) -> str:
    """Run one command and publish what it saved; return what went wrong, or nothing."""
    load_before = os.getloadavg()[0]
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # `python` is this one
        COMMIT_VARIABLE: commit,  # as results that are written meanwhile are no changes
    }
    timeout_s = SPARE_S + MOST_TIMES * 60 * result.minutes
    code = run_limited(words_of(result, checkpoints, out), timeout_s=timeout_s, variables=variables)
    saved = out / f"{result.name}.json"
    if not saved.exists():
        return f"{result.name}: exit code {code}, and no result; the published one is left as it is."
    if changed := changes(but_outputs=True):
        return f"{result.name}: not published, as {', '.join(changed)} changed meanwhile."
    facts = {"command": result.command, "commit": commit, "load_average_before": round(load_before, 2)}
    save(result.name, published(saved.read_text(encoding="utf-8"), facts, checkpoints=checkpoints))
    render([result.name], drawn=out)
    return f"{result.name}: exit code {code}; its result is published all the same." if code else ""


def words_of(result: Result, checkpoints: Path, out: Path) -> list[str]:
    """Return the program and the arguments that measure `result` into the folder `out`."""
    assert result.command is not None
    command = re.sub(r"\{checkpoint:([^}]*)\}", lambda match: str(checkpoint(match[1], checkpoints)), result.command)
    program, name, *rest = shlex.split(command)
    assert program == "infer-bench"
    return [sys.executable, "-m", "infer_bench", name, "--out", str(out), *rest]


def checkpoint(name: str, folder: Path) -> Path:
    """Return a shape's random weights, or SmolLM2's own, as a checkpoint in `folder`; it is made the first time."""
    made = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    if not made.exists() and name == smollm.NAME:
        made.symlink_to(smollm.smollm_folder(), target_is_directory=True)
    elif not made.exists():
        write_checkpoint(name, made)
    return made


def published(text: str, facts: Json, *, checkpoints: Path) -> Json:
    """Return what a command saved as it is published: without paths of this machine, with `facts` as declared."""
    for path, name in ((f"{checkpoints}", "CHECKPOINTS"), (sys.executable, "python"), (f"{ROOT}/", "")):
        text = text.replace(path, name)
    found: Json = json.loads(text)
    return found | {"environment": found["environment"] | facts}


def render(names: Sequence[str], *, drawn: Path | None = None) -> None:
    """Fill all pages, draw the pictures of these results, and say what was written."""
    for path in [*render_pages(), *render_pictures(names, drawn=drawn)]:
        print("wrote", path.relative_to(ROOT))


def changes(*, but_outputs: bool = False) -> list[str]:
    """Return the changed files of the tree, `but_outputs` without those that a publication writes."""
    outputs = {str(path.relative_to(ROOT)) for path in pages()}
    folders = tuple(f"{folder.relative_to(ROOT)}/" for folder in (RESULTS_FOLDER, IMAGES))
    return [name for name in changed_files() if not (but_outputs and (name in outputs or name.startswith(folders)))]


def print_plan(chosen: Sequence[Result]) -> None:
    """Print what runs, in order."""
    for result in chosen:
        print(f"{result.minutes:5.1f} min  {result.name}: {result.command}")
    print(f"{sum(result.minutes for result in chosen):5.1f} min  all, on two quiet cores")
