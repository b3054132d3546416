"""Runs the engine inside an asyncio program, for requests that come and go: `uv run python examples/embed_engine.py`.

The engine's steps run in a process of their own, so that the event loop stays free.
"""

import asyncio

from infer_engine import EngineConfig, SamplingParams, build_engine
from infer_engine.protocol import Engine, GenerateRequest

SPEAKERS = ("ROMEO", "JULIET", "FRIAR LAURENCE", "Nurse")


async def speak(engine: Engine, speaker: str) -> str:
    request = GenerateRequest(prompt=f"{speaker}:\n", params=SamplingParams(max_tokens=30, seed=7))
    [stream] = await engine.submit([request])
    text = ""
    try:
        async for output in stream:
            if output.error is not None:  # always the last output
                raise RuntimeError(output.error.message)
            text += output.text
    finally:
        stream.abort()  # does nothing to a stream that has ended
    return text


async def main() -> None:
    async with build_engine(EngineConfig(model="infer-demo", max_batch_size=8)) as engine:
        texts = await asyncio.gather(*(speak(engine, speaker) for speaker in SPEAKERS))  # in one batch
        for speaker, text in zip(SPEAKERS, texts, strict=True):
            print(f"{speaker}:\n{text}\n")
        print(f"--- {engine.stats.num_generated_tokens} tokens, the engine is {engine.status}")


asyncio.run(main())
