"""Finds the processes of cores. Needs psutil."""

import psutil


def core_processes(parent: psutil.Process) -> list[psutil.Process]:
    """Return the processes of cores below `parent`, the oldest first."""
    return sorted(filter(_is_core, parent.children(recursive=True)), key=lambda core: core.create_time())


def _is_core(process: psutil.Process) -> bool:
    try:
        return "infer_engine.ipc.worker" in " ".join(process.cmdline())
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return False
