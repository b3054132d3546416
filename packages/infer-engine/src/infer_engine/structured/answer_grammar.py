"""The grammar of a conversation's answer: reasoning, then content or tool calls, in the words of the model's family.

One grammar holds all of it, so that the calls that an answer has are always calls of the given tools with arguments
that match their schemas, and thinking is as free as it would be without.
"""

import functools
import json
from collections.abc import Sequence

import msgspec

from infer_engine.protocol import ChatPrompt, StructuredOutputs, Tool
from infer_engine.structured.answer_form import AnswerForm, TokenIdOf
from infer_engine.structured.grammar_text import HEADER, json_expression, to_grammar_text, to_rules
from infer_engine.structured.tool_schemas import arguments_schema
from infer_models.text import ReasoningState, ToolCallFormat

MAX_CALLS = 64
"""Of one answer; a small model may never come to an end of its own."""
MAX_TOOL_CHARACTERS = 262_144
"""Of all schemas of tools together."""

_RULES = r"""
TEXT: /(.|\n)*/
GAP: /[ \n]{0,4}/
WS: /[ \n]?/
"""
_WHITESPACE = "[ ]?"
"""In arguments: models write them on one line."""


def answer_grammar(prompt: ChatPrompt, content: StructuredOutputs | None, form: AnswerForm) -> str | None:
    """Return the text of the grammar of an answer to `prompt`; None if it may be anything.

    Raises:
        ValueError: a schema that cannot be kept; the message begins with `tools` or an attribute's name in backticks.
    """
    thinks = form.reasoning_format is not None and form.reasoning_state is not ReasoningState.NONE
    if form.tool_call_format is None:
        if content is None:
            return None
        if not thinks:
            return to_grammar_text(content)
        rules = [f"content: {_nested(content)}"]
        answer = "content"
    else:
        rules = _CallRules(form.tool_call_format, form.token_id_of).make(prompt)
        answer = _answer_with_calls(prompt, content, form.tool_call_format, rules)
    start = f"start: {answer}" if not thinks else _with_reasoning(answer, form, rules)
    return HEADER + "\n".join([start, *rules]) + _RULES


def _answer_with_calls(
    prompt: ChatPrompt, content: StructuredOutputs | None, tool_format: ToolCallFormat, rules: list[str]
) -> str:
    """Return what an answer is made of; rules that it needs are added to `rules`."""
    if prompt.tool_choice == "required":
        return "calls"
    if content is None:
        return "text_or_calls"
    if not tool_format.is_anywhere:
        raise ValueError(
            "`structured_outputs` cannot be kept where this model may call tools instead: its calls are JSON too. Send "
            "`tool_choice` `none` or `required`."
        )
    rules.append(f"content: {_nested(content)}")
    return "(content | calls)"


def _nested(content: StructuredOutputs) -> str:
    """Return the grammar of `content` as an expression in another one."""
    rules = to_rules(content)
    if content.kind in ("grammar", "structural_tag"):
        return f"%lark {{\n{rules}\n}}"
    return f"({rules.removeprefix('start: ')})"


def _with_reasoning(answer: str, form: AnswerForm, rules: list[str]) -> str:
    """Return the start of an answer that reasoning may or must come before."""
    assert form.reasoning_format is not None
    end = _up_to("thought", form.reasoning_format.end, form.token_id_of, rules)
    after = "text_or_calls" if answer == "text_or_calls" else f"GAP {answer}"
    if form.reasoning_state is ReasoningState.OPEN:
        return f"start: {end} {after}"
    begin_id = form.token_id_of(form.reasoning_format.begin)
    if begin_id is None:
        rules.append(f"thinking[lazy]: /[ \\n]{{0,4}}{_escaped(form.reasoning_format.begin)}/")
    else:
        rules.append(f"thinking: GAP <[{begin_id}]>")
    return f"start: {answer} | thinking {end} {after}"


