"""Reads the outputs of several streams: as they arrive, or to their ends."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from infer_engine.protocol import RequestStream, StepOutput
from infer_server.api.failures import raise_if_unfinished
from infer_server.http.disconnects import cancel_and_wait


async def merge_outputs(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, StepOutput], None]:
    """Yield (index into `streams`, output) as outputs arrive, those of one stream in order, until all have ended.

    The cost of an output does not depend on the number of streams. Raises what a stream raises.
    """
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    # Unbounded, but a stream has at most `max_tokens` outputs, and would itself keep them for a slow reader.
    arrived: asyncio.Queue[tuple[int, StepOutput | None]] = asyncio.Queue()
    readers = [asyncio.create_task(_read(stream, index, arrived)) for index, stream in enumerate(streams)]
    try:
        num_open = len(streams)
        while num_open:
            index, next_output = await arrived.get()
            if next_output is None:
                num_open -= 1
                await readers[index]
            else:
                yield index, next_output
    finally:
        await cancel_and_wait(*readers)


async def read_to_the_end(streams: Sequence[RequestStream], take: Callable[[int, StepOutput], object]) -> None:
    """Call `take` with (index into `streams`, output) for every output, as they arrive.

    Raises:
        ApiError: 500, a request failed; 503, the server's shutdown aborted one.
    """
    async with aclosing(merge_outputs(streams)) as outputs:
        async for index, output in outputs:
            raise_if_unfinished(output)
            take(index, output)


async def _read(stream: RequestStream, index: int, arrived: asyncio.Queue[tuple[int, StepOutput | None]]) -> None:
    """Put the outputs of `stream` into `arrived`, then None, also after an error."""
    try:
        async for output in stream:
            arrived.put_nowait((index, output))
    finally:
        arrived.put_nowait((index, None))
