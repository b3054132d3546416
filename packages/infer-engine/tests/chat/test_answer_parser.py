"""`AnswerParser`: what it makes of an answer, however the text is cut, and what that costs."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.chat.output_parser import AnswerParser
from infer_engine.protocol import AnswerDelta, ContentDelta, ContentWasReasoning, ReasoningDelta, ToolCallDelta
from infer_models.text import REASONING_FORMATS, TOOL_CALL_FORMATS, ReasoningState, ToolCallFormat

THINK = REASONING_FORMATS["think"]
HERMES = TOOL_CALL_FORMATS["hermes"]
FORMATS = list(TOOL_CALL_FORMATS.values())
Parts = list[tuple[str, ...]]


def parser(calls: ToolCallFormat | None = HERMES, state: ReasoningState = ReasoningState.MAY_BEGIN) -> AnswerParser:
    return AnswerParser(reasoning_format=THINK, state=state, tool_call_format=calls)


def joined(deltas: list[AnswerDelta]) -> Parts:
    """Return the parts that `deltas` make up: ("reasoning", text), ("content", text) or (name, arguments)."""
    parts: list[list[str]] = []
    for delta in deltas:
        match delta:
            case ToolCallDelta(name=None):
                parts[-1][1] += delta.arguments
            case ToolCallDelta(name=name):
                assert delta.index == sum(part[0] not in ("reasoning", "content") for part in parts)
                parts.append([str(name), delta.arguments])
            case ContentWasReasoning():
                parts = [["reasoning" if kind == "content" else kind, text] for kind, text in parts]
            case ReasoningDelta(text=text) | ContentDelta(text=text):
                kind = "content" if isinstance(delta, ContentDelta) else "reasoning"
                assert text
                if parts and parts[-1][0] == kind:
                    parts[-1][1] += text
                else:
                    parts.append([kind, text])
    return [tuple(part) for part in parts]


def parse(pieces: list[str], *arguments: Any) -> Parts:
    reader = parser(*arguments)
    return joined([delta for piece in pieces for delta in reader.add(piece)] + reader.finish())


def call(calls: ToolCallFormat, *named: tuple[str, str]) -> str:
    """Return several calls as a model writes them."""
    return calls.write(*named)


ARGUMENTS = json.dumps(
    {"a": '}"\\ <tool_call> </think> [ARGS] {"name": "', "b": [1, {"c": None}], "d": "é日"}, ensure_ascii=False
)
CALLS = (("f", ARGUMENTS), ("get_weather", "{}"))


@pytest.mark.covers("structured-tools-agents/cuts-in-linear-time")
@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_an_answer_is_the_same_wherever_it_is_cut(calls: ToolCallFormat) -> None:
    text = f"<think>\nHm <b> </thin\n</think>\n\n{'Well. ' if calls.is_anywhere else ''}{call(calls, *CALLS)}"
    content = [("content", "Well.")] if calls.is_anywhere else []
    expected = [("reasoning", "Hm <b> </thin"), *content, *CALLS]
    assert parse([text], calls) == expected
    assert parse(list(text), calls) == expected
    for cut in range(1, len(text)):
        assert parse([text[:cut], text[cut:]], calls) == expected, cut


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), JSON_VALUES, max_size=4).map(lambda value: json.dumps(value, ensure_ascii=False))
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True).filter(lambda name: name not in ("reasoning", "content"))


@given(
    calls=st.sampled_from([each for each in FORMATS if each.parameters is None]),
    thought=st.text()
    .map(str.strip)
    .filter(lambda text: "</think>" not in text and not "</think>".startswith(text[-8:])),
    named=st.lists(st.tuples(NAMES, OBJECTS), min_size=1, max_size=3),
    lengths=st.lists(st.integers(1, 9), min_size=400, max_size=400),
)
def test_what_a_format_writes_is_read_back(
    calls: ToolCallFormat, thought: str, named: list[tuple[str, str]], lengths: list[int]
) -> None:
    text = f"<think>{thought}</think>\n{call(calls, *named)}"
    pieces = []
    for length in lengths:
        pieces.append(text[:length])
        text = text[length:]
    expected = [("reasoning", thought)] if thought else []
    assert parse([*pieces, text], calls) == [*expected, *named]


@given(text=st.text(alphabet='ab \n<>/[]{}"\\tholcn_rigTOLCAS', max_size=200), cuts=st.integers(1, 5))
def test_any_text_is_read_without_an_error_and_without_losing_words(text: str, cuts: int) -> None:
    pieces = [text[start : start + cuts] for start in range(0, len(text), cuts)]
    for calls in (None, *FORMATS):
        for state in ReasoningState:
            parts = parse(pieces, calls, state)
            if all(each not in text for each in ("<think>", "</think>", "[TOOL_CALLS]", "<tool_call>", '{"name"')):
                assert "".join("".join(part[1].split()) for part in parts) == "".join(text.split())


@pytest.mark.parametrize("state", [ReasoningState.NONE, ReasoningState.MAY_BEGIN])
def test_text_without_marks_comes_out_as_it_is(state: ReasoningState) -> None:
    text = "\n Hello  <b>there</b>\n\n{} [x] \t\n"
    assert parse(list(text), HERMES, state) == [("content", text)]


@pytest.mark.covers("structured-tools-agents/reasoning-begins")
def test_the_state_of_the_prompt_says_whether_an_answer_begins_with_reasoning() -> None:
    text = "a</think>b"
    assert parse([text], None, ReasoningState.OPEN) == [("reasoning", "a"), ("content", "b")]
    assert parse(["<think>" + text], None, ReasoningState.MAY_BEGIN) == [("reasoning", "a"), ("content", "b")]
    assert parse([text], None, ReasoningState.NONE) == [("content", text)]


def test_a_mark_inside_reasoning_is_reasoning() -> None:
    thought = 'so <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> it is'
    assert parse([f"<think>{thought}</think>ok"]) == [("reasoning", thought), ("content", "ok")]


KIMI = TOOL_CALL_FORMATS["kimi_k2"]
SECTION, CALLED = KIMI.begin, KIMI.write(("f", "{}"))


# vllm-project/vllm#32216, #34955, vybestack/llxprt-code#749: calls of Kimi K2 in thinking that it forgets to end
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"I look.{CALLED}", [("reasoning", "I look."), ("f", "{}")]),
        (f"I look.{CALLED}</think>", [("reasoning", "I look."), ("f", "{}")]),
        (f"A{CALLED} B</think> C", [("reasoning", "A"), ("f", "{}"), ("reasoning", "B"), ("content", "C")]),
        (f"I look.</think>{CALLED}", [("reasoning", "I look."), ("f", "{}")]),
        (f"{SECTION} is a mark</think>Yes", [("reasoning", f"{SECTION} is a mark"), ("content", "Yes")]),
        (f"a {SECTION}{KIMI.call_begin}g:0", [("reasoning", f"a {SECTION}{KIMI.call_begin}g:0")]),
    ],
)  # fmt: skip
def test_a_call_may_end_reasoning_where_the_family_does_so(text: str, expected: Parts) -> None:
    for begin, state in (("<think>", ReasoningState.MAY_BEGIN), ("", ReasoningState.OPEN)):
        for pieces in ([begin + text], list(begin + text)):
            reader = AnswerParser(reasoning_format=THINK, state=state, tool_call_format=KIMI, tool_names=["f"])
            deltas = [delta for piece in pieces for delta in reader.add(piece)] + reader.finish()
            assert joined(deltas) == expected


LOOKALIKES = ["a <tool_call> b", '<tool_call>{"nam": 1}', '<tool_call>\n{"name": "f", "arguments": 1}\n</tool_call>']


@pytest.mark.parametrize("text", LOOKALIKES)
def test_what_is_no_call_after_all_is_content(text: str) -> None:
    assert parse(list(text)) == [("content", text)]


def test_a_call_that_is_cut_off_has_what_came_of_its_arguments() -> None:
    text = call(HERMES, ("f", '{"city": "Rome"}'))
    for end in range(1, len(text)):
        parts = parse([text[:end]])
        assert parts in ([], [("content", text[:end])]) or parts == [("f", '{"city": "Rome"}'[: len(parts[0][1])])]
    begun = text.index('": {') + 4
    assert parse([text[:begun]]) == [("f", "{")]
    assert parse([text[: begun - 4]]) == [("content", text[: begun - 4])]


@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_an_answer_that_must_call_has_no_content_wherever_it_is_cut_off(calls: ToolCallFormat) -> None:
    text = call(calls, *CALLS)
    for end in range(1, len(text)):
        cut = AnswerParser(tool_call_format=calls, must_call=True)
        parts = joined(cut.add(text[:end]) + cut.add("\ufffd") + cut.finish())
        assert {name for name, _ in parts} <= {"f", "get_weather"}


def test_calls_are_told_by_pieces_of_white_space_of_any_kind() -> None:
    spread = (
        '<tool_call>  {"name":   "f",\n"arguments":{"a":1} }  </tool_call>\n\n\n'
        '<tool_call>{"name":"g","arguments": {}}</tool_call>'
    )
    assert parse(list(spread)) == [("f", '{"a":1}'), ("g", "{}")]
    assert parse(
        ["<|python_tag|>" + call(TOOL_CALL_FORMATS["llama3_json"], ("f", "{}"))], TOOL_CALL_FORMATS["llama3_json"]
    ) == [("f", "{}")]


CLOSED_ONLY: list[tuple[str, Parts]] = [
    ("Okay.\n</think>\n\nBlue.", [("reasoning", "Okay."), ("content", "Blue.")]),
    ("</think>\n\nBlue.", [("content", "Blue.")]),
    ("Okay.</think>", [("reasoning", "Okay.")]),
    ("Say `</think>` to end.", [("content", "Say `</think>` to end.")]),
    ("It ends with '</think>'. So.</think>Yes", [("reasoning", "It ends with '</think>'. So."), ("content", "Yes")]),
    ("So.</think>Write </think> then.", [("reasoning", "So."), ("content", "Write </think> then.")]),
]


@pytest.mark.parametrize(("text", "expected"), CLOSED_ONLY)
@pytest.mark.parametrize("length", [1, 7, 100])
def test_reasoning_may_have_an_end_alone(text: str, expected: Parts, length: int) -> None:
    pieces = [text[start : start + length] for start in range(0, len(text), length)]
    assert parse(pieces) == parse(pieces, None) == expected


def test_content_that_follows_a_grammar_holds_the_end_of_reasoning_as_any_text() -> None:
    text = '{"a": "x </think> y"}'
    reader = AnswerParser(reasoning_format=THINK, state=ReasoningState.MAY_BEGIN, may_lack_begin=False)
    assert joined(reader.add(text) + reader.finish()) == [("content", text)]


TWICE: list[tuple[str, ReasoningState, Parts]] = [
    ("<think>\nhm</think>yes", ReasoningState.OPEN, [("reasoning", "hm"), ("content", "yes")]),
    ("<think><think>hm</think>yes", ReasoningState.MAY_BEGIN, [("reasoning", "hm"), ("content", "yes")]),
    (
        "<think>\n\n</think>\n\n<think>hm</think>yes",
        ReasoningState.MAY_BEGIN,
        [("reasoning", "hm"), ("content", "yes")],
    ),
    ("<think>hm</think>yes", ReasoningState.NONE, [("reasoning", "hm"), ("content", "yes")]),
    ("<th", ReasoningState.OPEN, [("reasoning", "<th")]),
]


@pytest.mark.parametrize(("text", "state", "expected"), TWICE)
def test_reasoning_may_be_opened_twice(text: str, state: ReasoningState, expected: Parts) -> None:
    assert parse([text], HERMES, state) == parse(list(text), HERMES, state) == expected


@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_a_call_of_a_tool_that_is_not_offered_is_content(calls: ToolCallFormat) -> None:
    text = call(calls, ("get_weather", "{}"))
    for names, expected in (((), [("content", text)]), (("get", "get_weather_now"), [("content", text)])):
        for pieces in ([text], list(text)):
            reader = AnswerParser(tool_call_format=calls, tool_names=names)
            assert joined([delta for piece in pieces for delta in reader.add(piece)] + reader.finish()) == expected
    reader = AnswerParser(tool_call_format=calls, tool_names=("get_weather", "get"))
    assert joined(reader.add(text) + reader.finish()) == [("get_weather", "{}")]


@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_text_is_held_back_only_while_it_may_become_the_head_of_an_offered_tool(calls: ToolCallFormat) -> None:
    reader = AnswerParser(tool_call_format=calls, tool_names=("look",))
    begin = calls.begin + calls.call_begin
    assert reader.add(begin + "lo") == []
    assert joined(reader.add("s")) == [("content", begin + "los")]


@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_after_the_last_call_that_it_may_have_an_answer_is_over(calls: ToolCallFormat) -> None:
    text = call(calls, *CALLS)
    for pieces in ([text + "more"], list(text + "more")):
        reader = AnswerParser(tool_call_format=calls, max_calls=1)
        assert joined([delta for piece in pieces for delta in reader.add(piece)] + reader.finish()) == [CALLS[0]]
        assert reader.is_over


SLOPPY = [
    '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1}}',
    '<tool_call>{"name": "f", "arguments": {"a": 1}, "id": "}x"}\n</tool_call>',
    '<tool_call>{"name": "f", "arguments": {"a": 1}, "more": [{"b": "]"}] }\n</tool_call>\n',
]


@pytest.mark.parametrize("text", SLOPPY)
def test_what_models_leave_out_or_add_at_the_end_of_a_call_is_no_content(text: str) -> None:
    assert parse([text]) == parse(list(text)) == [("f", '{"a": 1}')]


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "json", "mistral"])
@pytest.mark.parametrize(
    "written",
    [
        '{"name":"f","KEY":{"a":1}}',
        '{\n  "name": "f",\n  "KEY": {"a":1}\n}',
        '{ "name" : "f" , "KEY" : {"a":1} }',
        '{"type": "function", "name": "f", "KEY": {"a":1}}',
    ],
)
@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_a_call_that_is_json_may_be_written_in_other_ways(name: str, written: str, key: str) -> None:
    around = {"hermes": ("<tool_call>", "</tool_call>"), "mistral": ("[TOOL_CALLS][", "]")}.get(name, ("", ""))
    text = around[0] + written.replace("KEY", key) + around[1]
    for pieces in ([text], list(text)):
        reader = AnswerParser(tool_call_format=TOOL_CALL_FORMATS[name], tool_names=("f",))
        deltas = [delta for piece in pieces for delta in reader.add(piece)] + reader.finish()
        assert joined(deltas) == [("f", '{"a":1}')]


ADVERSARIAL = {
    "triggers": "<tool_call>",
    "heads": '<tool_call>\n{"name": "',
    "names": '<tool_call>\n{"name": "' + "n" * 100,
    "blanks": " ",
    "beginnings": "<",
    "thoughts": "<think>",
    "ends of thoughts": "</think",
    "calls": '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "blanks in calls": "<tool_call>        ",
    "lists": "[TOOL_CALLS]",
    "fences": "```json\n{",
    "arguments first": '<tool_call>{"arguments": {"a": 1}, "nom"',
    "open arguments": '<tool_call>{"arguments": {',
}


@pytest.mark.covers("structured-tools-agents/cuts-in-linear-time")
@pytest.mark.parametrize(
    "piece", [*ADVERSARIAL.values(), "escapes", "brackets"], ids=[*ADVERSARIAL, "escapes", "brackets"]
)
@pytest.mark.parametrize("length", [pytest.param(1, marks=pytest.mark.full), 4, 10**6])
def test_anything_takes_linear_time(piece: str, length: int) -> None:
    head = '<tool_call>\n{"name": "f", "arguments": {'
    repeated = {"escapes": '"\\', "brackets": "{["}.get(piece, piece)
    begin = head if piece in ("escapes", "brackets") else ""

    def cpu_s(size: int) -> float:
        text = begin + repeated * (size // len(repeated))
        reader = parser()
        began_s = time.thread_time()
        for start in range(0, len(text), length):
            reader.add(text[start : start + length])
        reader.finish()
        return time.thread_time() - began_s

    assert cpu_s(2**18) < 8 * max(cpu_s(2**16), 0.02)


@pytest.mark.parametrize(
    ("name", "behind", "content"),
    [
        ("jamba", "]</tool_", []),
        ("kimi_k2", "<|tool_calls_section_e", []),
        ("hermes", "\n<tool_ca", [("content", "<tool_ca")]),
        ("jamba", "]</tool_calls> Done", [("content", "Done")]),
    ],
)
def test_of_a_mark_behind_the_last_call_that_is_cut_off_nothing_is_content(
    name: str, behind: str, content: list[tuple[str, str]]
) -> None:
    calls = TOOL_CALL_FORMATS[name]
    text = call(calls, ("f", "{}"))
    text = text[: len(text) - len(calls.end)] + behind
    assert parse([text], calls) == [("f", "{}"), *content]
    assert parse(list(text), calls) == [("f", "{}"), *content]
