"""Faults over real models: which request fails, that other tokens do not change, and what is free afterwards."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_cache import StatePool
from infer_engine.messages import TokenOutput
from infer_engine.step_runner import EngineFailedError
from infer_models.config import ModelConfig
from infer_proofs.engine.faults import Fault
from infer_proofs.engine.formula import collect, tokens_of
from infer_proofs.engine.models import FAMILIES, ModelEngine, random_prompt, sound_tokens
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise

NUM_TOKENS = 8
PROMPTS = {"one": random_prompt(5), "two": random_prompt(20), "three": random_prompt(9), "four": random_prompt(33)}
SWITCHES: dict[str, dict[str, Any]] = {
    "paged": {"block_size": 4, "prefill_chunk_size": 8},
    "contiguous": {"kv_cache_backend": "contiguous", "prefill_chunk_size": 8},
    "static": {"batching_mode": "static"},
    "prefill first": {"scheduler_policy": "prefill_first", "block_size": 4},
}


@pytest.fixture(scope="module")
def expected_of(folder_of: Callable[[str], Path]) -> Callable[[str], dict[str, list[int]]]:
    """Return a function that gives what each family generates."""

    @cache
    def expected_of(family: str) -> dict[str, list[int]]:
        engine = ModelEngine(folder_of(family), use_prefix_caching=False)
        return {name: engine.complete(prompt, max_tokens=NUM_TOKENS) for name, prompt in PROMPTS.items()}

    return expected_of


@pytest.fixture
def expected(family: str, expected_of: Callable[[str], dict[str, list[int]]]) -> dict[str, list[int]]:
    """Every prompt's tokens, one by one, where nothing goes wrong."""
    return expected_of(family)


def run(engine: ModelEngine) -> dict[str, list[TokenOutput]]:
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, max_tokens=NUM_TOKENS)
    return engine.run()


def run_again(engine: ModelEngine) -> dict[str, list[TokenOutput]]:
    """Run the same prompts under other ids; return the outputs under their names."""
    ids = {engine.fresh_id(): name for name in PROMPTS}
    for request_id, name in ids.items():
        engine.submit(request_id, PROMPTS[name], max_tokens=NUM_TOKENS)
    return {ids[request_id]: of_one for request_id, of_one in engine.run().items()}


def error_codes(outputs: dict[str, list[TokenOutput]]) -> dict[str, str]:
    return {name: of_one[-1].error.code for name, of_one in outputs.items() if of_one[-1].error}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "forward": ({"stage": "forward"}, "step_failed"),
    "sample": ({"stage": "sample"}, "step_failed"),
    "nan": ({"stage": "sample", "action": "nan"}, "not_finite"),
}
"""Faults by name, each with the code that its request ends with."""


@pytest.mark.covers("scheduling/failing-step")
@parametrize_pairwise(family=list(FAMILIES), switches=list(SWITCHES), fault=list(FAULTS))
def test_a_fault_of_one_request_ends_it_alone(
    folder: Path, expected: dict[str, list[int]], fault: str, switches: str
) -> None:
    where, code = FAULTS[fault]
    engine = ModelEngine(folder, faults=[Fault(**where, request_id="two")], **SWITCHES[switches])
    outputs = run(engine)
    assert error_codes(outputs) == {"two": code}
    assert {name: tokens_of(of_one) for name, of_one in outputs.items()} == expected | {"two": []}


@parametrize_each_value(family=list(FAMILIES), fault=list(FAULTS))
def test_a_request_that_fails_in_its_decodes_keeps_what_it_had(
    folder: Path, expected: dict[str, list[int]], family: str, fault: str
) -> None:
    where, _ = FAULTS[fault]
    faults = [Fault(**where, request_id="three", step=step) for step in range(4, 60)]
    outputs = run(ModelEngine(folder, block_size=4, faults=faults))
    assert error_codes(outputs).keys() == {"three"}
    kept = {name: tokens_of(of_one) for name, of_one in outputs.items()}
    num_kept = 4 - (family == "qwen3_5")  # whose prompt of nine tokens takes two steps: a state is kept after eight
    assert kept == expected | {"three": expected["three"][:num_kept]}


