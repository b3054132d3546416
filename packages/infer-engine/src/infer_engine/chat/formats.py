"""`ChatFormats`: from a `ChatPrompt` to what its template gets, and to how its answer is read."""

import functools
import hashlib
import re
from typing import Any

from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_engine.chat.call_marks import MAX_NAME_CHARACTERS
from infer_engine.chat.output_form import AnswerForm
from infer_engine.messages import MAX_CALLS, ThinkingLimit
from infer_engine.protocol import ChatMessage, ChatPrompt, InvalidRequestError, Tool, ToolCall
from infer_models.text import CHANNEL_CALLS, TOOL_CALL_FORMATS, Conversation, ReasoningState, Tokenizer, ToolCallFormat

_SHORT_ID_LENGTH = 9
_SHORT_ID = re.compile(rf"[A-Za-z0-9]{{{_SHORT_ID_LENGTH}}}")
_TOOL_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME_CHARACTERS}}}")


class ChatFormats:
    """The checkpoint's chat template on tools and reasoning. Safe to use from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the formats of `tokenizer`, which has a chat template."""
        self._tokenizer = tokenizer
        self._chat = tokenizer.chat

    def conversation(self, prompt: ChatPrompt) -> Conversation:
        """Return what the template gets for `prompt`.

        Raises:
            InvalidRequestError: a variable of the template that is not the caller's to set, or documents that the
                template leaves out.
        """
        for name in prompt.template_kwargs:
            if name in self._chat.template.reserved_names or not name.isidentifier():
                raise InvalidRequestError(
                    f"`chat_template_kwargs` has {name[:40]!r}, which is not yours to set; leave it out.",
                    param="chat_template_kwargs",
                )
        if prompt.template_kwargs.get("documents") and "documents" not in self._chat.variable_names:
            raise InvalidRequestError(
                "`documents` are left out by this model's chat template; put their texts into a message.",
                param="documents",
            )
        names = {call.id: call.name for message in prompt.messages for call in message.tool_calls}
        ids: dict[str, str] = {}  # of the template, by the client's, which may come again in a later turn
        messages, number = [], 0
        for message in prompt.messages:
            for call in message.tool_calls:
                ids[call.id] = self._numbered_id(call, number)
                number += 1
            messages.append(self._message(message, names, ids))
        return Conversation(
            messages=messages,
            tools=[_described(tool) for tool in _offered_tools(prompt)],
            variables=prompt.template_kwargs,
            add_generation_prompt=prompt.add_generation_prompt and not prompt.continue_final_message,
            continue_final_message=prompt.continue_final_message,
        )

    def answer_form(self, prompt: ChatPrompt, state: ReasoningState) -> AnswerForm:
        """Return what an answer may look like where the prompt leaves off in `state`.

        Raises:
            InvalidRequestError: the tools cannot be told apart, or are not there.
        """
        tool_call_format = self._tool_call_format(prompt)
        reasoning = self._chat.reasoning_format
        if tool_call_format is not None and reasoning is not None and reasoning.channels:
            tool_call_format = CHANNEL_CALLS
        names = tuple(tool.name for tool in prompt.callable_tools if prompt.tool_name in (None, tool.name))
        return AnswerForm(
            reasoning_format=reasoning,
            reasoning_state=state,
            tool_call_format=tool_call_format,
            token_id_of=self._special_token_id,
            tool_names=names if tool_call_format is not None else (),
            strict_names=tuple(tool.name for tool in prompt.tools if tool.strict),
            max_calls=MAX_CALLS if prompt.parallel_tool_calls and prompt.tool_name is None else 1,
            must_call=tool_call_format is not None and prompt.tool_choice == "required",
            shown_ids=self._marker_ids(tool_call_format),
            parameter_types=ParameterTypes(prompt.tools),
        )

    def thinking_limit(self, form: AnswerForm, *, max_tokens: int, message: str, is_free: bool) -> ThinkingLimit | None:
        """Return the limit of `max_tokens` of thinking; None where the answer has none, or its end cannot be forced.

        Args:
            form: what the answer may look like.
            max_tokens: most tokens of thinking.
            message: what is said before the end of thinking that is forced.
            is_free: no grammar holds the whole answer.
        """
        reasoning = form.reasoning_format
        if reasoning is None or not (is_free or form.thinks):
            return None
        encode = functools.partial(self._tokenizer.encode, add_special_tokens=False)
        begin_ids = encode(reasoning.begin)
        end = reasoning.end
        if reasoning.channels:
            begin_ids = encode("analysis")
            chooses = form.tool_names and (len(begin_ids) == 1 or not is_free or form.must_call)
            end += "<|start|>assistant<|channel|>" + ("" if chooses else "final<|message|>")
        return ThinkingLimit(
            marks=form.marks(is_free=is_free),
            max_tokens=max_tokens,
            end_token_ids=[*encode(message), *encode(end)],
            begin_token_id=begin_ids[0] if len(begin_ids) == 1 else None,
        )

    def _marker_ids(self, tool_call_format: ToolCallFormat | None) -> frozenset[int]:
        """Return the ids of special tokens whose text the parser of an answer must see."""
        reasoning = self._chat.reasoning_format
        markers = () if reasoning is None else reasoning.markers
        if tool_call_format is not None:
            markers += tool_call_format.markers
        return frozenset(token_id for text in markers if (token_id := self._special_token_id(text)) is not None)

    def _tool_call_format(self, prompt: ChatPrompt) -> ToolCallFormat | None:
        names = [tool.name for tool in prompt.tools]
        wrong = next((name for name in names if not _TOOL_NAME.fullmatch(name)), None)
        if wrong is not None:
            raise InvalidRequestError(
                f"`tools` has the name {wrong[:40]!r}; give names of 1 to 128 letters, digits, `_`, `-` or `.`.",
                param="tools",
            )
        if len(set(names)) < len(names):
            raise InvalidRequestError("`tools` has two tools of one name; rename one.", param="tools")
        if prompt.tool_name is not None and prompt.tool_name not in names:
            raise InvalidRequestError("`tool_choice` names none of `tools`; send one of theirs.", param="tool_choice")
        if not prompt.callable_tools and prompt.tool_choice == "required":
            raise InvalidRequestError(
                "`tool_choice` is `required`, but there are no `tools` that may be called.", param="tool_choice"
            )
        if not prompt.callable_tools:
            return None
        return self._chat.tool_call_format or TOOL_CALL_FORMATS["json"]

    def _special_token_id(self, text: str) -> int | None:
        token_id = self._tokenizer.token_to_id(text)
        return token_id if token_id in self._tokenizer.special_ids else None

    def _message(self, message: ChatMessage, names: dict[str, str], ids: dict[str, str]) -> dict[str, object]:
        fields: dict[str, object] = {"role": message.role}
        if message.content is not None:
            fields["content"] = message.content
        if message.name is not None:
            fields["name"] = message.name
        if message.reasoning is not None:
            fields["reasoning_content"] = message.reasoning
        if message.tool_calls:
            fields["tool_calls"] = [
                {
                    "id": ids[call.id],
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            fields["tool_call_id"] = ids.get(message.tool_call_id) or self._template_id(message.tool_call_id)
            fields["name"] = message.name or names.get(message.tool_call_id, "")
        return fields

    def _numbered_id(self, call: ToolCall, number: int) -> str:
        """Return the id of a call as the template gets it: Kimi's have no other place for its name and number."""
        call_format = self._chat.tool_call_format
        if call_format is not None and call_format.is_numbered:
            return f"functions.{call.name}:{number}"
        return self._template_id(call.id)

    def _template_id(self, call_id: str) -> str:
        """Return an id as the template gets it: Mistral's refuse any that are not nine letters and digits."""
        call_format = self._chat.tool_call_format
        if call_format is None or not call_format.name.startswith("mistral") or _SHORT_ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:_SHORT_ID_LENGTH]


def _offered_tools(prompt: ChatPrompt) -> tuple[Tool, ...]:
    return () if prompt.tool_choice == "none" else prompt.tools


def _described(tool: Tool) -> dict[str, Any]:
    """Return the tool as templates get it: in the shape of OpenAI's API, and as the client sent it."""
    if tool.definition is not None:
        return tool.definition
    fields = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": {name: value for name, value in fields.items() if value is not None}}
