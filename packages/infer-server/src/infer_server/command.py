"""The common part of the commands of this package and of packages above it: how they are parsed, and how they fail."""

import dataclasses
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from cyclopts import App, CycloptsError

from infer_engine.protocol import CheckpointUnusableError, EngineStartError
from infer_server.connections.listener import AddressUnusableError
from infer_server.connections.tls import CertificateUnusableError
from infer_server.observability.tracing import TracingUnavailableError
from infer_server.settings import ServerSettings

EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130
API_KEY_VARIABLE = "INFER_API_KEY"


class ApiKeysUnusableError(Exception):
    """The environment has API keys that no client could send; the message is one line that says why."""


class ReportUnwritableError(Exception):
    """A report cannot be written to the file that was asked for; the message is one line that says why."""


_START_ERRORS = (
    AddressUnusableError,
    ApiKeysUnusableError,
    CertificateUnusableError,
    CheckpointUnusableError,
    EngineStartError,
    ReportUnwritableError,
    TracingUnavailableError,
)


def run_command(app: App, argv: Sequence[str] | None) -> int:
    """Run the command that `argv` (the process's own arguments if None) names, and return the exit code.

    What cannot work is one line on standard error and exit code 2.
    """
    try:
        command, arguments, _ = app.parse_args(
            sys.argv[1:] if argv is None else argv, print_error=False, exit_on_error=False
        )
    except (CycloptsError, ValueError) as error:
        return _report_start_error(app, error)
    try:
        return command(*arguments.args, **arguments.kwargs) or 0
    except _START_ERRORS as error:
        return _report_start_error(app, error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def with_environment_keys(settings: ServerSettings) -> ServerSettings:
    """Add the keys of the environment if the command line, which other users of the machine can read, has none.

    Raises:
        ApiKeysUnusableError: no client could send one of them.
    """
    listed = os.environ.get(API_KEY_VARIABLE)
    if settings.api_key or listed is None:
        return settings
    try:
        return dataclasses.replace(settings, api_key=tuple(key.strip() for key in listed.split(",")))
    except ValueError:
        raise ApiKeysUnusableError(
            f"`{API_KEY_VARIABLE}` is set, but has an empty key or one that is not printable ASCII; separate keys by "
            "commas, or unset it to serve everybody."
        ) from None


def print_if_possible(text: str) -> None:
    """Print `text` unless that fails: a full disk must not stop the server."""
    if sys.stdout is None:  # closed before this process began
        return
    encoding = sys.stdout.encoding  # it may lack characters of a model's name
    with suppress(OSError):
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def discard_unwritable_output() -> None:
    """Drop output that cannot be written: the interpreter would try again at exit, and fail with its own exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # closed before this process began
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _report_start_error(app: App, error: Exception) -> int:
    print(f"{app.name[0]}: {' '.join(str(error).split())}", file=sys.stderr)
    return EXIT_UNUSABLE
