"""Long results in parts: the same result again, and no part that takes long to read."""

import msgspec
import pytest

from infer_engine.messages import StepResult, TokenOutput
from infer_engine.prompt_parts import PART_LENGTH, PartCollector, PromptPart, in_parts
from infer_engine.protocol import TokenLogprob
from infer_engine.testing.cores import ScriptedCore


def listed(num_tokens: int, *, first_id: int = 0) -> list[TokenLogprob | None]:
    """The log-probabilities of a prompt of so many tokens."""
    ids = range(first_id + 1, first_id + num_tokens)
    return [None, *[TokenLogprob(token_id=i, logprob=-1.0, rank=1, top=[(i, -1.0)]) for i in ids]]


def result_of(*prompts: list[TokenLogprob | None] | None) -> StepResult:
    outputs = [
        TokenOutput(
            request_id=f"r{i}", token_ids=[1], prompt_logprobs=each, num_prompt_tokens=9, num_completion_tokens=1
        )
        for i, each in enumerate(prompts)
    ]
    return StepResult(outputs=outputs, admitted=["r0"], stats=ScriptedCore().stats)


def sent(result: StepResult) -> list[PromptPart | StepResult]:
    """What arrives of `result` at the other end."""
    decoder = msgspec.msgpack.Decoder(PromptPart | StepResult)
    return [decoder.decode(msgspec.msgpack.encode(message)) for message in in_parts(result)]


def put_together(messages: list[PromptPart | StepResult]) -> list[StepResult]:
    collector = PartCollector()
    results = []
    for message in messages:
        match message:
            case PromptPart():
                collector.add(message)
            case StepResult():
                results.append(collector.complete(message))
    return results


@pytest.mark.parametrize("num_tokens", [1, PART_LENGTH, PART_LENGTH + 1, 3 * PART_LENGTH + 7])
def test_a_result_in_parts_is_the_same_result_again(num_tokens: int) -> None:
    result = result_of(None, listed(num_tokens), listed(2), listed(num_tokens, first_id=5))
    assert put_together(sent(result)) == [result]


def test_parts_belong_to_the_result_after_them_alone() -> None:
    results = [result_of(listed(2 * PART_LENGTH)), result_of(None), result_of(listed(PART_LENGTH + 1, first_id=7))]
    assert put_together([message for result in results for message in sent(result)]) == results


def test_no_message_has_more_than_a_part() -> None:
    *parts, last = sent(result_of(listed(3 * PART_LENGTH + 7), listed(PART_LENGTH)))
    assert [len(part.logprobs) for part in parts if isinstance(part, PromptPart)] == [PART_LENGTH] * 3 + [7]
    assert isinstance(last, StepResult)
    assert [len(output.prompt_logprobs or ()) for output in last.outputs] == [0, PART_LENGTH]
