"""The outputs of several requests as one sequence. Knows the engine's streams; knows no text and no HTTP."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from infer_engine.protocol import RequestStream, StepOutput


async def merge_outputs(streams: Sequence[RequestStream]) -> AsyncGenerator[tuple[int, StepOutput], None]:
    """Yield (index into `streams`, output) as outputs come, those of one stream in order, until all have ended."""
    if len(streams) == 1:
        async for output in streams[0]:
            yield 0, output
        return
    iterators = [aiter(stream) for stream in streams]
    pending = {asyncio.ensure_future(_next(iterator)): index for index, iterator in enumerate(iterators)}
    try:
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            arrived = sorted((pending.pop(task), task.result()) for task in done)
            for index, result in arrived:
                if result is not None:
                    pending[asyncio.ensure_future(_next(iterators[index]))] = index
                    yield index, result
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def _next(iterator: AsyncIterator[StepOutput]) -> StepOutput | None:
    return await anext(iterator, None)
