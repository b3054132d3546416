"""Tables of races against other servers, which run where those are installed."""

from collections.abc import Mapping, Sequence

from infer_bench.publish.declared import Json
from infer_bench.publish.tables.words import number, spread
from infer_bench.results import table
from infer_bench.serving.peers import OURS

Turn = dict[str, float]
NAMES = {
    "infer": "infer",
    "vllm": "vLLM CPU 0.32.0, both cores",
    "vllm-default": "vLLM, its default",
    "llama.cpp": "llama.cpp, BF16",
}
RATES = ("W, tokens/s", "W, ITL p99, ms", "one stream, tokens/s", "prefill, ms")
PAIRS = (("infer none",), ("infer int8", "llama.cpp Q8_0"), ("infer int4", "llama.cpp Q4_0"))
"""Sides with weights of as many bits."""
QUANTIZED_ROWS = {
    "W: 16 requests at once, tokens/s": "W, tokens/s",
    "W: time between tokens, p50, ms": "W, ITL p50, ms",
    "W: time between tokens, p99, ms": "W, ITL p99, ms",
    "one stream, tokens/s": "one stream, tokens/s",
    "a prompt of 1,024 tokens, ms": "prefill, ms",
    "memory before the first request, GB": "idle memory, GB",
}


def race(result: Json) -> str:
    """Return all sides of a race."""
    turns: Mapping[str, Sequence[Turn]] = result["turns"]
    sides = [side for side in NAMES if side in turns]
    rows = [
        [key, *(_cell(turns[side], result["medians"][side], key) for side in sides)] for key in result["medians"][OURS]
    ]
    return table(["", *(NAMES[side] for side in sides)], rows)


def times_better(small: Json, large: Json) -> str:
    """Return how many times better than the best peer ours is, of both races."""
    found = [_beside_the_best(result["medians"]) for result in (small, large)]
    rows = [
        [
            name.removesuffix(", tokens/s" if "stream" in name else ", ms"),
            *(_bold_below_one(each[name]) for each in found),
        ]
        for name in RATES
    ]
    return table(["infer, times better than the best of them", "135m", "0.6b"], rows)


def quantized(result: Json) -> str:
    """Return all sides of a race with quantized weights, with the rounds' least and most where there are several."""
    turns: Mapping[str, Sequence[Turn]] = result["turns"]
    sides = [side for scheme in ("none", "int8", "int4") for side in _sides_of(scheme, list(turns))]
    medians: Mapping[str, Turn] = result["medians"]

    def cell(side: str, key: str) -> str:
        """Bold where it is faster than the other side of as many bits."""
        text = _cell(turns[side], medians[side], key)
        pair = next(pair for pair in PAIRS if side in pair)
        others = [medians[other][key] for other in pair if other in turns and other != side]
        own = medians[side][key]
        is_best = (
            bool(others)
            and "memory" not in key
            and all(own > other if key.endswith("/s") else own < other for other in others)
        )
        return f"**{text}**" if is_best else text

    rows = [[words, *(cell(side, key) for side in sides)] for words, key in QUANTIZED_ROWS.items()]
    heads = ["bf16" if side == "infer none" else side.removeprefix("infer ") for side in sides]
    return table(["", *heads], rows)


def _cell(turns: Sequence[Turn], medians: Turn, key: str) -> str:
    if len(turns) == 1:
        return number(medians[key])
    return f"{number(medians[key])} {spread(turn[key] for turn in turns)}"


def _beside_the_best(medians: Mapping[str, Turn]) -> Turn:
    ours, *peers = (medians[side] for side in sorted(medians, key=lambda side: side != OURS))
    return {
        name: ours[name] / max(peer[name] for peer in peers)
        if name.endswith("/s")
        else min(peer[name] for peer in peers) / ours[name]
        for name in RATES
    }


def _bold_below_one(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}**"


def _sides_of(scheme: str, sides: Sequence[str]) -> list[str]:
    return [side for pair in PAIRS if f"infer {scheme}" in pair for side in pair if side in sides]
