"""Published tables are made of what commands save: each from a small result of the same form."""

from typing import Any

import pytest

from infer_bench.agreement import TokenAgreement
from infer_bench.offline import concurrency, transformers
from infer_bench.publish import tables

ENVIRONMENT = {"cores": 2, "cpu": "AMD EPYC", "torch": "2.15.0", "torch_threads": 2, "commit": "0123456789ab"}


def result_of(**found: Any) -> dict[str, Any]:
    return {"environment": ENVIRONMENT, **found}


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of all tables, heads included."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_concurrency_shows_every_round_and_the_ratio() -> None:
    result = result_of(together=[190.0, 200.0, 180.0], one_by_one=[50.0, 60.0, 40.0], ratio=3.8)
    assert rows_of(concurrency.rounds_table(result))[1] == ["one by one", "50.0, 60.0, 40.0", "50.0"]
    assert rows_of(concurrency.short_table(result))[-1][-1] == "3.80"


def test_transformers_has_ratios_of_medians_and_their_range() -> None:
    agreement = TokenAgreement(
        tolerance=0.1,
        num_answers=16,
        num_same_answers=3,
        num_tokens=273,
        num_decided=179,
        num_decided_same=179,
        num_undecided_different=13,
    )
    rates = {"16 at once": {"infer": [200.0, 220.0, 240.0], "transformers": [100.0, 110.0, 100.0]}}
    text = transformers.compared_table(result_of(tokens_per_s=rates, agreement=agreement._asdict()))
    assert rows_of(text)[1] == ["16 at once", "220.0", "100.0", "2.20", "2.00 - 2.40"]
    assert "Of 273 tokens compared" in text.replace("\n", " ")


@pytest.fixture
def steps() -> dict[str, Any]:
    times = {"schedule": 1.0, "forward pass": 20.0, "choose tokens": 2.0, "rest": 3.0, "products": 15.0, "read": 4.0}
    kinds = ("1 sequence", "16 sequences", "prompt of 1024")
    halved = {stage: time / 2 for stage, time in times.items()}
    measured = {
        "none": {"milliseconds": dict.fromkeys(kinds, times), "weight_bytes": 1e9, "share_of_bf16": 1.0},
        "int8": {"milliseconds": dict.fromkeys(kinds, halved), "weight_bytes": 5e8, "share_of_bf16": 0.5},
    }
    return result_of(measured=measured)


def test_steps_on_a_cpu_have_stages_and_floors_of_both_shapes(steps: dict[str, Any]) -> None:
    head, *rows = rows_of(tables.cpu_steps(steps, steps))
    assert head[1:] == ["135m: 1 sequence", "16", "prompt of 1024", "0.6b: 1 sequence", "16", "prompt of 1024"]
    assert ["choose tokens and the rest, ms", *["5"] * 6] in rows
    assert ["**step, ms**", *["**26**"] * 6] in rows


def test_quantized_steps_are_compared_with_plain_ones(steps: dict[str, Any]) -> None:
    rows = rows_of(tables.quantized_steps(steps))
    assert rows[1] == ["weights", "1000.0 MB", "500.0 MB, 0.50 of bf16"]
    assert rows[2] == ["a step of one sequence", "26 ms, floor 4", "13 ms, floor 2: 2.00 times faster"]


def test_the_faster_side_of_a_quantized_race_is_bold() -> None:
    keys = list(tables.QUANTIZED.values())
    ours, theirs = dict.fromkeys(keys, 50.0), dict.fromkeys(keys, 100.0)
    sides = {"infer int8": ours, "llama.cpp Q8_0": theirs}
    text = tables.quantized_race(result_of(turns={side: [turn] for side, turn in sides.items()}, medians=sides))
    rows = {row[0]: row[1:] for row in rows_of(text)}
    assert rows["one stream, tokens/s"] == ["50", "**100**"]
    assert rows["a prompt of 1,024 tokens, ms"] == ["**50**", "100"]
    assert rows["memory before the first request, GB"] == ["50", "100"]


def test_ours_is_compared_with_the_best_peer_of_each_number() -> None:
    ours = dict.fromkeys(tables.RATES, 10.0)
    medians = {
        "vllm": dict.fromkeys(tables.RATES, 8.0),
        "infer": ours,
        "llama.cpp": dict.fromkeys(tables.RATES, 20.0),
    }
    rows = {
        row[0]: row[1:]
        for row in rows_of(tables.beside_the_best(result_of(medians=medians), result_of(medians=medians)))
    }
    assert rows["W, tokens/s"] == ["**0.50**", "**0.50**"]
    assert rows["prefill"] == ["**0.80**", "**0.80**"]


def test_replicas_and_ranks_take_the_sides_by_their_names() -> None:
    names = (tables.BATCH, tables.GAP, tables.STREAM, tables.PREFILL, tables.START, tables.MEMORY)
    sides = ("infer", "two replicas", "two ranks", "ray", "ray with two processors")
    medians = {side: dict.fromkeys(names, 10.0 * number) for number, side in enumerate(sides, start=1)}
    result = result_of(medians=medians, turns={side: [{}, {}, {}] for side in sides})
    assert rows_of(tables.replicas(result))[1] == ["16 requests at once, tokens/s", "10", "20 (2.00 times)"]
    assert rows_of(tables.sides(tables.RANKS)(result))[1][1:] == ["10", "30"]
    assert rows_of(tables.sides(tables.RAY)(result))[4][1:] == ["10.0 s", "40.0 s", "50.0 s"]


def test_hits_are_those_of_the_prefix_policy_beside_random_ones() -> None:
    turns = {"prefix": [{"prefix hits": 0.78}], "random": [{"prefix hits": 0.35}]}
    words = tables.routing_hits(result_of(replicas=4, turns=turns))
    assert words == "with 4 of them 78% of the prompt tokens are found instead of 35% at random"


def test_text_side_is_the_median_of_the_rounds_ratios() -> None:
    costs = {"plain": [40e-6, 50e-6, 60e-6], "with tools": [44e-6, 60e-6, 63e-6]}
    text = tables.text_side(result_of(server_cpu_s_per_token=costs)).replace("\n", " ")
    assert "is 50 us without tools and 60 us with them, 1.10 times in the median of three rounds" in text
