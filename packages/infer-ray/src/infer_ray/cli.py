"""The command line: `infer-ray serve` runs the server on a Ray cluster until it is interrupted."""

import dataclasses
import os
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from cyclopts import App, Group, Parameter

from infer_engine.assembly.core import load_tokenizer
from infer_engine.protocol import EngineConfig, EngineStartError
from infer_ray.options import ClusterOptions
from infer_server import ServerSettings
from infer_server.command import run_command, with_environment_keys
from infer_server.connections.tls import check_certificate
from infer_server.observability.logs import configure_logging
from infer_server.observability.tracing import require_tracing_extra

_CLUSTER = Group("Cluster", sort_key=1)
_SERVER = Group("Server", sort_key=2)
_ENGINE = Group("Engine of each replica", sort_key=3)
_CLUSTER_DEFAULTS = ClusterOptions()
_SERVER_DEFAULTS = ServerSettings()
_ENGINE_DEFAULTS = EngineConfig()

app = App(
    name="infer-ray",
    help="Run the infer server on a Ray cluster.",
    version=version("infer-ray"),
    default_parameter=Parameter(negative_iterable=()),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `infer-ray` with `argv` (the process's own if None) and return the exit code."""
    return run_command(app, argv)


@app.command(name="serve")
def serve_model(
    *,
    address: Annotated[str | None, Parameter(group=_CLUSTER)] = None,
    cluster: Annotated[ClusterOptions, Parameter(name="*", group=_CLUSTER)] = _CLUSTER_DEFAULTS,
    settings: Annotated[ServerSettings, Parameter(name="*", group=_SERVER)] = _SERVER_DEFAULTS,
    config: Annotated[EngineConfig, Parameter(name="*", group=_ENGINE)] = _ENGINE_DEFAULTS,
) -> int:
    """Serve a model with replicas behind one address, until SIGINT or SIGTERM.

    Parameters
    ----------
    address
        Ray cluster to run on, such as `auto` for the one that this machine belongs to. Left out: the one that
        `RAY_ADDRESS` names; without it, a cluster of this machine alone, which ends with the command.
    """
    configure_logging(settings)
    require_tracing_extra(settings)
    settings = with_environment_keys(settings)
    check_certificate(settings)
    config, settings = _with_whole_path(config, settings)
    load_tokenizer(config)  # an unusable checkpoint is an error here, before a cluster starts
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # else `uv run` packs this folder for the workers
    from infer_ray.running import run_until_interrupted  # noqa: PLC0415 - imports Ray, after the line above

    try:
        return run_until_interrupted(config, settings, cluster, address=address or os.environ.get("RAY_ADDRESS"))
    except ValueError as error:
        raise EngineStartError(str(error)) from error


def _with_whole_path(config: EngineConfig, settings: ServerSettings) -> tuple[EngineConfig, ServerSettings]:
    """Make the path of a checkpoint absolute, as replicas run in other folders, and keep the name that was given."""
    if config.model is None or not Path(config.model).is_dir():
        return config, settings
    settings = dataclasses.replace(settings, served_model_name=settings.served_model_name or config.model)
    return dataclasses.replace(config, model=str(Path(config.model).resolve())), settings
