"""Chat templates: from messages to a prompt's text, in Jinja2's sandbox."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes

from infer_models.text.chat.templates.sandbox import RaisedByTemplateError, TemplateSandbox

Message = Mapping[str, object]
Tool = Mapping[str, object]

FIELD_NAMES = frozenset(
    {
        *("role", "content", "name", "type", "text", "reasoning_content", "thinking", "id", "index"),
        *("tool_calls", "tool_call_id", "function", "arguments"),
        *("description", "parameters", "properties", "required", "items", "enum", "additionalProperties", "anyOf"),
    }
)
"""The names of fields of messages and tools, which templates look for."""

# Far beyond any prompt: a template that writes so much goes round in circles, or repeats every message in each.
_MAX_CHARACTERS = 64 * 2**20

PROBE = "71830"
"""A text of a message, to see whether a template writes it; without letters, which it may change."""

_REASONING = ("reasoning_content", "thinking", "reasoning")

_TOO_DEEP = "a message or a tool is nested too deeply; send it with fewer levels."


class ChatTemplateMissingError(Exception):
    """The checkpoint has no chat template: it completes text but holds no conversations."""

    def __str__(self) -> str:
        """Return the message, which names the ways out."""
        return "this checkpoint has no chat template; give it one in `chat_template.jinja`, or send a plain prompt."


class ChatTemplateError(ValueError):
    """The chat template cannot render these messages; the message says why, in the template's own words."""


class ChatRenderingError(ChatTemplateError):
    """The chat template refuses these messages, or fails on them."""


class ChatRefusedError(ChatRenderingError):
    """The chat template refuses these messages on purpose, by `raise_exception`."""


