"""Speculative decoding: what is drafted, which requests get drafts, and that no token changes."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine import LLM
from infer_engine.messages import TokenOutput
from infer_engine.outputs import SampledTokens
from infer_engine.protocol import EngineConfig, SamplingParams, StructuredOutputs
from infer_engine.protocol.config.speculation import Speculation
from infer_engine.request import Request
from infer_engine.scheduling import Schedule, SchedulerLimits
from infer_engine.speculation.ngram import NgramProposer
from infer_engine.step_runner import ComputedPass, StepRunner
from infer_engine.testing.formula import FormulaEngine, FormulaProposer, expected_tokens, tokens_of
from infer_engine.testing.models import ALL_FAMILIES, ModelEngine, Twin, random_prompt, sound_tokens
from infer_kernels.checks.pairwise import parametrize_each_value

NGRAM = '{"method": "ngram", "prompt_lookup_min": 1}'


@pytest.mark.parametrize(
    ("token_ids", "limit", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2, 3], 4, [4, 9, 1, 2]),
        ([1, 2, 3, 4, 9, 1, 2, 3], 1, [4]),
        ([7, 2, 3, 4, 9, 1, 2, 3], 4, [4, 9, 1, 2]),  # two tokens are enough
        ([1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3], 1, [6]),  # the latest place
        ([2, 3, 5, 1, 2, 3, 6, 4, 2, 3], 1, [6]),
        ([1, 2, 3, 4], 4, []),
        ([5, 5, 5], 4, [5]),
        ([1], 4, []),
        ([1, 2, 1, 2], 0, []),
    ],
)
def test_a_sequence_goes_on_as_it_did_where_its_last_tokens_came_before(
    token_ids: list[int], limit: int, expected: list[int]
) -> None:
    assert NgramProposer().propose(token_ids, limit) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.integers(1, 9), max_size=9))
def test_a_sequence_that_grows_is_drafted_as_a_new_one(token_ids: list[int], steps: list[int]) -> None:
    proposer, length = NgramProposer(shortest=1, longest=4), 1
    for step in steps:
        assert proposer.propose(token_ids[:length], 3) == NgramProposer(shortest=1, longest=4).propose(
            token_ids[:length], 3
        )
        length = min(length + step, len(token_ids))


def test_a_long_prompt_is_taken_into_account_step_by_step() -> None:
    proposer, prompt = NgramProposer(), [*range(5_000), 4_000, 4_001, 4_002]
    found = [proposer.propose(prompt, 2) for _ in range(6)]
    assert found == [[]] * 3 + [[4_003, 4_004]] * 3


class Watched:
    """Drafts as another one, and notes what was asked for."""

    def __init__(self, inner: Any, asked: list[tuple[int, int]]) -> None:
        self._inner = inner
        self._asked = asked

    def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
        self._asked.append((len(token_ids), limit))
        found: list[int] = self._inner.propose(token_ids, limit)
        return found


def engine(right: float, asked: list[tuple[int, int]] | None = None, **how: Any) -> FormulaEngine:
    draw = Random(3)  # noqa: S311 - a test's choices
    limits = SchedulerLimits(max_batch_size=how.pop("batch", 16), max_num_batched_tokens=64, prefill_chunk_size=8)
    noted: list[tuple[int, int]] = [] if asked is None else asked
    return FormulaEngine(
        num_blocks=how.pop("num_blocks", 200),
        block_size=how.pop("block_size", 8),
        limits=limits,
        make_proposer=lambda: Watched(FormulaProposer(right, draw), noted),
        **how,
    )


def run(served: FormulaEngine, lengths: dict[str, int], **params: Any) -> dict[str, list[TokenOutput]]:
    for name, max_tokens in lengths.items():
        served.submit(name, [1, 2, 3], max_tokens=max_tokens, params=SamplingParams(temperature=0, **params))
    return served.run()


class NotFinite:
    """A runner whose logits are not finite behind the first row of a step."""

    def __init__(self, inner: StepRunner) -> None:
        self.inner, self.num_steps = inner, 0

    def forward(self, schedule: Schedule) -> ComputedPass:
        return self.inner.forward(schedule)

    def sample(self, computed: ComputedPass, requests: list[Request]) -> SampledTokens:
        logits = computed.logits()
        for row in range(1, len(requests)):
            logits[row] = math.nan
            self.num_steps += row == 1
        return self.inner.sample(computed, requests)

    def probe(self) -> None:
        self.inner.probe()


def test_a_draft_whose_logits_are_not_finite_is_rejected_and_fails_nobody() -> None:
    served = engine(1.0)
    executor = served.core._executor  # noqa: SLF001 - no fault of a request's own makes its drafts alone fail
    executor._runner = runner = NotFinite(executor._runner)  # noqa: SLF001 - as above
    outputs = run(served, {"a": 40})["a"]
    assert tokens_of(outputs) == expected_tokens([1, 2, 3], 40)
    assert outputs[-1].error is None
    assert runner.num_steps > 0
    assert served.core.stats.num_accepted_tokens == 0


# vllm-project/vllm#42533: drafts behind the last token; ohdearquant/lattice#243: a first draft that nobody verified
@pytest.mark.covers("scheduling/no-draft-changes-a-token")
def test_right_drafts_take_fewer_steps_and_change_no_token() -> None:
    asked: list[tuple[int, int]] = []
    served = engine(1.0, asked)
    assert tokens_of(run(served, {"a": 40})["a"]) == expected_tokens([1, 2, 3], 40)
    stats = served.core.stats
    assert stats.num_steps < 20
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 20
    assert stats.num_drafts <= stats.num_draft_tokens
    assert all(length + limit < 3 + 40 for length, limit in asked)  # no draft behind the last token


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
def test_blocks_that_drafts_fill_are_cached_as_others_are(right: float) -> None:
    served = engine(right, use_prefix_caching=True, block_size=4)
    tokens = [1, 2, 3, *tokens_of(run(served, {"a": 40})["a"])]
    assert served.num_reused_tokens(tokens) == 40


def test_a_request_whose_drafts_are_wrong_gets_few_of_them() -> None:
    served = engine(0.0, block_size=64)
    assert tokens_of(run(served, {"a": 200})["a"]) == expected_tokens([1, 2, 3], 200)
    stats = served.core.stats
    assert stats.num_accepted_tokens == 0
    assert 1 <= stats.num_drafts <= 6 + 200 / 32
    assert stats.num_steps >= 200


@pytest.mark.parametrize(("num_requests", "most"), [(1, 4), (3, 3), (5, 2), (7, 2), (8, 0), (12, 0)])
def test_large_steps_get_fewer_drafts_or_none(num_requests: int, most: int) -> None:
    asked: list[tuple[int, int]] = []
    served = engine(1.0, asked)
    outputs = run(served, dict.fromkeys(map(str, range(num_requests)), 30))
    assert all(tokens_of(each) == expected_tokens([1, 2, 3], 30) for each in outputs.values())
    assert max((limit for _, limit in asked), default=0) == most


def test_a_step_has_no_more_rows_than_requests_may_run() -> None:
    served = engine(1.0, batch=2)
    run(served, {"a": 30})
    assert served.core.stats.num_draft_tokens == served.core.stats.num_drafts > 0
    alone = engine(1.0, batch=1)
    run(alone, {"a": 30})
    assert alone.core.stats.num_drafts == 0


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"logprobs": 0},
        {"logit_bias": {5: 1.0}},
        {"min_tokens": 4},
    ],
)  # vllm-project/vllm#47616: log-probabilities behind a stop string
def test_requests_whose_rows_need_more_than_a_draw_get_no_drafts(params: dict[str, Any]) -> None:
    served = engine(1.0)
    run(served, {"a": 20}, **params)
    assert served.core.stats.num_drafts == 0


PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "drawn": SamplingParams(temperature=0.8, top_k=5),
    "nearly greedy": SamplingParams(temperature=0.05),
}


@pytest.mark.covers("scheduling/no-draft-changes-a-token")
@parametrize_each_value(family=ALL_FAMILIES, params=list(PARAMS), graphs=[None, False], right=[0.0, 0.6, 1.0])
def test_tokens_of_models_are_those_without_drafts(
    family: str, params: str, *, graphs: bool | None, right: float, twin_of: Callable[[str], Twin]
) -> None:
    folder = twin_of(family).folder
    config: dict[str, Any] = {"use_cpu_graphs": graphs, "block_size": 16, "prefill_chunk_size": 8, "max_batch_size": 8}
    prompts = {"a": random_prompt(9), "b": random_prompt(3) * 4, "c": random_prompt(17)}

    def answers(served: ModelEngine) -> dict[str, list[int]]:
        for seed, (name, prompt) in enumerate(prompts.items()):
            served.submit(name, prompt, max_tokens=20 + 9 * seed, params=PARAMS[params], seed=seed)
        return sound_tokens(served.run())

    plain = answers(ModelEngine(folder, **config))
    draw = Random(5)  # noqa: S311 - a test's choices

    class Told:
        """Drafts what the answer is, of which a share is right."""

        def propose(self, token_ids: Sequence[int], limit: int) -> list[int]:
            name = next(each for each, prompt in prompts.items() if list(token_ids[: len(prompt)]) == prompt)
            start = len(token_ids) - len(prompts[name])
            return [t if draw.random() < right else 5 for t in plain[name][start : start + limit]]

    drafting = ModelEngine(folder, speculative_config=NGRAM, **config)
    speculator = drafting.core._speculator  # noqa: SLF001 - drafts that a test knows to be right or wrong
    assert speculator is not None
    speculator._make_proposer = Told  # noqa: SLF001 - as above
    assert answers(drafting) == plain
    has_states = drafting.core.stats.num_state_slots > 0
    assert (drafting.core.stats.num_drafts > 0) is not has_states
    assert right < 1 or has_states or drafting.core.stats.num_accepted_tokens > 20
    assert answers(ModelEngine(folder, speculative_config=NGRAM, **config)) == plain


# vllm-project/vllm#40875, #36138, #10442: drafts were not held to grammars, nor to the arguments of calls
def test_requests_with_a_grammar_are_held_to_it_and_get_no_drafts() -> None:
    llm = LLM("infer-demo", kv_cache_memory=2**26, max_batch_size=16, use_cpu_graphs=False, speculative_config=NGRAM)
    params = SamplingParams(temperature=0, max_tokens=40, structured_outputs=StructuredOutputs(regex="(ab){10}"))
    [completion] = llm.generate(["abababab"], params, use_tqdm=False)
    assert completion.text == "ab" * 10
    assert llm.stats.num_drafts == 0


# vllm-project/vllm#47616: token ids behind a stop string that ended within accepted drafts
def test_over_the_library_texts_and_stops_are_the_same() -> None:
    params = [
        SamplingParams(temperature=0, max_tokens=60),
        SamplingParams(temperature=1, seed=4, max_tokens=60, n=2),
        *(
            SamplingParams(temperature=0, max_tokens=60, stop=(stop,))
            for stop in ("e ", "EO", "O: R", "o be", "t", ":")
        ),
    ]
    make = partial(LLM, "infer-demo", kv_cache_memory=2**26, max_batch_size=16, use_cpu_graphs=False)
    prompts = ["ROMEO: ROMEO: ROMEO:", "To be, or not", "First Citizen:\nWe are"]
    plain, drafting = make(), make(speculative_config=NGRAM)
    for each in params:
        expected = [(c.text, c.token_ids, c.finish_reason) for c in plain.generate(prompts, each, use_tqdm=False)]
        assert [
            (c.text, c.token_ids, c.finish_reason) for c in drafting.generate(prompts, each, use_tqdm=False)
        ] == expected
    assert drafting.stats.num_accepted_tokens > 0


@pytest.mark.covers("configuration/speculative-config")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{}", Speculation()),
        ('{"method": "ngram", "num_speculative_tokens": 2}', Speculation(num_tokens=2)),
        ('{"model": "[ngram]", "prompt_lookup_max": 5, "prompt_lookup_min": 4}', Speculation(shortest=4, longest=5)),
        ('{"method": "ngram", "prompt_lookup_max": 1}', Speculation(shortest=1, longest=1)),
    ],
)
def test_a_configuration_is_read_as_vllms(value: str, expected: Speculation) -> None:
    assert EngineConfig(speculative_config=value).speculation == expected


@pytest.mark.parametrize(
    "value",
    [
        *("ngram", "[]", "3", '{"method": "eagle"}', '{"method": "ngram", "num_speculative_tokens": 0}'),
        *('{"num_speculative_tokens": 17}', '{"num_speculative_tokens": true}', '{"num_speculative_tokens": "4"}'),
        *('{"prompt_lookup_min": 4}', '{"prompt_lookup_max": 0}', '{"draft_model": "x"}', '{"model": "a/b"}', "{"),
    ],
)
def test_what_there_is_not_is_refused_by_name(value: str) -> None:
    with pytest.raises(ValueError, match=r"`speculative_config` is .*; it"):
        EngineConfig(speculative_config=value)
