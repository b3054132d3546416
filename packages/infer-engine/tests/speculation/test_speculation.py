"""Speculative decoding: what is drafted, which requests get drafts, and that no token changes."""

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from infer_engine.core.engine_core import EngineCore
from infer_engine.messages import TokenOutput
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_engine.protocol.config.speculation import Speculation
from infer_engine.request import StepRow
from infer_engine.scheduling import Schedule, SchedulerLimits
from infer_engine.speculation.drafts import JoinedTokens
from infer_engine.speculation.proposals import Proposal
from infer_engine.step_runner import ComputedPass, SampledTokens, StepRunner
from infer_proofs.engine.formula import FormulaEngine, FormulaProposer, expected_tokens, tokens_of

NGRAM = '{"method": "ngram", "prompt_lookup_min": 1}'


class Watched:
    """Drafts as another one, and notes what was asked for."""

    def __init__(self, inner: Any, asked: list[tuple[int, int]]) -> None:
        self._inner = inner
        self._asked = asked

    def propose(self, token_ids: Sequence[int], limit: int) -> Proposal:
        self._asked.append((len(token_ids), limit))
        found: Proposal = self._inner.propose(token_ids, limit)
        return found


def engine(right: float, asked: list[tuple[int, int]] | None = None, **how: Any) -> FormulaEngine:
    draw = Random(3)  # noqa: S311 - a test's choices
    limits = SchedulerLimits(
        max_batch_size=how.pop("batch", 16),
        max_num_batched_tokens=64,
        prefill_chunk_size=8,
        max_draft_rows=how.pop("draft_rows", 16),
    )
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


def test_drafts_after_known_tokens_are_read_like_one_list_although_the_known_ones_grow() -> None:
    known, drafts = [1, 2, 3], [4, 5]
    joined, alike = JoinedTokens(known, drafts), [1, 2, 3, 4, 5]
    known.append(9)
    bounds = (None, *range(-6, 7))
    assert [joined[first:end] for first in bounds for end in bounds] == [alike[i:j] for i in bounds for j in bounds]
    assert [joined[index] for index in range(-5, 5)] == [alike[index] for index in range(-5, 5)]
    assert (list(joined), len(joined)) == (alike, 5)


class NotFinite:
    """A runner whose logits are not finite behind the first row of a step."""

    def __init__(self, inner: StepRunner) -> None:
        self.inner, self.num_steps = inner, 0

    def forward(self, schedule: Schedule) -> ComputedPass:
        return self.inner.forward(schedule)

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        logits = computed.logits()
        for row in range(1, len(rows)):
            logits[row] = math.nan
            self.num_steps += row == 1
        return self.inner.sample(computed, rows)

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


@pytest.mark.parametrize("length", range(6, 30))
@pytest.mark.parametrize("ends_by", ["max_tokens", "stop_token_ids", "eos"])
def test_an_answer_ends_at_every_offset_among_right_drafts(ends_by: str, length: int) -> None:
    answer = expected_tokens([1, 2, 3], 40)
    last = answer[length - 1]
    expected = answer[: answer.index(last) + 1] if ends_by != "max_tokens" else answer[:length]
    served = engine(1.0, eos_token_ids=frozenset({last} if ends_by == "eos" else ()))
    params = SamplingParams(temperature=0, stop_token_ids=(last,) if ends_by == "stop_token_ids" else ())
    served.submit("a", [1, 2, 3], max_tokens=length if ends_by == "max_tokens" else 40, params=params)
    outputs = served.run()["a"]
    assert tokens_of(outputs) == expected
    assert outputs[-1].finish_reason == {"max_tokens": "length", "stop_token_ids": "stop", "eos": "eos"}[ends_by]
    assert served.core.stats.num_accepted_tokens > 0 or len(expected) < 4


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


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_steps_are_scheduled_ahead_where_none_gets_drafts(right: float, monkeypatch: pytest.MonkeyPatch) -> None:
    served = engine(right, block_size=64, use_async_scheduling=True)
    num_in_turn = 0
    compute = EngineCore._run_in_turn  # noqa: SLF001 - how a step was scheduled is on no wire

    def compute_in_turn(*arguments: Any) -> None:
        nonlocal num_in_turn
        num_in_turn += 1
        compute(*arguments)

    monkeypatch.setattr(EngineCore, "_run_in_turn", compute_in_turn)
    outputs = run(served, {"a": 200, "b": 9})
    assert tokens_of(outputs["a"]) == expected_tokens([1, 2, 3], 200)
    assert served.core.stats.num_drafts > 0
    num_steps = served.core.stats.num_steps
    assert (num_in_turn > 0.8 * num_steps) if right else (0 < num_in_turn < 0.3 * num_steps)


