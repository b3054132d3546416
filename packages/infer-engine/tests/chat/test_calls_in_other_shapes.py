"""`AnswerParser`: calls that models write a bit differently than their format says, however the text is cut."""

import pytest

from infer_engine.chat.output_parser import AnswerParser
from infer_engine.protocol import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from infer_models.text import REASONING_FORMATS, TOOL_CALL_FORMATS, ReasoningState

BAR = "\N{FULLWIDTH VERTICAL LINE}"
DSML = f"{BAR}DSML{BAR}"
ARGUMENTS = '{"city": "}Rome"}'


def parse(name: str, pieces: list[str], strict_names: tuple[str, ...] = ()) -> tuple[str, list[tuple[str, str]]]:
    """Return the content of an answer, and its calls."""
    reader = AnswerParser(
        reasoning_format=REASONING_FORMATS["think"],
        state=ReasoningState.MAY_BEGIN,
        tool_call_format=TOOL_CALL_FORMATS[name],
        tool_names=("f", "g"),
        strict_names=strict_names,
    )
    deltas: list[AnswerDelta] = [delta for piece in pieces for delta in reader.add(piece)] + reader.finish()
    content, calls = "", list[tuple[str, str]]()
    for delta in deltas:
        match delta:
            case ToolCallDelta(name=None, arguments=arguments):
                calls[-1] = (calls[-1][0], calls[-1][1] + arguments)
            case ToolCallDelta(name=tool, arguments=arguments):
                calls.append((str(tool), arguments))
            case ContentDelta(text=text):
                content += text
    return content, calls


def wherever_it_is_cut(name: str, text: str, strict_names: tuple[str, ...] = ()) -> tuple[str, list[tuple[str, str]]]:
    found = parse(name, [text], strict_names)
    assert parse(name, list(text), strict_names) == found
    for cut in range(1, len(text)):
        assert parse(name, [text[:cut], text[cut:]], strict_names) == found, cut
    return found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"arguments": ARGS, "name": "f"}\n</tool_call>'),
        ("hermes", '<tool_call>{"type": "function", "parameters":ARGS,"name":"f", "id": "1"}</tool_call>'),
        ("llama3_json", '{"parameters": ARGS, "name": "f"}'),
        ("json", '{ "arguments" : ARGS,\n "name" : "f" }'),
        ("mistral", '[TOOL_CALLS] [{"arguments": ARGS, "name": "f"}]'),
        ("jamba", '<tool_calls>[{"arguments": ARGS, "name": "f"}]</tool_calls>'),
    ],
)
def test_arguments_may_come_before_the_name(name: str, text: str) -> None:
    assert wherever_it_is_cut(name, text.replace("ARGS", ARGUMENTS)) == ("", [("f", ARGUMENTS)])


def test_calls_with_arguments_first_follow_others_and_text() -> None:
    first, second = f'{{"arguments": {ARGUMENTS}, "name": "f"}}', '{"name": "g", "arguments": {}}'
    text = f"So:\n<tool_call>\n{first}\n</tool_call>\n<tool_call>\n{second}\n</tool_call>"
    assert wherever_it_is_cut("hermes", text) == ("So:", [("f", ARGUMENTS), ("g", "{}")])
    text = f"<tool_call>\n{second}\n</tool_call>\n<tool_call>\n{first}\n</tool_call>"
    assert wherever_it_is_cut("hermes", text) == ("", [("g", "{}"), ("f", ARGUMENTS)])


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"arguments": {"a": 1}, "name": "other"}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 1}, "nom": "f"}\n</tool_call>',
        '<tool_call>\n{"arguments": [1], "name": "f"}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 1}, "na',
        '<tool_call>\n{"arguments": {"a": ',
        '<tool_call>\n{"arguments": {"a": \\"b"}, "name": "f"}\n</tool_call>',
        '{"arguments": {"a": 1}, "name": "f"}',
    ],
)
def test_arguments_that_nobody_is_called_with_are_content(text: str) -> None:
    assert wherever_it_is_cut("hermes", text) == (text, [])


@pytest.mark.parametrize(
    ("name", "begun"),
    [
        ("hermes", '```json\n{"parameters": {"a": "it'),
        ("hermes", '<tool_call>\n{"arguments": {"a": 1,\n'),
        ("mistral", '[TOOL_CALLS] [{"arguments": {"a": "it'),
        ("jamba", '<tool_calls>[{"arguments": {"a": [1], '),
        ("json", '{"arguments": {"a": [1], \n```json\n'),
    ],
)
def test_arguments_without_an_end_do_not_hold_back_a_call(name: str, begun: str) -> None:
    call = TOOL_CALL_FORMATS[name].write(("f", ARGUMENTS)) if name != "json" else '{"name": "f", "arguments": {}}'
    content, calls = wherever_it_is_cut(name, f"{begun}\n{call}")
    assert (content, [tool for tool, _ in calls]) == (begun.removesuffix("```json\n").rstrip(), ["f"])


@pytest.mark.parametrize(
    "begun", ['<tool_call>\n{"arguments": {"a": 1,\nno', '```\n{"arguments": {"a": "' + "a " * 2**17]
)
def test_text_is_not_held_back_for_a_call_that_it_cannot_be(begun: str) -> None:
    reader = AnswerParser(tool_call_format=TOOL_CALL_FORMATS["hermes"], tool_names=("f",))
    said = "".join(each.text for each in reader.add(f"{begun} more") if isinstance(each, ContentDelta))
    assert said == f"{begun} more"


