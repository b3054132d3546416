"""The core in its thread, seen from an event loop: streams, aborts, draining, closing, batches that form."""

import asyncio
import threading

import pytest

from infer_engine.ipc.core_client import CoreCallbacks
from infer_engine.ipc.thread_client import ThreadCoreClient
from infer_engine.messages import Finish, StepResult
from infer_engine.protocol import EngineStatus, EngineUnavailableError, FinishReason, GenerateRequest, SamplingParams
from infer_models.text import dummy_tokenizer
from infer_proofs.engine.cores import (
    GIVE_UP_S,
    VOCAB_SIZE,
    ScriptedCore,
    ScriptedEngine,
    read,
    scripted_tokens,
    tokens_of,
)


def stop_strings(*stops: str) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=40, stop=stops)


@pytest.mark.covers("requests/step-output", "http/stream-same-step")
async def test_streams_give_one_output_per_token_and_end_after_the_finished_one() -> None:
    scripted = ScriptedEngine()
    scripted.gate.allow()
    streams = await scripted.submit([1, 2], [3], [4, 5, 6])
    for stream, prompt in zip(streams, ([1, 2], [3], [4, 5, 6]), strict=True):
        outputs = await read(stream)
        assert tokens_of(outputs) == scripted_tokens(prompt, 4)
        assert [len(output.token_ids) for output in outputs] == [1] * 4
        assert [output.finished for output in outputs] == [False] * 3 + [True]
        assert stream.prompt_token_ids == prompt
        assert [output async for output in stream] == []
    await scripted.engine.close()


async def test_streams_are_in_the_order_of_requests_and_then_of_choices() -> None:
    scripted = ScriptedEngine()
    scripted.gate.allow()
    twice, once = [GenerateRequest(prompt=[i], params=SamplingParams(n=n, max_tokens=2)) for i, n in ((1, 2), (2, 1))]
    streams = await scripted.engine.submit([twice, once, twice])
    assert len({stream.request_id for stream in streams}) == 5
    made = [tokens_of(await read(stream)) for stream in streams]
    assert made == [scripted_tokens([prompt], 2) for prompt in (1, 1, 2, 1, 1)]
    await scripted.engine.close()


async def test_a_stop_string_ends_the_stream_and_tells_the_core_which_tokens_count() -> None:
    scripted = ScriptedEngine()
    text = dummy_tokenizer(VOCAB_SIZE).decode(scripted_tokens([1], 40))
    stop = text[20:23]
    num_tokens = next(n for n in range(40) if stop in dummy_tokenizer(VOCAB_SIZE).decode(scripted_tokens([1], n)))
    scripted.gate.allow(num_tokens)
    [stream] = await scripted.submit([1], params=stop_strings(stop))
    outputs = await read(stream)
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].num_completion_tokens == len(tokens_of(outputs)) == num_tokens
    assert "".join(output.text for output in outputs) == text[: text.index(stop)]
    scripted.gate.allow(3)  # for the step that may be under way; the request would need far more
    assert await scripted.has_settled()
    assert scripted.core.messages[1:] == [Finish(request_id=stream.request_id, num_completion_tokens=num_tokens)]
    await scripted.engine.close()


async def test_the_text_of_a_token_that_ends_a_request_by_its_id_is_not_sent() -> None:
    scripted = ScriptedEngine()
    scripted.gate.allow()
    token_ids = scripted_tokens([1], 3)
    [stream] = await scripted.submit([1], params=SamplingParams(max_tokens=20, stop_token_ids=(token_ids[2],)))
    outputs = await read(stream)
    assert tokens_of(outputs) == token_ids
    assert "".join(output.text for output in outputs) == dummy_tokenizer(VOCAB_SIZE).decode(token_ids[:2])
    await scripted.engine.close()


async def test_requests_are_numbered_in_order_whichever_is_tokenized_first() -> None:
    scripted = ScriptedEngine()
    scripted.gate.allow()
    params = SamplingParams(max_tokens=1)
    long, short = await scripted.engine.submit(
        [GenerateRequest(prompt="a" * 40 + " " * 20, params=params), GenerateRequest(prompt="b", params=params)]
    )
    assert [long.request_id, short.request_id] == ["r0", "r1"]
    await scripted.engine.close()


@pytest.mark.covers("http/abort-within-a-step")
async def test_an_abort_ends_the_stream_and_frees_the_memory_by_the_next_step() -> None:
    scripted = ScriptedEngine()
    [stream] = await scripted.submit([1, 2, 3], max_tokens=40)
    scripted.gate.allow(3)
    outputs = []
    async for output in stream:
        outputs.append(output)
        if len(outputs) == 3:
            stream.abort()
            stream.abort()
            scripted.gate.allow(1)
    assert outputs[-1].finish_reason is FinishReason.ABORT
    assert tokens_of(outputs) == scripted_tokens([1, 2, 3], 3)
    assert await scripted.has_settled()
    await scripted.engine.close()


async def test_an_abort_sends_the_text_that_was_held_back() -> None:
    scripted = ScriptedEngine()
    text = dummy_tokenizer(VOCAB_SIZE).decode(scripted_tokens([5], 2))
    [stream] = await scripted.submit([5], params=stop_strings(text + "never"))
    scripted.gate.allow(2)
    outputs = []
    async for output in stream:
        outputs.append(output)
        if len(outputs) == 2:
            stream.abort()
            scripted.gate.allow(1)
    assert [output.text for output in outputs] == ["", "", text]
    await scripted.engine.close()


