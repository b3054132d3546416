"""Finds the processes of cores and ranks. Needs psutil."""

import psutil


def core_processes(parent: psutil.Process) -> list[psutil.Process]:
    """Return the processes of cores below `parent`, the oldest first."""
    return _running(parent, "infer_engine.assembly.core_process")


def rank_processes(parent: psutil.Process) -> list[psutil.Process]:
    """Return the processes of ranks but 0 below `parent`, the oldest first."""
    return _running(parent, "infer_engine.executor.worker_process")


def _running(parent: psutil.Process, module: str) -> list[psutil.Process]:
    children = parent.children(recursive=True)
    return sorted((each for each in children if _runs(each, module)), key=lambda process: process.create_time())


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        return module in " ".join(process.cmdline())
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return False
