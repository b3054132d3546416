"""The working tree as git sees it: its commit, what has changed, and which commits it comes from."""

import shutil
import subprocess
from functools import cache

from infer_bench.results import ROOT


def changed_files() -> list[str]:
    """Return the files that differ from the commit or are not in it, relative to the repository."""
    return [line[3:].partition(" -> ")[2] or line[3:] for line in git("status", "--porcelain").splitlines()]


def head_commit() -> str:
    """Return the commit of the working tree, twelve digits of it."""
    return git("rev-parse", "--short=12", "HEAD").strip()


def is_ancestor(commit: str) -> bool:
    """Return whether the working tree's commit comes from `commit`, or is it."""
    try:
        git("merge-base", "--is-ancestor", commit, "HEAD")
    except RuntimeError:
        return False
    return True


@cache
def commits_since(commit: str, *paths: str) -> int:
    """Return how many commits after `commit` have changed one of `paths`, relative to the repository."""
    return int(git("rev-list", "--count", f"{commit}..HEAD", "--", *paths))


def has_history() -> bool:
    """Return whether this is a repository with all of its commits."""
    try:
        return git("rev-parse", "--is-shallow-repository").strip() == "false"
    except RuntimeError:
        return False


def git(*arguments: str) -> str:
    """Return what git prints.

    Raises:
        RuntimeError: git is not there, or it failed, as where there is no repository.
    """
    program = shutil.which("git")
    if program is None:
        raise RuntimeError("`git` is not installed; a publication needs the commit that it is of")
    command = [program, "-C", str(ROOT), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - git, with our arguments
    if ended.returncode:
        what, why = " ".join(arguments), ended.stderr.strip()
        raise RuntimeError(f"`git {what}` ended with exit code {ended.returncode}: {why}")
    return ended.stdout
