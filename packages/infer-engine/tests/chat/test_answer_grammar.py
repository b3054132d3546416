"""The grammar of an answer: what it allows, token by token, and that the parser reads what it allows."""

import json
import random
from typing import Any

import jsonschema
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_engine.chat.output_form import AnswerForm
from infer_engine.chat.output_grammar import answer_grammar
from infer_engine.chat.output_parser import AnswerParser
from infer_engine.messages import MAX_CALLS
from infer_engine.protocol import ChatPrompt, ContentDelta, StructuredOutputs, Tool, ToolCallDelta
from infer_engine.structured.bitmasks import holds
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_models.text import REASONING_FORMATS, TOOL_CALL_FORMATS, ReasoningState, Tokenizer, ToolCallFormat
from infer_proofs.text import split_byte_level

NONE, MAY_BEGIN, OPEN = ReasoningState.NONE, ReasoningState.MAY_BEGIN, ReasoningState.OPEN
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = (Tool(name="get_weather", parameters=CITY), Tool(name="get"))
FORMATS = list(TOOL_CALL_FORMATS.values())
HERMES = TOOL_CALL_FORMATS["hermes"]
MARKERS = (
    *("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "\uff5cDSML\uff5c"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<|tool_call_start|>"),
)


def make_tokenizer(*, with_markers: bool) -> Tokenizer:
    """Return a tokenizer in which Mistral's and Llama's marks are special tokens, or text."""
    raw = split_byte_level()
    if with_markers:
        raw.add_tokens([tokenizers.AddedToken(each, normalized=False) for each in ("<tool_call>", "</think>")])
        raw.add_special_tokens(list(MARKERS))
    return Tokenizer(raw)


TOKENIZERS = {"markers": make_tokenizer(with_markers=True), "text": make_tokenizer(with_markers=False)}


def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    [end] = [i for i in tokenizer.special_ids if tokenizer.id_to_token(i) == "<|im_end|>"]
    return GrammarCompiler(
        lambda: Vocabulary(tokenizer.vocabulary_bytes(), special_ids=tokenizer.special_ids, eos_token_ids=[end])
    )


