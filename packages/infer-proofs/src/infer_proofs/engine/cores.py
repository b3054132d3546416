"""Test doubles of a core and a tokenizer: tokens by formula, steps when the test allows them. Imports no torch."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import tokenizers

from infer_engine.frontend.async_engine import STEP_TIMEOUT_S, AsyncEngine
from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.ipc.core_protocol import CoreProtocol
from infer_engine.ipc.thread_client import ThreadCoreClient
from infer_engine.messages import Inspect, StepResult, Submit, ToCore, TokenOutput
from infer_engine.protocol import (
    BatchSnapshot,
    Engine,
    EngineInfo,
    EngineStats,
    FinishReason,
    GenerateRequest,
    RequestFailure,
    RequestStream,
    SamplingParams,
    StepOutput,
)
from infer_models.text import Tokenizer, dummy_tokenizer

VOCAB_SIZE = 997
MAX_SEQ_LEN = 64
NUM_BLOCKS = 256
GIVE_UP_S = 120.0
"""After how long a test stops waiting for an event; long, since tests share their machine."""
INFO = EngineInfo(
    model="scripted",
    architecture="scripted",
    num_parameters=0,
    dtype="float32",
    device="cpu",
    vocab_size=VOCAB_SIZE,
    max_seq_len=MAX_SEQ_LEN,
    num_kv_blocks=NUM_BLOCKS,
    block_size=1,
    max_batch_size=2,
)


def scripted_tokens(prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Return the tokens that `ScriptedCore` gives after `prompt`."""
    return [(31 * sum(prompt) + len(prompt) + 17 * i) % VOCAB_SIZE for i in range(num_tokens)]


class ScriptedCore:
    """A core that gives each request `scripted_tokens`, first come first served, a token for each running one per step.

    Attributes:
        messages: all that it received, in order.
        failures: what to let single requests fail with, in the next step that they take part in.
        preempted: ids of running requests to put back to the queue, before the next step.
        breaks_with: what the next step raises, if anything.
    """

    def __init__(self, *, max_batch_size: int = 2, forms_batches_of: int = 1, forming_s: float = 0.0) -> None:
        """A batch starts when `forms_batches_of` requests wait, or `forming_s` seconds after the first of them came."""
        self._max_batch_size = max_batch_size
        self._forms_batches_of = forms_batches_of
        self._forming_s = forming_s
        self._forming_since_s = 0.0
        self._waiting: deque[Submit] = deque()
        self._running: dict[str, Submit] = {}
        self._num_generated: dict[str, int] = {}
        self._num_steps = 0
        self._is_inspected = False
        self.messages: list[ToCore] = []
        self.failures: dict[str, RequestFailure] = {}
        self.preempted: list[str] = []
        self.breaks_with: BaseException | None = None

    @property
    def has_work(self) -> bool:
        """Whether a request is waiting or running."""
        return bool(self._waiting or self._running)

    @property
    def stats(self) -> EngineStats:
        """Counts of requests and blocks: a block for each token of a running one."""
        held = sum(len(s.prompt_token_ids) + self._num_generated[s.request_id] for s in self._running.values())
        return EngineStats(
            num_steps=self._num_steps,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_free_blocks=NUM_BLOCKS - held,
            num_blocks=NUM_BLOCKS,
        )

    def seconds_until_work(self) -> float | None:
        """Return how long a batch may still form."""
        if not self.has_work:
            return None
        if self._running or len(self._waiting) >= self._forms_batches_of:
            return 0.0
        return max(0.0, self._forming_since_s + self._forming_s - time.monotonic())

    def handle(self, message: ToCore) -> None:
        """Queue a request or remove one."""
        self.messages.append(message)
        if isinstance(message, Submit):
            if not self.has_work:
                self._forming_since_s = time.monotonic()
            self._waiting.append(message)
        elif isinstance(message, Inspect):
            self._is_inspected = True
        else:
            self._running.pop(message.request_id, None)
            self._waiting = deque(s for s in self._waiting if s.request_id != message.request_id)

    def step(self) -> StepResult:
        """Admit what fits and give each running request its next token."""
        if self.seconds_until_work() != 0.0:
            return StepResult(outputs=[], admitted=[], stats=self.stats, snapshot=self._take_snapshot())
        if self.breaks_with is not None:
            raise self.breaks_with
        for request_id in self.preempted:
            self._waiting.appendleft(self._running.pop(request_id))
        num_admitted = 0 if self.preempted else self._max_batch_size - len(self._running)
        self.preempted = []
        admitted = [self._waiting.popleft() for _ in range(min(num_admitted, len(self._waiting)))]
        for submit in admitted:
            self._running[submit.request_id] = submit
            self._num_generated.setdefault(submit.request_id, len(submit.generated_token_ids))
        self._num_steps += 1
        outputs = [self._next_output(submit) for submit in tuple(self._running.values())]
        return StepResult(
            outputs=outputs,
            admitted=[s.request_id for s in admitted],
            stats=self.stats,
            snapshot=self._take_snapshot(),
        )

    def _take_snapshot(self) -> BatchSnapshot | None:
        """Return a snapshot without sequences and blocks if there was an `Inspect`."""
        is_inspected, self._is_inspected = self._is_inspected, False
        if not is_inspected:
            return None
        return BatchSnapshot(stats=self.stats, sequences=[], block_size=1, num_blocks=NUM_BLOCKS, holders=[])

    def _next_output(self, submit: Submit) -> TokenOutput:
        error = self.failures.pop(submit.request_id, None)
        num_before = self._num_generated[submit.request_id]
        num_generated = num_before + (error is None)
        self._num_generated[submit.request_id] = num_generated
        token_ids = scripted_tokens(submit.prompt_token_ids, num_generated)[num_before:]
        ends_by_id = any(token_id in submit.params.stop_token_ids for token_id in token_ids)
        reason = (
            FinishReason.STOP if ends_by_id else FinishReason.LENGTH if num_generated == submit.max_tokens else None
        )
        if error is not None or reason is not None:
            del self._running[submit.request_id]
        return TokenOutput(
            request_id=submit.request_id,
            token_ids=token_ids,
            finish_reason=None if error else reason,
            error=error,
            num_prompt_tokens=len(submit.prompt_token_ids),
            num_completion_tokens=num_generated,
        )


