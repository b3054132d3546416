"""`FakeEngine`: an engine without a model, which follows the engine's protocol and a script."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from infer_engine.protocol import (
    AnswerDelta,
    BatchSnapshot,
    ChatPrompt,
    ChatTemplateUnusableError,
    ContentDelta,
    ContextLengthExceededError,
    EngineInfo,
    EngineStats,
    EngineStatus,
    EngineUnavailableError,
    FinishReason,
    GenerateRequest,
    InfillPrompt,
    InvalidRequestError,
    ReasoningDelta,
    RequestFailure,
    RequestStream,
    RequestTimes,
    SamplingParams,
    SequenceSnapshot,
    StepOutput,
    TextPrompt,
    TokenLogprob,
)

IDLE_WITHIN_S = 30.0

FAKE_INFO = EngineInfo(
    model="fake-model",
    architecture="fake",
    num_parameters=1_500_000,
    dtype="float32",
    device="cpu",
    vocab_size=1000,
    max_seq_len=512,
    num_kv_blocks=32,
    block_size=16,
    max_batch_size=8,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The outputs of every request.

    Attributes:
        steps: one output for each: its token ids, and its text or what it adds to the parts of the answer.
        finish_reason: that of the last output.
        stop_reason: that of the last output.
        failure: ends the request after all steps, in place of `finish_reason`.
        num_cached_tokens: prompt tokens that were found in a cache.
        has_chat_template: whether conversations are accepted.
        pause_after: number of outputs after which the request waits for `resume` or `abort`.
    """

    steps: tuple[tuple[tuple[int, ...], str | tuple[AnswerDelta, ...]], ...] = (
        ((1,), "Hello"),
        ((2,), ","),
        ((3,), " world"),
    )
    finish_reason: FinishReason = FinishReason.EOS
    stop_reason: str | int | None = None
    failure: RequestFailure | None = None
    num_cached_tokens: int = 0
    has_chat_template: bool = True
    pause_after: int | None = None


class FakeStream:
    """One request of a `FakeEngine`."""

    def __init__(self, request_id: str, *, prompt_token_ids: list[int], params: SamplingParams, script: Script) -> None:
        """Follow `script`; of `params`, only log-probabilities have an effect."""
        self._script = script
        self._params = params
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.times = RequestTimes(arrived_s=time.monotonic())
        self.failure = script.failure
        self.aborted = False
        self.ended = asyncio.Event()
        self._resumed = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[StepOutput]:
        """Yield the script's outputs."""
        return self._outputs()

    def abort(self) -> None:
        """End the request, if it has not ended."""
        if not self.ended.is_set():
            self.aborted = True
            self.ended.set()
            self._resumed.set()

    def fail(self, failure: RequestFailure) -> None:
        """Make `failure` the request's next output."""
        self.failure = failure
        self._resumed.set()

    def resume(self) -> None:
        """Continue after the script's pause."""
        self._resumed.set()

    async def _outputs(self) -> AsyncIterator[StepOutput]:
        steps, made = self._script.steps, 0
        for position, (token_ids, parts) in enumerate(steps):
            if position == self._script.pause_after:
                await self._resumed.wait()
            await asyncio.sleep(0)  # other tasks run between steps, as with an engine
            if self.aborted or self.failure is not self._script.failure:
                break
            made += len(token_ids)
            is_last = position == len(steps) - 1 and self.failure is None
            if is_last:
                self.ended.set()
            self._record_time()
            yield self._output(made, token_ids, parts=parts, reason=self._script.finish_reason if is_last else None)
            if is_last:
                return
        if self.aborted:
            yield self._output(made, (), reason=FinishReason.ABORT)
        else:
            self.ended.set()
            yield self._output(made, (), error=self.failure)

    def _record_time(self) -> None:
        now = time.monotonic()
        self.times.admitted_s = self.times.admitted_s or now
        self.times.first_token_s = self.times.first_token_s or now
        self.times.last_token_s = now

    def _output(
        self,
        made: int,
        token_ids: tuple[int, ...],
        *,
        parts: str | tuple[AnswerDelta, ...] = "",
        reason: FinishReason | None = None,
        error: RequestFailure | None = None,
    ) -> StepOutput:
        return StepOutput(
            request_id=self.request_id,
            token_ids=list(token_ids),
            text=_content(parts),
            deltas=None if isinstance(parts, str) else list(parts),
            finished=reason is not None or error is not None,
            finish_reason=reason,
            stop_reason=self._script.stop_reason if reason is FinishReason.STOP else None,
            error=error,
            num_prompt_tokens=len(self.prompt_token_ids),
            num_completion_tokens=made,
            num_reasoning_tokens=self._num_reasoning_tokens(made),
            num_cached_tokens=self._script.num_cached_tokens,
            logprobs=self._logprobs(token_ids, self._params.logprobs),
            prompt_logprobs=self._prompt_logprobs() if token_ids and made == len(token_ids) else None,
        )

    def _num_reasoning_tokens(self, made: int) -> int:
        thought = sum(
            len(token_ids)
            for token_ids, parts in self._script.steps
            if not isinstance(parts, str) and any(isinstance(part, ReasoningDelta) for part in parts)
        )
        return min(made, thought)

    def _prompt_logprobs(self) -> list[TokenLogprob | None] | None:
        listed = self._logprobs(self.prompt_token_ids[1:], self._params.prompt_logprobs)
        return None if listed is None else [None, *listed]

    def _logprobs(self, token_ids: Sequence[int], num_top: int | None) -> list[TokenLogprob] | None:
        """Give every token -0.5, as the most probable one; the next ones of the vocabulary get -1.5, -2.5, ..."""
        if num_top is None:
            return None
        return [
            TokenLogprob(token_id=i, logprob=-0.5, rank=1, top=[(i + k, -0.5 - k) for k in range(num_top)])
            for i in token_ids
        ]