async def test_draining_refuses_newcomers_and_lets_running_requests_finish() -> None:
    scripted = ScriptedEngine()
    [stream] = await scripted.submit([1], max_tokens=5)
    draining = asyncio.create_task(scripted.engine.drain(30))
    await asyncio.sleep(0)
    assert scripted.engine.status is EngineStatus.DRAINING
    with pytest.raises(EngineUnavailableError, match="draining"):
        await scripted.submit([2])
    scripted.gate.allow()
    await draining
    assert tokens_of(await read(stream)) == scripted_tokens([1], 5)
    await scripted.engine.close()


async def test_draining_aborts_what_is_left_after_its_time() -> None:
    scripted = ScriptedEngine()
    [stream] = await scripted.submit([1], max_tokens=5)
    await scripted.engine.drain(0.01)
    assert [output.finish_reason for output in await read(stream)] == [FinishReason.ABORT]
    scripted.gate.allow()
    await scripted.engine.close()


async def test_closing_leaves_a_step_behind_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infer_engine.frontend.async_engine.CLOSE_TIMEOUT_S", 0.05)
    scripted = ScriptedEngine()
    [stream] = await scripted.submit([1])
    assert await asyncio.to_thread(scripted.gate.entered.wait, GIVE_UP_S)
    await scripted.engine.close()
    assert scripted.engine.status is EngineStatus.DEAD
    assert (await read(stream))[-1].finish_reason is FinishReason.ABORT
    scripted.gate.allow()


async def test_steps_run_in_a_thread_of_their_own_and_never_hold_up_the_event_loop() -> None:
    scripted = ScriptedEngine()
    [stream] = await scripted.submit([1])
    assert await asyncio.to_thread(scripted.gate.entered.wait, GIVE_UP_S)
    # The core is inside a step that has no permit to end: only a loop that runs beside it gets here and gives one.
    assert scripted.gate.thread is not threading.current_thread()
    scripted.gate.allow()
    assert tokens_of(await read(stream)) == scripted_tokens([1], 4)
    await scripted.engine.close()


NUM_STEPS = 4


class LoopClient(ThreadCoreClient):
    """A client that passes results on from the event loop itself, as one without threads does: several at once."""

    def start(self, callbacks: CoreCallbacks) -> None:
        loop = asyncio.get_running_loop()
        results: list[StepResult] = []

        def pass_on() -> None:
            for result in results:
                callbacks.on_result(result)

        def keep(result: StepResult) -> None:
            results.append(result)
            if len(results) == NUM_STEPS:
                loop.call_soon_threadsafe(pass_on)

        super().start(CoreCallbacks(on_result=keep, on_lost=callbacks.on_lost, on_ended=callbacks.on_ended))


async def test_results_that_come_on_the_event_loop_are_delivered_at_once() -> None:
    scripted = ScriptedEngine(client_type=LoopClient)
    scripted.gate.allow()
    [stream] = await scripted.submit([1, 2], max_tokens=NUM_STEPS)
    async with asyncio.timeout(GIVE_UP_S):
        assert tokens_of(await read(stream)) == scripted_tokens([1, 2], NUM_STEPS)
    await scripted.engine.close()


async def test_a_forming_batch_starts_when_it_is_full() -> None:
    scripted = ScriptedEngine(core=ScriptedCore(forms_batches_of=2, forming_s=1000))
    scripted.gate.allow()
    [first] = await scripted.submit([1])
    [second] = await scripted.submit([2])
    assert tokens_of(await read(first)) == scripted_tokens([1], 4)
    assert tokens_of(await read(second)) == scripted_tokens([2], 4)
    await scripted.engine.close()


async def test_a_forming_batch_starts_after_its_time_and_the_core_is_not_asked_meanwhile() -> None:
    scripted = ScriptedEngine(core=ScriptedCore(forms_batches_of=2, forming_s=0.05))
    scripted.gate.allow()
    [stream] = await scripted.submit([1])
    assert tokens_of(await read(stream)) == scripted_tokens([1], 4)
    assert scripted.gate.num_questions < 20
    await scripted.engine.close()


async def test_closing_does_not_wait_for_a_batch_to_form() -> None:
    scripted = ScriptedEngine(core=ScriptedCore(forms_batches_of=2, forming_s=1e9))
    [stream] = await scripted.submit([1])
    await scripted.engine.close()
    assert scripted.engine.status is EngineStatus.STOPPED
    assert [output.finish_reason for output in await read(stream)] == [FinishReason.ABORT]


async def test_stats_are_the_latest_steps() -> None:
    scripted = ScriptedEngine()
    assert (
        scripted.engine.stats.num_blocks == scripted.engine.stats.num_free_blocks == scripted.engine.info.num_kv_blocks
    )
    streams = await scripted.submit([1], [2], [3])
    scripted.gate.allow(1)
    await anext(aiter(streams[0]))
    assert (scripted.engine.stats.num_running, scripted.engine.stats.num_waiting) == (2, 1)
    scripted.gate.allow()
    for stream in streams:
        await read(stream)
    assert await scripted.has_settled()
    await scripted.engine.close()