class ChatTemplate:
    """A compiled template. Renders as `transformers` does: the same white space, functions, filters and sandbox.

    Attributes:
        source: the template's own text.
        reserved_names: variables that no caller can set: the conversation and the special tokens.
    """

    def __init__(self, source: str, *, variables: Mapping[str, str], max_characters: int = _MAX_CHARACTERS) -> None:
        """Compile `source`; `variables` are the special tokens by name, such as `bos_token`.

        Rendering stops where a text grows beyond `max_characters`.

        Raises:
            jinja2.TemplateSyntaxError: `source` is no Jinja2 template.
        """
        self.source = source
        self.reserved_names = frozenset({"messages", "tools", "add_generation_prompt", *variables})
        self._template = TemplateSandbox().from_string(source)
        self._variables = dict(variables)
        self._max_characters = max_characters

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] = (),
        variables: Mapping[str, object] = MappingProxyType({}),
        add_generation_prompt: bool = True,
        read: Callable[[str], str] = str,
    ) -> str:
        """Return the prompt's text; with `add_generation_prompt` it ends where the answer begins.

        Args:
            messages: the conversation.
            tools: functions that the model may call, as OpenAI's API describes them.
            variables: further variables of the template, such as `enable_thinking` and `documents`.
            add_generation_prompt: end the text where the answer begins.
            read: makes of each text in the other arguments what the template gets of it.

        Raises:
            ChatTemplateError: the template refuses the messages, fails on them, or writes too much; or one of
                `variables` has a reserved name.
        """
        for name in variables:
            if name in self.reserved_names or not name.isidentifier():
                raise ChatTemplateError(f"the template's variable `{name[:40]}` cannot be set; leave it out.")
        # The template gets plain copies: nothing of the caller's can be reached, let alone changed, from the sandbox.
        plain_messages = [self._with_reasoning(self._without_null(message, read)) for message in messages]
        if self.takes_parts:
            plain_messages = [_with_parts(message) for message in plain_messages]
        if self.takes_thinking_parts:
            plain_messages = [_with_thinking_part(message) for message in plain_messages]
        plain_tools = [map_text(tool, read) for tool in tools] or self._no_tools
        plain_variables = map_text(variables, read)
        return self._generate(
            {**plain_variables, "tools": plain_tools, "add_generation_prompt": add_generation_prompt}, plain_messages
        )

    def _without_null(self, message: Message, read: Callable[[str], str]) -> dict[str, Any]:
        """Return a plain copy of `message` without fields that are null, as `transformers` gives it to templates.

        Only calls without content have a null one where the template writes no others.
        """
        plain = {key: value for key, value in map_text(message, read).items() if value is not None}
        if plain.get("tool_calls") and not plain.get("content") and self._writes_calls_beside_null_alone:
            plain["content"] = None
        return plain

    @cached_property
    def _no_tools(self) -> list[Any] | None:
        """The value for no tools: None as with `transformers`, unless the template takes an empty list alone."""
        question: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
        return [] if self._try(question) is None and self._try(question, tools=[]) is not None else None

    @cached_property
    def _writes_calls_beside_null_alone(self) -> bool:
        call = {"id": "call00000", "type": "function", "function": {"name": PROBE, "arguments": {}}}
        message: dict[str, object] = {"role": "assistant", "tool_calls": [call]}
        question: dict[str, object] = {"role": "user", "content": "Hi"}
        return not self._writes_probe(question, {**message, "content": ""}) and self._writes_probe(
            question, {**message, "content": None}
        )

    @cached_property
    def variable_names(self) -> frozenset[str]:
        """The names of variables that the template reads without having set them."""
        return frozenset(jinja2.meta.find_undeclared_variables(self._tree))

    @cached_property
    def writes_calls(self) -> bool:
        """Whether the template writes calls and their results, of which it need not know what may be called."""
        call = {"id": "call00000", "type": "function", "function": {"name": f"{PROBE}0", "arguments": {}}}
        asked: dict[str, object] = {"role": "user", "content": "Hi"}
        answer: dict[str, object] = {"role": "assistant", "content": "", "tool_calls": [call]}
        result: dict[str, object] = {"role": "tool", "tool_call_id": call["id"], "content": f"{PROBE}1"}
        text = self._try([asked, answer, result]) or ""
        return f"{PROBE}0" in text and f"{PROBE}1" in text

    @cached_property
    def words(self) -> frozenset[str]:
        """The texts in the template's expressions: what it compares with, and the fields that it reads."""
        constants = {node.value for node in self._tree.find_all(nodes.Const) if isinstance(node.value, str)}
        return frozenset(constants | {node.attr for node in self._tree.find_all(nodes.Getattr)})

    @property
    def _tree(self) -> nodes.Template:
        # A new one each time: to look for variables changes constants in it.
        return TemplateSandbox().parse(self.source)

    def leaves_out_probe(self, messages: Sequence[Message]) -> bool:
        """Return whether the template renders `messages`, but without `PROBE`, which is in one of them."""
        try:
            return PROBE not in self.render(messages)
        except ChatTemplateError:
            return False

    def _with_reasoning(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return `message` with its reasoning under the names that `transformers` gives it, and the template's."""
        reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
        if reasoning is None:
            return message
        named = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        return named if self._own_reasoning is None else {self._own_reasoning: reasoning, **named}

    @cached_property
    def _own_reasoning(self) -> str | None:
        """The name of reasoning that the template reads in place of those of `transformers`."""
        if not self.words.isdisjoint(("reasoning_content", "thinking")):
            return None
        return next((name for name in ("reasoning", "thought") if name in self.words), None)

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the template writes contents that are lists of parts, and leaves out those that are texts.

        Templates of multimodal models, such as LLaVA's, may look for parts of each type and find none in a text.
        """
        message: dict[str, object] = {"role": "user", "content": PROBE}
        return not self._writes_probe(message) and self._writes_probe(_with_parts(message))

    @cached_property
    def takes_thinking_parts(self) -> bool:
        """Whether the template finds thinking as a part of an answer's content alone, as Mistral's do."""
        question: dict[str, object] = {"role": "user", "content": "Hi"}
        names = dict.fromkeys(("reasoning", "reasoning_content", "thinking"), f"{PROBE}0")
        named: dict[str, Any] = {"role": "assistant", "content": f"{PROBE}1", **names}
        if f"{PROBE}0" in (self._try([question, named]) or ""):
            return False
        _, found, rest = (self._try([question, _with_thinking_part(named)]) or "").partition(f"{PROBE}0")
        between, _, _ = rest.partition(f"{PROBE}1")
        return bool(found) and "type" not in between  # which it has where a template writes any content as JSON

    def _writes_probe(self, *messages: dict[str, object]) -> bool:
        return PROBE in (self._try(messages) or "")

    def _try(self, messages: Sequence[dict[str, object]], tools: list[Any] | None = None) -> str | None:
        try:
            return self._generate({"tools": tools, "add_generation_prompt": True}, list(messages))
        except ChatTemplateError:
            return None

    def _generate(self, variables: dict[str, object], messages: list[dict[str, Any]]) -> str:
        pieces: list[str] = []
        room = self._max_characters
        try:
            named = {"documents": None, **variables, **self._variables, "messages": messages}
            for piece in self._template.generate(**named):
                pieces.append(piece)
                room -= len(piece)
                if room < 0:
                    break
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            error_type = ChatRefusedError if isinstance(error, RaisedByTemplateError) else ChatRenderingError
            raise error_type(f"the chat template cannot render these messages: {error}") from error
        if room < 0:
            raise ChatTemplateError(
                f"the chat template makes more than {self._max_characters} characters of these messages; send fewer or "
                "shorter ones."
            )
        return "".join(pieces)


def _with_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return `message` with its content as a list of one part, as templates of multimodal models want it."""
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else dict(message)


def _with_thinking_part(message: dict[str, Any]) -> dict[str, Any]:
    """Return `message` with its reasoning, if it has some, as the first part of its content."""
    reasoning = message.get("reasoning_content")
    if not reasoning:
        return message
    parts: list[Any] = _with_parts(message)["content"] if message.get("content") else []
    return {**message, "content": [{"type": "thinking", "thinking": reasoning}, *parts]}


def map_text(value: object, change: Callable[[str], str]) -> Any:
    """Return a plain copy of JSON-like `value` with `change` applied to every text in it but the names of fields.

    The names of arguments, and of the properties of a schema, are no names of fields.

    Raises:
        ChatTemplateError: there is something in it that JSON does not have, or it is nested too deeply.
    """
    try:
        return _map_text(value, change, FIELD_NAMES)
    except RecursionError as error:
        raise ChatTemplateError(_TOO_DEEP) from error


def _map_text(value: object, change: Callable[[str], str], names: frozenset[str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {
            key if key in names else change(str(key)): _map_field(key, item, change, names)
            for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_map_text(item, change, names) for item in value]
    raise ChatTemplateError(f"a message holds a `{type(value).__name__}`; give text, numbers, lists and mappings.")


def _map_field(key: object, value: object, change: Callable[[str], str], names: frozenset[str]) -> Any:
    if key == "arguments":
        return _map_text(value, change, frozenset())
    if key == "properties" and key in names and isinstance(value, Mapping):
        return {change(str(name)): _map_text(schema, change, names) for name, schema in value.items()}
    return _map_text(value, change, names)


def json_text(value: object) -> str:
    """Return `value` as JSON.

    Raises:
        ChatTemplateError: there is something in it that JSON does not have, or it is nested too deeply.
    """
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise ChatTemplateError(_TOO_DEEP) from error
    except (TypeError, ValueError) as error:
        raise ChatTemplateError(f"a message or a tool cannot be written as JSON: {error}.") from error
