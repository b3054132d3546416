"""`ChannelParser`: answers of gpt-oss, wherever their text is cut."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.chat.channel_parser import ChannelParser
from infer_engine.protocol import ContentDelta, ReasoningDelta, ToolCallDelta

THOUGHT = "<|channel|>analysis<|message|>The <b> tag.<|end|>"
SAYS = "<|start|>assistant<|channel|>commentary<|message|>I will look.<|end|>"
ANSWER = "<|start|>assistant<|channel|>final<|message|>It is 2 < 3.<|return|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"a": "<|end"}<|call|>'
LOOKED = ("look", '{"a": "<|end"}')


def parse(text: str, length: int, **how: Any) -> list[tuple[str, str]]:
    reader = ChannelParser(**{"tool_names": ("look",), **how})
    deltas = [delta for start in range(0, len(text), length) for delta in reader.add(text[start : start + length])]
    parts: list[tuple[str, str]] = []
    for delta in deltas + reader.finish():
        match delta:
            case ReasoningDelta(text=more) | ContentDelta(text=more):
                kind = "content" if isinstance(delta, ContentDelta) else "reasoning"
            case ToolCallDelta(name=name, arguments=more):
                kind = name or parts[-1][0]
        if parts and parts[-1][0] == kind:
            more = parts.pop()[1] + more
        parts.append((kind, more))
    return parts


ANSWERS: list[tuple[str, list[tuple[str, str]]]] = [
    (THOUGHT + ANSWER, [("reasoning", "The <b> tag."), ("content", "It is 2 < 3.")]),
    (THOUGHT + SAYS + CALL, [("reasoning", "The <b> tag."), ("content", "I will look."), LOOKED]),
    (SAYS + THOUGHT + ANSWER, [
        ("content", "I will look."), ("reasoning", "The <b> tag."), ("content", "\n\nIt is 2 < 3.")]),
    (CALL.removeprefix("<|start|>assistant"), [LOOKED]),
    (CALL.replace("functions.look", "functions.other"), [("reasoning", LOOKED[1])]),
    (THOUGHT.replace("analysis", "analysis to=python code"), [("reasoning", "The <b> tag.")]),
    (" to=functions.look<|channel|>commentary<|message|>{}", [("look", "{}")]),
    (CALL.replace("{", "not {"), [("reasoning", 'not {"a": "<|end"}')]),
    ("<|channel|>final<|message|>cut <|en", [("content", "cut <|en")]),
    ("<|channel|>comm", []),
    ("Without a channel.", [("content", "Without a channel.")]),
    ("t", [("content", "t")]),
    (THOUGHT + "<|channel|>final<|message|>Yes", [("reasoning", "The <b> tag."), ("content", "Yes")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ANSWERS)
@pytest.mark.parametrize("length", [1, 5, 1000])
def test_channels_are_told_apart_and_headers_are_no_text(
    text: str, expected: list[tuple[str, str]], length: int
) -> None:
    assert parse(text, length) == expected


def test_an_answer_is_over_after_the_last_call_that_it_may_have() -> None:
    assert parse(CALL + CALL + ANSWER, 7, max_calls=1) == [LOOKED]


MARKS = [
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "assistant",
    "final",
    "analysis",
    " to=functions.look",
]


@given(pieces=st.lists(st.sampled_from([*MARKS, "{", "}", "x ", "\n"])), length=st.integers(1, 9))
def test_any_text_is_read_without_an_error_and_no_mark_is_content(pieces: list[str], length: int) -> None:
    assert not any("<|end|>" in text for kind, text in parse("".join(pieces), length) if kind == "content")
