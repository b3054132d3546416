"""The replies of `/v1/responses`: OpenAI's response with its output items, and what builds it."""

import secrets
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from infer_engine.protocol import FinishReason, SamplingParams, StepOutput
from infer_engine.protocol.answers import AnswerBlock, AnswerBuilder, BlockEvent, BlockKind
from infer_server.api.carried_thinking import carried_thinking
from infer_server.api.history import read_arguments
from infer_server.api.tools import new_call_id
from infer_server.openai.responses.request import ResponsesBody
from infer_server.openai.responses.text_format import ANY_TEXT, TextField
from infer_server.openai.responses.tool_fields import INPUT, callable_tools

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]

_ID_BYTES = 24
_ID_PREFIXES: dict[BlockKind, str] = {"reasoning": "rs", "text": "msg", "tool_call": "fc"}
_CUSTOM_PREFIX = "ctc"
_CUT_SHORT = (None, FinishReason.LENGTH, FinishReason.ABORT)


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_text"):
    """The model's thoughts."""

    text: str


class SummaryText(msgspec.Struct, frozen=True, kw_only=True, tag="summary_text"):
    """The same for clients that ask for a summary of it."""

    text: str


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """Reasoning, in full: as its content or, where a summary is asked for, as that; also as what carries it back."""

    id: str
    summary: list[SummaryText] = []
    content: list[ReasoningText] = []
    encrypted_content: str | None = None
    status: ItemStatus


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    """Text for the reader."""

    text: str
    annotations: list[str] = []
    logprobs: list[str] = []


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """The message of an answer. Clients can send it back as an item of the input."""

    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class FunctionCallItem(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A call that the client shall make; the arguments are JSON text."""

    id: str
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str
    status: ItemStatus


class CustomToolCallItem(msgspec.Struct, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call that the client shall make of a tool that takes a text."""

    id: str
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str
    status: ItemStatus


OutputItem = ReasoningItem | MessageItem | FunctionCallItem | CustomToolCallItem


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The number of the input's tokens that were found in the prefix cache. What is written to it is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The number of the output's tokens that were reasoning."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the input and of the output."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    """The reason for no complete response. OpenAI's codes are a closed list; a failure here is always the server's."""

    code: Literal["server_error"] = "server_error"
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why the response is not complete."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ReasoningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The effort that was asked for, and the kind of summary."""

    effort: str | None
    summary: str | None


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model might call."""

    type: Literal["function"] = "function"
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """The response: the answer as items, and the settings that it was made with.

    With `return_token_ids` it has the tokens of the prompt and, when it has ended, of the answer.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: ReasoningSettings
    temperature: float
    text: TextField
    tool_choice: str | dict[str, Any]
    tools: list[OfferedTool]
    top_p: float
    background: Literal[False] = False
    previous_response_id: str | None = None
    store: bool
    truncation: Literal["disabled"] = "disabled"
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ResponseBuilder:
    """Builds the response to one request, at any time between its first and its last output.

    Attributes:
        summarizes: whether reasoning comes as its summary.
    """

    __slots__ = (
        "_answer",
        "_call_ids",
        "_carries_reasoning",
        "_created_at",
        "_id",
        "_item_ids",
        "_settings",
        "_token_ids",
        "_tools",
        "summarizes",
    )

    def __init__(
        self, body: ResponsesBody, params: SamplingParams, *, served_model: str, prompt_token_ids: Sequence[int] = ()
    ) -> None:
        """Begin the response to `body`, which is sampled as `params` say, at this moment."""
        self._id = _new_id("resp")
        self._created_at = int(time.time())
        self._settings = _settings(body, params) | {"model": served_model}
        self._token_ids: list[int] | None = None
        if body.return_token_ids:
            self._settings["prompt_token_ids"] = list(prompt_token_ids)
            self._token_ids = []
        self._carries_reasoning = body.carries_reasoning
        self.summarizes = body.summary is not None
        self._tools = {each.tool.name: each for each in callable_tools(body.tools)}
        self._answer = AnswerBuilder()
        self._item_ids: list[str] = []
        self._call_ids: list[str] = []

    def add(self, output: StepOutput) -> list[BlockEvent]:
        """Take the next output; return what it changes, in order."""
        changes = self._answer.add(output)
        if self._token_ids is not None:
            self._token_ids += output.token_ids
        for block in self._answer.blocks[len(self._item_ids) :]:
            self._item_ids.append(_new_id(_CUSTOM_PREFIX if self.takes_text(block) else _ID_PREFIXES[block.kind]))
            self._call_ids.append(new_call_id())
        return changes

    def item_id(self, block: AnswerBlock) -> str:
        """Return the id of the item that `block` is."""
        return self._item_ids[block.index]

    def takes_text(self, block: AnswerBlock) -> bool:
        """Return whether `block` is a call of a tool that takes a text."""
        tool = self._tools.get(block.name) if block.kind == "tool_call" else None
        return tool is not None and tool.is_custom

    def begun_item(self, block: AnswerBlock) -> OutputItem:
        """Return the item of `block` as it began: without content."""
        return self._item(block, "in_progress", text=None)

    def ended_item(self, block: AnswerBlock) -> OutputItem:
        """Return the item of `block`, which is complete unless it is the last one of an answer that was cut short."""
        is_last = block is self._answer.blocks[-1]
        is_cut = is_last and self._answer.last.finish_reason in _CUT_SHORT
        return self._item(block, "incomplete" if is_cut else "completed", text=block.text)

    def begun(self) -> ResponseObject:
        """Return the response before its first output."""
        return self._response("in_progress")

    def ended(self) -> ResponseObject:
        """Return the response after its last output."""
        last = self._answer.last
        is_cut_short = last.finish_reason is FinishReason.LENGTH
        return self._response(
            "incomplete" if is_cut_short else "completed",
            incomplete_details=IncompleteDetails() if is_cut_short else None,
            usage=_usage(last),
            token_ids=UNSET if self._token_ids is None else self._token_ids,
        )

    def failed(self, message: str) -> ResponseObject:
        """Return the response after a failure."""
        return self._response("failed", error=ResponseError(message=message))

    def _response(
        self,
        status: ResponseStatus,
        *,
        error: ResponseError | None = None,
        incomplete_details: IncompleteDetails | None = None,
        usage: ResponseUsage | None = None,
        token_ids: list[int] | UnsetType = UNSET,
    ) -> ResponseObject:
        return ResponseObject(
            id=self._id,
            created_at=self._created_at,
            status=status,
            error=error,
            incomplete_details=incomplete_details,
            output=[self.ended_item(block) for block in self._answer.blocks],
            usage=usage,
            token_ids=token_ids,
            **self._settings,
        )

    def _item(self, block: AnswerBlock, status: ItemStatus, *, text: str | None) -> OutputItem:
        """Return the item of `block`; a `text` of None: it has none yet."""
        item_id = self.item_id(block)
        match block.kind:
            case "reasoning":
                return self._reasoning_item(item_id, status, text)
            case "text":
                content = [] if text is None else [OutputText(text=text)]
                return MessageItem(id=item_id, status=status, content=content)
            case "tool_call":
                return self._call_item(block, status, arguments=text or "")

    def _reasoning_item(self, item_id: str, status: ItemStatus, text: str | None) -> ReasoningItem:
        if text is None:
            return ReasoningItem(id=item_id, status=status)
        return ReasoningItem(
            id=item_id,
            summary=[SummaryText(text=text)] if self.summarizes else [],
            content=[] if self.summarizes else [ReasoningText(text=text)],
            encrypted_content=carried_thinking(text) if self._carries_reasoning else None,
            status=status,
        )

    def _call_item(self, block: AnswerBlock, status: ItemStatus, *, arguments: str) -> OutputItem:
        item_id, call_id, tool = self.item_id(block), self._call_ids[block.index], self._tools.get(block.name)
        namespace = UNSET if tool is None or tool.namespace is None else tool.namespace
        if tool is not None and tool.is_custom:
            return CustomToolCallItem(
                id=item_id,
                call_id=call_id,
                name=tool.name,
                namespace=namespace,
                input=text_input(arguments),
                status=status,
            )
        return FunctionCallItem(
            id=item_id,
            call_id=call_id,
            name=block.name if tool is None else tool.name,
            namespace=namespace,
            arguments=arguments,
            status=status,
        )


def text_input(arguments: str) -> str:
    """Return the text in the arguments of a tool that takes one; what was cut off is returned as the model wrote it."""
    read = read_arguments(arguments)
    return read if isinstance(read, str) else str(read.get(INPUT, ""))


def _settings(body: ResponsesBody, params: SamplingParams) -> dict[str, Any]:
    """Return the fields of the response that say what was asked for."""
    text = body.text or TextField()
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": ReasoningSettings(effort=body.reasoning.effort if body.reasoning else None, summary=body.summary),
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": TextField(format=text.format or ANY_TEXT, verbosity=text.verbosity),
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [
            OfferedTool(
                name=each.tool.name,
                description=each.tool.description,
                parameters=each.tool.parameters,
                strict=each.tool.strict,
            )
            for each in callable_tools(body.tools)
        ],
        "top_p": params.top_p,
    }


def _usage(last: StepOutput) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=last.num_prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=last.num_cached_tokens),
        output_tokens=last.num_completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=last.num_reasoning_tokens),
        total_tokens=last.num_prompt_tokens + last.num_completion_tokens,
    )


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(_ID_BYTES)}"
