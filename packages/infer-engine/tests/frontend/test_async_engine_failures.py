"""What a stream tells when something fails, and that no other does: requests, text, prompts, the engine."""

import pytest

from infer_engine.messages import Finish
from infer_engine.protocol import (
    EngineStatus,
    EngineUnavailableError,
    FinishReason,
    GenerateRequest,
    InvalidRequestError,
    RequestFailure,
    SamplingParams,
)
from infer_proofs.engine.cores import FailingTokenizer, ScriptedEngine, read, scripted_tokens, tokens_of
from infer_proofs.text import byte_level


async def test_a_request_that_fails_in_a_step_gets_its_error_and_the_others_their_tokens() -> None:
    scripted = ScriptedEngine()
    failing, sound = await scripted.submit([1], [2])
    scripted.gate.allow(2)
    assert tokens_of([await anext(aiter(failing))]) == scripted_tokens([1], 1)
    failure = RequestFailure(message="Its logits are not finite.", code="not_finite")
    scripted.core.failures[failing.request_id] = failure
    scripted.gate.allow()
    last = (await read(failing))[-1]
    assert (last.error, last.finish_reason, last.token_ids) == (failure, None, [])
    assert tokens_of(await read(sound)) == scripted_tokens([2], 4)
    assert scripted.engine.status is EngineStatus.READY
    assert await scripted.has_settled()
    await scripted.engine.close()


async def test_text_that_fails_ends_its_own_request_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    scripted = ScriptedEngine(tokenizer=FailingTokenizer(byte_level(), token_id=scripted_tokens([1], 3)[2]))
    broken, sound = await scripted.submit([1], [2], max_tokens=6)
    scripted.gate.allow(3)  # the step whose text fails; what the frontend answers comes before the next
    outputs = await read(broken)
    scripted.gate.allow()
    assert outputs[-1].error is not None
    assert outputs[-1].error.code == "text_failed"
    assert tokens_of(outputs) == scripted_tokens([1], 2)
    assert tokens_of(await read(sound)) == scripted_tokens([2], 6)
    assert await scripted.has_settled()
    assert Finish(request_id=broken.request_id, num_completion_tokens=2) in scripted.core.messages
    assert "broken on purpose" in caplog.text
    await scripted.engine.close()


async def test_an_abort_never_raises_even_where_held_back_text_fails() -> None:
    tokenizer = FailingTokenizer(byte_level())
    scripted = ScriptedEngine(tokenizer=tokenizer)
    [stream] = await scripted.submit([1], params=SamplingParams(max_tokens=9, stop=("\x00",)))
    tokenizer.fail_on(token_id=1)
    stream.abort()
    scripted.gate.allow()
    assert [output.finish_reason for output in await read(stream)] == [FinishReason.ABORT]
    await scripted.engine.close()


async def test_a_prompt_that_the_tokenizer_fails_on_is_refused_and_the_engine_goes_on() -> None:
    scripted = ScriptedEngine(tokenizer=FailingTokenizer(byte_level(), text="!"))
    scripted.gate.allow()
    with pytest.raises(InvalidRequestError, match="`prompt` cannot be tokenized"):
        await scripted.engine.submit([GenerateRequest(prompt="a!", params=SamplingParams())])
    [stream] = await scripted.submit([1])
    assert tokens_of(await read(stream)) == scripted_tokens([1], 4)
    await scripted.engine.close()


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
async def test_a_core_that_fails_tells_every_stream_and_takes_no_more(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    scripted = ScriptedEngine()
    streams = await scripted.submit([1], [2], [3])
    scripted.core.breaks_with = error("broken on purpose")
    scripted.gate.allow()
    for stream in streams:
        last = (await read(stream))[-1]
        assert last.error is not None
        assert last.error.code == "engine_dead"
    assert scripted.engine.status is EngineStatus.DEAD
    with pytest.raises(EngineUnavailableError, match="dead"):
        await scripted.submit([3])
    assert "broken on purpose" in caplog.text
    await scripted.engine.close()
    await scripted.engine.close()
