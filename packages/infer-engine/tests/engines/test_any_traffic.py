"""Any requests over any engine: every request ends, with the tokens that it gets alone, and no block is lost."""

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_cache import max_blocks_in_window
from infer_engine.messages import StepResult, TokenOutput
from infer_engine.protocol import FinishReason, SamplingParams
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import (
    FormulaEngine,
    FormulaProposer,
    collect,
    expected_prompt_logprobs,
    expected_tokens,
    tokens_of,
)

MAX_PROMPT, MAX_TOKENS = 14, 10
MAX_SEQ_LEN = MAX_PROMPT + MAX_TOKENS
FAIR = ("fcfs", "prefill_first", "decode_round_robin")


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request of a script: when it comes, what it asks for, and when its client goes away."""

    step: int
    length: int
    max_tokens: int
    kind: int
    priority: int = 0
    cache_salt: str | None = None
    sibling_group: str | None = None
    abort_step: int | None = None
    num_kept: int | None = None
    prompt_logprobs: int | None = None

    @property
    def prompt(self) -> list[int]:
        """Prompts of one kind begin alike."""
        return [self.kind + 1] * (self.length - 1) + [self.length % 3]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """An engine of a script.

    `spare` is what its pools have beyond one request of the longest length; `right`: the share of right drafts.
    """

    config: dict[str, Any]
    block_size: int = 1
    spare: int = 0
    windows: tuple[int, ...] = ()
    chunk: int | None = 4
    batch: int = 4
    num_tokens: int = 8
    kv_reserve: float = 0.0
    chunks_per_step: int | None = None
    beside_decodes: int | None = None
    eos: bool = False
    lag: int | None = None
    right: float | None = None

    def build(self, faults: tuple[dict[str, Any], ...]) -> FormulaEngine:
        """Assemble it."""
        paged = self.config.get("kv_cache_backend", "paged") == "paged"
        chunk = self.chunk if "batching_mode" not in self.config else None

        draw = Random(1)  # noqa: S311 - a test's choices

        def size(window: int | None) -> int:
            needed = max_blocks_in_window(MAX_SEQ_LEN, window=window, max_chunk=chunk, block_size=self.block_size)
            return needed + self.spare if paged else needed * self.batch

        return FormulaEngine(
            num_blocks=size(None),
            block_size=self.block_size,
            limits=SchedulerLimits(
                max_batch_size=self.batch,
                max_num_batched_tokens=self.num_tokens,
                prefill_chunk_size=chunk,
                kv_reserve=self.kv_reserve,
                max_prefill_chunks_per_step=self.chunks_per_step,
                max_prefill_tokens_beside_decodes=self.beside_decodes,
            ),
            windows={window: size(window) for window in self.windows} if paged else {},
            eos_token_ids=frozenset(range(0, 997, 7)) if self.eos else frozenset(),
            faults=FaultPlan([Fault(**fault) for fault in faults]),
            lag=None if self.lag is None else Random(self.lag),  # noqa: S311 - a test's choices
            make_proposer=None if self.right is None else partial(FormulaProposer, self.right, draw),
            **self.config,
        )


@dataclass
class Play:
    """What came of a script."""

    engine: FormulaEngine
    results: list[StepResult] = field(default_factory=list)
    outputs: dict[str, list[TokenOutput]] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Draw an engine."""
    mode = draw(st.sampled_from(["paged"] * 4 + ["contiguous", "static"]))
    config: dict[str, Any] = {"scheduler_policy": draw(st.sampled_from([*FAIR, "priority"]))}
    if mode == "static":
        config = {"batching_mode": "static", "kv_cache_backend": "contiguous", "batch_wait_timeout_s": 0}
    if mode == "contiguous":
        config["kv_cache_backend"] = "contiguous"
    chunk = draw(st.none() | st.integers(1, 7))
    if mode == "paged":
        config["use_prefix_caching"] = chunk is not None and draw(st.sampled_from([True, True, False]))
    if chunk is None and mode != "static":
        config["use_chunked_prefill"] = False
    if config.get("scheduler_policy") != "prefill_first":
        config["use_async_scheduling"] = draw(st.booleans())
    return Setup(
        config=config,
        lag=draw(st.integers(0, 99)) if config.get("use_async_scheduling") else None,
        chunk=chunk,
        block_size=draw(st.sampled_from([1, 1, 2, 3, 4, 6])),
        spare=draw(st.integers(0, 8)),
        windows=tuple(draw(st.lists(st.integers(1, 16), max_size=2, unique=True))),
        batch=draw(st.sampled_from([1, 2, 3, 4, 5, 5])),
        num_tokens=draw(st.integers(1, 24)),
        kv_reserve=draw(st.sampled_from([0.0, 0.0, 0.2, 0.9])),
        chunks_per_step=draw(st.none() | st.integers(1, 3)),
        beside_decodes=draw(st.none() | st.integers(1, 6)),
        eos=draw(st.sampled_from([False, False, True])),
        right=None if config.get("use_async_scheduling") else draw(st.sampled_from([None, 0.0, 0.7, 1.0])),
    )


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        step=st.integers(0, 6) | st.integers(0, 20),
        length=st.integers(1, MAX_PROMPT),
        max_tokens=st.integers(1, MAX_TOKENS) | st.just(MAX_TOKENS),
        kind=st.integers(0, 1),
        priority=st.integers(-1, 1),
        cache_salt=st.sampled_from([None, None, None, "salt"]),
        sibling_group=st.none() | st.just("siblings"),
        abort_step=st.sampled_from([None, None, None, None, 3, 5, 8, 12, 20]),
        num_kept=st.none() | st.integers(0, MAX_TOKENS),
        prompt_logprobs=st.sampled_from([None, None, 0, 2]),
    ),
    min_size=4,
    max_size=10,
)

