"""`infer-ray serve` in a process of its own. Needs psutil."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from infer_proofs.engine.processes import core_processes

START_S = 150
END_S = 90


def wait_until(condition: Callable[[], object], *, within_s: float) -> None:
    """Return when `condition` holds.

    Raises:
        TimeoutError: it does not, for `within_s` seconds.
    """
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {within_s} s")
        time.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCluster:
    """A cluster of this machine that serves.

    Attributes:
        process: the process of `infer-ray serve`.
        url: where it listens.
        log: all that it has printed.
    """

    process: psutil.Popen
    url: str
    log: Path

    def cores(self) -> list[psutil.Process]:
        """Return the processes of cores, the oldest first."""
        return core_processes(psutil.Process(self.process.pid))

    def terminate(self) -> int:
        """Send SIGTERM, and return the exit code when no process is left.

        Raises:
            TimeoutError: a process is left.
        """
        everything = self.process.children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        code = int(self.process.wait(timeout=END_S))
        left = psutil.wait_procs(everything, timeout=END_S)[1]
        if left:
            raise TimeoutError(f"{left} are left")
        return code


@contextmanager
def running_cluster(log: Path, *flags: str) -> Iterator[RunningCluster]:
    """Run `infer-ray serve` with `flags` on a free port; end it with the context. All that is printed goes to `log`.

    Raises:
        RuntimeError: it has ended; the message is what it printed.
        TimeoutError: it does not start.
    """
    command = [str(Path(sys.executable).with_name("infer-ray")), "serve", "--port", "0", *flags]
    with log.open("w") as output:
        process = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        wait_until(lambda: "Try it:" in log.read_text() or process.poll() is not None, within_s=START_S)
        lines = log.read_text().splitlines()
        if process.poll() is not None:
            raise RuntimeError("\n".join(lines))
        url = next(line.split()[-1] for line in lines if line.startswith("listens on"))
        yield RunningCluster(process=process, url=url, log=log)
    finally:
        if process.is_running():
            for left in process.children(recursive=True):
                left.kill()
            process.kill()
        process.wait()
