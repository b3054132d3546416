"""What is refused before anything is computed: requests that can never be served, and more than the queue takes."""

import asyncio
import threading
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

import pytest

from infer_engine.frontend.async_engine import AsyncEngine
from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.frontend.tokenizer_pool import TokenizerPool, tokenizer_threads
from infer_engine.ipc.thread_client import ThreadCoreClient
from infer_engine.protocol import (
    ContextLengthExceededError,
    EngineUnavailableError,
    GenerateRequest,
    InvalidRequestError,
    QueueFullError,
    RequestStream,
    SamplingParams,
)
from infer_models.text import dummy_tokenizer
from infer_proofs.engine.cores import (
    GIVE_UP_S,
    INFO,
    MAX_SEQ_LEN,
    VOCAB_SIZE,
    FailingTokenizer,
    ScriptedCore,
    ScriptedEngine,
    read,
    tokens_of,
)
from infer_proofs.text import byte_level


async def outcomes(scripted: ScriptedEngine, num_requests: int) -> tuple[list[RequestStream], int]:
    """Submit requests one after another; return the streams of those taken, and how many were refused."""
    taken: list[RequestStream] = []
    num_refused = 0
    for i in range(num_requests):
        try:
            taken += await scripted.submit([10 + i])
        except QueueFullError:
            num_refused += 1
    return taken, num_refused


@pytest.mark.covers("configuration/max-waiting-requests", "http/queue-counts-sequences")
async def test_the_queue_takes_max_waiting_requests_and_refuses_a_batch_whole() -> None:
    scripted = ScriptedEngine(max_waiting_requests=4)
    first = await scripted.submit([1], [2], [3])
    with pytest.raises(QueueFullError, match="`max_waiting_requests` is 4"):
        await scripted.submit([4], [5])
    fits = await scripted.submit([4])
    scripted.gate.allow()
    for stream in [*first, *fits]:
        assert (await read(stream))[-1].finished
    await scripted.engine.close()


async def test_eight_requests_against_a_batch_of_two_and_a_queue_of_four_are_two_too_many() -> None:
    scripted = ScriptedEngine(core=ScriptedCore(max_batch_size=2), max_waiting_requests=4)
    running = await scripted.submit([1], [2])
    scripted.gate.allow(1)
    for stream in running:
        assert (await anext(aiter(stream))).num_completion_tokens == 1
    waiting, num_refused = await outcomes(scripted, 6)
    assert (len(waiting), num_refused) == (4, 2)
    scripted.gate.allow()
    for stream in [*running, *waiting]:
        assert (await read(stream))[-1].error is None
    await scripted.engine.close()


@pytest.mark.covers("http/queue-limit-under-load")
async def test_of_max_waiting_requests_plus_ten_at_once_ten_are_refused() -> None:
    scripted = ScriptedEngine(max_waiting_requests=20)
    scripted.gate.allow()
    answers = await asyncio.gather(*(scripted.submit([1 + i]) for i in range(30)), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert [type(error) for error in refused] == [QueueFullError] * 10
    for answer in answers[:20]:
        assert not isinstance(answer, BaseException)
        assert len(tokens_of(await read(answer[0]))) == 4
    await scripted.engine.close()


@pytest.mark.covers("http/queue-counts-sequences")
async def test_the_queue_counts_sequences_and_not_requests() -> None:
    scripted = ScriptedEngine(max_waiting_requests=4)
    await scripted.submit([1], params=SamplingParams(n=3, max_tokens=2))
    with pytest.raises(QueueFullError, match="3 requests wait"):
        await scripted.submit([1], params=SamplingParams(n=2, max_tokens=2))
    assert len(await scripted.submit([1])) == 1
    scripted.gate.allow()
    await scripted.engine.close()


async def test_requests_that_left_the_queue_make_room_in_it() -> None:
    scripted = ScriptedEngine(max_waiting_requests=2)
    first = await scripted.submit([1], [2], max_tokens=9)
    scripted.gate.allow(1)
    assert [(await anext(aiter(stream))).num_completion_tokens for stream in first] == [1, 1]
    second = await scripted.submit([3], [4])
    scripted.gate.allow()
    for stream in [*first, *second]:
        assert (await read(stream))[-1].finished
    await scripted.engine.close()


@pytest.mark.covers("http/queue-exempts-preempted")
async def test_preempted_requests_take_no_place_in_the_queue() -> None:
    scripted = ScriptedEngine(max_waiting_requests=2)
    [first, second] = await scripted.submit([1], [2])
    scripted.gate.allow(1)
    await anext(aiter(second))
    scripted.core.preempted = [second.request_id]
    scripted.gate.allow(1)
    async with asyncio.timeout(GIVE_UP_S):
        while scripted.engine.stats.num_waiting == 0:  # noqa: ASYNC110 - the engine tells counts, no events
            await asyncio.sleep(0.001)
    newcomers = await scripted.submit([3], [4])
    scripted.gate.allow()
    for stream in [first, second, *newcomers]:
        assert (await read(stream))[-1].num_completion_tokens == 4
    await scripted.engine.close()


async def test_a_batch_larger_than_the_queue_can_ever_take_is_refused_for_good() -> None:
    scripted = ScriptedEngine(max_waiting_requests=2)
    with pytest.raises(InvalidRequestError, match=r"3 sequences .* and `max_waiting_requests` is 2"):
        await scripted.submit([1], params=SamplingParams(n=3, max_tokens=2))
    await scripted.engine.close()


@pytest.mark.covers("requests/too-long-is-refused")
@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([], {}, InvalidRequestError),
        ("", {}, InvalidRequestError),
        ([1, VOCAB_SIZE], {}, InvalidRequestError),
        ([-1], {}, InvalidRequestError),
        ([1] * MAX_SEQ_LEN, {"max_tokens": 1}, ContextLengthExceededError),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_with_all_that_came_with_it(
    prompt: list[int] | str, params: dict[str, Any], error: type[Exception]
) -> None:
    scripted = ScriptedEngine(max_waiting_requests=2)
    request = GenerateRequest(prompt=prompt, params=SamplingParams(**params))
    for _ in range(3):  # a refused one gives its place back
        with pytest.raises(error):
            await scripted.engine.submit([GenerateRequest(prompt=[1], params=SamplingParams(max_tokens=1)), request])
    assert scripted.core.messages == []
    await scripted.engine.close()


class BrokenThreads(Executor):
    """Threads that cannot be started."""

    def submit(self, *_: Any, **__: Any) -> "Future[Any]":
        raise BrokenExecutor("broken on purpose")


def engine_with(*executors: Executor) -> AsyncEngine:
    limits = InputLimits(vocab_size=VOCAB_SIZE, max_seq_len=MAX_SEQ_LEN)
    input_processor = InputProcessor(dummy_tokenizer(VOCAB_SIZE), limits)
    supply = iter(executors)
    core = ScriptedCore()
    tokenizers = TokenizerPool(lambda: next(supply))
    return AsyncEngine(
        ThreadCoreClient(core),
        input_processor,
        info=INFO,
        stats=core.stats,
        max_waiting_requests=9,
        tokenizer_pool=tokenizers,
    )


async def test_tokenizer_threads_that_break_are_replaced_and_no_request_fails(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_with(BrokenThreads(), tokenizer_threads())
    for _ in range(2):
        [stream] = await engine.submit([GenerateRequest(prompt="a", params=SamplingParams(max_tokens=2))])
        assert len(tokens_of(await read(stream))) == 2
    assert caplog.text.count("others take their place") == 1
    await engine.close()


async def test_tokenizer_threads_that_break_again_refuse_the_request() -> None:
    engine = engine_with(BrokenThreads(), BrokenThreads(), tokenizer_threads())
    request = GenerateRequest(prompt="a", params=SamplingParams(max_tokens=2))
    with pytest.raises(EngineUnavailableError, match="no threads to run in"):
        await engine.submit([request])
    [stream] = await engine.submit([request])
    assert len(tokens_of(await read(stream))) == 2
    await engine.close()


class HeldTokenizer(FailingTokenizer):
    """Tokenizes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__(byte_level())
        self.let_go = threading.Event()

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        assert self.let_go.wait(GIVE_UP_S)
        return super().encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)


async def test_tokenizing_alone_counts_against_the_same_queue() -> None:
    tokenizer = HeldTokenizer()
    scripted = ScriptedEngine(tokenizer=tokenizer, max_waiting_requests=1)
    tokenizing = asyncio.create_task(scripted.engine.tokenize("ab"))
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await scripted.submit([1])
    with pytest.raises(QueueFullError):
        await scripted.engine.detokenize([1])
    tokenizer.let_go.set()
    assert len(await tokenizing) == 2
    await scripted.engine.detokenize([1])
    await scripted.engine.close()
