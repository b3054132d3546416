"""`infer-server` with a fake engine, in a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_PROGRAM = """
import sys
from infer_server.cli import main
from infer_proofs.server import FakeEngine, Script
{setup}
sys.exit(main(sys.argv[1:], build_engine=lambda config: FakeEngine({script})))
"""
_BANNER_LINES = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A process whose server listens.

    Attributes:
        process: the process; its standard error is a pipe.
        banner: the lines that it has printed.
    """

    process: "subprocess.Popen[str]"
    banner: list[str]

    @property
    def url(self) -> str:
        """The address that the banner shows."""
        return next(line.split()[-1] for line in self.banner if line.startswith("listens on"))

    def terminate(self) -> tuple[int, str]:
        """Send SIGTERM, and return the exit code and what was written to standard error."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextmanager
def server_process(
    *flags: str,
    script: str = "Script()",
    setup: str = "",
    interpreter_flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """Run `infer-server` on a free port with `flags`; end it with the context.

    `script` is the Python expression of the engine's script, `setup` a statement to run first.
    """
    program = _PROGRAM.format(setup=setup, script=script)
    command = [sys.executable, *interpreter_flags, "-c", program, "--port", "0", *flags]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:  # noqa: S603 - our own program
        assert process.stdout is not None
        try:
            yield ServerProcess(process=process, banner=[process.stdout.readline() for _ in range(_BANNER_LINES)])
        finally:
            if process.poll() is None:
                process.terminate()
