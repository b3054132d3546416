"""What every side of a race is asked in a round, and what its answers come to. Knows requests and times; no process.

    W         16 requests at once, prompts of 32 to 256 tokens, 64 new tokens each
    stream    one request alone, 64 tokens in and 128 out
    prefill   one prompt of 1024 tokens, up to its first token

Greedy, to the full length. Lengths are the same in every turn, contents never, so that no prefix cache finds anything.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from cpu_floor import BATCH_ROWS, PROMPT_ROWS, Floor
from race_client import Answer, RaceServer
from serving_report import percentile
from workloads import PlannedRequest

FIRST_ID, END_ID = 3, 8000
"""Prompts are of these ids: below are special tokens, beyond may be those that no tokenizer knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RacePlan:
    """What is asked.

    Attributes:
        vocab_size: of the model.
        scale: factor on the lengths of prompts and answers.
    """

    vocab_size: int
    scale: float = 1.0

    def batch(self, contents: str) -> list[PlannedRequest]:
        """Return the requests of W."""
        lengths = Random("cpu race")  # noqa: S311 - a workload, not a secret
        drawn = [self.scaled(lengths.randint(32, 256)) for _ in range(BATCH_ROWS)]
        return self.requests(drawn, self.scaled(64), contents=f"W {contents}")

    def stream(self, contents: str) -> list[PlannedRequest]:
        """Return the request that is alone."""
        return self.requests([self.scaled(64)], self.scaled(128), contents=f"stream {contents}")

    def prefill(self, contents: str) -> list[PlannedRequest]:
        """Return the long prompt."""
        return self.requests([self.scaled(PROMPT_ROWS)], 2, contents=f"prefill {contents}")

    def requests(self, lengths: Sequence[int], num_new: int, *, contents: str) -> list[PlannedRequest]:
        """Return requests with prompts of these lengths; `contents` draws their tokens."""
        draw = Random(contents)  # noqa: S311 - the same
        end = min(END_ID, self.vocab_size)
        return [
            PlannedRequest(
                arrival_s=0.0, prompt=[draw.randrange(FIRST_ID, end) for _ in range(length)], max_tokens=num_new
            )
            for length in lengths
        ]

    def scaled(self, length: int) -> int:
        """Return `length` times the scale, at least 2: a rate is between two tokens."""
        return max(2, round(length * self.scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one side did in one round.

    Attributes:
        batch_tokens_per_s: on W, from the first sending to the last end.
        itl_p50_ms: median time between two tokens of a request on W.
        itl_p99_ms: its 99th percentile.
        ttft_ms: median time to the first token on W.
        stream_tokens_per_s: of one stream alone, between its first token and its last.
        prefill_ms: from sending the long prompt to its first token.
    """

    batch_tokens_per_s: float
    itl_p50_ms: float
    itl_p99_ms: float
    ttft_ms: float
    stream_tokens_per_s: float
    prefill_ms: float


def take_turn(server: RaceServer, plan: RacePlan, *, contents: str) -> Turn:
    """Ask one side everything, with prompts that `contents` draws."""
    batch = server.ask(plan.batch(contents))
    (stream,) = server.ask(plan.stream(contents))
    (prefill,) = server.ask(plan.prefill(contents))
    gaps = [gap for answer in batch for gap in answer.gaps_ms]
    return Turn(
        batch_tokens_per_s=batch_rate(batch),
        itl_p50_ms=percentile(gaps, 50),
        itl_p99_ms=percentile(gaps, 99),
        ttft_ms=statistics.median(answer.first_token_ms for answer in batch),
        stream_tokens_per_s=stream.tokens_per_s,
        prefill_ms=prefill.first_token_ms,
    )


def batch_rate(answers: Sequence[Answer]) -> float:
    """Return tokens per second of several answers, from the first sending to the last end."""
    seconds = max(answer.ended_s for answer in answers) - min(answer.sent_s for answer in answers)
    return sum(answer.num_tokens for answer in answers) / seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How near a side comes to what the products alone would allow.

    Attributes:
        batch: its rate on W, of the rate if every step were its products.
        stream: the products' share of a token's time.
        prefill: the products' share of the long prompt's time.
    """

    batch: float
    stream: float
    prefill: float

    @classmethod
    def of(cls, turn: Turn, floor: Floor, plan: RacePlan) -> "Shares":
        """Return the shares of `turn`, medians of a side, beside the `floor` of the same run."""
        requests = plan.batch("")
        (long,) = plan.prefill("")
        limit = floor.limit_tokens_per_s(
            num_prompt_tokens=sum(len(request.prompt) for request in requests),
            num_steps=requests[0].max_tokens - 1,
            num_tokens=sum(request.max_tokens for request in requests),
        )
        return cls(
            batch=turn.batch_tokens_per_s / limit,
            stream=floor.stream_share(turn.stream_tokens_per_s),
            prefill=floor.prefill_share(turn.prefill_ms, num_tokens=len(long.prompt)),
        )