@pytest.mark.parametrize(("num_requests", "most"), [(1, 4), (3, 3), (5, 2), (7, 2), (8, 0), (12, 0)])
def test_large_steps_get_fewer_drafts_or_none(num_requests: int, most: int) -> None:
    asked: list[tuple[int, int]] = []
    served = engine(1.0, asked)
    outputs = run(served, dict.fromkeys(map(str, range(num_requests)), 30))
    assert all(tokens_of(each) == expected_tokens([1, 2, 3], 30) for each in outputs.values())
    assert max((limit for length, limit in asked if length < 12), default=0) == most  # while all of them run


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_step_has_no_more_rows_of_drafts_than_it_may(most: int) -> None:
    served = engine(1.0, batch=1, draft_rows=most)
    run(served, {"a": 30})
    stats = served.core.stats
    assert (stats.num_drafts > 0) is (most > 0)
    accepted = stats.num_accepted_by_position
    assert sum(accepted) == stats.num_accepted_tokens == stats.num_draft_tokens
    assert [count > 0 for count in accepted] == [place < most for place in range(len(accepted))]


def test_drafts_go_on_in_the_next_block_also_where_memory_is_scarce() -> None:
    asked: list[tuple[int, int]] = []
    served = engine(1.0, asked, block_size=4)
    run(served, {"a": 40})
    assert {limit for length, limit in asked if length < 38} == {4}
    assert served.core.stats.num_accepted_tokens == served.core.stats.num_draft_tokens
    small = engine(1.0, block_size=4, num_blocks=12)
    outputs = run(small, {"a": 40, "b": 40})
    assert all(tokens_of(each) == expected_tokens([1, 2, 3], 40) for each in outputs.values())
    assert small.core.stats.num_drafts > 0


def test_drafts_take_no_block_that_a_running_request_may_need_next() -> None:
    served = engine(0.0, block_size=4, num_blocks=3)
    served.submit("a", [1, 2, 3], max_tokens=9)
    served.step()
    scheduler = served.core._scheduler  # noqa: SLF001 - what is asked of it depends on luck
    [request] = scheduler.requests()
    assert [scheduler.extend_for_drafts(request, size, Schedule()) for size in (4, 8, 12)] == [4, 8, 8]
    assert served.num_free_blocks == 1


def test_a_request_says_how_many_of_its_drafts_it_took() -> None:
    served = engine(1.0)
    outputs = run(served, {"a": 30})["a"]
    drafts, stats = outputs[-1].drafts, served.core.stats
    assert drafts is not None
    assert (drafts.num_drafted, drafts.num_accepted) == (stats.num_draft_tokens, stats.num_accepted_tokens)
    assert drafts.num_predicted == 0
    assert outputs[0].drafts is None
    served.submit("b", [1, 2, 3], max_tokens=30)
    for _ in range(4):
        served.step()
    [shown] = served.inspect().sequences
    assert 0 < shown.drafts.num_accepted <= shown.num_completion_tokens


