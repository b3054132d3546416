"""`CallConstraint`: only the arguments of calls of offered tools are masked."""

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_engine.chat.call_constraint import CallConstraint
from infer_engine.chat.output_parser import AnswerParser
from infer_engine.protocol import ContentDelta, Tool, ToolCallDelta
from infer_engine.structured.bitmasks import holds
from infer_models.text import TOOL_CALL_FORMATS, ReasoningState, ToolCallFormat
from infer_proofs.engine import call_constraints
from infer_proofs.engine.call_constraints import END, TOKENIZER, tokens

FORMATS = list(TOOL_CALL_FORMATS.values())
HERMES = TOOL_CALL_FORMATS["hermes"]
BOTH = {"type": "object", "properties": {"may": {"type": "integer"}, "must": {"type": "integer"}}, "required": ["must"]}
TOOLS = (Tool(name="look", parameters=BOTH), Tool(name="look_up"), Tool(name="exact", parameters=BOTH, strict=True))


def constraint(calls: ToolCallFormat = HERMES, **how: Any) -> CallConstraint:
    return call_constraints.constraint(calls, **{"tools": TOOLS} | how)


def masked(text: str, calls: ToolCallFormat = HERMES, **how: Any) -> str:
    return call_constraints.masked(text, calls, **{"tools": TOOLS} | how)


def call(calls: ToolCallFormat, name: str, arguments: str) -> str:
    return calls.write((name, arguments))


FREE = [
    "It is blue.",
    "Qwen writes `<tool_call>` around calls.",
    '<tool_call>\n{"name": "John", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "loo", "arguments": {}}\n</tool_call>',
    '<tool_call>\n{"name": "look", "age": 41}\n</tool_call>',
    '{"name": "John Smith", "age": 41}',
    '[TOOL_CALLS] [{"nam": 1}] [TOOL_CALLS]look [ARGS] x',
    "<tool_call>" * 9,
]


@pytest.mark.covers("structured-tools-agents/auto-is-free")
@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
@pytest.mark.parametrize("text", FREE)
def test_an_answer_without_a_call_is_never_masked(text: str, calls: ToolCallFormat) -> None:
    assert masked(text, calls) == ""


@pytest.mark.parametrize("state", [ReasoningState.OPEN, ReasoningState.MAY_BEGIN])
def test_thinking_is_free_whatever_it_says_of_calls(state: ReasoningState) -> None:
    thought = ("<think>" if state is ReasoningState.MAY_BEGIN else "") + call(HERMES, "look", '{"wrong": 1}')
    assert masked(thought, state=state) == ""
    assert masked(thought + "</think>" + call(HERMES, "look", '{"wrong": 1}'), state=state).endswith("...")


@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_arguments_alone_are_masked_in_every_format(calls: ToolCallFormat) -> None:
    for arguments in ('{"must": 1, "may": 2}', '{"may": 2, "must": 1}', '{\n  "must": 1\n}'):
        found = masked(call(calls, "look", arguments) + "\nDone.", calls)
        written = arguments if calls.literals is None else calls.literals.write(arguments)
        assert len(found.strip(" }\n")) >= len(written.strip("{} \n"))
        assert "Done" not in found
        assert "..." not in found
    # Brackets of Python are one token, with which the head ends; it is masked behind `look`.
    nothing = ("", calls.arguments_end, "{}") if calls.arguments_end else ("{}", "}", "}}", "{}}")
    assert masked(call(calls, "look_up", "{}"), calls).strip().removeprefix("_") in nothing
    for wrong in ('{"may": 1}', '{"must": "x"}', '{"other": 1}', "3"):
        assert masked(call(calls, "look", wrong), calls).endswith("...")


@pytest.mark.parametrize("calls", [each for each in FORMATS if each.literals], ids=lambda calls: calls.name)
@pytest.mark.parametrize("strict", [False, True])
def test_a_token_with_both_brackets_cannot_leave_out_what_is_required(calls: ToolCallFormat, *, strict: bool) -> None:
    assert len(tokens("()")) == 1
    assert masked(call(calls, "look", "{}"), calls, strict=strict).endswith("...")
    assert not masked(call(calls, "look_up", "{}"), calls, strict=strict).endswith("...")


def test_members_come_in_any_order_unless_the_tool_is_strict() -> None:
    assert masked(call(HERMES, "exact", '{"may": 2, "must": 1}')).endswith('"must": 1}}\n')
    assert masked(call(HERMES, "exact", '{"must": 1, "may": 2}')).endswith("...")


