"""Merged streams: each in its own order, all to their ends; an error of one is raised."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from infer_engine.protocol import GenerateRequest, RequestStream, RequestTimes, SamplingParams, StepOutput
from infer_proofs.server import FakeEngine, Script
from infer_server.api.outputs import merge_outputs


class FaultyStream:
    """Fails as no stream of an engine should."""

    request_id = "faulty"
    prompt_token_ids = [1]  # noqa: RUF012 - nobody changes it
    times = RequestTimes(arrived_s=0.0)

    def __aiter__(self) -> AsyncIterator[StepOutput]:
        """Fail on the first output."""
        return self._outputs()

    def abort(self) -> None:
        """Nothing is running."""

    async def _outputs(self) -> AsyncIterator[StepOutput]:
        await asyncio.sleep(0)
        if self.prompt_token_ids:
            raise ConnectionError("faulty")
        yield StepOutput(request_id="", token_ids=[], num_prompt_tokens=0, num_completion_tokens=0)


async def submit(engine: FakeEngine, count: int) -> list[RequestStream]:
    request = GenerateRequest(prompt="x", params=SamplingParams(n=1))
    return await engine.submit([request] * count)


@pytest.mark.parametrize("count", [1, 2, 200])
async def test_outputs_of_each_stream_come_in_order_to_the_last(count: int) -> None:
    streams = await submit(FakeEngine(), count)
    arrived = [(index, output.text) async for index, output in merge_outputs(streams)]
    for index in range(count):
        assert [text for place, text in arrived if place == index] == ["Hello", ",", " world"]


async def test_stream_that_waits_holds_up_no_other() -> None:
    held, free = FakeEngine(Script(pause_after=1)), FakeEngine()
    streams = [*await submit(held, 1), *await submit(free, 1)]
    async with aclosing(merge_outputs(streams)) as outputs:
        arrived = [await anext(outputs) for _ in range(4)]
        assert sorted(output.text for index, output in arrived if index == 1) == [" world", ",", "Hello"]
        held.resume()
        assert [output.text async for _, output in outputs] == [",", " world"]


async def test_fault_of_one_stream_is_raised() -> None:
    streams: list[RequestStream] = [*await submit(FakeEngine(Script(pause_after=0)), 1), FaultyStream()]
    with pytest.raises(ConnectionError, match="faulty"):
        assert [output async for output in merge_outputs(streams)]
