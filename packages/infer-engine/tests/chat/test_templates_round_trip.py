"""Calls that a family's template writes into a conversation are those that the parser reads back from an answer."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from infer_engine.chat.formats import ChatFormats
from infer_engine.chat.parsers import parser_of
from infer_engine.protocol import ChatMessage, ChatPrompt, ContentDelta, ReasoningDelta, Tool, ToolCall, ToolCallDelta
from infer_models.text import IncrementalDetokenizer, Tokenizer
from infer_proofs.text import FAMILIES, family_tokenizer

TOKENIZERS = {name: family_tokenizer(template) for name, template in FAMILIES.items()}
ENDS = {
    "apertus": "<|assistant_end|>",
    "nemotron": "\n<SPECIAL_12>",
    **dict.fromkeys(("deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4"), "<\uff5cend▁of▁sentence\uff5c>"),
    "functiongemma": "<start_function_response>",
    "gemma4": "<|tool_response>",
    "granite": "<|end_of_text|>",
    "harmony": "<|call|>",
    "jamba": "<|eom|>",
    "llama3_function": "<|eom_id|>",
    "llama3_json": "<|eot_id|>",
    "llama4_pythonic": "<|eot|>",
    "minimax_m1": "<end_of_sentence>",
    "phi4_mini": "<|end|>",
    "seed_oss": "<seed:eos>",
}
"""What ends an answer with calls; left out: `<|im_end|>`."""
ONE_CALL = ("harmony", "llama3_json")
"""Families whose templates take one call in an answer."""
WRITES_THOUGHTS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("apertus", "gemma4", "harmony", "hermes", "nemotron", "seed_oss")},
    **{name: {"thinking": True} for name in ("deepseek_v32", "deepseek_v4")},
}
"""Families whose templates write the thoughts before calls, with the variables with which they do."""

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "flag": {"type": "boolean"},
        "none": {"type": ["string", "null"]},
        "list": {"type": "array"},
        "object": {"type": "object"},
    },
}
TOOLS = (Tool(name="look", parameters=PARAMETERS), Tool(name="get_file.v2-x", parameters=PARAMETERS))
QUESTION = "What is there?"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a text": {"text": "Rome"},
    "an empty text": {"text": ""},
    "quotes": {"text": """He said: "it's" 'so' `then` \\ \\" \\n"""},
    "other scripts": {"text": "naïve café 日本語 🙂 \u2028"},
    "lines": {"text": "\ndef f(x):\n\treturn x\n\n", "list": ["a\nb"]},
    "brackets": {"text": "}]) <b> </b> {[( , x=1, y: 2 ;"},
    "texts that look like other values": {"text": "true", "none": "12", "list": ["null", "1"]},
    "constants": {"flag": True, "none": None, "list": [False, None, True]},
    "numbers": {"count": -3, "share": 0.25, "list": [0, -1.5, 1e-7, 12345678901234567890]},
    "nested": {
        "object": {"a": [1, {"b": None, "c": [True, "x, y"]}], "d": {}, "e": {"f": {"g": []}}},
        "list": [[], [1.5, ["x"]], {"k": 'it\'s "v"'}],
    },
    "odd names": {"object": {"a b": 1, "it's": [2], "ключ": {"é: x": "y"}, "": None}},
    "all": {
        "text": 'a "b"\n',
        "count": 1,
        "share": 1.5,
        "flag": False,
        "list": ["x", {"y": [None]}],
        "object": {"z": 1},
    },
}
CANNOT_BE_WRITTEN = {("gemma4", "odd names"), ("functiongemma", "odd names")}
"""Names of Gemma's objects have no quotes in its templates: where a name ends that has a colon, nobody can tell."""
CASES = [(name, kind) for name in FAMILIES for kind in ARGUMENTS if (name, kind) not in CANNOT_BE_WRITTEN]


