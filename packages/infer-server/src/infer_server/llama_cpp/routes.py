"""`POST /infill`, as llama.cpp's plugins for editors ask for it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from litestar import Request, Response, post
from litestar.handlers import HTTPRouteHandler
from msgspec import structs

from infer_engine.protocol import Engine, GenerateRequest
from infer_server.api.handler import COMMON_ERRORS, AcceptedRequest, Endpoint, GenerationHandler
from infer_server.errors import ApiError
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.sse import EventStream, plain_event
from infer_server.llama_cpp.request import InfillBody, infill_request
from infer_server.llama_cpp.response import InfillAnswer, InfillPiece, infill_pieces, selected_fields
from infer_server.openai.structured_outputs import format_place
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings

_ERRORS = {
    400: "Not JSON, a value that is wrong, a field that is unknown or not supported, a model that does not fill gaps.",
    404: "The model is not served.",
} | COMMON_ERRORS

_EVENTS = "One event per step, with more `content`; the last one has `stop` true and what a whole answer has."


class _InfillEndpoint(Endpoint[InfillBody]):
    """Makes requests of texts with a gap, and llama.cpp's objects of the outputs."""

    negotiates: ClassVar[bool] = False

    def requests(self, body: InfillBody) -> list[GenerateRequest]:
        return [infill_request(body, served_model=self.served_model)]

    def format_place(self, body: InfillBody) -> tuple[str, str]:
        return format_place(body)

    async def events(self, accepted: AcceptedRequest[InfillBody]) -> EventStream:
        return EventStream(events=self._events(accepted), error_event=lambda reply: plain_event("error", reply))

    async def complete(self, accepted: AcceptedRequest[InfillBody]) -> InfillAnswer | dict[str, Any]:
        content = ""
        async with aclosing(self._pieces(accepted)) as pieces:
            async for piece in pieces:
                content += piece.content
        assert isinstance(piece, InfillAnswer)
        whole = structs.replace(piece, content=content)
        return selected_fields(whole, accepted.body.response_fields)

    async def _events(self, accepted: AcceptedRequest[InfillBody]) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._pieces(accepted)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, InfillPiece):
                        yield plain_event("", piece)
                    else:
                        yield plain_event("", selected_fields(piece, accepted.body.response_fields))
        except ApiError as error:
            yield plain_event("error", error.reply)

    def _pieces(self, accepted: AcceptedRequest[InfillBody]) -> AsyncGenerator[InfillPiece | InfillAnswer, None]:
        [stream] = accepted.streams
        most = self.engine.info.max_seq_len
        return infill_pieces(stream, accepted.body, served_model=self.served_model, max_seq_len=most)


def infill_routes(engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]) -> list[HTTPRouteHandler]:
    """Return the handlers of `/infill`."""
    handler = GenerationHandler(
        _InfillEndpoint, InfillBody, engine=engine, settings=settings, served_models=served_models
    )

    @post(
        "/infill",
        status_code=200,
        summary="Fill the gap between two texts",
        operation_class=operation_with_body(InfillBody, events=_EVENTS, part_of=InfillAnswer),
        responses=error_responses(_ERRORS),
        exception_handlers=exception_handlers(params={"suffix": "input_suffix", "prompt": "input_prefix"}),
    )
    async def infill(request: Request[Any, Any, Any]) -> Response[InfillAnswer]:
        return await handler.respond(request)

    return [infill]
