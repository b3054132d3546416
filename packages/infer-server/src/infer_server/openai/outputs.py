"""The outputs of several requests as one sequence. Knows the engine's streams; knows no text and no HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from infer_engine.protocol import RequestStream, StepOutput
from infer_server.http.disconnects import cancel_and_wait


async def merge_outputs(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, StepOutput], None]:
    """Yield (index into `streams`, output) as outputs come, those of one stream in order, until all have ended.

    An output costs the same however many streams there are. Raises what a stream raises.
    """
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    # As large as what the streams themselves would hold for a reader that is slow: at most `max_tokens` outputs each.
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
    """Put the outputs of `stream` into `arrived`, then None, also when it fails."""
    try:
        async for output in stream:
            arrived.put_nowait((index, output))
    finally:
        arrived.put_nowait((index, None))
