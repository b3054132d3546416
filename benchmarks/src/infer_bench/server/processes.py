"""The processes behind a server on this machine: their memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentMemory:
    """The memory of processes, each page once.

    Attributes:
        own_bytes: pages that no other process shares.
        file_bytes: pages of files, those of libraries above all: others may share them, and the system can drop them
            and read them again.
    """

    own_bytes: int
    file_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.own_bytes + self.file_bytes


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


def resident_memory(processes: Sequence[psutil.Process]) -> ResidentMemory:
    """Return the memory that `processes` take together, as if no other process on the machine had the same libraries.

    PSS would not do: what measures imports torch too, and would count as half an owner of its pages.
    """
    own_bytes = 0
    files: dict[str, int] = {}
    for process in processes:
        for mapped in process.memory_maps(grouped=True):
            own_bytes += mapped.anonymous
            files[mapped.path] = max(files.get(mapped.path, 0), mapped.rss - mapped.anonymous)
    return ResidentMemory(own_bytes=own_bytes, file_bytes=sum(files.values()))
