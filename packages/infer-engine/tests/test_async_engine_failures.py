"""What a stream's reader is told when something fails, and that nobody else is: requests, text, prompts, the engine."""

import pytest

from infer_engine.ipc.messages import Finish
from infer_engine.protocol import (
    EngineStatus,
    EngineUnavailableError,
    FinishReason,
    GenerateRequest,
    InvalidRequestError,
    RequestFailure,
    SamplingParams,
)
from infer_engine.testing.cores import FussyTokenizer, ThreadedRig, read, scripted_tokens, tokens_of
from infer_models.text.testing import byte_level


async def test_a_request_that_fails_in_a_step_gets_its_error_and_the_others_their_tokens() -> None:
    rig = ThreadedRig()
    failing, sound = await rig.submit([1], [2])
    rig.gate.allow(2)
    assert tokens_of([await anext(aiter(failing))]) == scripted_tokens([1], 1)
    failure = RequestFailure(message="Its logits are not finite.", code="not_finite")
    rig.core.failures[failing.request_id] = failure
    rig.gate.allow()
    last = (await read(failing))[-1]
    assert (last.error, last.finish_reason, last.token_ids) == (failure, None, [])
    assert tokens_of(await read(sound)) == scripted_tokens([2], 4)
    assert rig.engine.status is EngineStatus.READY
    assert await rig.has_settled()
    await rig.engine.close()


async def test_text_that_fails_ends_its_own_request_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    rig = ThreadedRig(tokenizer=FussyTokenizer(byte_level(), token_id=scripted_tokens([1], 3)[2]))
    broken, sound = await rig.submit([1], [2], max_tokens=6)
    rig.gate.allow(3)  # the step whose text fails; what the front says of it comes before the next
    outputs = await read(broken)
    rig.gate.allow()
    assert outputs[-1].error is not None
    assert outputs[-1].error.code == "text_failed"
    assert tokens_of(outputs) == scripted_tokens([1], 2)
    assert tokens_of(await read(sound)) == scripted_tokens([2], 6)
    assert await rig.has_settled()
    assert Finish(request_id=broken.request_id, num_completion_tokens=2) in rig.core.messages
    assert "broken on purpose" in caplog.text
    await rig.engine.close()


async def test_an_abort_never_raises_even_where_held_back_text_fails() -> None:
    tokenizer = FussyTokenizer(byte_level())
    rig = ThreadedRig(tokenizer=tokenizer)
    [stream] = await rig.submit([1], params=SamplingParams(max_tokens=9, stop=("\x00",)))
    tokenizer.fail_on(token_id=1)
    stream.abort()
    rig.gate.allow()
    assert [output.finish_reason for output in await read(stream)] == [FinishReason.ABORT]
    await rig.engine.close()


async def test_a_prompt_that_the_tokenizer_fails_on_is_refused_and_the_engine_goes_on() -> None:
    rig = ThreadedRig(tokenizer=FussyTokenizer(byte_level(), text="!"))
    rig.gate.allow()
    with pytest.raises(InvalidRequestError, match="`prompt` cannot be tokenized"):
        await rig.engine.submit([GenerateRequest(prompt="a!", params=SamplingParams())])
    [stream] = await rig.submit([1])
    assert tokens_of(await read(stream)) == scripted_tokens([1], 4)
    await rig.engine.close()


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
async def test_a_core_that_fails_tells_every_stream_and_takes_no_more(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    rig = ThreadedRig()
    streams = await rig.submit([1], [2], [3])
    rig.core.breaks_with = error("broken on purpose")
    rig.gate.allow()
    for stream in streams:
        last = (await read(stream))[-1]
        assert last.error is not None
        assert last.error.code == "engine_dead"
    assert rig.engine.status is EngineStatus.DEAD
    with pytest.raises(EngineUnavailableError, match="dead"):
        await rig.submit([3])
    assert "broken on purpose" in caplog.text
    await rig.engine.close()
    await rig.engine.close()
