"""Whatever arrives and whatever is switched on: a request's tokens and log-probabilities are those it has alone."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_engine.messages import TokenOutput
from infer_engine.protocol import SamplingParams, TokenLogprob
from infer_proofs.engine.formula import collect, tokens_of
from infer_proofs.engine.models import FAMILIES, VOCAB_SIZE, ModelEngine, random_prompt

MAX_LEN = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request, and what happens around it.

    Attributes:
        length: tokens of its prompt.
        variant: which prompt of that length.
        max_tokens: to generate.
        params: how to sample.
        seed: of its draws.
        priority: of it.
        salt: whom it shares with.
        num_steps_after: steps before the next one arrives.
        abort_after: steps from its arrival on after which it is aborted; None: never.
    """

    length: int
    variant: int
    max_tokens: int
    params: SamplingParams
    seed: int
    priority: int
    salt: str | None
    num_steps_after: int
    abort_after: int | None

    @property
    def prompt(self) -> list[int]:
        """Its tokens: those of a variant begin alike."""
        return random_prompt(34, seed=self.variant)[: self.length]


def token_ids() -> st.SearchStrategy[int]:
    return st.integers(0, VOCAB_SIZE - 1)


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        max_tokens=None,
        temperature=draw(st.sampled_from([0.0, 0.0, 0.7, 1.0, 2.5])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.8])),
        top_k=draw(st.sampled_from([None, None, 1, 20])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.05])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, -1.0])),
        logit_bias=draw(st.dictionaries(token_ids(), st.sampled_from([-100.0, -2.0, 3.0]), max_size=2)),
        min_tokens=draw(st.sampled_from([0, 0, 3])),
        stop_token_ids=tuple(draw(st.lists(token_ids(), max_size=2))),
        ignore_eos=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, 0, 3])),
        prompt_logprobs=draw(st.sampled_from([None, None, 0, 3])),
    )


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    length = draw(st.integers(1, 34))
    params = draw(sampling_params())
    return Arrival(
        length=length,
        variant=draw(st.integers(0, 1)),
        max_tokens=draw(st.integers(max(1, params.min_tokens), MAX_LEN - length)),
        params=params,
        seed=draw(st.integers(0, 3)),
        priority=draw(st.integers(-1, 1)),
        salt=draw(st.sampled_from([None, None, "tenant"])),
        num_steps_after=draw(st.integers(0, 5)),
        abort_after=draw(st.sampled_from([None, None, None, 0, 1, 3, 9])),
    )


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = {
        "max_batch_size": draw(st.integers(1, 6)),
        "max_num_batched_tokens": draw(st.sampled_from([3, 10, 40, 500])),
        "max_prefill_chunks_per_step": draw(st.sampled_from([None, 1, 2])),
    }
    mode = draw(st.sampled_from(["static", "contiguous", "paged", "paged", "paged"]))
    is_ahead = draw(st.booleans())
    if mode == "static":
        return config | {"batching_mode": "static", "use_async_scheduling": is_ahead}
    config["scheduler_policy"] = draw(st.sampled_from(["fcfs", "prefill_first", "decode_round_robin", "priority"]))
    if config["scheduler_policy"] != "prefill_first":
        config["use_async_scheduling"] = is_ahead
    config["kv_reserve"] = draw(st.sampled_from([0.0, 0.2]))
    chunk = draw(st.sampled_from(["whole", "default", 1, 4, 9]))
    if chunk == "whole":
        config["use_chunked_prefill"] = False
    elif chunk != "default":
        config["prefill_chunk_size"] = min(chunk, config["max_num_batched_tokens"])
    if mode == "contiguous":
        return config | {"kv_cache_backend": "contiguous"}
    block_size = draw(st.sampled_from([1, 3, 4, 16]))
    most = -(-MAX_LEN // block_size)
    config |= {"block_size": block_size, "num_kv_blocks": draw(st.integers(most, 3 * most))}
    if chunk != "whole":
        config["use_prefix_caching"] = draw(st.booleans())
    return config


class Alone:
    """One family's requests, each computed by an engine that does nothing else, in the plainest way."""

    def __init__(self, folder: Path) -> None:
        """Compute `folder`."""
        self._engine = ModelEngine(folder, batch_invariant=True, use_prefix_caching=False, max_seq_len=MAX_LEN)

    def outputs(self, arrival: Arrival) -> list[TokenOutput]:
        """Return what `arrival` gets alone."""
        request_id = self._engine.fresh_id()
        submit(self._engine, request_id, arrival)
        return self._engine.run()[request_id]


@pytest.fixture(scope="module")
def alone_of(folder_of: Callable[[str], Path]) -> Callable[[str], Alone]:
    """Return a function that gives each family's engine for one request at a time."""
    return cache(lambda family: Alone(folder_of(family)))


def submit(engine: ModelEngine, request_id: str, arrival: Arrival) -> None:
    engine.submit(
        request_id,
        arrival.prompt,
        max_tokens=arrival.max_tokens,
        params=arrival.params,
        seed=arrival.seed,
        priority=arrival.priority,
        cache_salt=arrival.salt,
    )


def play(engine: ModelEngine, script: list[Arrival]) -> dict[str, list[TokenOutput]]:
    """Let the requests arrive and be aborted as the script says, to the end; return their outputs."""
    outputs: dict[str, list[TokenOutput]] = {f"{number}": [] for number in range(len(script))}
    aborts: dict[int, list[str]] = {}
    step = 0

    def run_steps(until: int | None) -> None:
        nonlocal step
        while engine.core.has_work if until is None else step < until:
            assert step < 2000, "a request never ends"
            for request_id in aborts.pop(step, ()):
                engine.abort(request_id)
            if engine.core.has_work:
                collect(engine.step(), outputs)
            step += 1

    for number, arrival in enumerate(script):
        submit(engine, f"{number}", arrival)
        if arrival.abort_after is not None:
            aborts.setdefault(step + arrival.abort_after, []).append(f"{number}")
        run_steps(until=step + arrival.num_steps_after)
    run_steps(until=None)
    return outputs


def logprobs_of(outputs: list[TokenOutput]) -> list[TokenLogprob]:
    return [logprob for output in outputs for logprob in output.logprobs or ()]


@pytest.mark.covers("requests/same-tokens-without-batch-invariant")
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=max(2, settings().max_examples // 10))
@given(config=configs(), script=st.lists(arrivals(), min_size=1, max_size=8))
def test_any_traffic_gives_every_request_what_it_gets_alone(
    folder_of: Callable[[str], Path],
    alone_of: Callable[[str], Alone],
    family: str,
    config: dict[str, Any],
    script: list[Arrival],
) -> None:
    alone = alone_of(family)
    engine = ModelEngine(folder_of(family), batch_invariant=True, max_seq_len=MAX_LEN, **config)
    outputs = play(engine, script)
    for number, arrival in enumerate(script):
        found, expected = outputs[f"{number}"], alone.outputs(arrival)
        if arrival.abort_after is None:
            assert found[-1].finish_reason == expected[-1].finish_reason is not None
        count = len(found)  # an aborted request has as many as were ready
        assert arrival.abort_after is not None or count == len(expected)
        assert tokens_of(found) == tokens_of(expected[:count])
        assert logprobs_of(found) == logprobs_of(expected[:count])
        assert [out.prompt_logprobs for out in found] == [out.prompt_logprobs for out in expected[:count]]
    stats = engine.core.stats
    assert (stats.num_free_blocks, stats.num_running, stats.num_waiting) == (stats.num_blocks, 0, 0)


@pytest.mark.covers("scheduling/deterministic")
def test_a_script_played_twice_gives_the_same_outputs(folder: Path) -> None:
    script = [
        Arrival(
            length=3 + 5 * number,
            variant=number % 2,
            max_tokens=10,
            params=SamplingParams(temperature=1.0, logprobs=2),
            seed=number,
            priority=0,
            salt=None,
            num_steps_after=number % 3,
            abort_after=4 if number == 2 else None,
        )
        for number in range(6)
    ]
    first, second = (
        play(ModelEngine(folder, max_seq_len=MAX_LEN, block_size=2, num_kv_blocks=40, prefill_chunk_size=7), script)
        for _ in range(2)
    )
    assert first == second
