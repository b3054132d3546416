"""The tables of a race: medians with their spread, ratios to each peer, shares of the floor. Measures nothing."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cpu_floor import BATCH_ROWS, PROMPT_ROWS, Floor
from race_rounds import RacePlan, Shares, Turn
from server_processes import ResidentMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A row of the tables.

    Attributes:
        field: of a `Turn`.
        label: the row's.
        is_rate: more is better; otherwise less is.
    """

    field: str
    label: str
    is_rate: bool

    def values(self, turns: Sequence[Turn]) -> list[float]:
        """Return the turns' own, in order."""
        return [getattr(turn, self.field) for turn in turns]

    def ratio(self, ours: Sequence[Turn], theirs: Sequence[Turn]) -> float:
        """Return how many times better the median of ours is."""
        own, other = (statistics.median(self.values(turns)) for turns in (ours, theirs))
        return own / other if self.is_rate else other / own


METRICS = (
    Metric(field="batch_tokens_per_s", label="W, tokens/s", is_rate=True),
    Metric(field="itl_p50_ms", label="W, ITL p50, ms", is_rate=False),
    Metric(field="itl_p99_ms", label="W, ITL p99, ms", is_rate=False),
    Metric(field="ttft_ms", label="W, TTFT, ms", is_rate=False),
    Metric(field="stream_tokens_per_s", label="one stream, tokens/s", is_rate=True),
    Metric(field="prefill_ms", label="prefill, ms", is_rate=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """A race that was run.

    Attributes:
        plan: what was asked.
        turns: by side, ours first, one of each round.
        floors: measured between the rounds.
        idle: our server's memory before the first request.
        weight_bytes: the checkpoint's weights.
    """

    plan: RacePlan
    turns: Mapping[str, Sequence[Turn]]
    floors: Sequence[Floor]
    idle: ResidentMemory
    weight_bytes: int

    @property
    def peers(self) -> list[str]:
        """All sides but ours."""
        return list(self.turns)[1:]

    @property
    def ours(self) -> str:
        """Our side's name."""
        return next(iter(self.turns))

    def medians(self, side: str) -> Turn:
        """Return a side's median of every number."""
        return Turn(**{metric.field: statistics.median(metric.values(self.turns[side])) for metric in METRICS})

    def shares(self, side: str) -> Shares:
        """Return what a side reaches of the products' limits."""
        return Shares.of(self.medians(side), Floor.median(self.floors), self.plan)

    def ratios(self, peer: str) -> dict[str, float]:
        """Return by metric how many times better ours is than `peer`."""
        return {metric.field: metric.ratio(self.turns[self.ours], self.turns[peer]) for metric in METRICS}

    def as_json(self) -> dict[str, Any]:
        """Return what is saved."""
        return {
            "turns": {side: [asdict(turn) for turn in turns] for side, turns in self.turns.items()},
            "medians": {side: asdict(self.medians(side)) for side in self.turns},
            "ratios": {peer: self.ratios(peer) for peer in self.peers},
            "floors": [asdict(floor) for floor in self.floors],
            "shares": {side: asdict(self.shares(side)) for side in self.turns},
            "idle_bytes": self.idle.total_bytes,
            "idle_file_bytes": self.idle.file_bytes,
            "weight_bytes": self.weight_bytes,
        }

    def tables(self) -> str:
        """Return the report in markdown."""
        ratios = [self._ratios()] if self.peers else []
        return "\n\n".join([self._numbers(), *ratios, self._shares(), self._memory()])

    def _numbers(self) -> str:
        rows = [
            [metric.label, *(median_and_spread(metric.values(turns)) for turns in self.turns.values())]
            for metric in METRICS
        ]
        return table([f"median (least - most of {len(self.floors)} rounds)", *self.turns], rows)

    def _ratios(self) -> str:
        ratios = {peer: self.ratios(peer) for peer in self.peers}
        rows = [[metric.label, *(f"{each[metric.field]:.2f}" for each in ratios.values())] for metric in METRICS]
        return table([f"{self.ours}, times better than", *ratios], rows)

    def _shares(self) -> str:
        floor = Floor.median(self.floors)
        shares = [self.shares(side) for side in self.turns]
        labels = {
            "batch": f"W, of the limit ({floor.batch_ms:.2f} ms at {BATCH_ROWS} rows, {floor.prompt_ms:.0f} at "
            f"{PROMPT_ROWS})",
            "stream": f"one stream, of the floor ({floor.row_ms:.2f} ms)",
            "prefill": f"prefill, of the floor ({floor.prompt_ms:.0f} ms at {PROMPT_ROWS} rows)",
        }
        rows = [[label, *(f"{getattr(each, name):.0%}" for each in shares)] for name, label in labels.items()]
        return table(["products alone", *self.turns], rows)

    def _memory(self) -> str:
        total_bytes = self.idle.total_bytes
        return (
            f"{self.ours}, idle: {total_bytes / 1e9:.2f} GB, {(total_bytes - self.weight_bytes) / 1e9:.2f} GB over the "
            f"weights' {self.weight_bytes / 1e9:.2f} GB; {self.idle.file_bytes / 1e9:.2f} GB are pages of libraries' "
            "files."
        )


def median_and_spread(values: Sequence[float]) -> str:
    """Return a cell."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} - {max(values):.1f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
