"""Tools and reasoning in the engine: text taken apart as it comes, calls of a real (tiny) model, and refusals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from infer_engine import LLM, ChatMessage, SamplingParams, StructuredOutputs, Tool, ToolCall
from infer_engine.chat.output_parser import AnswerParser
from infer_engine.frontend.completion import Completion
from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.frontend.output_processor import OutputProcessor
from infer_engine.messages import TokenOutput
from infer_engine.protocol import (
    AnswerDelta,
    ChatPrompt,
    ChatTemplateUnusableError,
    ContentDelta,
    FinishReason,
    GenerateRequest,
    InvalidRequestError,
    ReasoningDelta,
    StepOutput,
    ToolCallDelta,
)
from infer_models.text import (
    REASONING_FORMATS,
    TOOL_CALL_FORMATS,
    IncrementalDetokenizer,
    ReasoningState,
    StopStringMatcher,
    Tokenizer,
)
from infer_proofs.text import CHATML, byte_level, chat_tokenizer

THINK, HERMES = REASONING_FORMATS["think"], TOOL_CALL_FORMATS["hermes"]
BYTES = Tokenizer(byte_level())
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b END"}}\n</tool_call>'
WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
NOTHING = Tool(name="noop")
USER = ChatMessage(role="user", content="Hi")


def processor(*, stops: tuple[str, ...] = (), min_tokens: int = 0, tools: bool = True) -> OutputProcessor:
    return OutputProcessor(
        IncrementalDetokenizer(BYTES, []),
        StopStringMatcher(stops),
        min_tokens=min_tokens,
        parser=AnswerParser(
            reasoning_format=THINK, state=ReasoningState.MAY_BEGIN, tool_call_format=HERMES if tools else None
        ),
    )


def run(reader: OutputProcessor, text: str, *, tokens_a_step: int = 1) -> list[StepOutput]:
    token_ids = BYTES.encode(text, add_special_tokens=False)
    steps = [token_ids[start : start + tokens_a_step] for start in range(0, len(token_ids), tokens_a_step)]
    outputs: list[StepOutput] = []
    for number, step in enumerate(steps, start=1):
        outputs.append(
            reader.process(
                TokenOutput(
                    request_id="r",
                    token_ids=step,
                    finish_reason=FinishReason.LENGTH if number == len(steps) else None,
                    num_prompt_tokens=1,
                    num_completion_tokens=min(number * tokens_a_step, len(token_ids)),
                )
            )
        )
        if outputs[-1].finished:
            break
    return outputs


def parts(outputs: list[StepOutput]) -> list[tuple[str, str]]:
    """Return (kind, text) of the parts of an answer, in order."""
    found: list[tuple[str, str]] = []
    for output in outputs:
        assert output.deltas is not None
        for delta in output.deltas:
            kind, text = _kind(delta)
            if found and found[-1][0] == kind and not (isinstance(delta, ToolCallDelta) and delta.name):
                found[-1] = (kind, found[-1][1] + text)
            else:
                found.append((kind, text))
    return found


def _kind(delta: AnswerDelta) -> tuple[str, str]:
    match delta:
        case ReasoningDelta(text=text):
            return "reasoning", text
        case ContentDelta(text=text):
            return "content", text
        case ToolCallDelta(index=index, arguments=arguments):
            return f"call {index}", arguments
        case _:
            return "reasoning", ""


ANSWER = f"<think>so END it</think>\n\nWell. Now\n{CALL}\n{CALL}"
PARTS = [
    ("reasoning", "so END it"),
    ("content", "Well. Now"),
    ("call 0", '{"a": "b END"}'),
    ("call 1", '{"a": "b END"}'),
]


@pytest.mark.parametrize("tokens_a_step", [1, 3, 1000])
def test_the_parts_of_an_answer_come_in_order_and_its_text_is_the_content(tokens_a_step: int) -> None:
    outputs = run(processor(), ANSWER, tokens_a_step=tokens_a_step)
    assert parts(outputs) == PARTS
    assert "".join(output.text for output in outputs) == "Well. Now"


@pytest.mark.covers("structured-tools-agents/reasoning-left-alone")
def test_stop_strings_are_looked_for_in_the_content_only() -> None:
    outputs = run(processor(stops=("END",)), ANSWER)
    assert (parts(outputs), outputs[-1].finish_reason) == (PARTS, FinishReason.LENGTH)
    outputs = run(processor(stops=("Now",)), ANSWER)
    assert (parts(outputs), outputs[-1].finish_reason) == (
        [("reasoning", "so END it"), ("content", "Well. ")],
        FinishReason.STOP,
    )


def test_content_that_a_stop_string_holds_back_comes_before_the_call() -> None:
    assert parts(run(processor(stops=("Now!", "w\n<tool")), ANSWER)) == PARTS


def test_tokens_that_must_come_hide_stop_strings() -> None:
    outputs = run(processor(stops=("Well",), min_tokens=1000), ANSWER)
    assert parts(outputs) == PARTS


@pytest.mark.covers("structured-tools-agents/reasoning-tokens")
def test_tokens_of_reasoning_are_counted() -> None:
    thought = len(BYTES.encode("<think>so END it</think>", add_special_tokens=False))
    counted = run(processor(), ANSWER)[-1].num_reasoning_tokens
    assert thought - 8 <= counted <= thought  # until `<think>` is complete it may be content
    assert run(processor(), "No thought.")[-1].num_reasoning_tokens == 0


def test_what_is_held_back_comes_at_an_abort() -> None:
    reader = processor()
    run_until = "Well <tool"
    for token_id in BYTES.encode(run_until, add_special_tokens=False):
        output = reader.process(
            TokenOutput(request_id="r", token_ids=[token_id], num_prompt_tokens=1, num_completion_tokens=1)
        )
    assert not output.finished
    text, deltas = reader.flush()
    assert text.endswith("<tool")
    assert deltas == [ContentDelta(text)]


def test_without_a_parser_an_answer_has_no_deltas() -> None:
    plain = OutputProcessor(IncrementalDetokenizer(BYTES, []), StopStringMatcher())
    assert {output.deltas is None for output in run(plain, "Hi there")} == {True}


# Requests


def input_processor(template: str = CHATML, **formats: str) -> InputProcessor:
    tokenizer = chat_tokenizer(template)
    if formats:
        tokenizer = Tokenizer(byte_level(), chat_template=tokenizer.chat.template, **formats)  # type: ignore[arg-type]  # names of formats
    return InputProcessor(tokenizer, InputLimits(vocab_size=tokenizer.vocab_size, max_seq_len=4096), seed=0)


def request(*, outputs: StructuredOutputs | None = None, **fields: Any) -> GenerateRequest:
    prompt = ChatPrompt(**{"messages": (USER,), "tools": (WEATHER, NOTHING), "tool_choice": "required", **fields})
    return GenerateRequest(prompt=prompt, params=SamplingParams(structured_outputs=outputs))


def submitted(inputs: InputProcessor, **fields: Any) -> Any:
    [processed] = inputs.process(request(**fields), ids=range(1))
    return processed.submission


STRICT = Tool(name="strict", parameters={"properties": {"a": {"not": {}}}}, strict=True)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": (NOTHING, NOTHING)}, "tools"),
    ({"tools": (STRICT,)}, "tools"),
    ({"tools": (Tool(name="x", parameters={"type": "string"}, strict=True),)}, "tools"),
    ({"tools": (Tool(name='x", "y": "'),)}, "tools"),
    ({"tools": (Tool(name=""),)}, "tools"),
    ({"tools": (Tool(name="x" * 129),)}, "tools"),
    ({"tool_name": "other"}, "tool_choice"),
    ({"tools": ()}, "tool_choice"),
    ({"template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"template_kwargs": {"eos_token": "x"}}, "chat_template_kwargs"),
    ({"template_kwargs": {"not a name": 1}}, "chat_template_kwargs"),
]


@pytest.mark.covers("structured-tools-agents/tool-fields")
@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=str)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        submitted(input_processor(), **fields)
    assert refusal.value.param == param


def test_a_model_without_a_chat_template_has_no_tools() -> None:
    inputs = InputProcessor(BYTES, InputLimits(vocab_size=BYTES.vocab_size, max_seq_len=100), seed=0)
    with pytest.raises(ChatTemplateUnusableError, match="no chat template"):
        submitted(inputs)


@pytest.mark.covers("structured-tools-agents/format-flags")
@pytest.mark.parametrize("calls", ["auto", "json", "hermes"])
def test_any_model_may_choose_and_only_arguments_follow_a_grammar(calls: str) -> None:
    submission = submitted(input_processor(tool_call_format=calls), tool_choice="auto")
    assert submission.grammar is not None
    assert submission.call_marks.tool_names == ("get_weather", "noop")
    assert submission.call_marks.tool_call_format.name == ("json" if calls == "auto" else calls)
    assert submitted(input_processor(tool_call_format=calls)).call_marks is None


def test_tools_that_are_not_to_be_called_are_hidden() -> None:
    inputs = input_processor()
    hidden, without = submitted(inputs, tool_choice="none"), submitted(inputs, tools=(), tool_choice="auto")
    assert hidden.prompt_token_ids == without.prompt_token_ids
    assert hidden.grammar is without.grammar is None
    assert len(submitted(inputs).prompt_token_ids) > len(hidden.prompt_token_ids)


def test_tools_of_equal_requests_make_equal_grammars() -> None:
    inputs = input_processor()
    assert submitted(inputs).grammar == submitted(inputs).grammar != submitted(inputs, tools=(NOTHING,)).grammar


def test_mistrals_templates_get_ids_of_nine_characters() -> None:
    template = (
        "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS]{{ m.tool_calls[0].id }};"
        "{% elif m.role == 'tool' %}{{ m.tool_call_id }};{{ m.name }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{{ tools | tojson }}"
    )
    tokenizer = chat_tokenizer(template)
    inputs = InputProcessor(tokenizer, InputLimits(vocab_size=tokenizer.vocab_size, max_seq_len=4096), seed=0)
    messages = (
        ChatMessage(role="assistant", content="", tool_calls=(ToolCall(id="call_0123456789", name="f", arguments={}),)),
        ChatMessage(role="tool", content="ok", tool_call_id="call_0123456789"),
    )
    text = tokenizer.decode(inputs.tokenize(ChatPrompt(messages=messages)), skip_special_tokens=False)
    first, second, name = text.removeprefix("[TOOL_CALLS]").removesuffix("null").split(";")
    assert first == second
    assert len(first) == 9
    assert first.isalnum()
    assert name == "f"


# A tiny model


@pytest.fixture(scope="module")
def llm(folder_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("chatty")
    for path in folder_of("llama").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    template = (
        "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if think %}<think>{% elif calm %}</think>{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return LLM(str(folder), dtype="float32", max_seq_len=512, max_batch_size=4, block_size=4)


def chat(llm: LLM, params: SamplingParams, **fields: Any) -> list[Completion]:
    return llm.chat([{"role": "user", "content": "Hi"}], params, use_tqdm=False, **fields)


@pytest.mark.covers("structured-tools-agents/calls-with-every-model")
def test_forced_calls_validate_or_are_cut_by_max_tokens(llm: LLM) -> None:
    num_whole, tools = 0, [WEATHER, NOTHING]
    for temperature in (0.0, 1.0, 5.0):
        for seed in range(2):
            params = SamplingParams(max_tokens=150, temperature=temperature, seed=seed, n=2, ignore_eos=seed == 1)
            for completion in chat(llm, params, tools=tools, tool_choice="required", template_kwargs={"calm": True}):
                assert completion.error is None
                if completion.finish_reason is FinishReason.LENGTH and not completion.tool_calls:
                    continue
                whole = completion.tool_calls[: None if completion.finish_reason is not FinishReason.LENGTH else -1]
                num_whole += len(whole)
                for call in whole:
                    [tool] = [each for each in tools if each.name == call.name]
                    jsonschema.validate(json.loads(call.arguments), tool.parameters or {"maxProperties": 0})
    assert num_whole > 4


def test_an_answer_that_must_call_does_not_end_before_it_but_by_max_tokens(llm: LLM) -> None:
    params = SamplingParams(max_tokens=60, temperature=5.0, seed=0, n=4)
    for variables in ({"think": True}, {"calm": True}, {}):
        for completion in chat(llm, params, tools=[NOTHING], tool_choice="required", template_kwargs=variables):
            assert completion.tool_calls or completion.finish_reason is FinishReason.LENGTH


@pytest.mark.covers("structured-tools-agents/reasoning-left-alone")
def test_structured_output_leaves_thinking_alone_and_binds_the_answer(llm: LLM) -> None:
    wanted = StructuredOutputs(choice=("yes", "no"))
    params = SamplingParams(max_tokens=20, seed=1, structured_outputs=wanted)
    [thinking] = chat(llm, params, template_kwargs={"think": True})
    assert (thinking.text, thinking.finish_reason) == ("", FinishReason.LENGTH)
    assert thinking.reasoning
    [decided] = chat(llm, params, template_kwargs={"calm": True})
    assert decided.text in ("yes", "no")


def test_a_message_of_a_library_may_be_a_mapping_or_an_object(llm: LLM) -> None:
    params = SamplingParams(max_tokens=4, seed=1)
    given: list[Any] = [{"role": "user", "content": "Hi"}, ChatMessage(role="user", content="Hi")]
    texts = {llm.chat([message], params, use_tqdm=False)[0].text for message in given}
    assert len(texts) == 1
    with pytest.raises(ValueError, match="content"):
        llm.chat([{"role": "user"}], params, use_tqdm=False)
