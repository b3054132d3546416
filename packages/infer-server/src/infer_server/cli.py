"""The command line: makes flags from the configuration objects, and starts the server or the doctor.

What cannot work is one line on standard error and exit code 2.

`infer-server --help` loads neither the web framework nor torch.
"""

import asyncio
import dataclasses
import importlib
import logging
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from socket import socket
from types import FrameType
from typing import Annotated

from cyclopts import App, Group, Parameter

from infer_engine.protocol import CheckpointUnusableError, Engine, EngineConfig, EngineStartError
from infer_engine.protocol.config import DType, KVCacheDType, Quantization
from infer_engine.protocol.doctor import DoctorRequest
from infer_server.banner import banner
from infer_server.command import discard_unwritable_output, print_if_possible, run_command, with_environment_keys
from infer_server.connections.garbage import rare_collections
from infer_server.connections.listener import address_of, bind_listeners
from infer_server.connections.open_files import raise_open_file_limit
from infer_server.connections.tls import check_certificate
from infer_server.connections.unix_listener import unix_listener
from infer_server.observability.logs import configure_logging
from infer_server.observability.tracing import require_tracing_extra
from infer_server.settings import ServerSettings

logger = logging.getLogger(__name__)

EngineFactory = Callable[[EngineConfig], Engine]

_SERVER = Group("Server", sort_key=1)
_ENGINE = Group("Engine", sort_key=2)
_SERVER_DEFAULTS = ServerSettings()
_ENGINE_DEFAULTS = EngineConfig()


def main(argv: Sequence[str] | None = None, *, build_engine: EngineFactory | None = None) -> int:
    """Run `infer-server` with `argv` (the process's own if None) and return the exit code.

    `build_engine` makes the engine of the parsed configuration; None means `infer_engine.build_engine`.
    """
    return run_command(_app(build_engine), argv)


def _app(build_engine: EngineFactory | None) -> App:
    app = App(
        name="infer-server",
        help="Serve a model over an OpenAI-compatible HTTP API. Without flags: a small model, on this machine.",
        version=version("infer-server"),
        # No `--empty-...` flags; several values may follow one flag, as there are no other arguments.
        default_parameter=Parameter(negative_iterable=(), consume_multiple=True),
    )

    @app.default
    def serve_model(
        *,
        settings: Annotated[ServerSettings, Parameter(name="*", group=_SERVER)] = _SERVER_DEFAULTS,
        config: Annotated[EngineConfig, Parameter(name="*", group=_ENGINE)] = _ENGINE_DEFAULTS,
    ) -> int:
        return _serve_model(settings, config, build_engine=build_engine)

    app.command(_examine, name="doctor")
    return app


def _examine(
    *,
    model: str | None = None,
    device: str = "auto",
    dtype: DType = "auto",
    quantization: Quantization = "auto",
    kv_cache_dtype: KVCacheDType = "auto",
    timeout: float | None = None,
    print_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
    out: Path | None = None,
) -> int:
    """Check this machine, a model and the engine on it within minutes, and print what a bug report should contain.

    The exit code is 0 if everything works, 1 if something failed, 2 if a flag is wrong, 3 if nothing failed but a
    part had too little time. Needs no network.

    Parameters
    ----------
    model
        Folder of a checkpoint, a GGUF file, or a Hub id that was downloaded before. Left out: SmolLM2-135M-Instruct if
        it is installed, else infer-demo.
    device
        `auto`, `cuda`, `cuda:N` or `cpu`. `auto`: a GPU if there is one.
    dtype
        Type of weights and activations. `auto`: the checkpoint's own.
    quantization
        How weights are kept, for the memory and the kernels; the small engine keeps those of its dtype.
    kv_cache_dtype
        Type of keys and values, for the memory and the kernels; the small engine keeps those of its activations.
    timeout
        Seconds for everything, by default 55, and 180 on a GPU, where kernels are compiled the first time. A part that
        takes longer than its share is killed, which is a warning.
    print_json
        Print the whole report as JSON in place of the table.
    out
        File to write the whole report to, as JSON.
    """
    try:
        EngineConfig(model=model, device=device, dtype=dtype, quantization=quantization, kv_cache_dtype=kv_cache_dtype)
    except ValueError as error:
        raise EngineStartError(str(error)) from error
    if timeout is not None and not (math.isfinite(timeout) and timeout > 0):
        raise EngineStartError(f"`timeout` is {timeout}; it must be a positive number of seconds.")
    from infer_server.doctor.command import run_doctor  # noqa: PLC0415 - not for `--help`

    request = DoctorRequest(
        model=model, device=device, dtype=dtype, seconds=0.0, quantization=quantization, kv_cache_dtype=kv_cache_dtype
    )
    return run_doctor(request, timeout_s=timeout, print_json=print_json, out=out)


