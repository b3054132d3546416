"""`GET /v1/models` and `GET /v1/models/{id}`: the served model, in OpenAI's shape or in that of Anthropic's clients."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import PathParameter

from infer_engine.protocol import Engine, EngineInfo, SamplingDefaults
from infer_server.api.message_models import (
    MessageModel,
    MessageModelList,
    message_model,
    message_model_list,
    speaks_messages,
)
from infer_server.errors import ApiError, shorten
from infer_server.openapi import error_responses

_SHAPES = "In Anthropic's shape where the header `anthropic-version` is sent."


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a model besides continuing texts.

    Attributes:
        chat: it takes conversations.
        structured_outputs: its answers can be made to match schemas and grammars.
        tool_choice: the values that it takes.
        tool_call_format: how it writes calls; null: it is told how, in the format `json`.
        reasoning: its answers may have reasoning.
    """

    chat: bool
    structured_outputs: bool
    tool_choice: list[str]
    tool_call_format: str | None
    reasoning: bool


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A served model.

    `max_model_len` is the most tokens of prompt and answer together; `sampling_defaults` are what the model recommends
    for fields that a request leaves out.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "infer"
    max_model_len: int
    capabilities: Capabilities
    sampling_defaults: SamplingDefaults


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All served models."""

    object: Literal["list"] = "list"
    data: list[Model]


def model_routes(engine: Engine, *, served_models: Sequence[str]) -> list[HTTPRouteHandler]:
    """Return the handlers under `/v1/models`."""
    models = [
        Model(
            id=name,
            created=int(time.time()),
            max_model_len=engine.info.max_seq_len,
            capabilities=_capabilities(engine.info),
            sampling_defaults=engine.info.sampling_defaults,
        )
        for name in served_models
    ]

    @get("/v1/models", summary="List the served models", description=_SHAPES)
    async def list_models(request: Request[Any, Any, Any]) -> ModelList | MessageModelList:
        if speaks_messages(request.headers):
            return message_model_list([_message_model(model) for model in models])
        return ModelList(data=models)

    @get(
        "/v1/models/{model_id:path}",
        summary="Describe a served model",
        description=_SHAPES,
        responses=error_responses({400: "The id cannot be read.", 404: "No such model is served."}),
    )
    async def retrieve_model(
        request: Request[Any, Any, Any], model_id: Annotated[str, PathParameter(description="The model's id.")]
    ) -> Model | MessageModel:
        # The id may be a Hub id or a folder; routing removes leading and doubled slashes and `./`.
        for model in models:
            if _segments(model_id) == _segments(model.id):
                return _message_model(model) if speaks_messages(request.headers) else model
        raise ApiError(
            404,
            f"The model `{shorten(model_id.lstrip('/'), 100)}` is not served here; `{served_models[0]}` is.",
            code="model_not_found",
            param="model",
        )

    return [list_models, retrieve_model]


def _message_model(model: Model) -> MessageModel:
    return message_model(model.id, created=model.created, max_seq_len=model.max_model_len)


def _capabilities(info: EngineInfo) -> Capabilities:
    choices = ["none", "auto", "required", "function"]
    return Capabilities(
        chat=info.has_chat_template,
        structured_outputs=True,
        tool_choice=choices if info.has_chat_template else [],
        tool_call_format=info.tool_call_format,
        reasoning=info.reasoning_format is not None,
    )


def _segments(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment not in ("", ".")]
