"""The grammar of a conversation's answer: reasoning, then content or tool calls, in the words of the model's family.

One grammar holds all of it where the answer must call, or where its content follows a grammar too: thinking is as free
as it would be without, and may end the answer unless it must call. Where the model may choose and its content is free,
the grammar is that of arguments alone (`arguments_grammar`), and the core begins it behind the head of a call.
"""

import functools
import json
from collections.abc import Sequence

import msgspec

from infer_engine.chat.arguments.literal_grammar import LiteralGrammar
from infer_engine.chat.arguments.marks import RULES, MarkGrammar
from infer_engine.chat.arguments.parameter_grammar import ParameterGrammar
from infer_engine.chat.arguments.tool_schemas import arguments_schema, schema_of_encoded
from infer_engine.chat.call_marks import selection_of
from infer_engine.chat.output_form import AnswerForm, TokenIdOf
from infer_engine.protocol import ChatPrompt, StructuredOutputs, Tool
from infer_engine.structured.grammar_text import HEADER, escaped, json_expression, to_grammar_text, to_rules
from infer_engine.structured.json_schema.any_order import RULES as ANY_ORDER_RULES
from infer_engine.structured.json_schema.any_order import WHITESPACE as ANY_ORDER_WHITESPACE
from infer_engine.structured.json_schema.any_order import AnyOrder
from infer_models.text import ReasoningState, ToolCallFormat

MAX_TOOL_CHARACTERS = 262_144
"""Most characters of all tools' schemas together."""

_WHITESPACE = "[ ]?"
"""In arguments: models write them on one line."""


def answer_grammar(prompt: ChatPrompt, content: StructuredOutputs | None, form: AnswerForm) -> str | None:
    """Return the text of the grammar of an answer to `prompt`; None if it may be anything.

    Raises:
        ValueError: a schema that cannot be kept; the message begins with `tools` or an attribute's name in backticks.
    """
    if form.tool_call_format is None:
        if content is None:
            return None
        if not form.thinks:
            return to_grammar_text(content)
        rules = [_content_rule(content, form)]
        answer = "content"
    else:
        call_format = form.tool_call_format
        is_json = content is not None and not call_format.is_anywhere and call_format.literals is None
        rules = _CallRules(form).make(prompt, as_json=is_json)
        answer = "calls"
        if prompt.tool_choice != "required":
            assert content is not None
            rules.append(_content_rule(content, form))
            answer = "(content | calls)"
    start = f"start: {answer}" if not form.thinks else _with_reasoning(answer, form, rules, may_end=not form.must_call)
    return HEADER + "\n".join([start, *rules]) + RULES + ANY_ORDER_RULES


def arguments_grammar(prompt: ChatPrompt, form: AnswerForm) -> str:
    """Return the text of the grammar of the arguments of one call of a tool of `prompt`, and of any text behind them.

    It begins with the tool's selection (`selection_of`). Members of tools that are not strict come in any order.

    Raises:
        ValueError: as in `answer_grammar`.
    """
    assert form.tool_call_format is not None
    encoded_tools = tuple(msgspec.json.encode(tool) for tool in prompt.tools)
    return _arguments_grammar(encoded_tools, form.tool_call_format, tuple(form.mark_ids.items()))


@functools.lru_cache(maxsize=64)  # agents send the same tools with every request
def _arguments_grammar(
    encoded_tools: Sequence[bytes], call_format: ToolCallFormat, mark_ids: Sequence[tuple[str, int]]
) -> str:
    members = AnyOrder()
    own_grammar = _own_grammar(call_format, MarkGrammar(dict(mark_ids)), members, closing=call_format.closing)
    starts: list[str] = []
    num_characters = 0
    for encoded in encoded_tools:
        tool = msgspec.json.decode(encoded, type=Tool)
        schema = schema_of_encoded(encoded)
        num_characters += len(_arguments(encoded))
        if own_grammar is not None:
            arguments = own_grammar.arguments(tool.name, schema, strict=tool.strict)
        else:
            written = (
                json_expression(schema, ANY_ORDER_WHITESPACE, strict=True) if tool.strict else members.whole(schema)
            )
            arguments = f"GAP {written}"
        starts.append(f"{_quoted(selection_of(tool.name))} {arguments} TEXT")
    _check_size(num_characters)
    return HEADER + "\n".join([f"start: {' | '.join(starts)}", *members.rules]) + ANY_ORDER_RULES + RULES


def _own_grammar(
    call_format: ToolCallFormat, marks: MarkGrammar, members: AnyOrder, *, closing: Sequence[str] = ()
) -> ParameterGrammar | LiteralGrammar | None:
    """Return what makes the rules of arguments that are not written as JSON; None where they are.

    `closing`: marks that may follow a parameter whose end is forgotten, where nothing is asked of what follows them.
    """
    if call_format.literals is not None:
        return LiteralGrammar(call_format.literals, marks, members)
    if call_format.parameters is not None:
        return ParameterGrammar(call_format.parameters, call_format.arguments_end, marks, members, closing=closing)
    return None


def _content_rule(content: StructuredOutputs, form: AnswerForm) -> str:
    """Return the rule `content`: what is asked of it, and of an answer in channels the header before it."""
    header = MarkGrammar(form.reasoning_ids).literal("<|channel|>final<|message|>") if form.has_channels else ""
    return f"content: {header} {_nested(content)}"


def _nested(content: StructuredOutputs) -> str:
    """Return the grammar of `content` as an expression in another one."""
    rules = to_rules(content)
    if content.kind in ("grammar", "structural_tag"):
        return f"%lark {{\n{rules}\n}}"
    return f"({rules.removeprefix('start: ')})"


