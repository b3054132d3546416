"""The answer of `/v1/responses`: OpenAI's response object, and what builds it."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from infer_engine.protocol import FinishReason, StepOutput
from infer_server.generation.answer_blocks import AnswerBlock
from infer_server.openai.responses.request import ResponsesBody

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    """The text of a message."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_text"):
    """The text of reasoning."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """A message of the assistant."""

    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """What the model thought."""

    id: str
    summary: list[Any] = []
    content: list[ReasoningText]
    encrypted_content: None = None
    status: ItemStatus


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A call that the client shall make."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens of the input were found in the prefix cache."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """How many tokens of the output were reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response, with the fields of the request that shaped it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    background: bool = False
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, Any]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: Any
    store: bool = False
    temperature: float
    text: Any
    tool_choice: Any
    tools: list[Any]
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None


class ResponseBuilder:
    """Builds a response, at its beginning and at its end."""

    def __init__(self, body: ResponsesBody, *, served_model: str) -> None:
        """Answer `body`."""
        self._body = body
        self._fields: dict[str, Any] = {
            "id": f"resp_{secrets.token_hex(24)}",
            "created_at": int(time.time()),
            "model": served_model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "reasoning": {
                "effort": body.reasoning and body.reasoning.effort,
                "summary": body.reasoning and body.reasoning.summary,
            },
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": _format(body)},
            "tool_choice": msgspec.to_builtins(body.tool_choice or "auto"),
            "tools": [_tool(each) for each in body.tools or () if each.type == "function"],
            "top_p": 1.0 if body.top_p is None else body.top_p,
        }

    def begun(self) -> ResponseObject:
        """Return the response before there is any output."""
        return ResponseObject(**self._fields, status="in_progress", output=[])

    def ended(self, blocks: Sequence[AnswerBlock], last: StepOutput, ids: "ItemIds") -> ResponseObject:
        """Return the whole response, after its `last` output."""
        is_cut = last.finish_reason is FinishReason.LENGTH
        output = [
            output_item(block, ids, status="incomplete" if is_cut and block is blocks[-1] else "completed")
            for block in blocks
        ]
        return ResponseObject(
            **self._fields,
            status="incomplete" if is_cut else "completed",
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if is_cut else None,
            output=output,
            usage=ResponseUsage(
                input_tokens=last.num_prompt_tokens,
                input_tokens_details=InputTokensDetails(cached_tokens=last.num_cached_tokens),
                output_tokens=last.num_completion_tokens,
                output_tokens_details=OutputTokensDetails(reasoning_tokens=last.num_reasoning_tokens),
                total_tokens=last.num_prompt_tokens + last.num_completion_tokens,
            ),
        )

    def failed(self, *, code: str, message: str) -> ResponseObject:
        """Return the response of a request that failed."""
        return ResponseObject(
            **self._fields, status="failed", output=[], error=ResponseError(code=code, message=message)
        )


class ItemIds:
    """The ids of a response's items, by their places."""

    def __init__(self) -> None:
        """Begin without any."""
        self._ids: list[str] = []

    def of(self, block: AnswerBlock) -> str:
        """Return the id of the item that `block` becomes."""
        prefix = {"reasoning": "rs", "text": "msg", "tool_call": "fc"}[block.kind]
        if block.index == len(self._ids):
            self._ids.append(f"{prefix}_{secrets.token_hex(24)}")
        return self._ids[block.index]


def output_item(block: AnswerBlock, ids: ItemIds, *, status: ItemStatus) -> OutputItem:
    """Return the item that `block` becomes; one that has just begun has no content."""
    item_id = ids.of(block)
    match block.kind:
        case "text":
            content = [OutputText(text=block.text)] if block.pieces else []
            return MessageItem(id=item_id, status=status, content=content)
        case "reasoning":
            thoughts = [ReasoningText(text=block.text)] if block.pieces else []
            return ReasoningItem(id=item_id, status=status, content=thoughts)
        case "tool_call":
            return FunctionCallItem(
                id=item_id, call_id=block.call_id, name=block.name, arguments=block.text, status=status
            )


def _format(body: ResponsesBody) -> Any:
    wanted = body.text.format if body.text else None
    if wanted is None or wanted.type != "json_schema":
        return {"type": "text" if wanted is None else wanted.type}
    return {"type": wanted.type, "name": wanted.name or "", "schema": wanted.schema, "strict": True}


def _tool(tool: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }
