"""The command line: makes flags from the configuration objects, and starts the server.

What cannot work is one line on standard error and exit code 2.

`infer-server --help` loads neither the web framework nor torch.
"""

import asyncio
import dataclasses
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from socket import socket
from types import FrameType
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter

from infer_engine.protocol import CheckpointUnusableError, Engine, EngineConfig, EngineStartError
from infer_server.banner import banner
from infer_server.operations.logs import configure_logging
from infer_server.operations.tracing import TracingUnavailableError, require_tracing_extra
from infer_server.serving.listener import AddressUnusableError, address_of, bind_listener
from infer_server.serving.open_files import raise_open_file_limit
from infer_server.serving.tls import CertificateUnusableError, check_certificate
from infer_server.serving.unix_listener import unix_listener
from infer_server.settings import ServerSettings

EngineFactory = Callable[[EngineConfig], Engine]

EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130
API_KEY_VARIABLE = "INFER_API_KEY"
FLAG_ALIASES = {"--num-gpu-blocks": "--num-kv-blocks"}
"""Other names of flags."""

_SERVER = Group("Server", sort_key=1)
_ENGINE = Group("Engine", sort_key=2)
_SERVER_DEFAULTS = ServerSettings()
_ENGINE_DEFAULTS = EngineConfig()


class ApiKeysUnusableError(Exception):
    """The environment has API keys that no client could send; the message is one line that says why."""


_START_ERRORS = (
    AddressUnusableError,
    ApiKeysUnusableError,
    CertificateUnusableError,
    CheckpointUnusableError,
    EngineStartError,
    TracingUnavailableError,
)


def main(argv: Sequence[str] | None = None, *, build_engine: EngineFactory | None = None) -> int:
    """Run `infer-server` with `argv` (the process's own if None) and return the exit code.

    `build_engine` makes the engine of the parsed configuration; None means `infer_engine.build_engine`.
    """
    try:
        command, arguments, _ = _app(build_engine).parse_args(
            _without_aliases(sys.argv[1:] if argv is None else argv), print_error=False, exit_on_error=False
        )
    except (CycloptsError, ValueError) as error:
        return _report_start_error(error)
    try:
        return command(*arguments.args, **arguments.kwargs) or 0
    except _START_ERRORS as error:
        return _report_start_error(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _without_aliases(argv: Sequence[str]) -> list[str]:
    """Return `argv` with each flag's own name, in `--flag value` and `--flag=value`."""
    split = [argument.partition("=") for argument in argv]
    return [FLAG_ALIASES.get(name, name) + separator + value for name, separator, value in split]


def _app(build_engine: EngineFactory | None) -> App:
    app = App(
        name="infer-server",
        help="Serve a model over an OpenAI-compatible HTTP API. Without flags: the bundled demo model on this machine.",
        version=version("infer-server"),
        default_parameter=Parameter(negative_iterable=()),  # no `--empty-...` flags
    )

    @app.default
    def serve_model(
        *,
        settings: Annotated[ServerSettings, Parameter(name="*", group=_SERVER)] = _SERVER_DEFAULTS,
        config: Annotated[EngineConfig, Parameter(name="*", group=_ENGINE)] = _ENGINE_DEFAULTS,
    ) -> int:
        return _serve_model(settings, config, build_engine=build_engine)

    return app


def _serve_model(settings: ServerSettings, config: EngineConfig, *, build_engine: EngineFactory | None) -> int:
    """Bind, load, serve: in this order, so that a port in use is an error before the model loads."""
    configure_logging(settings)
    require_tracing_extra(settings)
    settings = _with_environment_keys(settings)
    with _exit_on_sigterm(), _listener(settings) as listener:
        check_certificate(settings)
        settings = dataclasses.replace(settings, max_connections=raise_open_file_limit(settings.max_connections))
        from infer_server.serving.server import serve  # noqa: PLC0415 - imports the web framework: not for `--help`

        engine = _build(config, settings, build_engine)
        address = address_of(listener, scheme="https" if settings.ssl_certfile else "http")
        text = banner(engine.info, address=address, settings=settings)
        gc.collect()
        gc.freeze()  # these objects live as long as the server; visiting them all in a collection would stall streams
        try:
            return asyncio.run(
                serve(engine, settings=settings, listener=listener, on_listening=partial(_print_if_possible, text))
            )
        finally:
            gc.unfreeze()  # some libraries warn of objects that are left at the interpreter's end
            _discard_unwritable_output()


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """End the process on a SIGTERM that comes while the model loads; later the server drains on it.

    Without a handler, SIGTERM does nothing to the first process of a container.
    """
    handler = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _end(number: int, _: FrameType | None) -> None:
    os._exit(
        128 + number
    )  # an exception could be swallowed by a module that is being imported; nothing needs cleaning up


def _print_if_possible(text: str) -> None:
    """Print `text` unless that fails: a full disk must not stop the server."""
    if sys.stdout is None:  # closed before this process began
        return
    encoding = sys.stdout.encoding  # it may lack characters of a model's name
    with suppress(OSError):
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _discard_unwritable_output() -> None:
    """Drop output that cannot be written: the interpreter would try again at exit, and fail with its own exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # closed before this process began
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _with_environment_keys(settings: ServerSettings) -> ServerSettings:
    """Add the keys of the environment if the command line, which other users of the machine can read, has none."""
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


def _listener(settings: ServerSettings) -> AbstractContextManager[socket]:
    if settings.uds is not None:
        return unix_listener(settings.uds)
    return bind_listener(settings.host, settings.port)


def _build(config: EngineConfig, settings: ServerSettings, build_engine: EngineFactory | None) -> Engine:
    if build_engine is None:
        import infer_engine  # noqa: PLC0415 - reads checkpoints, perhaps with torch: not for `--help`

        build_engine = partial(infer_engine.build_engine, engine_process=settings.engine_process)
    try:
        return build_engine(config)
    except ValueError as error:
        raise EngineStartError(str(error)) from error


def _report_start_error(error: Exception) -> int:
    print(f"infer-server: {' '.join(str(error).split())}", file=sys.stderr)
    return EXIT_UNUSABLE
