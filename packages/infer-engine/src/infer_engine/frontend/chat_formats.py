"""`ChatFormats`: from a `ChatPrompt` to what its template gets, and to how its answer is read."""

import hashlib
import re
from typing import Any

from infer_engine.frontend.answer_parser import MAX_NAME_CHARACTERS, AnswerParser
from infer_engine.protocol import ChatMessage, ChatPrompt, InvalidRequestError, Tool
from infer_engine.structured.answer_form import AnswerForm
from infer_models.text import TOOL_CALL_FORMATS, Conversation, ReasoningState, Tokenizer, ToolCallFormat

_SHORT_ID_LENGTH = 9
_TOOL_NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME_CHARACTERS}}}")


class ChatFormats:
    """What the checkpoint's chat template says of tools and reasoning. Safe to use from any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the formats of `tokenizer`, which has a chat template."""
        self._tokenizer = tokenizer
        self._chat = tokenizer.chat

    def conversation(self, prompt: ChatPrompt) -> Conversation:
        """Return what the template gets for `prompt`.

        Raises:
            InvalidRequestError: a variable of the template that is not the caller's to set.
        """
        for name in prompt.template_kwargs:
            if name in self._chat.template.reserved_names or not name.isidentifier():
                raise InvalidRequestError(
                    f"`chat_template_kwargs` has {name[:40]!r}, which is not yours to set; leave it out.",
                    param="chat_template_kwargs",
                )
        names = {call.id: call.name for message in prompt.messages for call in message.tool_calls}
        return Conversation(
            messages=[self._message(message, names) for message in prompt.messages],
            tools=[_described(tool) for tool in _offered_tools(prompt)],
            variables=prompt.template_kwargs,
            add_generation_prompt=prompt.add_generation_prompt and not prompt.continue_final_message,
            continue_final_message=prompt.continue_final_message,
        )

    def answer_form(self, prompt: ChatPrompt, state: ReasoningState) -> AnswerForm:
        """Return what an answer may look like where the prompt leaves off in `state`.

        Raises:
            InvalidRequestError: the tools cannot be told apart, are not there, or the model may not choose by itself.
        """
        return AnswerForm(
            reasoning_format=self._chat.reasoning_format,
            reasoning_state=state,
            tool_call_format=self._tool_call_format(prompt),
            token_id_of=self._special_token_id,
        )

    def parser(self, form: AnswerForm) -> AnswerParser | None:
        """Return the parser of an answer; None if all of it is content."""
        thinks = form.reasoning_format is not None and form.reasoning_state is not ReasoningState.NONE
        if not thinks and form.tool_call_format is None:
            return None
        return AnswerParser(
            reasoning_format=form.reasoning_format, state=form.reasoning_state, tool_call_format=form.tool_call_format
        )

    def marker_ids(self, form: AnswerForm) -> frozenset[int]:
        """Return the ids of special tokens whose text the parser of such an answer must see."""
        markers: list[str] = []
        if form.reasoning_format is not None:
            markers += [form.reasoning_format.begin, form.reasoning_format.end]
        if form.tool_call_format is not None:
            markers += form.tool_call_format.markers
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
        if self._chat.tool_call_format is None and prompt.tool_choice == "auto":
            raise InvalidRequestError(
                "`tools`: this model's chat template has no known format of tool calls, so the model cannot choose by "
                "itself; send `tool_choice` `required` or a tool's name, or start with `--tool-call-format`.",
                param="tools",
            )
        return self._chat.tool_call_format or TOOL_CALL_FORMATS["json"]

    def _special_token_id(self, text: str) -> int | None:
        token_id = self._tokenizer.token_to_id(text)
        return token_id if token_id in self._tokenizer.special_ids else None

    def _message(self, message: ChatMessage, names: dict[str, str]) -> dict[str, object]:
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
                    "id": self._call_id(call.id),
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            fields["tool_call_id"] = self._call_id(message.tool_call_id)
            fields["name"] = message.name or names.get(message.tool_call_id, "")
        return fields

    def _call_id(self, call_id: str) -> str:
        """Return the id as the template gets it: Mistral's refuse any that are not nine letters and digits."""
        call_format = self._chat.tool_call_format
        if call_format is None or not call_format.name.startswith("mistral"):
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
