"""What every side of a comparison is asked in a round, what its answers come to, and the tables of it.

    W         16 requests at once, prompts of 32 to 256 tokens, 64 new tokens each
    stream    one request alone, 64 tokens in and 128 out
    prefill   one prompt of 1024 tokens, up to its first token

Greedy, to the full length. Lengths are the same in every turn, contents never, so that no prefix cache finds anything.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from infer_bench.client.load import RequestResult
from infer_bench.client.summary import gaps_s, percentile
from infer_bench.client.workloads import PlannedRequest, Workload
from infer_bench.cpu.floor import BATCH_ROWS, PROMPT_ROWS, Floor
from infer_bench.results import table
from infer_bench.server.processes import ResidentMemory

FIRST_ID, END_ID = 3, 8000
"""Prompts are of these ids: below are special tokens, beyond may be those that no tokenizer knows."""

Ask = Callable[[Workload], list[RequestResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked.

    Attributes:
        vocab_size: of the model.
        scale: factor on the lengths of prompts and answers.
    """

    vocab_size: int
    scale: float = 1.0

    def batch(self, contents: str) -> Workload:
        """Return the requests of W."""
        lengths = Random("cpu race")  # noqa: S311 - the lengths that all published results have
        drawn = [self.scaled(lengths.randint(32, 256)) for _ in range(BATCH_ROWS)]
        return self.requests(drawn, self.scaled(64), contents=f"W {contents}")

    def stream(self, contents: str) -> Workload:
        """Return the request that is alone."""
        return self.requests([self.scaled(64)], self.scaled(128), contents=f"stream {contents}")

    def prefill(self, contents: str) -> Workload:
        """Return the long prompt."""
        return self.requests([self.scaled(PROMPT_ROWS)], 2, contents=f"prefill {contents}")

    def requests(self, lengths: Sequence[int], num_new: int, *, contents: str) -> Workload:
        """Return requests with prompts of these lengths, all at once; `contents` draws their tokens."""
        draw = Random(contents)  # noqa: S311 - the same
        end = min(END_ID, self.vocab_size)
        prompts = [[draw.randrange(FIRST_ID, end) for _ in range(length)] for length in lengths]
        requests = tuple(PlannedRequest(arrival_s=0.0, prompt=prompt, max_tokens=num_new) for prompt in prompts)
        return Workload(name=contents, requests=requests, is_closed_loop=False)

    def scaled(self, length: int) -> int:
        """Return `length` times the scale, at least 2: a rate is between two tokens."""
        return max(2, round(length * self.scale))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one side did in one round; `METRICS` says what each number is."""

    batch_tokens_per_s: float
    itl_p50_ms: float
    itl_p99_ms: float
    ttft_ms: float
    stream_tokens_per_s: float
    prefill_ms: float


METRICS = {
    "batch_tokens_per_s": "W, tokens/s",
    "itl_p50_ms": "W, ITL p50, ms",
    "itl_p99_ms": "W, ITL p99, ms",
    "ttft_ms": "W, TTFT, ms",
    "stream_tokens_per_s": "one stream, tokens/s",
    "prefill_ms": "prefill, ms",
}
"""Rows of the tables: of rates more is better, of milliseconds less is."""


def turn_of(ask: Ask, plan: Plan, *, contents: str) -> Turn:
    """Ask one side everything, with prompts that `contents` draws."""
    batch = ask(plan.batch(contents))
    (stream,) = ask(plan.stream(contents))
    (prefill,) = ask(plan.prefill(contents))
    gaps_ms = [1e3 * gap for result in batch for gap in gaps_s(result)]
    return Turn(
        batch_tokens_per_s=batch_rate(batch),
        itl_p50_ms=percentile(gaps_ms, 50),
        itl_p99_ms=percentile(gaps_ms, 99),
        ttft_ms=statistics.median(1e3 * (result.token_times_s[0] - result.sent_s) for result in batch),
        stream_tokens_per_s=stream_rate(stream),
        prefill_ms=1e3 * (prefill.token_times_s[0] - prefill.sent_s),
    )


def batch_rate(results: Sequence[RequestResult]) -> float:
    """Return tokens per second of several answers, from the first sending to the last end."""
    seconds = max(result.ended_s for result in results) - min(result.sent_s for result in results)
    return sum(result.num_tokens for result in results) / seconds


def stream_rate(result: RequestResult) -> float:
    """Return tokens per second of one answer, between its first token and its last."""
    return (result.num_tokens - 1) / (result.token_times_s[-1] - result.token_times_s[0])


@dataclass(slots=True, kw_only=True)
class Comparison:
    """The turns of all sides.

    Attributes:
        plan: what was asked.
        idle: our server's memory before the first request.
        weight_bytes: the checkpoint's weights.
        turns: by side, ours first, one of each round.
        floors: measured between the rounds; none on a GPU.
    """

    plan: Plan
    idle: ResidentMemory
    weight_bytes: int
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    floors: list[Floor] = field(default_factory=list)

    def medians(self, side: str) -> Turn:
        """Return a side's median of every number."""
        return Turn(**{name: statistics.median(getattr(turn, name) for turn in self.turns[side]) for name in METRICS})

    def ratios(self, peer: str) -> dict[str, float]:
        """Return by metric how many times better ours is than `peer`."""
        ours, theirs = asdict(self.medians(next(iter(self.turns)))), asdict(self.medians(peer))
        return {
            name: ours[name] / theirs[name] if name.endswith("_per_s") else theirs[name] / ours[name]
            for name in METRICS
        }

    def shares(self, side: str) -> dict[str, float]:
        """Return how near a side's medians come to what the products alone would allow.

        `batch` is its rate on W, of the rate if every step were its products; `stream` and `prefill` are the products'
        share of a token's and of the long prompt's time.
        """
        turn, floor = self.medians(side), Floor.median(self.floors)
        requests = self.plan.batch("").requests
        limit = floor.limit_tokens_per_s(
            num_prompt_tokens=sum(len(request.prompt) for request in requests),
            num_steps=requests[0].max_tokens - 1,
            num_tokens=sum(request.max_tokens for request in requests),
        )
        [long] = self.plan.prefill("").requests
        return {
            "batch": turn.batch_tokens_per_s / limit,
            "stream": floor.stream_share(turn.stream_tokens_per_s),
            "prefill": floor.prefill_share(turn.prefill_ms, num_tokens=len(long.prompt)),
        }

    def as_json(self) -> dict[str, Any]:
        """Return what is saved."""
        ours, *peers = self.turns
        return {
            "turns": {side: [asdict(turn) for turn in turns] for side, turns in self.turns.items()},
            "medians": {side: asdict(self.medians(side)) for side in (ours, *peers)},
            "ratios": {peer: self.ratios(peer) for peer in peers},
            "floors": [asdict(floor) for floor in self.floors],
            "shares": {side: self.shares(side) for side in (ours, *peers)} if self.floors else {},
            "idle_bytes": self.idle.total_bytes,
            "idle_file_bytes": self.idle.file_bytes,
            "weight_bytes": self.weight_bytes,
        }

    def tables(self) -> str:
        """Return the report in markdown."""
        ours, *peers = self.turns
        spreads = [
            [label, *(median_and_spread([getattr(turn, name) for turn in turns]) for turns in self.turns.values())]
            for name, label in METRICS.items()
        ]
        parts = [table([f"median (least - most of {len(self.turns[ours])} rounds)", ours, *peers], spreads)]
        if peers:
            ratios = [self.ratios(peer) for peer in peers]
            rows = [[label, *(f"{each[name]:.2f}" for each in ratios)] for name, label in METRICS.items()]
            parts.append(table([f"{ours}, times better than", *peers], rows))
        if self.floors:
            parts.append(self._share_table())
        total_bytes = self.idle.total_bytes
        parts.append(
            f"{ours}, idle: {total_bytes / 1e9:.2f} GB, {(total_bytes - self.weight_bytes) / 1e9:.2f} GB over the "
            f"weights' {self.weight_bytes / 1e9:.2f} GB; {self.idle.file_bytes / 1e9:.2f} GB are pages of libraries' "
            "files."
        )
        return "\n\n".join(parts)

    def _share_table(self) -> str:
        floor = Floor.median(self.floors)
        labels = {
            "batch": f"W, of the limit ({floor.batch_ms:.2f} ms at {BATCH_ROWS} rows, {floor.prompt_ms:.0f} at "
            f"{PROMPT_ROWS})",
            "stream": f"one stream, of the floor ({floor.row_ms:.2f} ms)",
            "prefill": f"prefill, of the floor ({floor.prompt_ms:.0f} ms at {PROMPT_ROWS} rows)",
        }
        shares = [self.shares(side) for side in self.turns]
        rows = [[label, *(f"{each[name]:.0%}" for each in shares)] for name, label in labels.items()]
        return table(["products alone", *self.turns], rows)


def median_and_spread(values: Sequence[float]) -> str:
    """Return a cell."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} - {max(values):.1f})"
