"""Long results in parts: the same result again, and no part that takes long to read."""

import msgspec
import pytest

from infer_engine.ipc.chunked_payloads import CHUNK_TOKENS, ChunkAssembler, PromptLogprobsChunk, split_into_chunks
from infer_engine.messages import StepResult, TokenOutput
from infer_engine.protocol import TokenLogprob
from infer_proofs.engine.cores import ScriptedCore


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


def sent(result: StepResult) -> list[PromptLogprobsChunk | StepResult]:
    """What arrives of `result` at the other end."""
    decoder = msgspec.msgpack.Decoder(PromptLogprobsChunk | StepResult)
    return [decoder.decode(msgspec.msgpack.encode(message)) for message in split_into_chunks(result)]


def put_together(messages: list[PromptLogprobsChunk | StepResult]) -> list[StepResult]:
    collector = ChunkAssembler()
    results = []
    for message in messages:
        match message:
            case PromptLogprobsChunk():
                collector.add(message)
            case StepResult():
                results.append(collector.complete(message))
    return results


@pytest.mark.parametrize("num_tokens", [1, CHUNK_TOKENS, CHUNK_TOKENS + 1, 3 * CHUNK_TOKENS + 7])
def test_a_result_in_parts_is_the_same_result_again(num_tokens: int) -> None:
    result = result_of(None, listed(num_tokens), listed(2), listed(num_tokens, first_id=5))
    assert put_together(sent(result)) == [result]


def test_parts_belong_to_the_result_after_them_alone() -> None:
    results = [result_of(listed(2 * CHUNK_TOKENS)), result_of(None), result_of(listed(CHUNK_TOKENS + 1, first_id=7))]
    assert put_together([message for result in results for message in sent(result)]) == results


def test_no_message_has_more_than_a_part() -> None:
    *parts, last = sent(result_of(listed(3 * CHUNK_TOKENS + 7), listed(CHUNK_TOKENS)))
    assert [len(part.logprobs) for part in parts if isinstance(part, PromptLogprobsChunk)] == [CHUNK_TOKENS] * 3 + [7]
    assert isinstance(last, StepResult)
    assert [len(output.prompt_logprobs or ()) for output in last.outputs] == [0, CHUNK_TOKENS]