# Faults of one request each; and faults without a culprit, of which all requests survive one.
OF_ONE = (
    st.fixed_dictionaries(
        {
            "stage": st.sampled_from(["grow", "allocate", "forward", "sample", "execute", "wait"]),
            "request_id": st.sampled_from(["0", "1", "2"]),
            "times": st.sampled_from([None, 1, 2, 5]),
            "step": st.none() | st.none() | st.integers(0, 20),
        }
    )
    | st.fixed_dictionaries(
        {
            "stage": st.sampled_from(["grow"]),
            "action": st.just("refuse"),
            "request_id": st.sampled_from(["0", "1", "2"]),
            "times": st.integers(1, 9),
        }
    )
    | st.fixed_dictionaries(
        {
            "stage": st.just("sample"),
            "action": st.just("nan"),
            "request_id": st.sampled_from(["0", "1", "2"]),
            "step": st.integers(0, 20),
        }
    )
)
OF_NOBODY = st.fixed_dictionaries(
    {
        "stage": st.sampled_from(["schedule", "grow", "allocate", "forward", "sample", "execute", "wait"]),
        "step": st.integers(0, 20),
        "times": st.just(1),
    }
)
FAULTS = st.just(()) | st.lists(OF_ONE, max_size=2).map(tuple) | OF_NOBODY.map(lambda fault: (fault,))


