"""Random traffic with drafts, right and wrong: whatever meets in a step, answers are those without, to the bit.

Drawn for each seed: block size, chunks, policy, prefix caching, captured steps, steps ahead, memory for a few requests,
failing steps; requests that share beginnings, their parameters, and tokens at which they stop, often among drafts.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from infer_engine.protocol import SamplingParams
from infer_engine.speculation.proposals import Proposal
from infer_proofs.engine.faults import Fault
from infer_proofs.engine.formula import collect, tokens_of
from infer_proofs.engine.models import ModelEngine, Twin

if TYPE_CHECKING:
    from infer_engine.messages import TokenOutput

LONGEST, VOCABULARY = 128, 300
SEEDS = [
    0,
    *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 40)),
    *(pytest.param(seed, marks=(pytest.mark.full, pytest.mark.exhaustive)) for seed in range(40, 400)),
]
"""Of each family. All together compare about a million tokens."""
FAMILIES = ("llama", "gemma3", "lfm2", "qwen3_5", "granitemoehybrid")


class Asked(NamedTuple):
    """A request."""

    name: str
    prompt: list[int]
    max_tokens: int
    seed: int
    params: dict[str, Any]


class Foretold:
    """Drafts the known answers, of which a share is right."""

    def __init__(self, answers: Sequence[tuple[list[int], list[int]]], right: float, draw: Random) -> None:
        self._answers = answers
        self._right = right
        self._draw = draw

    def propose(self, token_ids: Sequence[int], limit: int) -> Proposal:
        for prompt, answer in self._answers:
            if list(token_ids[: len(prompt)]) == prompt:
                rest = answer[len(token_ids) - len(prompt) :][:limit]
                return Proposal([each if self._draw.random() < self._right else self._wrong() for each in rest])
        return Proposal([])

    def _wrong(self) -> int:
        return self._draw.randrange(VOCABULARY)


def draw_config(draw: Random) -> dict[str, Any]:
    size = draw.choice([4, 8, 16])
    config: dict[str, Any] = {
        "block_size": size,
        "prefill_chunk_size": draw.choice([4, 8, 32]),
        "max_batch_size": draw.choice([2, 4, 8]),
        "max_seq_len": LONGEST,
        "use_prefix_caching": draw.random() < 0.8,
        "use_cpu_graphs": draw.choice([None, False]),
        "scheduler_policy": draw.choice(["fcfs", "fcfs", "priority", "prefill_first", "decode_round_robin"]),
    }
    if config["scheduler_policy"] != "prefill_first":
        config["use_async_scheduling"] = draw.choice([None, None, True])
    if draw.random() < 0.4:
        config |= {"num_kv_blocks": draw.choice([1, 2]) * LONGEST // size + 3, "kv_reserve": 0.0}
    return config


def draw_requests(draw: Random) -> list[Asked]:
    beginning = draw.choices(range(VOCABULARY), k=40)
    asked = []
    for number in range(draw.randint(2, 9)):
        prompt = beginning[: draw.randrange(40)] + draw.choices(range(VOCABULARY), k=draw.randint(1, 12))
        params = {
            "temperature": draw.choice([0, 0, 0.3, 0.8, 1.2]),
            "top_k": draw.choice([0, 20]),
            "frequency_penalty": draw.choice([0, 0, 0.7]),
            "logprobs": draw.choice([None, 1]),
            "ignore_eos": True,
        }
        most = draw.randint(5, LONGEST - len(prompt) - 2)
        asked.append(Asked(f"r{number}", prompt, most, draw.randrange(2**31), params))
    return asked


def answers_of(engine: ModelEngine, asked: Sequence[Asked], draw: Random) -> dict[str, Any]:
    """Return all that clients see, of requests that come while others run; nothing may be left of them."""
    outputs: dict[str, list[TokenOutput]] = {}
    for each in asked:
        params = SamplingParams(**each.params)
        engine.submit(each.name, each.prompt, max_tokens=each.max_tokens, params=params, seed=each.seed)
        for _ in range(draw.choice([0, draw.randrange(12)])):
            collect(engine.step(), outputs)
    for name, of_one in engine.run().items():
        outputs.setdefault(name, []).extend(of_one)
    stats = engine.core.stats
    assert (stats.num_leaked_blocks, stats.num_free_state_slots) == (0, stats.num_state_slots)
    return {
        name: (
            tokens_of(of_one),
            [logprob for output in of_one for logprob in output.logprobs or []],
            of_one[-1].finish_reason,
            of_one[-1].error,
        )
        for name, of_one in outputs.items()
    }


@pytest.mark.covers("scheduling/no-draft-changes-a-token")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_without_drafts(family: str, seed: int, twin_of: Callable[[str], Twin]) -> None:
    draw = Random(f"{family} {seed}")  # noqa: S311 - a test's choices
    config, asked = draw_config(draw), draw_requests(draw)
    failing = draw.sample(range(3, 60), draw.choice([0, 0, 3]))
    arrivals = draw.randrange(2**31)

    def answers(speculation: str | None, foretold: Foretold | None = None) -> tuple[dict[str, Any], ModelEngine]:
        faults = [Fault(stage="forward", step=step, times=1) for step in failing]
        engine = ModelEngine(twin_of(family).folder, speculative_config=speculation, faults=faults, **config)
        if foretold is not None:
            engine.core._speculator._make_proposer = lambda _: foretold  # type: ignore[union-attr]  # noqa: SLF001 - drafts that a test knows to be right or wrong
        return answers_of(engine, asked, Random(arrivals)), engine  # noqa: S311 - as above

    known = [(each.prompt, answers("none")[0][each.name][0]) for each in asked]
    for each, (_, tokens) in zip(asked, known, strict=True):
        if draw.random() < 0.5:
            each.params["stop_token_ids"] = (draw.choice(tokens),)
    plain, _ = answers("none")
    foretold = Foretold(known, draw.choice([0.0, 0.5, 0.8, 1.0]), draw)
    drafted, engine = answers(f'{{"num_speculative_tokens": {draw.randint(1, 16)}}}', foretold)
    assert drafted == plain
    assert answers(None)[0] == plain
    assert seed > 2 or engine.core.stats.num_draft_tokens > 0