def prompt(*calls: tuple[str, dict[str, Any]], thought: str | None = None, **variables: Any) -> ChatPrompt:
    """Return a conversation of a question and, if there are `calls`, an answer that makes them."""
    made = tuple(
        ToolCall(id=f"call{index:05}", name=name, arguments=arguments) for index, (name, arguments) in enumerate(calls)
    )
    answer = ChatMessage(role="assistant", content=None, reasoning=thought, tool_calls=made)
    messages = (ChatMessage(role="user", content=QUESTION), *([answer] if made else []))
    return ChatPrompt(messages=messages, tools=TOOLS, template_kwargs=variables, add_generation_prompt=not made)


def answer(name: str, tokenizer: Tokenizer, asked: ChatPrompt, whole: ChatPrompt) -> str:
    """Return what the template writes of the answer in `whole` behind the prompt `asked`, up to its end."""
    formats = ChatFormats(tokenizer)
    begun, text = (tokenizer.chat.render(formats.conversation(each)) for each in (asked, whole))
    before = QUESTION + begun.rpartition(QUESTION)[2]
    written, end, after = text.partition(before)[2].rpartition(ENDS.get(name, "<|im_end|>"))
    assert written
    assert end
    assert not after.strip()
    return written


def read(pieces: Sequence[str], tokenizer: Tokenizer, asked: ChatPrompt) -> tuple[str, list[tuple[str, str]]]:
    """Return the thoughts of an answer to `asked` and its calls, each a name and its arguments; it has no content."""
    formats = ChatFormats(tokenizer)
    state = tokenizer.chat.encode(formats.conversation(asked)).reasoning
    form = formats.answer_form(asked, state)
    parser = parser_of(form.marks(is_free=True), form.parameter_types)
    assert parser is not None
    thoughts = ""
    found: list[tuple[str, str]] = []
    for delta in [each for piece in pieces for each in parser.add(piece)] + parser.finish():
        match delta:
            case ToolCallDelta(name=None):
                found[-1] = (found[-1][0], found[-1][1] + delta.arguments)
            case ToolCallDelta(name=called):
                found.append((str(called), delta.arguments))
            case ReasoningDelta(text=text):
                thoughts += text
            case ContentDelta(text=text):
                pytest.fail(f"content: {text!r}")
    return thoughts, found


def tokens_of(text: str, tokenizer: Tokenizer, asked: ChatPrompt) -> list[str]:
    """Return the deltas of an answer of one token after another, without those that are not shown."""
    formats = ChatFormats(tokenizer)
    prompted = tokenizer.chat.encode(formats.conversation(asked))
    shown_ids = formats.answer_form(asked, prompted.reasoning).shown_ids
    detokenizer = IncrementalDetokenizer(tokenizer, prompted.token_ids, shown_ids=list(shown_ids))
    return [*map(detokenizer.add, tokenizer.encode(text, add_special_tokens=False)), detokenizer.finish()]


def check(name: str, *calls: tuple[str, dict[str, Any]], thought: str | None = None, **variables: Any) -> None:
    """Check that `calls` and `thought` are read as they were sent, whatever the pieces of the answer."""
    tokenizer = TOKENIZERS[name]
    asked, whole = prompt(**variables), prompt(*calls, thought=thought, **variables)
    tokens = tokens_of(answer(name, tokenizer, asked, whole), tokenizer, asked)
    shown = "".join(tokens)
    cuts = [tokens, [shown], *([shown[at : at + size] for at in range(0, len(shown), size)] for size in (1, 7))]
    for pieces in cuts:
        thoughts, found = read(pieces, tokenizer, asked)
        assert [(called, json.loads(arguments)) for called, arguments in found] == list(calls)
        assert thoughts == (thought or "")


@pytest.mark.covers("structured-tools-agents/formats")
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_call_of_a_template_is_read_back(name: str, kind: str) -> None:
    check(name, ("look", ARGUMENTS[kind]))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ONE_CALL])
def test_several_calls_of_a_template_are_read_back(name: str) -> None:
    check(name, ("look", ARGUMENTS["all"]), ("get_file.v2-x", {"text": "b"}), ("look", {}))


@pytest.mark.parametrize("name", WRITES_THOUGHTS)
def test_thoughts_before_calls_are_read_back(name: str) -> None:
    check(name, ("look", ARGUMENTS["all"]), thought="I will <b>look</b>.\n\n{}", **WRITES_THOUGHTS[name])
