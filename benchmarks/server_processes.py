"""The processes behind a server on this machine: their memory, and the variables that they run with. Sends nothing."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil

_CORE = "infer_engine.core_worker"


def processes_behind(url: str) -> list[psutil.Process]:
    """Return the process that listens at `url`, and all its descendants.

    Raises:
        RuntimeError: no process of this user listens there.
    """
    port = urlsplit(url).port
    for found in psutil.net_connections("tcp"):
        if found.status == psutil.CONN_LISTEN and found.laddr[1:] == (port,) and found.pid is not None:
            process = psutil.Process(found.pid)
            return [process, *process.children(recursive=True)]
    raise RuntimeError(f"no process that may be looked at listens on port {port} of this machine")


def resident_bytes(processes: Sequence[psutil.Process]) -> int:
    """Return the memory that `processes` take together: pages that several share are counted once among them (PSS)."""
    return sum(_pss_bytes(Path(f"/proc/{process.pid}/smaps_rollup").read_text()) for process in processes)


def core_environment(processes: Sequence[psutil.Process]) -> dict[str, str]:
    """Return the variables of the process that computes, or of the first one where none is for that alone."""
    cores = [process for process in processes if _CORE in process.cmdline()]
    return (cores or processes)[0].environ()


def _pss_bytes(rollup: str) -> int:
    (line,) = (line for line in rollup.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024
