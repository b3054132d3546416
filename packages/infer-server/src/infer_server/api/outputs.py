"""Merges the outputs of several streams."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from infer_engine.protocol import RequestStream, StepOutput
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


async def _read(stream: RequestStream, index: int, arrived: asyncio.Queue[tuple[int, StepOutput | None]]) -> None:
    """Put the outputs of `stream` into `arrived`, then None, also after an error."""
    try:
        async for output in stream:
            arrived.put_nowait((index, output))
    finally:
        arrived.put_nowait((index, None))
