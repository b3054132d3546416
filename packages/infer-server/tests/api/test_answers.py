"""Answers are the same however their outputs are cut, streamed or taken whole."""

from hypothesis import given
from hypothesis import strategies as st

from infer_engine.protocol import (
    AnswerDelta,
    ContentDelta,
    ContentWasReasoning,
    FinishReason,
    ReasoningDelta,
    StepOutput,
    ToolCallDelta,
)
from infer_engine.protocol.answers import AnswerBuilder

TEXTS = st.text(max_size=3)
DELTAS: st.SearchStrategy[AnswerDelta] = st.one_of(
    st.builds(ReasoningDelta, TEXTS),
    st.builds(ContentDelta, TEXTS),
    st.builds(ToolCallDelta, st.just(0), name=st.sampled_from(["weather", "time"]), arguments=TEXTS),
)


def output(*deltas: AnswerDelta, finished: bool = False) -> StepOutput:
    return StepOutput(
        request_id="",
        token_ids=[1],
        deltas=list(deltas),
        finished=finished,
        finish_reason=FinishReason.EOS if finished else None,
        num_prompt_tokens=1,
        num_completion_tokens=1,
    )


def taken(*outputs: StepOutput) -> AnswerBuilder:
    answer = AnswerBuilder()
    for each in outputs:
        answer.take(each)
    return answer


def shown(answer: AnswerBuilder) -> list[tuple[str, str, str]]:
    return [(block.kind, block.name, block.text) for block in answer.blocks]


def test_parts_of_one_kind_make_one_block_and_each_call_begins_its_own() -> None:
    answer = taken(
        output(ReasoningDelta("Hm"), ReasoningDelta("m")),
        output(ContentDelta("Let me "), ContentDelta("see.")),
        output(ToolCallDelta(0, "time", "{}"), ToolCallDelta(1, "weather"), ToolCallDelta(1, arguments="{")),
        output(ToolCallDelta(1, arguments="}"), finished=True),
    )
    calls = [("tool_call", "time", "{}"), ("tool_call", "weather", "{}")]
    assert shown(answer) == [("reasoning", "", "Hmm"), ("text", "", "Let me see."), *calls]
    assert [(call.name, call.index) for call in answer.calls] == [("time", 2), ("weather", 3)]
    assert answer.last.finished


def test_text_without_parts_is_content_and_no_text_is_no_block() -> None:
    plain = StepOutput(request_id="", token_ids=[1], text="Hi", num_prompt_tokens=1, num_completion_tokens=1)
    nothing = StepOutput(request_id="", token_ids=[2], num_prompt_tokens=1, num_completion_tokens=2)
    assert shown(taken(nothing, plain, nothing)) == [("text", "", "Hi")]


def test_content_that_was_reasoning_becomes_it_where_the_answer_is_taken_whole() -> None:
    outputs = [output(ContentDelta("Hm")), output(ContentWasReasoning(), ContentDelta("Yes."), finished=True)]
    answer = taken(*outputs)
    assert (answer.text_of("reasoning"), answer.text_of("text")) == ("Hm", "Yes.")
    streamed = AnswerBuilder()
    events = [event for each in outputs for event in streamed.add(each)]
    assert [event.kind for event in events] == ["start", "grow", "end", "start", "grow", "end"]
    assert shown(streamed) == [("text", "", "Hm"), ("text", "", "Yes.")]


@given(st.lists(st.lists(DELTAS, max_size=3), max_size=6))
def test_events_of_blocks_join_to_the_whole_answer(steps: list[list[AnswerDelta]]) -> None:
    outputs = [*(output(*deltas) for deltas in steps), output(finished=True)]
    answer = AnswerBuilder()
    events = [event for each in outputs for event in answer.add(each)]
    texts = {event.block.index: "" for event in events if event.kind == "start"}
    for event in events:
        texts[event.block.index] += event.text
    assert list(texts) == [block.index for block in answer.blocks]
    assert list(texts.values()) == [block.text for block in answer.blocks]
    assert [event.block.index for event in events if event.kind == "end"] == list(texts)
    at_once = taken(output(*(delta for deltas in steps for delta in deltas), finished=True))
    assert shown(at_once) == shown(taken(*outputs)) == shown(answer)
