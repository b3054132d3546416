"""`POST /tokenize` and `/detokenize`: text to token ids and back, in vLLM's shapes."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler

from infer_engine.protocol import ChatPrompt, Engine
from infer_engine.protocol.request_fields import TokenId
from infer_server.api.fields import described
from infer_server.api.foreign_fields import ForeignFields, check_foreign, decode_fields
from infer_server.api.handler import served_name
from infer_server.api.shared_fields import AddGenerationPrompt, ChatTemplateKwargs, ContinueFinalMessage, Documents
from infer_server.api.validation import check_model, conflict
from infer_server.errors import ApiError
from infer_server.http.bodies import read_body
from infer_server.http.disconnects import unless_disconnected
from infer_server.openai.chat.messages import DocumentedMessage, chat_prompt, with_documents
from infer_server.openai.chat.tool_fields import TOOLS, tool_settings
from infer_server.openapi import error_responses, operation_with_body
from infer_server.settings import ServerSettings

_TOKENS_AT_ONCE = 2048  # token texts to make before yielding to other tasks of the event loop

_ERRORS = {
    400: "Not JSON, a value that is wrong, a field that is unknown, a model without a chat template.",
    404: "The model is not served.",
    413: "The body is too large.",
    500: "The request failed.",
    503: "As many requests as may wait are waiting; `Retry-After` says when to try again.",
}


class TokenizeBody(ForeignFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /tokenize`: `prompt` or `messages`. A null is the same as leaving the field out."""

    model: Annotated[str | None, described("Id of the served model; may be left out.")] = None
    prompt: Annotated[str | None, described("A text.")] = None
    messages: Annotated[
        list[DocumentedMessage] | None,
        described("A conversation, in place of `prompt`.", minItems=1),
    ] = None
    add_special_tokens: Annotated[
        bool | None, described("Add what the tokenizer puts around a text; true if left out. Not for `messages`.")
    ] = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    tools: Annotated[list[dict[str, Any]] | None, TOOLS] = None
    chat_template_kwargs: ChatTemplateKwargs = None
    documents: Documents = None
    return_token_strs: Annotated[bool | None, described("List the tokens' texts too.")] = None


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens, their number, the most tokens of prompt and answer together, and the tokens' texts if requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(ForeignFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /detokenize`."""

    model: Annotated[str | None, described("Id of the served model; may be left out.")] = None
    tokens: Annotated[list[TokenId], described("Token ids.")]


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """The text of the tokens, special ones included."""

    prompt: str


def tokenizer_routes(
    engine: Engine, *, settings: ServerSettings, served_models: Sequence[str]
) -> list[HTTPRouteHandler]:
    """Return the handlers of `/tokenize` and `/detokenize`, which some clients look for below `/v1`."""

    @post(
        ["/tokenize", "/v1/tokenize"],
        status_code=200,
        summary="Turn a text or a conversation into token ids",
        operation_class=operation_with_body(TokenizeBody),
        responses=error_responses(_ERRORS),
    )
    async def tokenize(request: Request[Any, Any, Any]) -> Tokenized:
        body = decode_fields(await read_body(request, settings.max_body_bytes), TokenizeBody)
        check_foreign(body)
        prompt = _prompt(body)
        check_model(body.model, served_model=served_name(body.model, served_models))
        tokenizing = engine.tokenize(prompt, add_special_tokens=body.add_special_tokens is not False)
        tokens = await unless_disconnected(tokenizing, request.receive)
        return Tokenized(
            count=len(tokens),
            max_model_len=engine.info.max_seq_len,
            tokens=tokens,
            token_strs=await _texts(engine, tokens) if body.return_token_strs else None,
        )

    @post(
        ["/detokenize", "/v1/detokenize"],
        status_code=200,
        summary="Turn token ids into a text",
        operation_class=operation_with_body(DetokenizeBody),
        responses=error_responses(_ERRORS),
    )
    async def detokenize(request: Request[Any, Any, Any]) -> Detokenized:
        body = decode_fields(await read_body(request, settings.max_body_bytes), DetokenizeBody)
        check_foreign(body)
        check_model(body.model, served_model=served_name(body.model, served_models))
        return Detokenized(prompt=await unless_disconnected(engine.detokenize(body.tokens), request.receive))

    return [tokenize, detokenize]


def _prompt(body: TokenizeBody) -> str | ChatPrompt:
    match body.prompt, body.messages:
        case (None, None):
            raise ApiError(
                400, "`prompt` and `messages` are missing; send one of them.", code="missing_field", param="prompt"
            )
        case (str(text), None):
            for name in ("continue_final_message", "tools", "chat_template_kwargs", "documents"):
                if getattr(body, name):
                    raise conflict(name, f"`{name}` is for `messages`; leave it out with `prompt`.")
            return text
        case (None, list(messages)):
            if body.add_special_tokens:
                raise conflict(
                    "add_special_tokens",
                    "`add_special_tokens` is for `prompt`; leave it out with `messages`: the chat template adds them.",
                )
            return chat_prompt(
                messages,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                **tool_settings(body.tools, None, parallel=None),
                template_kwargs=with_documents(body.chat_template_kwargs or {}, body.documents),
            )
        case _:
            raise conflict("messages", "`prompt` and `messages` are both there; send one of them.")


async def _texts(engine: Engine, tokens: list[int]) -> list[str]:
    texts: list[str] = []
    for first in range(0, len(tokens), _TOKENS_AT_ONCE):
        texts += [
            engine.token_bytes(token).decode("utf-8", "replace") for token in tokens[first : first + _TOKENS_AT_ONCE]
        ]
        await asyncio.sleep(0)
    return texts
