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
from functools import partial
from http import HTTPStatus
from operator import truediv
from typing import Any

from infer_bench.client.http import http_client
from infer_bench.results import Columns, argument_parser, columns_table, in_turns, save
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
    server = measure_server(num_tokens=num_tokens // 4, rounds=max(1, rounds // 3))
    print(f"\n{ratio_table(server, 'of the server, content')}\n\n{ratio_table(found, 'answer')}")
    save("text-side", {"tokens": num_tokens, "server_cpu_s_per_token": server, "cpu_s_per_token": found}, args)


def measure_server(*, num_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds per token of a server with `STREAMS` streams, round by round."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": num_tokens, "stream": True}

    async def read_streams(url: str, body: dict[str, Any]) -> None:
        async with http_client(url) as client:
            asked = (client.post("/v1/chat/completions", json=body) for _ in range(STREAMS))
            for reply in await asyncio.gather(*asked):
                if reply.status_code != HTTPStatus.OK or not reply.content.endswith(b"[DONE]\n\n"):
                    raise RuntimeError(f"the server answered {reply.status_code}: {reply.content[-200:]!r}")

    with null_server(step_s=0.0) as server:

        def cost(fields: dict[str, Any], _: int) -> float:
            before_s = server.cpu_s()
            asyncio.run(read_streams(server.url, body | fields))
            return (server.cpu_s() - before_s) / (STREAMS * num_tokens)

        return in_turns({"plain": partial(cost, {}), "with tools": partial(cost, {"tools": TOOLS})}, rounds=rounds)


def measure(*, num_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds per token of every kind of answer, round by round."""
    tokenizer = Tokenizer.from_folder(demo_model_folder())

    def cost(text: str, make: Callable[[], AnswerParser | None], _: int) -> float:
        outputs = _outputs(tokenizer, text, num_tokens)
        processor = OutputProcessor(IncrementalDetokenizer(tokenizer, []), StopStringMatcher(), parser=make())
        chunks = ChatChunkBuilder(new_response_head("chatcmpl", served_model="m"), token_bytes=tokenizer.token_bytes)
        return asyncio.run(_stream(_Answer(processor, outputs), chunks)) / len(outputs)

    return in_turns({name: partial(cost, *answer) for name, answer in _answers().items()}, rounds=rounds)


def ratio_table(found: dict[str, list[float]], head: str) -> str:
    """Return medians, and the medians of the ratios of rounds."""
    columns: Columns = {
        head: lambda row: row[0],
        "us of CPU per token": lambda row: f"{1e6 * statistics.median(row[1]):.1f}",
        "ratio": lambda row: f"{statistics.median(map(truediv, row[1], found['plain'])):.3f}",
    }
    return columns_table(columns, found.items())


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
