"""The cost of looking for reasoning and tool calls in an answer: CPU time per streamed token, beside plain text.

First a server whose engine makes tokens without a model: the CPU time of its process, which is all text side. Then the
part of it that differs, in this process: from the tokens of a step to the bytes of its events (detokenizing, taking the
answer apart, stop strings, chunks, JSON). The core's messages, the event loop and the socket are the same for all and
left out there, so that those ratios are larger than a server's.

    uv run infer-bench text-side
    uv run infer-bench text-side --quick
"""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import Any

from infer_bench.client.http import http_client
from infer_bench.results import argument_parser, save, table
from infer_bench.serving.streaming import null_server
from infer_engine.chat.output_parser import AnswerParser
from infer_engine.frontend.output_processor import OutputProcessor
from infer_engine.messages import TokenOutput
from infer_engine.protocol import FinishReason, RequestTimes, StepOutput
from infer_models.hub import demo_model_folder
from infer_models.text import (
    REASONING_FORMATS,
    TOOL_CALL_FORMATS,
    IncrementalDetokenizer,
    ReasoningState,
    StopStringMatcher,
    Tokenizer,
)
from infer_server.http.sse import plain_event
from infer_server.openai.chat.response import ChatChunkBuilder
from infer_server.openai.chunks import stream_events
from infer_server.openai.response_head import new_response_head

STREAMS = 16
TEXT = "Now is the winter of our discontent made glorious summer by this sun of York; and all the clouds that lour'd "
TOOLS = [
    {
        "type": "function",
        "function": {"name": "write", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}},
    }
]
HERMES = TOOL_CALL_FORMATS["hermes"]
THINK = REASONING_FORMATS["think"]

Answer = tuple[str, Callable[[], AnswerParser | None]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="one round of few tokens; result not saved", rounds=21)
    parser.add_argument("--tokens", type=int, default=2000, help="of each answer")
    args = parser.parse_args(arguments)
    # The clock of CPU time ticks 100 times a second: a round of fewer tokens may see none of it.
    num_tokens, rounds = (800, 1) if args.quick else (args.tokens, args.rounds)
    found = measure(num_tokens=num_tokens, rounds=rounds)
    server = asyncio.run(measure_server(num_tokens=num_tokens // 4, rounds=max(1, rounds // 3)))
    print(f"\n{table(*ratio_table(server, 'of the server, content'))}\n\n{table(*ratio_table(found, 'answer'))}")
    if not args.quick:
        save("text-side", {"tokens": num_tokens, "server_cpu_s_per_token": server, "cpu_s_per_token": found}, args.out)


async def measure_server(*, num_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds per token of a server with `STREAMS` streams, round by round; the first one warms up."""
    bodies = {"plain": {}, "with tools": {"tools": TOOLS}}
    found: dict[str, list[float]] = {name: [] for name in bodies}
    with null_server(step_s=0.0) as server:
        for number in range(rounds + 1):
            for name, fields in bodies.items():
                before_s = server.cpu_s()
                body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": num_tokens, "stream": True}
                await asyncio.gather(*(read_stream(server.url, body | fields) for _ in range(STREAMS)))
                if number:
                    found[name].append((server.cpu_s() - before_s) / (STREAMS * num_tokens))
    return found


async def read_stream(url: str, body: dict[str, Any]) -> None:
    """Read the stream that answers the chat `body`.

    Raises:
        RuntimeError: it failed.
    """
    async with http_client(url) as client:
        reply = await client.post("/v1/chat/completions", json=body)
    if reply.status_code != HTTPStatus.OK or not reply.content.endswith(b"[DONE]\n\n"):
        raise RuntimeError(f"the server answered {reply.status_code}: {reply.content[-200:]!r}")


def measure(*, num_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds per token of every kind of answer, round by round; the first round warms up."""
    tokenizer = Tokenizer.from_folder(demo_model_folder())
    answers = {name: (_outputs(tokenizer, text, num_tokens), make) for name, (text, make) in _answers().items()}
    found: dict[str, list[float]] = {name: [] for name in answers}
    for number in range(rounds + 1):
        for name, (outputs, make) in answers.items():
            processor = OutputProcessor(IncrementalDetokenizer(tokenizer, []), StopStringMatcher(), parser=make())
            chunks = ChatChunkBuilder(
                new_response_head("chatcmpl", served_model="m"), token_bytes=tokenizer.token_bytes
            )
            elapsed_s = asyncio.run(_stream(_Answer(processor, outputs), chunks))
            if number:
                found[name].append(elapsed_s / len(outputs))
    return found


def ratio_table(found: dict[str, list[float]], head: str) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table: medians, and the medians of the ratios of rounds."""
    rows = [
        [
            name,
            f"{1e6 * statistics.median(times):.1f}",
            f"{statistics.median(time / plain for time, plain in zip(times, found['plain'], strict=True)):.3f}",
        ]
        for name, times in found.items()
    ]
    return [head, "us of CPU per token", "ratio"], rows


def _answers() -> dict[str, Answer]:
    """Return each kind of answer: text enough for any length, and what makes its parser."""
    long_text = TEXT * 200
    call = HERMES.write(("write", json.dumps({"text": long_text})))
    return {
        "plain": (long_text, lambda: None),
        "content, with tools": (long_text, lambda: AnswerParser(tool_call_format=HERMES)),
        "a call's arguments": (call, lambda: AnswerParser(tool_call_format=HERMES)),
        "reasoning, with tools": (
            f"<think>{long_text}",
            lambda: AnswerParser(reasoning_format=THINK, state=ReasoningState.MAY_BEGIN, tool_call_format=HERMES),
        ),
    }


def _outputs(tokenizer: Tokenizer, text: str, num_tokens: int) -> list[TokenOutput]:
    token_ids = tokenizer.encode(text, add_special_tokens=False)[:num_tokens]
    return [
        TokenOutput(
            request_id="r0",
            token_ids=[token_id],
            finish_reason=FinishReason.LENGTH if number == len(token_ids) else None,
            num_prompt_tokens=1,
            num_completion_tokens=number,
        )
        for number, token_id in enumerate(token_ids, start=1)
    ]


class _Answer:
    """A stream whose tokens are all there. Implements `infer_engine.protocol.RequestStream`."""

    def __init__(self, processor: OutputProcessor, outputs: list[TokenOutput]) -> None:
        self.request_id = "r0"
        self.prompt_token_ids = [0]
        self.times = RequestTimes(arrived_s=0.0)
        self._processor = processor
        self._outputs = outputs

    async def __aiter__(self) -> AsyncIterator[StepOutput]:
        for output in self._outputs:
            yield self._processor.process(output)

    def abort(self) -> None:
        pass


async def _stream(answer: _Answer, chunks: ChatChunkBuilder) -> float:
    """Return the CPU seconds that all events of `answer` take."""
    events: Any = stream_events([answer], chunks, encode=plain_event, choices_per_prompt=1, include_usage=False)
    began_s = time.thread_time()
    num_bytes = 0
    async for event in events:
        num_bytes += len(event)
    elapsed_s = time.thread_time() - began_s
    if num_bytes == 0:
        raise RuntimeError("the answer made no events")
    return elapsed_s
