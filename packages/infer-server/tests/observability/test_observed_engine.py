"""An observed engine measures requests as their outputs pass, and does not change them."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from infer_engine.protocol import (
    EngineUnavailableError,
    FinishReason,
    GenerateRequest,
    RequestFailure,
    RequestStream,
    RequestTimes,
    SamplingParams,
    StepOutput,
)
from infer_proofs.server import FakeEngine, Script, metric_samples
from infer_server.observability.metrics import ServerMetrics
from infer_server.observability.observed_engine import ObservedEngine

LABELS = frozenset({("model_name", "m"), ("engine", "0")})


class TimedStream:
    """A request that arrives at 100 s, is admitted at 100.5 s, and whose tokens come at `token_s`."""

    def __init__(self, *token_s: float) -> None:
        self.request_id = f"timed-{token_s[-1]}"
        self.prompt_token_ids = [1, 2, 3]
        self.times = RequestTimes(arrived_s=100.0)
        self._token_s = token_s

    async def __aiter__(self) -> AsyncIterator[StepOutput]:
        for made, now_s in enumerate(self._token_s, start=1):
            self.times.admitted_s = 100.5
            self.times.first_token_s = self.times.first_token_s or now_s
            self.times.last_token_s = now_s
            ends = made == len(self._token_s)
            yield StepOutput(
                request_id=self.request_id,
                token_ids=[7],
                finished=ends,
                finish_reason=FinishReason.LENGTH if ends else None,
                num_prompt_tokens=3,
                num_completion_tokens=made,
                num_cached_tokens=1,
            )

    def abort(self) -> None:
        """Nothing to stop."""


class TimedEngine(FakeEngine):
    """Answers with the given streams."""

    def __init__(self, *timed: TimedStream) -> None:
        super().__init__()
        self._timed = timed

    async def submit(self, _: Sequence[GenerateRequest]) -> list[RequestStream]:
        return list[RequestStream](self._timed)


class Observed:
    """An observed engine and what was measured."""

    def __init__(self, engine: FakeEngine) -> None:
        self._metrics = ServerMetrics(engine, served_model="m")
        self.engine = ObservedEngine(engine, self._metrics.requests)

    async def submit(self, **params: object) -> list[RequestStream]:
        request = GenerateRequest(prompt="abcd", params=SamplingParams(**params))  # type: ignore[arg-type]  # the test's own keywords
        return await self.engine.submit([request])

    def value(self, stem: str, **labels: str) -> float:
        samples = metric_samples(self._metrics.exposition("")[0].decode())
        return samples[f"infer:{stem}", LABELS | frozenset(labels.items())]

    def measured(self, stem: str) -> tuple[float, float]:
        """Return how often, and the sum."""
        return self.value(f"{stem}_count"), round(self.value(f"{stem}_sum"), 6)


async def read(stream: RequestStream) -> list[StepOutput]:
    return [output async for output in stream]


async def test_times_of_a_request_are_measured_on_the_engines_clock() -> None:
    observed = Observed(TimedEngine(TimedStream(101.0, 101.25, 102.0)))
    (stream,) = await observed.submit()
    await read(stream)
    assert observed.measured("request_queue_time_seconds") == (1, 0.5)
    assert observed.measured("time_to_first_token_seconds") == (1, 1.0)
    assert observed.measured("inter_token_latency_seconds") == (2, 1.0)
    assert observed.value("inter_token_latency_seconds_bucket", le="0.3") == 1
    assert observed.measured("request_prefill_time_seconds") == (1, 0.5)
    assert observed.measured("request_decode_time_seconds") == (1, 1.0)
    assert observed.measured("request_inference_time_seconds") == (1, 1.5)
    assert observed.measured("e2e_request_latency_seconds") == (1, 2.0)
    assert observed.measured("request_time_per_output_token_seconds") == (1, 0.5)


async def test_tokens_of_a_request_are_measured() -> None:
    observed = Observed(TimedEngine(TimedStream(101.0, 102.0)))
    (stream,) = await observed.submit(max_tokens=9)
    await read(stream)
    assert observed.measured("request_prompt_tokens") == (1, 3)
    assert observed.measured("request_generation_tokens") == (1, 2)
    assert observed.measured("request_prefill_kv_computed_tokens") == (1, 2)
    assert observed.measured("request_params_max_tokens") == (1, 9)
    assert observed.measured("request_params_n") == (1, 1)


async def test_single_token_has_no_time_per_output_token() -> None:
    observed = Observed(TimedEngine(TimedStream(101.0)))
    (stream,) = await observed.submit(max_tokens=None)
    await read(stream)
    assert observed.measured("request_time_per_output_token_seconds") == (0, 0)
    assert observed.measured("request_params_max_tokens") == (0, 0)


async def test_longest_choice_is_measured_when_all_have_ended() -> None:
    observed = Observed(TimedEngine(TimedStream(101.0), TimedStream(101.0, 102.0, 103.0), TimedStream(101.0, 102.0)))
    streams = await observed.submit(n=3)
    for stream in streams[:2]:
        await read(stream)
    assert observed.measured("request_max_num_generation_tokens") == (0, 0)
    streams[2].abort()
    assert observed.measured("request_max_num_generation_tokens") == (1, 3)
    assert observed.measured("request_params_n") == (1, 3)


async def test_request_that_ends_is_counted_once_by_how() -> None:
    observed = Observed(FakeEngine())
    (stream,) = await observed.submit()
    await read(stream)
    stream.abort()
    assert observed.value("request_success_total", finished_reason="eos") == 1
    assert observed.value("request_success_total", finished_reason="abort") == 0


async def test_request_that_fails_is_counted_by_why() -> None:
    observed = Observed(FakeEngine(Script(failure=RequestFailure(message="no", code="not_finite"))))
    (stream,) = await observed.submit()
    await read(stream)
    assert observed.value("request_failure_total", code="not_finite") == 1
    assert observed.measured("e2e_request_latency_seconds") == (0, 0)


async def test_unknown_code_of_a_failure_adds_no_series() -> None:
    observed = Observed(FakeEngine(Script(failure=RequestFailure(message="no", code="surprise"))))
    (stream,) = await observed.submit()
    await read(stream)
    assert observed.value("request_failure_total", code="internal_error") == 1


async def test_request_that_is_aborted_is_counted_and_its_tokens_measured() -> None:
    observed = Observed(FakeEngine(Script(pause_after=2)))
    (stream,) = await observed.submit()
    outputs = aiter(stream)
    await anext(outputs)
    await anext(outputs)
    stream.abort()
    stream.abort()
    assert (await anext(outputs)).finish_reason is FinishReason.ABORT
    assert observed.value("request_success_total", finished_reason="abort") == 1
    assert observed.measured("inter_token_latency_seconds")[0] == 1
    assert observed.measured("e2e_request_latency_seconds") == (0, 0)


async def test_request_that_the_engine_aborts_is_counted() -> None:
    engine = FakeEngine(Script(pause_after=0))
    observed = Observed(engine)
    (stream,) = await observed.submit()
    reading = asyncio.create_task(read(stream))
    await engine.close()
    await reading
    assert observed.value("request_success_total", finished_reason="abort") == 1


async def test_refused_requests_are_not_measured() -> None:
    engine = FakeEngine()
    engine.refusal = EngineUnavailableError("no")
    observed = Observed(engine)
    with pytest.raises(EngineUnavailableError):
        await observed.submit()
    assert observed.measured("request_params_n") == (0, 0)


async def test_outputs_pass_unchanged() -> None:
    engine = FakeEngine()
    (plain,) = await engine.submit([GenerateRequest(prompt="abcd", params=SamplingParams())])
    (stream,) = await Observed(engine).submit()
    through = [(output.token_ids, output.text, output.finish_reason) for output in await read(stream)]
    assert through == [(output.token_ids, output.text, output.finish_reason) for output in await read(plain)]
    assert stream.prompt_token_ids == plain.prompt_token_ids


async def test_everything_else_is_the_engines_own() -> None:
    engine = FakeEngine()
    observed = Observed(engine).engine
    assert (observed.info, observed.status, observed.stats) == (engine.info, engine.status, engine.stats)
    assert await observed.tokenize("a", add_special_tokens=False) == [97]
    assert await observed.detokenize([97, 1]) == "aHello"
    assert observed.token_bytes(97) == b"a"
    assert (await observed.inspect()).block_size == engine.info.block_size
    await observed.drain(0.0)
    await observed.close()
    assert observed.status is engine.status


async def test_finished_streams_are_not_kept() -> None:
    observed = Observed(FakeEngine())
    (stream,) = await observed.submit()
    assert observed.engine.observed(stream.request_id) is stream
    request_id = stream.request_id
    await read(stream)
    del stream
    assert observed.engine.observed(request_id) is None