class GatedCore:
    """A core that computes a step for each permit, so that a test decides when steps happen.

    Attributes:
        entered: set as soon as a step wants to compute.
        thread: the thread of that step.
        num_questions: how often it was asked when there is work.
    """

    def __init__(self, inner: CoreProtocol) -> None:
        """Let `inner` compute; steps with nothing to compute need no permit."""
        self._inner = inner
        self._permits = threading.Semaphore(0)
        self.entered = threading.Event()
        self.thread: threading.Thread | None = None
        self.num_questions = 0

    def allow(self, num_steps: int = 10_000) -> None:
        """Let the core compute that many more steps."""
        self._permits.release(num_steps)

    @property
    def has_work(self) -> bool:
        """The inner core's."""
        return self._inner.has_work

    @property
    def stats(self) -> EngineStats:
        """The inner core's."""
        return self._inner.stats

    def seconds_until_work(self) -> float | None:
        """Return what the inner core says, and count the question."""
        self.num_questions += 1
        return self._inner.seconds_until_work()

    def handle(self, message: ToCore) -> None:
        """Pass it on."""
        self._inner.handle(message)

    def step(self) -> StepResult:
        """Wait for a permit if there is something to compute, then step."""
        if self._inner.seconds_until_work() == 0.0:
            self.thread = threading.current_thread()
            self.entered.set()
            assert self._permits.acquire(timeout=GIVE_UP_S), "no test allowed this step"
        return self._inner.step()


class FailingTokenizer(Tokenizer):
    """A byte-level tokenizer that fails on one text and on one token id, as a tokenizer with a bug would."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, text: str = "", token_id: int = -1) -> None:
        """Fail on prompts that have `text` in them (none if empty), and on decoding `token_id`."""
        super().__init__(tokenizer)
        self._bad_text = text
        self._bad_id = token_id

    def fail_on(self, *, token_id: int) -> None:
        """Fail on decoding `token_id` from here on."""
        self._bad_id = token_id

    def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
        """Return the ids of `text`, or fail."""
        if self._bad_text and self._bad_text in text:
            raise RuntimeError("encoding is broken on purpose")
        return super().encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`, or fail."""
        if self._bad_id in token_ids:
            raise RuntimeError("decoding is broken on purpose")
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


class ScriptedEngine:
    """An `AsyncEngine` over a scripted core in a thread.

    Attributes:
        core: the scripted core.
        gate: allows its steps.
        engine: the engine over both.
    """

    def __init__(
        self,
        *,
        core: ScriptedCore | None = None,
        tokenizer: Tokenizer | None = None,
        max_waiting_requests: int = 100,
        step_timeout_s: float = STEP_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        client_type: type[ThreadCoreClient] = ThreadCoreClient,
    ) -> None:
        """The engine; its steps wait for `gate.allow`."""
        self.core = core or ScriptedCore()
        self.gate = GatedCore(self.core)
        limits = InputLimits(vocab_size=VOCAB_SIZE, max_seq_len=MAX_SEQ_LEN)
        self.engine = AsyncEngine(
            client_type(self.gate, clock=clock),
            InputProcessor(tokenizer or dummy_tokenizer(VOCAB_SIZE), limits, seed=0),
            info=INFO,
            stats=self.core.stats,
            max_waiting_requests=max_waiting_requests,
            step_timeout_s=step_timeout_s,
        )

    async def submit(
        self, *prompts: list[int], max_tokens: int = 4, params: SamplingParams | None = None
    ) -> list[RequestStream]:
        """Submit greedy requests, all at once; `params` replaces the rest."""
        params = params or SamplingParams(temperature=0, max_tokens=max_tokens)
        return await self.engine.submit([GenerateRequest(prompt=prompt, params=params) for prompt in prompts])

    async def has_settled(self) -> bool:
        """Whether the core comes to hold no request and all blocks, without being allowed another step."""
        async with asyncio.timeout(GIVE_UP_S):
            while not self._is_settled():  # noqa: ASYNC110 - the engine tells counts, no events
                await asyncio.sleep(0.001)
        return True

    def _is_settled(self) -> bool:
        stats = self.engine.stats
        counts = (stats.num_running, stats.num_waiting, stats.num_free_blocks)
        return stats.num_steps > 0 and counts == (0, 0, NUM_BLOCKS)


async def read(stream: RequestStream) -> list[StepOutput]:
    """Return all outputs of a stream, to its end."""
    return [output async for output in stream]


def tokens_of(outputs: Sequence[StepOutput]) -> list[int]:
    """Return the tokens of a request's outputs, joined."""
    return [token_id for output in outputs for token_id in output.token_ids]


async def until_replaced(engine: Engine, count: int) -> None:
    """Wait until so many cores were replaced; statistics come with steps."""
    async with asyncio.timeout(GIVE_UP_S):
        while engine.stats.num_replaced < count:
            for stream in await engine.submit([GenerateRequest(prompt=[1], params=SamplingParams(max_tokens=1))]):
                await read(stream)