@pytest.mark.covers("scheduling/failing-step")
@pytest.mark.parametrize("is_ahead", [False, True], ids=["in turn", "scheduled ahead"])
def test_states_that_a_failed_step_overwrote_are_computed_anew(
    folder_of: Callable[[str], Path], expected_of: Callable[[str], dict[str, list[int]]], *, is_ahead: bool
) -> None:
    # Four slots: all sequences run, and two of them while each needs two.
    bytes_per_slot = StatePool.bytes_per_slot(ModelConfig.from_folder(folder_of("qwen3_5")).states, dtype=torch.float32)
    engine = ModelEngine(
        folder_of("qwen3_5"),
        faults=[Fault(stage="forward", step=4, times=1)],
        use_async_scheduling=is_ahead,
        speculative_config="none",
        use_prefix_caching=False,
        state_cache_memory=4 * bytes_per_slot,
    )
    most, states = 0, engine.core._kv_cache_manager.states  # noqa: SLF001 - how steps use slots is on no wire
    was_repeatable: list[bool] = []
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, max_tokens=NUM_TOKENS)
    outputs: dict[str, list[TokenOutput]] = {name: [] for name in PROMPTS}
    while engine.core.has_work:
        for output in engine.step().outputs:
            outputs[output.request_id].append(output)
        was_repeatable.append(states.is_repeatable)
        if not states.is_repeatable:
            most = max(most, engine.core.stats.num_running)
        else:
            assert engine.core.stats.num_running <= 2
    assert most == 4
    assert any(was_repeatable)
    assert not was_repeatable[-1]
    assert sound_tokens(outputs) == expected_of("qwen3_5")
    assert engine.core.stats.num_failed_passes == 1
    assert engine.core.stats.num_free_state_slots == engine.core.stats.num_state_slots == 4


@parametrize_pairwise(
    family=list(FAMILIES),
    switches=list(SWITCHES),
    stage=["forward", "sample", "schedule", "allocate"],
    step=[0, 1, 5],
)
def test_a_failure_that_passes_changes_no_token(
    folder: Path, expected: dict[str, list[int]], stage: Any, step: int, switches: str
) -> None:
    engine = ModelEngine(folder, faults=[Fault(stage=stage, step=step, times=1)], **SWITCHES[switches])
    assert sound_tokens(run(engine)) == expected


@pytest.mark.covers("scheduling/goes-on-after-failure")
def test_an_engine_serves_on_after_failures(folder: Path, expected: dict[str, list[int]]) -> None:
    engine = ModelEngine(folder, block_size=4, faults=[Fault(stage="forward", request_id="two", times=4)])
    assert error_codes(run(engine)) == {"two": "step_failed"}
    engine.observer.faults.clear()
    for _ in range(2):  # the second time all prompts are found
        assert sound_tokens(run_again(engine)) == expected


def test_blocks_that_a_failed_request_wrote_are_not_found(folder: Path, expected: dict[str, list[int]]) -> None:
    fault = Fault(stage="sample", action="nan", request_id="poisoned")
    engine = ModelEngine(folder, block_size=4, prefill_chunk_size=8, faults=[fault])
    engine.submit("poisoned", PROMPTS["four"], max_tokens=NUM_TOKENS)
    assert error_codes(engine.run()) == {"poisoned": "not_finite"}
    outputs = run(engine)
    assert outputs["four"][-1].num_cached_tokens == 0
    assert sound_tokens(outputs) == expected


@pytest.mark.parametrize("action", ["raise", "nan"])
def test_siblings_of_a_failed_request_read_nothing_that_it_did_not_write(
    folder: Path, expected: dict[str, list[int]], action: Any
) -> None:
    stage: Any = {"raise": "forward", "nan": "sample"}[action]
    engine = ModelEngine(
        folder, block_size=4, prefill_chunk_size=36, faults=[Fault(stage=stage, action=action, request_id="first")]
    )
    for name in ("first", "second", "third"):
        engine.submit(name, PROMPTS["four"], max_tokens=NUM_TOKENS, sibling_group="g")
    outputs = engine.run()
    assert error_codes(outputs).keys() == {"first"}
    assert tokens_of(outputs["second"]) == tokens_of(outputs["third"]) == expected["four"]


@parametrize_each_value(family=list(FAMILIES), switches=list(SWITCHES))
def test_a_probe_touches_no_request(folder: Path, expected: dict[str, list[int]], switches: str) -> None:
    engine = ModelEngine(folder, **SWITCHES[switches])
    for name, prompt in PROMPTS.items():
        engine.submit(name, prompt, max_tokens=NUM_TOKENS)
    outputs: dict[str, list[TokenOutput]] = {}
    while engine.core.has_work:
        engine.observer.runner.probe()
        collect(engine.step(), outputs)
    assert sound_tokens(outputs) == expected


def test_a_probe_writes_nothing_into_the_cache(folder: Path) -> None:
    clean, probed = (ModelEngine(folder, block_size=1, num_kv_blocks=24, max_seq_len=20) for _ in range(2))
    for engine in (clean, probed):
        engine.submit("first", random_prompt(10), max_tokens=5)
        engine.step()
        engine.step()
    for _ in range(3):
        probed.observer.runner.probe()
    clean.run()
    probed.run()
    assert clean.logits.keys() == probed.logits.keys()
    assert all(row.equal(probed.logits[key]) for key, row in clean.logits.items())


def test_an_engine_whose_probe_fails_cannot_go_on(folder: Path) -> None:
    engine = ModelEngine(folder, faults=[Fault(stage="forward")])
    engine.submit("any", random_prompt(4))
    with pytest.raises(EngineFailedError, match="not even a step without a request succeeds"):
        engine.step()
