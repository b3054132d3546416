"""The core in its thread, seen from an event loop: streams, refusals, aborts, draining, death."""

import asyncio
import threading

import pytest

from infer_engine.core import EngineCore
from infer_engine.front import Front, FrontLimits, RequestText
from infer_engine.messages import Submit, TokenOutput
from infer_engine.protocol import (
    ContextLengthExceededError,
    EngineInfo,
    EngineStatus,
    EngineUnavailableError,
    FinishReason,
    GenerateRequest,
    InvalidRequestError,
    QueueFullError,
    RequestStream,
    SamplingParams,
    StepOutput,
)
from infer_engine.scheduler import Schedule, SchedulerLimits
from infer_engine.testing import FormulaEngine, FormulaRunner, expected_tokens
from infer_engine.threaded import ThreadedEngine
from infer_models.text import stand_in_tokenizer

VOCAB = 997
MAX_SEQ_LEN = 64
LIMITS = SchedulerLimits(max_batch_size=2, max_num_batched_tokens=16, prefill_chunk_size=8)
INFO = EngineInfo(
    model="formula",
    architecture="formula",
    num_parameters=0,
    dtype="float32",
    device="cpu",
    vocab_size=VOCAB,
    max_seq_len=MAX_SEQ_LEN,
    num_kv_blocks=256,
    block_size=1,
    max_batch_size=2,
)


class GatedRunner:
    """A runner that computes a step for each permit, so that a test decides when steps happen; it may be broken."""

    def __init__(self, inner: FormulaRunner) -> None:
        self._inner = inner
        self._permits = threading.Semaphore(0)
        self.entered = threading.Event()
        self.thread: threading.Thread | None = None
        self.broken = False

    def allow(self, num_steps: int = 10_000) -> None:
        """Let the core compute that many more steps."""
        self._permits.release(num_steps)

    def execute(self, schedule: Schedule) -> list[int]:
        self.thread = threading.current_thread()
        self.entered.set()
        assert self._permits.acquire(timeout=30)
        if self.broken:
            raise RuntimeError("broken on purpose")
        return self._inner.execute(schedule)


class Rig:
    """A threaded engine over the formula runner, with the runner within reach."""

    def __init__(self, *, max_waiting_requests: int = 100, front: type[Front] = Front) -> None:
        formula = FormulaEngine(num_blocks=256, limits=LIMITS)
        self.runner = GatedRunner(formula.runner)
        core = EngineCore(self.runner, formula.scheduler, formula.tables, eos_token_ids=frozenset())
        limits = FrontLimits(vocab_size=VOCAB, max_seq_len=MAX_SEQ_LEN)
        made = front(stand_in_tokenizer(VOCAB), limits, seed=0)
        self.engine = ThreadedEngine(core, made, info=INFO, max_waiting_requests=max_waiting_requests)

    async def submit(self, *prompts: list[int], max_tokens: int = 4) -> list[RequestStream]:
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        return await self.engine.submit([GenerateRequest(prompt=prompt, params=params) for prompt in prompts])

    async def has_settled(self) -> bool:
        """Whether the core comes to hold no request and all blocks, without being allowed another step."""
        for _ in range(500):
            stats = self.engine.stats
            if (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, 256) and stats.num_steps:
                return True
            await asyncio.sleep(0.01)
        return False


class BrokenTextFront(Front):
    """A front that cannot make text of requests whose prompt begins with 13."""

    def start_text(self, submitted: Submit) -> RequestText:
        text = super().start_text(submitted)
        return BrokenText(text) if submitted.prompt_token_ids[0] == 13 else text


class BrokenText(RequestText):
    """Text that fails at its first token."""

    def __init__(self, _: RequestText) -> None:
        """Know nothing."""

    def advance(self, output: TokenOutput) -> StepOutput:
        raise UnicodeError(f"broken on purpose: {output.token_ids}")


async def read(stream: RequestStream) -> list[StepOutput]:
    return [output async for output in stream]