def _serve_model(settings: ServerSettings, config: EngineConfig, *, build_engine: EngineFactory | None) -> int:
    """Bind, load, serve: in this order, so that a port in use is an error before the model loads."""
    configure_logging(settings)
    require_tracing_extra(settings)
    settings = with_environment_keys(settings)
    with _exit_on_signals(), _listeners(settings) as listeners:
        check_certificate(settings)
        settings = dataclasses.replace(settings, max_connections=raise_open_file_limit(settings.max_connections))
        engine = _build(config, settings, build_engine)
        from infer_server.connections.event_loop import new_event_loop  # noqa: PLC0415 - only serving needs a loop
        from infer_server.connections.server import serve  # noqa: PLC0415 - not for `--help`, and not before the engine

        address = address_of(listeners, scheme="https" if settings.ssl_certfile else "http")
        text = banner(engine.info, address=address, settings=settings)
        try:
            with rare_collections(), asyncio.Runner(loop_factory=new_event_loop) as runner:
                return runner.run(
                    serve(engine, settings=settings, listeners=listeners, on_listening=partial(print_if_possible, text))
                )
        finally:
            discard_unwritable_output()


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """End the process on a SIGTERM or SIGINT that comes while the model loads; later the server drains on them.

    Without a handler, SIGTERM does nothing to the first process of a container. An ignored SIGINT stays so, as of
    processes that a shell has started in the background.
    """
    handlers = {signal.SIGTERM: signal.getsignal(signal.SIGTERM), signal.SIGINT: signal.getsignal(signal.SIGINT)}
    if handlers[signal.SIGINT] is signal.SIG_IGN:
        del handlers[signal.SIGINT]
    for number in handlers:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(number: int, _: FrameType | None) -> None:
    """End at once: an exception could be swallowed by a module that is being imported.

    The engine's process ends with its pipe; the file of a Unix socket stays, and the next start removes it.
    """
    os._exit(128 + number)


@contextmanager
def _listeners(settings: ServerSettings) -> Iterator[list[socket]]:
    """Yield the sockets to listen on, which are closed at the end."""
    with ExitStack() as opened:
        if settings.uds is not None:
            yield [opened.enter_context(unix_listener(settings.uds))]
        else:
            yield [opened.enter_context(each) for each in bind_listeners(settings.host, settings.port)]


def _import_server() -> None:
    """Import the web framework, which takes half a second, while the engine's process loads the model."""
    importlib.import_module("infer_server.connections.server")
    importlib.import_module("litestar").Litestar(logging_config=None)  # one imports what it needs


def _build(config: EngineConfig, settings: ServerSettings, build_engine: EngineFactory | None) -> Engine:
    if build_engine is None:
        import infer_engine  # noqa: PLC0415 - reads checkpoints, perhaps with torch: not for `--help`

        build_engine = partial(
            infer_engine.build_engine, engine_process=settings.engine_process, while_loading=_import_server
        )
    try:
        return build_engine(config)
    except CheckpointUnusableError:
        raise
    except ValueError as error:
        raise EngineStartError(str(error)) from error
    except Exception as error:
        logger.debug("The engine cannot load.", exc_info=True)
        raise EngineStartError.by(error) from error