class FakeEngine:
    """An engine without a model: the outputs of each request are those of a script.

    A prompt has one token for each character: its code point modulo the size of the vocabulary. A conversation is the
    joined text of its messages, and texts with a gap are joined by `|`. The text of a token is that in the script, or
    the ASCII character with its id.

    Attributes:
        refusal: what `submit` raises, if not None.
        requests: the accepted requests.
        streams: their streams.
    """

    def __init__(
        self, script: Script | None = None, *, scripts: Sequence[Script] = (), info: EngineInfo = FAKE_INFO
    ) -> None:
        """Use one of `scripts` for each of the first requests, `script` for the others; None is a short greeting."""
        self._script = script or Script()
        self._scripts = list(scripts)
        self.info = info
        self.status = EngineStatus.READY
        self.stats = EngineStats()
        self.refusal: Exception | None = None
        self.requests: list[GenerateRequest] = []
        self.streams: list[FakeStream] = []
        self._submitted = asyncio.Condition()

    async def submit(self, requests: Sequence[GenerateRequest]) -> list[RequestStream]:
        """Accept `requests`, or raise what the protocol says, or `refusal`."""
        if self.refusal is not None:
            raise self.refusal
        if self.status is not EngineStatus.READY:
            raise EngineUnavailableError(f"The engine is {self.status.value}; try again later.")
        for request in requests:
            self._check(request)
        self.requests += requests
        scripted: list[tuple[GenerateRequest, Script]] = []
        for request in requests:
            scripted += [(request, self._next_script())] * request.params.n
        streams = [
            FakeStream(
                f"fake-{len(self.streams) + i}",
                prompt_token_ids=self._encode(request.prompt),
                params=request.params,
                script=script,
            )
            for i, (request, script) in enumerate(scripted)
        ]
        async with self._submitted:
            self.streams += streams
            self._submitted.notify_all()
        return list[RequestStream](streams)

    async def tokenize(self, prompt: TextPrompt, *, add_special_tokens: bool = True) -> list[int]:
        """Return the prompt's tokens, after token 0 if special tokens are added."""
        return [0] * (add_special_tokens and isinstance(prompt, str)) + self._encode(prompt)

    async def detokenize(self, token_ids: list[int]) -> str:
        """Return the tokens' texts, joined."""
        self._check_ids("tokens", token_ids)
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the text of a token of the script, an ASCII character, or the id in angle brackets."""
        scripted = {ids[0]: _content(parts) for ids, parts in self._script.steps if len(ids) == 1}
        plain = chr(token_id) if 31 < token_id < 127 else f"<{token_id}>"
        return scripted.get(token_id, plain).encode()

    async def inspect(self) -> BatchSnapshot:
        """Return the open streams, all decoding, each in a block of its own."""
        if self.status in (EngineStatus.STOPPED, EngineStatus.DEAD):
            raise EngineUnavailableError(f"The engine is {self.status.value}.")
        open_streams = [stream for stream in self.streams if not stream.ended.is_set()]
        return BatchSnapshot(
            stats=self.stats,
            sequences=[
                SequenceSnapshot(
                    request_id=stream.request_id,
                    state="decode",
                    num_prompt_tokens=len(stream.prompt_token_ids),
                    num_computed_tokens=len(stream.prompt_token_ids),
                    num_cached_tokens=0,
                    num_completion_tokens=1,
                    block_ids=[index],
                )
                for index, stream in enumerate(open_streams)
            ],
            block_size=self.info.block_size,
            num_blocks=self.info.num_kv_blocks,
            holders=[int(block < len(open_streams)) for block in range(self.info.num_kv_blocks)],
        )

    async def drain(self, timeout_s: float) -> None:
        """Wait for running requests; abort those left after `timeout_s`."""
        self.status = EngineStatus.DRAINING
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait_until_idle()
        except TimeoutError:
            self._abort_all()

    async def close(self) -> None:
        """Abort everything."""
        self._abort_all()
        if self.status is not EngineStatus.DEAD:
            self.status = EngineStatus.STOPPED

    async def wait_for_requests(self, count: int) -> None:
        """Return when `count` streams exist."""
        async with self._submitted:
            await self._submitted.wait_for(lambda: len(self.streams) >= count)

    async def wait_until_idle(self) -> None:
        """Return when every stream has ended or was aborted; fail if one of them does not."""
        async with asyncio.timeout(IDLE_WITHIN_S):
            for stream in self.streams:
                await stream.ended.wait()

    def resume(self) -> None:
        """Continue every request after the script's pause."""
        for stream in self.streams:
            stream.resume()

    def die(self) -> None:
        """Become dead: running requests fail, further ones are refused."""
        self.status = EngineStatus.DEAD
        for stream in self.streams:
            stream.fail(RequestFailure(message="The engine died.", code="engine_dead"))

    def _next_script(self) -> Script:
        return self._scripts.pop(0) if self._scripts else self._script

    def _abort_all(self) -> None:
        for stream in self.streams:
            stream.abort()

    def _encode(self, prompt: list[int] | TextPrompt) -> list[int]:
        if isinstance(prompt, list):
            return prompt
        if isinstance(prompt, ChatPrompt):
            if not self._script.has_chat_template:
                raise ChatTemplateUnusableError("The model has no chat template.")
            prompt = "".join(message.content or "" for message in prompt.messages)
        if isinstance(prompt, InfillPrompt):
            files = "".join(text for file in prompt.files or () for text in file)
            prompt = f"{files}{prompt.prefix}|{prompt.suffix}"
        return [ord(character) % self.info.vocab_size for character in prompt]

    def _check(self, request: GenerateRequest) -> None:
        prompt = self._encode(request.prompt)
        self._check_ids("prompt", prompt)
        if abs(request.priority) >= 2**31:
            raise InvalidRequestError(f"`priority` is {request.priority}; it needs 32 bits.", param="priority")
        max_tokens = 1 if request.clip_max_tokens else request.params.max_tokens or 1
        if len(prompt) + max_tokens > self.info.max_seq_len:
            raise ContextLengthExceededError(
                max_seq_len=self.info.max_seq_len, num_prompt_tokens=len(prompt), max_tokens=max_tokens
            )

    def _check_ids(self, name: str, token_ids: list[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self.info.vocab_size:
                raise InvalidRequestError(f"`{name}` has the unknown token id {token_id}.", param=name)


def _content(parts: str | tuple[AnswerDelta, ...]) -> str:
    if isinstance(parts, str):
        return parts
    return "".join(part.text for part in parts if isinstance(part, ContentDelta))


class BusyOnce(FakeEngine):
    """An engine that refuses the first request with its `refusal`, and takes all others."""

    async def submit(self, requests: Sequence[GenerateRequest]) -> list[RequestStream]:
        """Refuse once; see `FakeEngine.submit`."""
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal
        return await super().submit(requests)