def tokens(outputs: list[StepOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def test_streams_give_one_output_per_token_and_end_after_the_finished_one() -> None:
    rig = Rig()
    rig.runner.allow()
    streams = await rig.submit([1, 2], [3], [4, 5, 6])
    for stream, prompt in zip(streams, ([1, 2], [3], [4, 5, 6]), strict=True):
        outputs = await read(stream)
        assert tokens(outputs) == expected_tokens(prompt, 4)
        assert [len(output.token_ids) for output in outputs] == [1] * 4
        assert [output.finished for output in outputs] == [False] * 3 + [True]
    await rig.engine.close()


async def test_a_stop_string_ends_the_stream_and_frees_the_memory_without_another_step() -> None:
    rig = Rig()
    text = stand_in_tokenizer(VOCAB).decode(expected_tokens([1], 60))
    stop = text[20:23]
    num_tokens = next(n for n in range(1, 60) if stop in stand_in_tokenizer(VOCAB).decode(expected_tokens([1], 60)[:n]))
    rig.runner.allow(num_tokens)
    request = GenerateRequest(prompt=[1], params=SamplingParams(temperature=0, max_tokens=60, stop=(stop,)))
    [stream] = await rig.engine.submit([request])
    outputs = await read(stream)
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert outputs[-1].num_completion_tokens == num_tokens
    assert "".join(output.text for output in outputs) == text[: text.index(stop)]
    rig.runner.allow(3)  # for the step that may be under way; the request would need far more
    assert await rig.has_settled()
    await rig.engine.close()


async def test_the_text_of_a_token_that_ends_a_request_by_its_id_is_not_sent() -> None:
    rig = Rig()
    rig.runner.allow()
    token_ids = expected_tokens([1], 3)
    request = GenerateRequest(
        prompt=[1], params=SamplingParams(temperature=0, max_tokens=20, stop_token_ids=(token_ids[2],))
    )
    [stream] = await rig.engine.submit([request])
    outputs = await read(stream)
    assert tokens(outputs) == token_ids
    assert "".join(output.text for output in outputs) == stand_in_tokenizer(VOCAB).decode(token_ids[:2])
    await rig.engine.close()


async def test_the_queue_takes_max_waiting_requests_and_refuses_a_batch_whole() -> None:
    rig = Rig(max_waiting_requests=4)
    first = await rig.submit([1], [2], [3])
    with pytest.raises(QueueFullError, match="`max_waiting_requests` is 4"):
        await rig.submit([4], [5])
    fits = await rig.submit([4])
    rig.runner.allow()
    for stream in [*first, *fits]:
        assert (await read(stream))[-1].finished
    await rig.engine.close()


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([], {}, InvalidRequestError),
        ("", {}, InvalidRequestError),
        ([1, VOCAB], {}, InvalidRequestError),
        ([-1], {}, InvalidRequestError),
        ([1], {"stop_token_ids": (VOCAB,)}, InvalidRequestError),
        ([1] * MAX_SEQ_LEN, {"max_tokens": 1}, ContextLengthExceededError),
        ([1] * 60, {"max_tokens": 5}, ContextLengthExceededError),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_before_the_queue(
    prompt: list[int] | str, params: dict[str, object], error: type[Exception]
) -> None:
    rig = Rig()
    request = GenerateRequest(prompt=prompt, params=SamplingParams(**params))  # type: ignore[arg-type]  # pass-through
    with pytest.raises(error):
        await rig.engine.submit([GenerateRequest(prompt=[1], params=SamplingParams(max_tokens=1)), request])
    assert rig.engine.stats.num_waiting == 0
    await rig.engine.close()


async def test_requests_that_left_the_queue_make_room_in_it() -> None:
    rig = Rig(max_waiting_requests=2)
    first = await rig.submit([1], [2], max_tokens=9)
    rig.runner.allow(1)
    assert [(await anext(aiter(stream))).num_completion_tokens for stream in first] == [1, 1]
    second = await rig.submit([3], [4])
    rig.runner.allow()
    for stream in [*first, *second]:
        assert (await read(stream))[-1].finished
    await rig.engine.close()


async def test_a_batch_larger_than_the_queue_can_ever_take_is_refused_for_good() -> None:
    rig = Rig(max_waiting_requests=2)
    with pytest.raises(InvalidRequestError, match="3 prompts and `max_waiting_requests` is 2"):
        await rig.submit([1], [2], [3])
    await rig.engine.close()


async def test_requests_are_numbered_in_order_whichever_is_tokenized_first() -> None:
    rig = Rig()
    rig.runner.allow()
    params = SamplingParams(max_tokens=1)
    long, short = await rig.engine.submit(
        [GenerateRequest(prompt="a" * 40 + " " * 20, params=params), GenerateRequest(prompt="b", params=params)]
    )
    assert [long.request_id, short.request_id] == ["r0", "r1"]
    await rig.engine.close()


async def test_an_abort_ends_the_stream_and_frees_the_memory_by_the_next_step() -> None:
    rig = Rig()
    [stream] = await rig.submit([1, 2, 3], max_tokens=40)
    rig.runner.allow(3)
    outputs = []
    async for output in stream:
        outputs.append(output)
        if len(outputs) == 3:
            stream.abort()
            rig.runner.allow(1)
    assert outputs[-1].finish_reason is FinishReason.ABORT
    assert tokens(outputs) == expected_tokens([1, 2, 3], 3)
    assert await rig.has_settled()
    assert [output async for output in stream] == []
    await rig.engine.close()


async def test_an_abort_sends_the_text_that_was_held_back() -> None:
    rig = Rig()
    text = stand_in_tokenizer(VOCAB).decode(expected_tokens([1], 2))
    never = text + "never"
    params = SamplingParams(temperature=0, max_tokens=40, stop=(never,))
    [stream] = await rig.engine.submit([GenerateRequest(prompt=[1], params=params)])
    rig.runner.allow(2)
    outputs = []
    async for output in stream:
        outputs.append(output)
        if len(outputs) == 2:
            stream.abort()
            rig.runner.allow(1)
    assert [output.text for output in outputs] == ["", "", text]
    await rig.engine.close()


async def test_text_that_fails_ends_its_own_request_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(front=BrokenTextFront)
    rig.runner.allow()
    broken, sound = await rig.submit([13], [1])
    [last] = await read(broken)
    assert last.error is not None
    assert tokens(await read(sound)) == expected_tokens([1], 4)
    assert await rig.has_settled()
    assert "broken on purpose" in caplog.text
    await rig.engine.close()


async def test_closing_leaves_a_step_behind_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infer_engine.threaded.CLOSE_TIMEOUT_S", 0.05)
    rig = Rig()
    [stream] = await rig.submit([1])
    assert await asyncio.to_thread(rig.runner.entered.wait, 10)
    await rig.engine.close()
    assert rig.engine.status is EngineStatus.DEAD
    assert (await read(stream))[-1].finish_reason is FinishReason.ABORT
    rig.runner.allow()


async def test_draining_refuses_newcomers_and_lets_running_requests_finish() -> None:
    rig = Rig()
    [stream] = await rig.submit([1], max_tokens=5)
    draining = asyncio.create_task(rig.engine.drain(30))
    await asyncio.sleep(0)
    assert rig.engine.status is EngineStatus.DRAINING
    with pytest.raises(EngineUnavailableError, match="draining"):
        await rig.submit([2])
    rig.runner.allow()
    await draining
    assert tokens(await read(stream)) == expected_tokens([1], 5)
    await rig.engine.close()


async def test_draining_aborts_what_is_left_after_its_time() -> None:
    rig = Rig()
    [stream] = await rig.submit([1], max_tokens=5)
    await rig.engine.drain(0.01)
    assert [output.finish_reason for output in await read(stream)] == [FinishReason.ABORT]
    rig.runner.allow()
    await rig.engine.close()


async def test_a_core_that_fails_tells_every_stream_and_takes_no_more(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    streams = await rig.submit([1], [2])
    rig.runner.broken = True
    rig.runner.allow()
    for stream in streams:
        last = (await read(stream))[-1]
        assert last.error is not None
        assert last.error.code == "engine_dead"
    assert rig.engine.status is EngineStatus.DEAD
    with pytest.raises(EngineUnavailableError, match="dead"):
        await rig.submit([3])
    assert "broken on purpose" in caplog.text
    await rig.engine.close()


async def test_steps_run_in_a_thread_of_their_own_and_never_hold_up_the_event_loop() -> None:
    rig = Rig()
    [stream] = await rig.submit([1])
    assert await asyncio.to_thread(rig.runner.entered.wait, 10)
    # The core is inside a step that has no permit to end: only a loop that runs beside it gets here and gives one.
    assert rig.runner.thread is not threading.current_thread()
    rig.runner.allow()
    assert tokens(await read(stream)) == expected_tokens([1], 4)
    await rig.engine.close()
