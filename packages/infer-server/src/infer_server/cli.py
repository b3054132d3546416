"""The command line: flags made from the configuration objects, one line and exit code 2 for what cannot work.

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
from infer_server.http.listener import AddressUnusableError, address_of, bind_listener
from infer_server.http.open_files import allow_connections
from infer_server.http.tls import CertificateUnusableError, check_certificate
from infer_server.http.unix_listener import unix_listener
from infer_server.operations.logs import configure_logging
from infer_server.operations.tracing import TracingUnavailableError, require_tracing_extra
from infer_server.settings import ServerSettings

EngineFactory = Callable[[EngineConfig], Engine]

EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130
API_KEY_VARIABLE = "INFER_API_KEY"

_SERVER = Group("Server", sort_key=1)
_ENGINE = Group("Engine", sort_key=2)
_SERVER_DEFAULTS = ServerSettings()
_ENGINE_DEFAULTS = EngineConfig()


class ApiKeysUnusableError(Exception):
    """The environment has keys that nobody could send: the message is one line that says why."""


_UNUSABLE = (
    AddressUnusableError,
    ApiKeysUnusableError,
    CertificateUnusableError,
    CheckpointUnusableError,
    EngineStartError,
    TracingUnavailableError,
)


def main(argv: Sequence[str] | None = None, *, build_engine: EngineFactory | None = None) -> int:
    """Run `infer-server` with `argv` (the process's own if None) and return the exit code.

    `build_engine` makes the engine of the parsed configuration; None takes `infer_engine`'s.
    """
    try:
        command, arguments, _ = _app(build_engine).parse_args(
            sys.argv[1:] if argv is None else list(argv), print_error=False, exit_on_error=False
        )
    except (CycloptsError, ValueError) as error:
        return _unusable(error)
    try:
        return command(*arguments.args, **arguments.kwargs) or 0
    except _UNUSABLE as error:
        return _unusable(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _app(build_engine: EngineFactory | None) -> App:
    app = App(
        name="infer-server",
        help="Serve a model over an OpenAI-compatible HTTP API. Without flags: the bundled demo model on this machine.",
        version=version("infer-server"),
        default_parameter=Parameter(negative_iterable=()),  # a list is emptied by not giving it
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
    """Bind, load, serve; in this order, so that a port in use costs no time."""
    configure_logging(settings)
    require_tracing_extra(settings)
    settings = _with_keys(settings)
    with _ended_by_sigterm(), _listener(settings) as listener:
        check_certificate(settings)
        settings = dataclasses.replace(settings, max_connections=allow_connections(settings.max_connections))
        from infer_server.http.serving import serve  # noqa: PLC0415 - imports the web framework: not for `--help`

        engine = _build(config, settings, build_engine)
        address = address_of(listener, scheme="https" if settings.ssl_certfile else "http")
        text = banner(engine.info, address=address, settings=settings)
        gc.collect()
        gc.freeze()  # what is there stays: a full collection would look at all of it, and streams would wait
        try:
            return asyncio.run(
                serve(engine, settings=settings, listener=listener, on_listening=partial(_print_if_possible, text))
            )
        finally:
            gc.unfreeze()  # libraries complain of what the interpreter's end leaves behind
            _give_up_unwritable_output()


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """End the process on a SIGTERM that comes before the server drains on it: while the model loads.

    The default does nothing to a container's first process.
    """
    handler = signal.signal(signal.SIGTERM, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _end(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)  # whatever is being imported may swallow an exception; nothing has to be put in order


def _print_if_possible(text: str) -> None:
    """Print what nobody has to read: a disk that is full does not keep a server from serving."""
    if sys.stdout is None:  # it was closed before this process began
        return
    encoding = sys.stdout.encoding  # it need not have the letters of a model's name
    with suppress(OSError):
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def _give_up_unwritable_output() -> None:
    """Drop output that cannot be written: the interpreter would try again at its end, and fail with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:  # it was closed before this process began
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _with_keys(settings: ServerSettings) -> ServerSettings:
    """Add the keys of the environment, where the command line has none: it is for everybody on the machine to read."""
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


def _unusable(error: Exception) -> int:
    print(f"infer-server: {' '.join(str(error).split())}", file=sys.stderr)
    return EXIT_UNUSABLE
