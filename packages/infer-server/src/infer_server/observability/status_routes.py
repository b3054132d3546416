"""`GET /health`, `/ready`, other names of both, and `/version`."""

from collections.abc import Callable
from importlib.metadata import version

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import Engine, EngineStatus
from infer_server.errors import ApiError
from infer_server.openapi import error_responses
from infer_server.probe_paths import ALIVE, READY


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's status."""

    status: EngineStatus


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """The server's version, and the APIs for text that it has."""

    version: str
    apis: list[str]


def status_routes(engine: Engine, *, is_ending: Callable[[], bool]) -> list[HTTPRouteHandler]:
    """Return the handlers of `/health`, `/ready` and `/version`; `is_ending`: the server will drain soon."""
    server_version = Version(version=version("infer-server"), apis=list(_APIS))

    @get(
        list(ALIVE),
        summary="Show whether the server is alive",
        responses=error_responses({503: "The engine is dead or stopped."}),
    )
    async def health() -> Status:
        if engine.status in (EngineStatus.DEAD, EngineStatus.STOPPED):
            raise _unavailable(engine.status, "restart the server; its log has the cause")
        return Status(status=engine.status)

    @get(
        list(READY),
        summary="Show whether the server takes requests",
        responses=error_responses({503: "The engine is draining, stopped or dead."}),
    )
    async def ready() -> Status:
        status = EngineStatus.DRAINING if is_ending() else engine.status
        if status is not EngineStatus.READY:
            raise _unavailable(status, "send requests elsewhere")
        return Status(status=status)

    @get("/version", summary="Show the version and the APIs")
    async def show_version() -> Version:
        return server_version

    return [health, ready, show_version]


_APIS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")


def _unavailable(status: EngineStatus, advice: str) -> ApiError:
    return ApiError(503, f"The engine is {status.value}; {advice}.", code="engine_unavailable", retry_after_s=1)
