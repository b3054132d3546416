"""`GET /` and `GET /playground/batch`: the playground's page, and the data of its live view."""

from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import BatchSnapshot, Engine
from infer_server.openapi import error_responses
from infer_server.playground.page import read_page
from infer_server.playground.snapshots import SharedSnapshots


def playground_routes(engine: Engine) -> list[HTTPRouteHandler]:
    """Return the handlers of the playground. The page needs no API key; it asks the user for one."""
    page = read_page()
    snapshots = SharedSnapshots(engine)
    headers = {
        "Content-Security-Policy": page.content_security_policy,
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }

    @get("/", media_type=MediaType.HTML, include_in_schema=False)
    async def show_page() -> Response[str]:
        return Response(page.html, headers=headers)

    @get(
        "/playground/batch",
        summary="Show what the engine is doing",
        description="The sequences that run and wait, and the blocks that they hold, at most 50 ms old. The format is "
        "for the playground and may change: programs should read `/metrics`.",
        responses=error_responses({503: "The engine is stopped or dead."}),
    )
    async def show_batch() -> Response[BatchSnapshot]:
        return Response(await snapshots.latest(), headers={"Cache-Control": "no-store"})

    return [show_page, show_batch]