@pytest.mark.covers("configuration/speculative-config")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{}", Speculation()),
        ("none", None),
        ('{"method": "suffix", "num_speculative_tokens": 3}', Speculation(num_tokens=3)),
        ('{"method": "suffix", "suffix_decoding_max_cached_requests": 0}', Speculation(uses_earlier_answers=False)),
        ('{"method": "ngram", "num_speculative_tokens": 2}', Speculation(method="ngram", num_tokens=2)),
        (
            '{"model": "[ngram]", "prompt_lookup_max": 5, "prompt_lookup_min": 4}',
            Speculation(method="ngram", num_tokens=4, shortest=4, longest=5),
        ),
        (
            '{"method": "ngram", "prompt_lookup_max": 1}',
            Speculation(method="ngram", num_tokens=4, shortest=1, longest=1),
        ),
        ('{"model": "a/b"}', Speculation(method="draft_model", num_tokens=4, model="a/b")),
        (
            '{"method": "draft_model", "model": "x", "num_speculative_tokens": 2}',
            Speculation(method="draft_model", num_tokens=2, model="x"),
        ),
        ('{"prompt_lookup_max": 4}', Speculation(method="ngram", num_tokens=4, longest=4)),
        ('{"method": null, "num_speculative_tokens": null}', Speculation()),
        ('{"method": "suffix", "num_speculative_tokens": 32}', Speculation(num_tokens=16)),
        (
            '{"method": "ngram", "num_speculative_tokens": 99, "prompt_lookup_max": 40, "prompt_lookup_min": 20}',
            Speculation(method="ngram", num_tokens=16, shortest=16, longest=16),
        ),
    ],
)
def test_a_configuration_is_read_as_vllms(value: str, expected: Speculation | None) -> None:
    config = EngineConfig(speculative_config=value)
    assert config.speculation == expected
    assert config.default_speculation is None


@pytest.mark.parametrize(
    "fields",
    [
        {"draft_tensor_parallel_size": 1, "quantization": None, "revision": None, "max_model_len": 2048},
        {"suffix_decoding_max_tree_depth": 24, "suffix_decoding_max_spec_factor": 1.0},
        {"suffix_decoding_min_token_prob": 0.1, "enforce_eager": False, "disable_by_batch_size": 64},
        {"rejection_sample_method": "strict", "acceptance_method": "rejection_sampler"},
        {"speculative_token_tree": "[(0,), (0, 0)]", "disable_padded_drafter_batch": True},
    ],
)
@pytest.mark.parametrize("method", ["suffix", "ngram", "draft_model", "mtp"])
def test_fields_that_change_no_token_are_passed_over(method: str, fields: dict[str, Any]) -> None:
    model = {"model": "x"} if method == "draft_model" else {}
    base = {"method": method, "num_speculative_tokens": 3} | model
    expected = EngineConfig(speculative_config=json.dumps(base)).speculation
    assert EngineConfig(speculative_config=json.dumps(base | fields)).speculation == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("draft_tensor_parallel_size", 2),
        ("draft_tensor_parallel_size", True),
        ("quantization", "fp8"),
        ("revision", "main"),
        ("rejection_sample_method", "synthetic"),
        ("acceptance_method", "typical_acceptance_sampler"),
        ("acceptance_method", 5),
        ("max_model_len", "2k"),
        ("nothing", 1),
    ],
)
def test_a_field_that_would_change_something_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"without `{field}` "):
        EngineConfig(speculative_config=json.dumps({"model": "x", field: value}))


@pytest.mark.parametrize(
    ("values", "is_on"),
    [
        ({}, True),
        ({"speculative_config": "none"}, False),
        ({"use_async_scheduling": True}, False),
        ({"batching_mode": "static"}, False),
        ({"scheduler_policy": "prefill_first"}, True),
        ({"use_prefix_caching": False}, True),
    ],
)
def test_drafts_are_made_by_default_where_they_cost_nothing(values: dict[str, Any], *, is_on: bool) -> None:
    assert (EngineConfig(**values).default_speculation is not None) is is_on


@pytest.mark.parametrize(
    "value",
    [
        *("ngram", "[]", "3", '{"method": "eagle"}', '{"method": "ngram", "num_speculative_tokens": 0}'),
        *('{"num_speculative_tokens": -1}', '{"num_speculative_tokens": true}', '{"num_speculative_tokens": "4"}'),
        *('{"method": "suffix", "prompt_lookup_max": 3}', '{"suffix_decoding_max_cached_requests": -1}'),
        *('{"method": "draft_model"}', '{"method": "draft_model", "model": " "}', '{"method": "ngram", "model": "x"}'),
        *('{"model": "x", "prompt_lookup_max": 3}', '{"suffix_decoding_max_spec_factor": "2"}', '{"method": 3}'),
        *('{"prompt_lookup_min": 4}', '{"prompt_lookup_max": 0}', '{"draft_model": "x"}', '{"model": 3}', "{"),
    ],
)
def test_what_there_is_not_is_refused_by_name(value: str) -> None:
    with pytest.raises(ValueError, match=r"`speculative_config` is .*; it"):
        EngineConfig(speculative_config=value)