def _up_to(rule: str, marker: str, token_id_of: TokenIdOf, rules: list[str]) -> str:
    """Return free text that ends with `marker`, which may be a special token."""
    token_id = token_id_of(marker)
    if token_id is not None:
        return f"TEXT <[{token_id}]>"
    rules.append(f"{rule}[lazy]: /(.|\\n)*{_escaped(marker)}/")
    return rule


class _CallRules:
    """Makes the rules of the tool calls of one answer."""

    def __init__(self, tool_format: ToolCallFormat, token_id_of: TokenIdOf) -> None:
        self._format = tool_format
        self._token_id_of = token_id_of

    def make(self, prompt: ChatPrompt) -> list[str]:
        """Return the rules `calls`, for calls alone, and `text_or_calls`."""
        tools = prompt.callable_tools
        max_calls = MAX_CALLS if prompt.parallel_tool_calls and prompt.tool_name is None else 1
        more = f"({self._literal(self._format.separator)} call){{0,{max_calls - 1}}}" if max_calls > 1 else ""
        end = self._literal(self._format.end)
        rules = [
            f"call: {self._literal(self._format.call_begin)} tool {self._literal(self._format.call_end)}",
            f"calls: {self._literal(self._format.begin)} call {more} {end}",
            *self._tools(tools),
        ]
        if prompt.tool_choice == "auto":
            rules += self._text_or_calls(f"{more} {end}")
        return rules

    def _tools(self, tools: Sequence[Tool]) -> list[str]:
        names = [f"tool_{index}" for index in range(len(tools))]
        rules = [f"tool: {' | '.join(names)}"]
        num_characters = 0
        for name, tool in zip(names, tools, strict=True):
            arguments = _arguments(msgspec.json.encode(tool))
            num_characters += len(arguments)
            rules.append(f"{name}: {_quoted(tool.name)} {self._literal(self._format.before_arguments)} {arguments}")
        if num_characters > MAX_TOOL_CHARACTERS:
            raise ValueError(
                f"`tools` have schemas of {num_characters} characters; at most {MAX_TOOL_CHARACTERS} are allowed."
            )
        return rules

    def _text_or_calls(self, after_first: str) -> list[str]:
        """Return the rules of an answer that is free until what only calls begin with has come."""
        rules = ["text_or_calls: TEXT | opening rest"]
        trigger = self._format.trigger
        if self._format.is_anywhere:
            opening = _up_to("opening", trigger, self._token_id_of, rules)
            if opening != "opening":
                rules.append(f"opening: {opening}")
        else:
            prefix_id = self._token_id_of(self._format.prefix) if self._format.prefix else None
            rules.append(f"trigger[lazy]: /[ \\n]{{0,4}}{_escaped(trigger)}/")
            rules.append("opening: trigger" if prefix_id is None else f"opening: (<[{prefix_id}]>)? trigger")
        first = f"{self._format.begin}{self._format.call_begin}".removeprefix(trigger)
        rules.append(f"rest: {self._after_marker(first)} tool {self._literal(self._format.call_end)} {after_first}")
        return rules

    def _literal(self, text: str) -> str:
        """Return the expression of `text`, of which parts may be special tokens."""
        for marker in self._format.markers:
            token_id = self._token_id_of(marker)
            if token_id is not None and marker in text:
                before, _, after = text.partition(marker)
                return f"{self._literal(before)} <[{token_id}]> {self._after_marker(after)}"
        return _quoted(text) if text else ""

    def _after_marker(self, text: str) -> str:
        """Return the expression of `text` after a marker, where models put a space, a line break or nothing."""
        rest = text.lstrip()
        return self._literal(rest) if rest == text else f"WS {self._literal(rest)}"


@functools.lru_cache(maxsize=256)  # agents send the same tools with every request
def _arguments(encoded_tool: bytes) -> str:
    """Return what generates the arguments of a tool, which is given as JSON."""
    return json_expression(arguments_schema(msgspec.json.decode(encoded_tool, type=Tool)), _WHITESPACE)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """Return `text` as an expression between slashes."""
    return "".join(f"\\{character}" if character in r"\.+*?()|[]{}^$/" else character for character in text)