def test_a_strict_tool_is_not_called_with_arguments_that_nothing_held() -> None:
    text = f'<tool_call>\n{{"arguments": {ARGUMENTS}, "name": "f"}}\n</tool_call>'
    assert wherever_it_is_cut("hermes", text, strict_names=("f",)) == (text, [])


@pytest.mark.parametrize("name", ["json", "llama3_json", "hermes"])
@pytest.mark.parametrize(
    "text",
    [
        '```json\n{"name": "f", "arguments": ARGS}\n```',
        '```\n{"name": "f", "parameters": ARGS}\n```\n',
        '```json\n[{"name": "f", "arguments": ARGS}]\n```',
        '```json\n{"arguments": ARGS, "name": "f"}\n```',
    ],
)
@pytest.mark.parametrize("before", ["", "\n", "<think>```json</think>\n", "I look it up:\n"])
def test_a_call_that_is_json_may_be_in_a_fence(name: str, text: str, before: str) -> None:
    # jundot/omlx#2565, openclaw/openclaw#53344: models that were not trained on another form write it so
    text, said = before + text.replace("ARGS", ARGUMENTS), "" if before.startswith("<") else before.strip()
    is_example = name == "hermes" and said
    assert wherever_it_is_cut(name, text) == ((text, []) if is_example else (said, [("f", ARGUMENTS)]))


@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_a_fence_in_prose_is_no_call_where_calls_have_marks(name: str) -> None:
    example = '```json\n{"name": "f", "arguments": {}}\n```'
    call = TOOL_CALL_FORMATS[name].write(("f", ARGUMENTS))
    text = f"A call looks so:\n{example}\nSo I do it.\n"
    assert wherever_it_is_cut(name, text) == (text, [])
    assert wherever_it_is_cut(name, text + call) == (text.rstrip(), [("f", ARGUMENTS)])
    assert wherever_it_is_cut(name, f"{example}\n{example}") == ("", [("f", "{}")] * 2)


@pytest.mark.parametrize("name", ["json", "hermes"])
def test_other_fences_are_content(name: str) -> None:
    for text in ('```json\n{"name": "Ann", "age": 3}\n```', "```python\nf()\n```", "``` `` ```", "`f`", "a ``"):
        assert wherever_it_is_cut(name, text) == (text, [])


def test_a_fence_after_a_call_is_content() -> None:
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n```sh\nls\n```'
    assert wherever_it_is_cut("hermes", text) == ("```sh\nls\n```", [("f", "{}")])


_KIMI = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
_DSML_CALL = f'<{DSML}invoke name="f">\n</{DSML}invoke>'
_DEEPSEEK = f"<{BAR}tool▁call▁begin{BAR}>f<{BAR}tool▁sep{BAR}>{{}}<{BAR}tool▁call▁end{BAR}>"
_MINIMAX = '<invoke name="f">\n</invoke>'


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kimi_k2", _KIMI),
        ("kimi_k2", f"{_KIMI}<|tool_calls_section_end|>"),
        ("kimi_k2", f"<|tool_call_section_begin|>{_KIMI}<|tool_call_section_end|>"),
        ("kimi_k2", _KIMI.replace("functions.", "").replace(":0", "")),
        ("deepseek_v4", _DSML_CALL),
        ("deepseek_v4", f"{_DSML_CALL}\n</{DSML}tool_calls>"),
        ("deepseek_v4", f"<{DSML}function_calls>\n{_DSML_CALL}\n</{DSML}function_calls>"),
        ("deepseek_v32", f"<{DSML}tool_calls>\n{_DSML_CALL}\n</{DSML}tool_calls>"),
        ("deepseek_v31", _DEEPSEEK),
        ("minimax_m2", f"{_MINIMAX}\n</minimax:tool_call>"),
        ("minimax_m2", _MINIMAX),
        ("jamba", '[{"name": "f", "arguments": {}}]'),
        ("jamba", '[{"name": "f", "arguments": {}}]</tool_calls>'),
        ("granite", '[{"name": "f", "arguments": {}}]'),
    ],
)
@pytest.mark.parametrize("before", ["", "I look:\n"])
def test_the_outer_mark_of_calls_may_be_left_out_or_anothers(name: str, text: str, before: str) -> None:
    # sgl-project/sglang#40236, vllm-project/vllm#48931, unslothai/unsloth#5624
    assert wherever_it_is_cut(name, before + text) == (before.strip(), [("f", "{}")])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kimi_k2", "A call begins with <|tool_call_begin|> and a name."),
        ("minimax_m2", '<invoke name="other">\n</invoke>'),
        ("minimax_m2", 'as in `<invoke name="f">` or so'),
        ("jamba", 'a [list] and [{"name": "Ann"}]'),
    ],
)
def test_an_inner_mark_without_a_call_is_content(name: str, text: str) -> None:
    assert wherever_it_is_cut(name, text) == (text, [])


def test_words_around_calls_stay_apart() -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    text = f"First this.\n\n{call}\nThen that,{call} and{call}done."
    content, calls = wherever_it_is_cut("hermes", text)
    assert content == "First this.\n\nThen that, and\ndone."
    assert len(calls) == 3
    assert wherever_it_is_cut("hermes", f"\n{call}\n{call}\n\nDone.\n")[0] == "Done.\n"


def test_thoughts_one_after_another_stay_apart() -> None:
    reader = AnswerParser(reasoning_format=REASONING_FORMATS["think"], state=ReasoningState.MAY_BEGIN)
    deltas = reader.add("<think>So.</think>\n<think>And so.</think>Yes") + reader.finish()
    assert "".join(each.text for each in deltas if isinstance(each, ReasoningDelta)) == "So.\nAnd so."