def test_what_follows_arguments_is_free_and_the_next_call_is_not() -> None:
    first, second = call(HERMES, "look", '{"must": 1}'), call(HERMES, "look_up", '{"a": 1}')
    assert masked(first + "\nSo it is <tool_call>.") == masked(first)
    assert masked(f"{first}\n{second}").endswith("...")
    assert not masked(f"{first}\n{call(HERMES, 'look_up', '{}')} ok").endswith("...")


def test_an_answer_is_over_after_the_last_call_that_it_may_have() -> None:
    one = call(HERMES, "look_up", "{}")
    assert masked(f"{one}\n{one}", max_calls=1).endswith("|")
    assert not masked(f"{one}\n{one}", max_calls=3).endswith("|")


@pytest.mark.parametrize(("name", "is_bound"), [("look", True), ("look_up", False)])
def test_a_beginning_that_came_with_the_head_is_consumed_or_leaves_arguments_free(name: str, *, is_bound: bool) -> None:
    reader = constraint()
    head = f'<tool_call>\n{{"name": "{name}", "arguments'
    for token_id in tokens(head + '":{"'):
        assert reader.mask() is None
        reader.consume(token_id)
    assert (reader.mask() is not None) is is_bound


def test_a_call_in_a_channel_is_masked_behind_its_header() -> None:
    header = "<|channel|>commentary to=functions.look <|message|>"
    thought = "<|channel|>analysis<|message|>I call look<|call|><|start|>assistant"
    assert masked(thought + header + '{"may": 1, "must": 2}<|call|>', reasoning="harmony") == '{"may": 1, "must": 2}'
    assert masked(header + '{"other', reasoning="harmony").endswith("...")
    assert masked(thought + header.replace("look", "other") + '{"other": 1}', reasoning="harmony") == ""


LEAVES: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 0, "maximum": 99},
    {"type": "boolean"},
    {"enum": ["a", "b c", "}"]},
    {"type": "string", "maxLength": 5},
    {
        "type": "object",
        "properties": {"x": {"type": "boolean"}, "y": {"type": "null"}},
        "required": ["y"],
        "additionalProperties": False,
    },
]
SCHEMAS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(LEAVES), min_size=1, max_size=6)


def check_forced(reader: CallConstraint) -> None:
    """Check that a text which is said to be the only one is, whatever tokens spell it."""
    forced = b"".join(TOKENIZER.token_bytes(i) for i in reader.forced())
    if len(reader.forced()) > 1:
        mask = reader.fork()._arguments.mask_of_grammar()  # type: ignore[union-attr]  # noqa: SLF001 - which hides it
        allowed = [TOKENIZER.token_bytes(i) for i in range(TOKENIZER.vocab_size) if holds(mask, i)]
        assert TOKENIZER.token_bytes(reader.forced()[0]) in allowed
        assert all(forced.startswith(each) or each.startswith(forced) for each in allowed)


@pytest.mark.covers("structured-tools-agents/auto-is-free")
@given(
    properties=SCHEMAS,
    calls=st.sampled_from(FORMATS),
    draw=st.randoms(use_true_random=False),
    num_required=st.integers(0, 6),
)
def test_whatever_is_drawn_behind_a_head_is_a_call_that_validates(
    properties: dict[str, Any], calls: ToolCallFormat, draw: random.Random, num_required: int
) -> None:
    """Illegal tokens are as likely as can be; the head is written by the test."""
    schema = {"type": "object", "properties": properties, "required": list(properties)[:num_required]}
    reader = constraint(calls, tools=[Tool(name="f", parameters=schema)], max_calls=1)
    written = tokens(calls.begin + calls.call_begin + "f" + (calls.before_arguments.rstrip() or "\n"))
    for token_id in written:
        reader.consume(token_id)
    while (mask := reader.mask()) is not None and len(written) < 600:
        check_forced(reader)
        written.append(draw.choice([i for i in range(TOKENIZER.vocab_size) if holds(mask, i)]))
        reader.consume(written[-1])
    assert END not in written
    text = b"".join(TOKENIZER.token_bytes(i) for i in written).decode(errors="replace")
    types = ParameterTypes([Tool(name="f", parameters=schema)])
    parser = AnswerParser(tool_call_format=calls, tool_names=("f",), max_calls=1, parameter_types=types)
    deltas = parser.add(text)
    assert not any(isinstance(delta, ContentDelta) for delta in deltas)
    if parser.callee is None:
        arguments = json.loads("".join(delta.arguments for delta in deltas if isinstance(delta, ToolCallDelta)))
        required = schema["required"] if num_required <= 4 or len(properties) <= 4 else []
        jsonschema.validate(arguments, schema | {"required": required, "additionalProperties": False})