def play(setup: Setup, arrivals: list[Arrival], faults: tuple[dict[str, Any], ...]) -> Play:
    """Let a script happen; every step checks that memory is whole and that no request reads the blocks of another."""
    played = Play(setup.build(faults))
    engine, num_requests = played.engine, len(arrivals)
    # The first arrival of those that run computes a token in each step, and starts over at most twice for each fault.
    work = sum(arrival.length + arrival.max_tokens for arrival in arrivals)
    for step in range(32 + work * (2 + 4 * len(faults) + num_requests)):
        for i, arrival in enumerate(arrivals):
            if arrival.step == step:
                engine.submit(
                    str(i),
                    arrival.prompt,
                    max_tokens=arrival.max_tokens,
                    params=SamplingParams(temperature=0, prompt_logprobs=arrival.prompt_logprobs),
                    priority=arrival.priority,
                    cache_salt=arrival.cache_salt,
                    sibling_group=arrival.sibling_group,
                )
            if arrival.abort_step == step >= arrival.step:
                if arrival.num_kept is None:
                    engine.abort(str(i))
                else:
                    engine.finish(str(i), num_completion_tokens=arrival.num_kept)
                played.aborted.add(str(i))
        if step > 30 and not engine.core.has_work:
            break
        played.results.append(engine.step())
        collect(played.results[-1], played.outputs)
    assert not engine.core.has_work
    assert engine.num_free_blocks == engine.kv_cache_manager.num_blocks
    return played


def served_alone(setup: Setup, arrival: Arrival) -> list[int]:
    """Return the tokens that a request gets if nothing happens to it."""
    tokens = expected_tokens(arrival.prompt, arrival.max_tokens)
    ends = [index for index, token in enumerate(tokens) if setup.eos and token % 7 == 0]
    return tokens[: ends[0] + 1] if ends else tokens


def check_tokens(played: Play, setup: Setup, arrivals: list[Arrival], may_fail: set[str]) -> None:
    """Check that each request has what it gets alone, and an aborted or failed one the beginning of that."""
    for i, arrival in enumerate(arrivals):
        name, expected = str(i), served_alone(setup, arrival)
        out = played.outputs.get(name, [])
        tokens = tokens_of(out)
        assert tokens == expected[: len(tokens)]
        assert [output.num_completion_tokens for output in out if output.token_ids] == list(range(1, len(tokens) + 1))
        ended = [output for output in out if output.finish_reason or output.error]
        assert ended == out[len(out) - len(ended) :]
        assert len(ended) <= 1
        if ended and ended[0].error is None:
            assert tokens == expected
            eos = setup.eos and expected[-1] % 7 == 0
            assert ended[0].finish_reason is (FinishReason.EOS if eos else FinishReason.LENGTH)
        elif ended:
            assert name in may_fail
        else:
            assert name in played.aborted


def check_prompt_logprobs(played: Play, arrivals: list[Arrival]) -> None:
    """Check that a request that asked has its whole prompt's with its first token, and reused no prefix."""
    for i, arrival in enumerate(arrivals):
        out = [output for output in played.outputs.get(str(i), []) if output.token_ids]
        found = [output.prompt_logprobs for output in out]
        if arrival.prompt_logprobs is None or not out:
            assert found == [None] * len(out)
        else:
            assert found == [expected_prompt_logprobs(arrival.prompt, arrival.prompt_logprobs)] + [None] * (
                len(out) - 1
            )
            assert out[0].num_cached_tokens == 0


@given(setup=setups(), arrivals=ARRIVALS, faults=FAULTS)
def test_any_traffic_ends_as_if_each_were_alone_with_failures_only_where_planned(
    setup: Setup, arrivals: list[Arrival], faults: tuple[dict[str, Any], ...]
) -> None:
    arrivals = sorted(arrivals, key=lambda arrival: arrival.step)
    played = play(setup, arrivals, faults)
    check_tokens(played, setup, arrivals, {fault.get("request_id", "") for fault in faults})
    check_prompt_logprobs(played, arrivals)
    if setup.config.get("scheduler_policy", "fcfs") in FAIR:
        first = list(dict.fromkeys(name for result in played.results for name in result.admitted))
        assert first == sorted(first, key=int)


@pytest.mark.covers("scheduling/deterministic")
@given(setup=setups(), arrivals=ARRIVALS, faults=FAULTS)
def test_the_same_script_gives_the_same_steps(
    setup: Setup, arrivals: list[Arrival], faults: tuple[dict[str, Any], ...]
) -> None:
    assert play(setup, arrivals, faults).results == play(setup, arrivals, faults).results