COMPILERS = {name: compiler(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def form(
    calls: ToolCallFormat | None,
    state: ReasoningState,
    vocabulary: str,
    prompt: ChatPrompt | None = None,
    reasoning: str = "think",
) -> AnswerForm:
    tokenizer, prompt = TOKENIZERS[vocabulary], prompt or ChatPrompt(messages=())
    is_one = not prompt.parallel_tool_calls or prompt.tool_name is not None

    def token_id_of(text: str) -> int | None:
        token_id = tokenizer.token_to_id(text)
        return token_id if token_id in tokenizer.special_ids else None

    return AnswerForm(
        reasoning_format=REASONING_FORMATS[reasoning],
        reasoning_state=state,
        tool_call_format=calls,
        token_id_of=token_id_of,
        tool_names=tuple(tool.name for tool in prompt.tools if prompt.tool_name in (None, tool.name)),
        max_calls=1 if is_one else MAX_CALLS,
        must_call=prompt.tool_choice == "required",
    )


def allows(
    text: str,
    calls: ToolCallFormat | None = HERMES,
    *,
    state: ReasoningState = NONE,
    content: StructuredOutputs | None = None,
    vocabulary: str = "text",
    reasoning: str = "think",
    **prompt: Any,
) -> str:
    """Return `whole` if the answer may end after `text`, `part` if it may go on to, `no` if it cannot come."""
    asked = ChatPrompt(messages=(), **{"tools": TOOLS, "tool_choice": "required", **prompt})
    grammar = answer_grammar(asked, content, form(calls, state, vocabulary, asked, reasoning))
    assert grammar is not None
    constraint = COMPILERS[vocabulary].constraint(grammar)
    for token_id in TOKENIZERS[vocabulary].encode(text, add_special_tokens=False):
        if constraint.is_over or not holds(constraint.mask(), token_id):
            return "no"
        constraint.consume(token_id)
    return "whole" if constraint.is_over or constraint.may_end else "part"


ROME, NOTHING = ("get_weather", '{"city": "Rome"}'), ("get", "{}")


@pytest.mark.covers("structured-tools-agents/formats")
@pytest.mark.parametrize("vocabulary", TOKENIZERS)
@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_calls_of_each_format(calls: ToolCallFormat, vocabulary: str) -> None:
    def found(text: str, **prompt: Any) -> str:
        return allows(text, calls, vocabulary=vocabulary, **prompt)

    one, two = calls.write(ROME), calls.write(ROME, NOTHING)
    assert found(one) == "whole"
    assert found(two) == "whole"
    assert found(two, parallel_tool_calls=False) == "no"
    assert found(one, parallel_tool_calls=False) == "whole"
    assert found("Hello there.") == "no"
    assert found(calls.write(NOTHING), tool_name="get") == "whole"
    assert found(one, tool_name="get") == "no"
    assert found(calls.write(NOTHING, NOTHING), tool_name="get") == "no"
    one_is_text = calls.parameters is not None and not calls.parameters.json_name_end
    assert found(calls.write(("get_weather", '{"city": 1}'))) == ("whole" if one_is_text else "no")
    for wrong in (("get_time", "{}"), ("get_weather", "{}"), ("get", '{"a": 1}')):
        assert found(calls.write(wrong)) == "no"
    assert found(f"Well. {one}") == "no"


@pytest.mark.parametrize("state", [MAY_BEGIN, OPEN])
@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_thinking_comes_first_and_is_free(calls: ToolCallFormat, state: ReasoningState) -> None:
    begin = "<think>" if state is MAY_BEGIN else ""
    thought = begin + 'so <tool_call> {"name": " [TOOL_CALLS] {</think>\n\n'
    one = calls.write(ROME)
    assert allows(thought + one, calls, state=state) == "whole"
    assert allows(thought + "Well.", calls, state=state) == "no"
    assert allows(one, calls, state=state) == ("part" if state is OPEN else "whole")  # in thinking it is none
    assert allows(thought + calls.trigger + "?", calls, state=state) == "no"


@pytest.mark.parametrize("vocabulary", TOKENIZERS)
def test_gemmas_thinking_begins_with_a_mark_and_a_word(vocabulary: str) -> None:
    calls = TOOL_CALL_FORMATS["gemma4"]

    def found(text: str, state: ReasoningState = MAY_BEGIN) -> str:
        return allows(text, calls, state=state, vocabulary=vocabulary, reasoning="gemma4")

    one = calls.write(ROME)
    for thought in ("<|channel>thought\nso <|tool_ca<channel|>", "<|channel>thought\n<channel|>", ""):
        assert found(thought + one) == "whole"
        assert found(thought + "Well.") == "no"
    assert found("<|channel>final\n") == "no"
    assert found(f"so<channel|>\n{one}", OPEN) == "whole"


@pytest.mark.parametrize("vocabulary", TOKENIZERS)
@pytest.mark.parametrize("content", [None, StructuredOutputs(choice=("yes", "no"))], ids=["calls", "content"])
def test_an_answer_may_end_while_thinking_unless_it_must_call_but_not_between_thinking_and_its_end(
    content: StructuredOutputs | None, vocabulary: str
) -> None:
    for state, begin in ((OPEN, ""), (MAY_BEGIN, "<think>")):
        for calls in (HERMES, *([None] if content else [])):
            choice = "auto" if content else "required"

            def found(text: str, *, state: ReasoningState = state, **how: Any) -> str:
                return allows(text, content=content, state=state, vocabulary=vocabulary, **how)

            may_end = "whole" if content else "part"
            assert found(begin + "hm", calls=calls, tool_choice=choice) == may_end
            assert found(begin + "hm</thin", calls=calls, tool_choice=choice) == may_end
            assert found(begin + "hm</think>", calls=calls, tool_choice=choice) == "part"


TAG = {"structures": [{"begin": "<a>", "schema": {"enum": [3]}, "end": "</a>"}], "triggers": ["<a"]}
CONTENT: list[tuple[dict[str, Any], str, str]] = [
    ({"json": CITY}, '{"city": "Rome"}', '{"town'),
    ({"json_object": True}, '{"a": [1]}', "[1]"),
    ({"regex": "ab+c"}, "abbc", "ax"),
    ({"choice": ("yes", "no")}, "yes", "maybe"),
    ({"grammar": 'root ::= "x" "y"*'}, "xyy", "z"),
    ({"grammar": 'start: a\na: "x" | "y" a'}, "yyx", "z"),
    ({"structural_tag": TAG}, "so <a>3</a>", "so <a>x"),
]


@pytest.mark.parametrize(("kind", "good", "bad"), CONTENT, ids=lambda value: str(value)[:30])
def test_structured_output_follows_the_thinking_or_gives_way_to_calls(
    kind: dict[str, Any], good: str, bad: str
) -> None:
    content = StructuredOutputs(**kind)
    for state, begin in ((NONE, ""), (MAY_BEGIN, "<think>hm yes {</think>\n\n"), (OPEN, "hm yes {</think>\n")):
        for written in (None, HERMES):
            assert allows(begin + good, written, state=state, content=content, tool_choice="auto") == "whole"
            assert allows(begin + bad, written, state=state, content=content, tool_choice="auto") == "no"
        calls = HERMES.write(ROME)
        assert allows(begin + calls, state=state, content=content, tool_choice="auto") == "whole"
        assert allows(begin + good, state=state, content=content, tool_choice="required") == "no"


def test_without_tools_and_structured_output_there_is_no_grammar() -> None:
    for state in ReasoningState:
        assert answer_grammar(ChatPrompt(messages=()), None, form(None, state, "text")) is None


@pytest.mark.parametrize("calls", FORMATS, ids=lambda calls: calls.name)
def test_structured_output_and_calls_go_together_in_every_format(calls: ToolCallFormat) -> None:
    content = StructuredOutputs(json=CITY)
    for text in (calls.write(ROME), '{"city": "Rome"}'):
        assert allows(text, calls, content=content, tool_choice="auto") == "whole"
    assert allows('{"town', calls, content=content, tool_choice="auto") == "no"


def test_an_answer_has_a_limited_number_of_calls() -> None:
    assert allows(HERMES.write(*[NOTHING] * MAX_CALLS)) == "whole"
    assert allows(HERMES.write(*[NOTHING] * (MAX_CALLS + 1))) == "no"


def test_schemas_of_tools_together_are_limited() -> None:
    wide = {"type": "object", "properties": {f"name_{number}": {"type": "string"} for number in range(900)}}
    tools = tuple(Tool(name=f"t{number}", parameters=wide) for number in range(10))
    with pytest.raises(ValueError, match=r"^`tools` have schemas of"):
        allows("", tools=tools)


LEAVES: list[dict[str, Any]] = [
    {"type": "integer", "minimum": 0, "maximum": 99},
    {"type": "boolean"},
    {"enum": ["a", "b c", "}"]},
    {"type": "string", "maxLength": 5},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
]
SCHEMAS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(LEAVES), min_size=1, max_size=3).map(
    lambda properties: {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
)


@pytest.mark.covers("structured-tools-agents/arguments-match")
@given(
    schemas=st.lists(SCHEMAS, min_size=1, max_size=2),
    calls=st.sampled_from(FORMATS),
    vocabulary=st.sampled_from(sorted(TOKENIZERS)),
    seed=st.integers(0, 2**32),
)
def test_whatever_the_grammar_allows_is_read_as_calls_that_validate(
    schemas: list[dict[str, Any]], calls: ToolCallFormat, vocabulary: str, seed: int
) -> None:
    """Tokens are drawn from those allowed, the illegal ones being as likely as can be."""
    tools = tuple(Tool(name=f"f{'_' * number}", parameters=schema) for number, schema in enumerate(schemas))
    prompt = ChatPrompt(messages=(), tools=tools, tool_choice="required", parallel_tool_calls=False)
    grammar = answer_grammar(prompt, None, form(calls, NONE, vocabulary, prompt))
    assert grammar is not None
    constraint, draw = COMPILERS[vocabulary].constraint(grammar), random.Random(seed)  # noqa: S311 - a test
    tokenizer = TOKENIZERS[vocabulary]
    token_ids: list[int] = []
    while not constraint.is_over and len(token_ids) < 400:
        mask = constraint.mask()
        allowed = [i for i in range(tokenizer.vocab_size) if holds(mask, i)]
        token_ids.append(draw.choice(allowed))
        constraint.consume(token_ids[-1])
    text = b"".join(tokenizer.token_bytes(i) for i in token_ids if tokenizer.id_to_token(i) != "<|im_end|>").decode(
        errors="replace"
    )
    reader = AnswerParser(tool_call_format=calls, parameter_types=ParameterTypes(tools))
    deltas = reader.add(text) + reader.finish()
    if constraint.is_over:
        begun = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        names = [delta.name for delta in begun if delta.name is not None]
        assert len(names) == 1
        assert not any(isinstance(delta, ContentDelta) and delta.text.strip() for delta in deltas)
        [schema] = [tool.parameters for tool in tools if tool.name == names[0]]
        jsonschema.validate(json.loads("".join(delta.arguments for delta in begun)), schema or {})