def _with_reasoning(answer: str, form: AnswerForm, rules: list[str], *, may_end: bool) -> str:
    """Return the start of an answer that reasoning may or must come before, which `may_end` in it."""
    assert form.reasoning_format is not None
    end, thinking = _up_to("thought", form.reasoning_format.end, form.token_id_of, rules)
    ids = form.reasoning_ids
    next_message = MarkGrammar(ids).literal("<|start|>assistant") if form.has_channels else ""
    after = f"{end} GAP {next_message} {answer}"
    if may_end:
        after = f"({after} | {thinking})"
    if form.reasoning_state is ReasoningState.OPEN:
        return f"start: {after}"
    begin = form.reasoning_format.begin
    if any(mark in begin for mark in ids):
        rules.append(f"thinking: GAP {MarkGrammar(ids).literal(begin)}")
    else:
        rules.append(f"thinking[lazy]: /[ \\n]{{0,4}}{escaped(begin)}/")
    return f"start: {answer} | thinking {after}"


def _up_to(rule: str, marker: str, token_id_of: TokenIdOf, rules: list[str]) -> tuple[str, str]:
    """Return free text that ends with `marker`, which may be a special token, and text in which it does not come."""
    token_id = token_id_of(marker)
    if token_id is not None:
        return f"TEXT <[{token_id}]>", "TEXT"
    rules.append(f"{rule}[lazy]: /(.|\\n)*{escaped(marker)}/")
    rules.append(f"{rule.upper()}: /(.|\\n)*/ & ~/(.|\\n)*{escaped(marker)}(.|\\n)*/")
    return rule, rule.upper()


class _CallRules:
    """Makes the rules of the tool calls of one answer."""

    def __init__(self, form: AnswerForm) -> None:
        assert form.tool_call_format is not None
        self._format = form.tool_call_format
        self._max_calls = 1 if form.has_channels else form.max_calls  # the token behind it ends the answer
        self._names = form.tool_names
        self._marks = MarkGrammar(form.mark_ids)
        self._members = AnyOrder()
        self._own_grammar = _own_grammar(self._format, self._marks, self._members)

    def make(self, prompt: ChatPrompt, *, as_json: bool) -> list[str]:
        """Return the rule `calls`, and those that it needs.

        `as_json`: a call is one JSON text, beside which another one may be asked for. To the library's lexer a call's
        first mark would be one word, which JSON has not.
        """
        tools = [tool for tool in prompt.tools if tool.name in self._names]
        max_calls = self._max_calls
        literal = self._marks.literal
        # The expressions of arguments hold the first part of it.
        call_end = self._format.call_end.removeprefix(self._format.arguments_end)
        separator, begin = self._format.separator, self._format.call_begin
        call, next_call = (f"{literal(before)} tool {literal(call_end)}" for before in (begin, separator + begin))
        if as_json:
            call, next_call = "tool", f"{literal(separator)} tool"
        more = f"({next_call}){{0,{max_calls - 1}}}" if max_calls > 1 else ""
        return [
            f"call: {call}",
            f"calls: {literal(self._format.begin)} call {more} {literal(self._format.end)}",
            *self._tools(tools, as_json=as_json),
            *self._members.rules,
        ]

    def _tools(self, tools: Sequence[Tool], *, as_json: bool) -> list[str]:
        names = [f"tool_{index}" for index in range(len(tools))]
        rules = [f"tool: {' | '.join(names)}"]
        num_characters = 0
        for name, tool in zip(names, tools, strict=True):
            if as_json:
                written = _json_call(tool, self._format)
            else:
                number = "/:[0-9]{1,3}/" if self._format.is_numbered else ""
                if self._format.id_mark:
                    number = f"({self._marks.literal(self._format.id_mark)} /[a-zA-Z0-9]{{9}}/)?"
                written = f"{_quoted(tool.name)} {number} {self._arguments(tool)}"
            num_characters += len(written)
            rules.append(f"{name}: {written}")
        _check_size(num_characters)
        return rules

    def _arguments(self, tool: Tool) -> str:
        """Return what generates the arguments of `tool`, and the mark before them."""
        before = self._format.before_arguments
        encoded = msgspec.json.encode(tool)
        if self._own_grammar is None:
            return f"{self._marks.literal(before)} {_arguments(encoded)}"
        arguments = self._own_grammar.arguments(tool.name, schema_of_encoded(encoded), strict=tool.strict)
        return f"{self._marks.mark(before)} {arguments}"


@functools.lru_cache(maxsize=256)  # agents send the same tools with every request
def _arguments(encoded_tool: bytes) -> str:
    """Return what generates the arguments of a tool, which is given as JSON."""
    strict = msgspec.json.decode(encoded_tool, type=Tool).strict
    return json_expression(schema_of_encoded(encoded_tool), _WHITESPACE, strict=strict)


def _json_call(tool: Tool, tool_format: ToolCallFormat) -> str:
    """Return what generates a call of a format whose calls are JSON."""
    schema = arguments_schema(tool)
    definitions = {place: schema[place] for place in ("$defs", "definitions") if place in schema}
    arguments = {word: value for word, value in schema.items() if word not in definitions}
    if '"$ref"' in json.dumps(arguments) and not definitions:
        raise ValueError(
            f"`tools`: the parameters of `{tool.name}` refer to another place than `$defs`, which cannot be kept "
            "beside `structured_outputs`; move it there."
        )
    key = tool_format.before_arguments.split('"')[-2]
    properties = {"name": {"const": tool.name}, key: arguments}
    call = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    return json_expression(call | definitions, _WHITESPACE, strict=tool.strict)


def _check_size(num_characters: int) -> None:
    if num_characters > MAX_TOOL_CHARACTERS:
        raise ValueError(
            f"`tools` have schemas of {num_characters} characters; at most {MAX_TOOL_CHARACTERS} are allowed."
        )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
