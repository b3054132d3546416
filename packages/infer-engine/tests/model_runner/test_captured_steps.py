"""An engine that replays captured steps gives every request what it gives without a captured step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from infer_engine.messages import TokenOutput
from infer_engine.model_runner.graphs.cpu_graph import CPUGraph
from infer_engine.model_runner.inputs.forward_batch import ForwardBatch
from infer_engine.protocol import SamplingParams
from infer_proofs.engine.faults import Fault
from infer_proofs.engine.formula import collect, tokens_of
from infer_proofs.engine.models import ALL_FAMILIES, FAMILIES, ModelEngine, random_prompt, sound_tokens
from infer_proofs.kernels.cpu_kernels import needs_cpu_kernels
from infer_proofs.kernels.pairwise import parametrize_one_in_all_ways

pytestmark = needs_cpu_kernels

LITTLE_MEMORY: dict[str, Any] = {"block_size": 2, "num_kv_blocks": 34, "max_seq_len": 60, "kv_reserve": 0.0}
SWITCHES: dict[str, dict[str, Any]] = {
    "paged": {"block_size": 4, "prefill_chunk_size": 9},
    "preempting": LITTLE_MEMORY,
    "preempting, in chunks of 1": {**LITTLE_MEMORY, "prefill_chunk_size": 1, "use_prefix_caching": False},
    "contiguous": {"kv_cache_backend": "contiguous", "max_batch_size": 3},
    "static": {"batching_mode": "static", "max_batch_size": 4},
    "prefill first": {"scheduler_policy": "prefill_first", "block_size": 4},
    "decodes in turns": {"scheduler_policy": "decode_round_robin", "block_size": 4, "max_num_batched_tokens": 3},
}
SHARING = ("paged", "preempting", "prefill first", "decodes in turns")
MODELS = [*(f"{family} float32" for family in FAMILIES), *(f"{family} bfloat16" for family in ALL_FAMILIES)]
LENGTHS = (3, 20, 9, 20, 1, 14, 6)


def serve(engine: ModelEngine) -> dict[str, list[TokenOutput]]:
    """Return the outputs of requests that arrive a few steps apart: greedy and sampled, some with a shared prompt."""
    outputs: dict[str, list[TokenOutput]] = {}
    for number, length in enumerate(LENGTHS):
        params = SamplingParams(temperature=0.8 * (number % 2), logprobs=2, ignore_eos=True)
        engine.submit(f"{number}", random_prompt(length), max_tokens=10 + 3 * number, params=params, seed=number)
        for _ in range(number % 4):
            collect(engine.step(), outputs)
    for name, of_one in engine.run().items():
        outputs.setdefault(name, []).extend(of_one)
    return outputs


@pytest.mark.covers("configuration/use-cpu-graphs")
@parametrize_one_in_all_ways(whole="gemma3 bfloat16", num_ways=1, model=MODELS, switches=list(SWITCHES))
def test_every_request_gets_the_same_outputs_with_a_captured_step_and_without(
    folder_of: Callable[[str], Path], model: str, switches: str
) -> None:
    family, dtype = model.split()
    capturing, plain = (
        ModelEngine(folder_of(family), dtype=dtype, use_cpu_graphs=uses, **SWITCHES[switches]) for uses in (None, False)
    )
    outputs = serve(capturing)
    sound_tokens(outputs)
    assert outputs == serve(plain)
    if family != "mistral":  # whose layers all slide, so that few blocks are enough
        assert ("preempting" in switches) == (capturing.core.stats.num_preemptions > 0)
    assert (switches in SHARING) == (capturing.core.stats.num_cached_tokens > 0)


def test_a_request_that_reuses_even_its_last_token_overwrites_no_block_of_another(folder: Path) -> None:
    # "behind" has the tokens of "ahead". It loses its memory, and "ahead" meanwhile computes all that it knows.
    refused = Fault(stage="grow", action="refuse", request_id="ahead", step=6, times=1)
    least: dict[str, Any] = {"max_seq_len": 40, "kv_reserve": 0.0}
    engine = ModelEngine(folder, faults=[refused], block_size=1, num_kv_blocks=40, **least)
    engine.submit("below", random_prompt(30), max_tokens=9)
    engine.submit("last", random_prompt(6, seed=1), max_tokens=20)
    outputs: dict[str, list[TokenOutput]] = {}
    for _ in range(3):
        collect(engine.step(), outputs)
    engine.abort("below")
    assert 39 in engine.paged_manager.blocks("last")  # slot -1, if a step does not skip it
    for name in ("ahead", "behind"):
        engine.submit(name, random_prompt(6), max_tokens=9)
    for _ in range(5):
        collect(engine.step(), outputs)
    num_known = 6 + len(tokens_of(outputs["behind"])) - 1  # when the step began
    assert engine.core.stats.num_preemptions == 1
    assert engine.paged_manager.blocks("behind") == engine.paged_manager.blocks("ahead")[:num_known]
    while engine.core.has_work:
        collect(engine.step(), outputs)

    alone = ModelEngine(folder, use_cpu_graphs=False, use_prefix_caching=False)
    assert tokens_of(outputs["ahead"]) == tokens_of(outputs["behind"]) == alone.complete(random_prompt(6), max_tokens=9)
    assert tokens_of(outputs["last"]) == alone.complete(random_prompt(6, seed=1), max_tokens=20)


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[ForwardBatch]:
    """The steps that are replayed, in order, without those of the capture itself."""
    steps: list[ForwardBatch] = []
    replay = CPUGraph.replay

    def note(graph: CPUGraph, inputs: ForwardBatch) -> Tensor:
        steps.append(inputs)
        return replay(graph, inputs)

    monkeypatch.setattr(CPUGraph, "replay", note)
    return steps


def test_every_step_is_replayed(folder_of: Callable[[str], Path], replayed: list[ForwardBatch]) -> None:
    engine = ModelEngine(folder_of("llama"), prefill_chunk_size=4)
    taken = []
    for prompt in ([5, 6], random_prompt(7), None):
        if prompt is not None:
            engine.submit(engine.fresh_id(), prompt)
        for _ in range(3):
            engine.step()
            taken.append([step.seq_lens.tolist() for step in replayed])
            replayed.clear()
    assert taken == [[[2]], [[3]], [[4]], [[5, 4]], [[6, 7]], [[7, 8]], [[9]], [[10]], [[11]]]


@pytest.mark.covers("configuration/use-cpu-graphs")
@pytest.mark.parametrize(
    ("switches", "captures"),
    [
        ({}, True),
        ({"use_cpu_graphs": True}, True),
        ({"use_cpu_graphs": False}, False),
        ({"batch_invariant": True}, True),
    ],
)
def test_a_step_is_captured_where_the_configuration_lets_it(
    folder_of: Callable[[str], Path], replayed: list[ForwardBatch], *, switches: dict[str, Any], captures: bool
) -> None:
    engine = ModelEngine(folder_of("llama"), **switches)
    engine.complete([5, 6], max_tokens=4)
    assert len(replayed) == 4 * captures


def test_a_captured_step_takes_no_block_from_requests(folder_of: Callable[[str], Path]) -> None:
    capturing, plain = (
        ModelEngine(folder_of("gemma3"), use_cpu_graphs=uses, block_size=4, num_kv_blocks=32) for uses in (None, False)
    )
    assert capturing.core.stats.num_free_blocks == plain.core.stats.num_free_blocks == plain.core.stats.num_blocks
    params = SamplingParams(temperature=0, ignore_eos=True, logprobs=3)
    for engine in (capturing, plain):
        engine.submit("whole", random_prompt(60), max_tokens=68, params=params)
    assert capturing.run() == plain.run()


PROMPTS = {"one": random_prompt(5), "two": random_prompt(20), "three": random_prompt(9), "four": random_prompt(13)}


def serve_prompts(engine: ModelEngine) -> dict[str, list[TokenOutput]]:
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, max_tokens=8)
    return engine.run()


@pytest.mark.parametrize("step", [1, 4, 7])
def test_a_request_that_makes_replayed_steps_fail_ends_alone(folder_of: Callable[[str], Path], step: int) -> None:
    expected = sound_tokens(serve_prompts(ModelEngine(folder_of("gemma3"), use_cpu_graphs=False)))
    engine = ModelEngine(
        folder_of("gemma3"),
        faults=[Fault(stage="forward", request_id="two", step=step)],
        speculative_config="none",  # a step is a token
    )
    outputs = serve_prompts(engine)
    assert [name for name, of_one in outputs.items() if of_one[-1].error] == ["two"]
    tokens = {name: tokens_of(of_one) for name, of_one in outputs.items()}
    assert tokens == expected | {"two": expected["two"][:step]}


@pytest.mark.parametrize("step", [0, 3, 6, *(pytest.param(step, marks=pytest.mark.full) for step in (1, 2, 4, 5))])
@pytest.mark.parametrize("error", [RuntimeError, torch.OutOfMemoryError])
def test_a_replay_that_fails_once_changes_no_token(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, step: int, error: type[Exception]
) -> None:
    expected = sound_tokens(serve_prompts(ModelEngine(folder_of("llama"), use_cpu_graphs=False)))
    engine = ModelEngine(folder_of("llama"))
    replay, failing = CPUGraph.replay, iter([False] * step + [True])

    def fail_once(graph: CPUGraph, inputs: ForwardBatch) -> Tensor:
        if next(failing, False):
            raise error("replaying is broken on purpose")
        return replay(graph, inputs)

    monkeypatch.setattr(CPUGraph, "replay", fail_once)
    assert sound_tokens(serve_prompts(engine)) == expected
    assert engine.core.stats.num_failed_passes == 1


def test_replays_that_fail_for_one_sequence_end_its_request_alone(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sound_tokens(serve_prompts(ModelEngine(folder_of("llama"), use_cpu_graphs=False)))
    engine = ModelEngine(folder_of("llama"))
    replay = CPUGraph.replay

    def fail_at_length_23(graph: CPUGraph, inputs: ForwardBatch) -> Tensor:
        logits = replay(graph, inputs)
        if 23 in inputs.seq_lens.tolist():
            raise RuntimeError("a step with a sequence of 23 tokens is broken on purpose")
        return logits

    monkeypatch.setattr(CPUGraph, "replay", fail_at_length_23)
    outputs = serve_prompts(engine)
    assert [name for name, of_one in outputs.items() if of_one[-1].error] == ["two"]
    tokens = {name: tokens_of(of_one) for name, of_one in outputs.items()}
    assert tokens == expected | {"two": expected["two"][:3]}
