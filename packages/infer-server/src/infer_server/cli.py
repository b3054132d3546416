"""The command line: flags made from the configuration objects, one line and exit code 2 for what cannot work.

`infer-server --help` loads neither the web framework nor torch.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Annotated

from cyclopts import App, CycloptsError, Group, Parameter

from infer_engine.protocol import CheckpointUnusableError, Engine, EngineConfig
from infer_server.banner import banner
from infer_server.http.listener import AddressUnusableError, bind_listener, url_of
from infer_server.settings import ServerSettings

EngineFactory = Callable[[EngineConfig], Engine]

EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130

_SERVER = Group("Server", sort_key=1)
_ENGINE = Group("Engine", sort_key=2)
_SERVER_DEFAULTS = ServerSettings()
_ENGINE_DEFAULTS = EngineConfig()


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
    except (AddressUnusableError, CheckpointUnusableError, _EngineConfigError) as error:
        return _unusable(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _app(build_engine: EngineFactory | None) -> App:
    app = App(
        name="infer-server",
        help="Serve a model over an OpenAI-compatible HTTP API. Without flags: the bundled demo model on this machine.",
        version=version("infer-server"),
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
    _configure_logging(settings)
    with bind_listener(settings.host, settings.port) as listener:
        from infer_server.http.serving import serve  # noqa: PLC0415 - imports the web framework: not for `--help`

        engine = _build(config, build_engine)
        text = banner(engine.info, url=url_of(listener), served_model=settings.served_model_name or engine.info.model)
        return asyncio.run(
            serve(engine, settings=settings, listener=listener, on_listening=lambda: print(text, flush=True))
        )


def _build(config: EngineConfig, build_engine: EngineFactory | None) -> Engine:
    if build_engine is None:
        import infer_engine  # noqa: PLC0415 - what is used of it imports torch: not for `--help`

        build_engine = infer_engine.build_engine
    try:
        return build_engine(config)
    except ValueError as error:
        raise _EngineConfigError(str(error)) from error


class _EngineConfigError(Exception):
    """The configuration and the model, the device or the memory do not go together."""


def _configure_logging(settings: ServerSettings) -> None:
    logging.basicConfig(
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # the banner and the signals say it better


def _unusable(error: Exception) -> int:
    print(f"infer-server: {' '.join(str(error).split())}", file=sys.stderr)
    return EXIT_UNUSABLE
