"""Parity: configurations cover all pairs, tiny models show mistakes, processes may die, and verdicts are right."""

import itertools
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_bench.gpu import parity
from infer_bench.gpu.parity import ANSWER_TOKENS, collect_records, judge, run_python
from infer_bench.gpu.parity_checks import (
    ORACLE,
    PREEMPTING,
    Answer,
    CheckedModel,
    allowed_configurations,
    answer,
    changed_fields,
    checked_configurations,
    compare_answers,
    compare_bits,
    covering,
    margins,
)
from infer_bench.gpu.parts import Place
from infer_bench.gpu.tiny_models import FAMILIES, WINDOW, prompts_in_waves, write_tiny_model
from infer_engine import EngineConfig

CONFIG = {"batch_invariant": True}
RIGHT = {
    "config": CONFIG,
    "num_decided": 100,
    "num_decided_same": 100,
    "logit_error": 1e-5,
    "num_rows": 9,
    "num_equal_rows": 9,
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that returns the checkpoint of a family."""

    @cache
    def folder_of(family: str) -> Path:
        return write_tiny_model(family, tmp_path_factory.mktemp(family))

    return folder_of


def made_answer(token_ids: list[int], logits: list[list[float]]) -> Answer:
    return Answer(token_ids, torch.tensor(logits))


def test_every_two_values_that_can_meet_do_so() -> None:
    def pairs(configurations: list[dict[str, Any]]) -> set[Any]:
        return {pair for each in configurations for pair in itertools.combinations(each.items(), 2)}

    allowed = allowed_configurations()
    chosen = covering(allowed)
    assert pairs(chosen) == pairs(allowed)
    assert len(chosen) < len(allowed) / 4
    assert {("batching_mode", "static"), ("batch_invariant", True)} <= {
        item for each in chosen for item in each.items()
    }
    assert checked_configurations(is_rehearsal=False)[1] == PREEMPTING


def test_a_configuration_sets_what_the_engine_decides() -> None:
    decided = ("resolved_kv_cache_backend", "chunks_prefill", "caches_prefixes", "scheduler_policy", "block_size")
    for values in allowed_configurations():
        config = EngineConfig(**changed_fields(values))
        asked = ("kv_cache_backend", "use_chunked_prefill", "use_prefix_caching", "scheduler_policy", "block_size")
        assert [getattr(config, name) for name in decided] == [values[name] for name in asked]


def test_margins_are_in_standard_deviations() -> None:
    logits = torch.tensor([[3.0, 1.0, -4.0]])
    assert margins(logits.bfloat16()) == pytest.approx([2.0 / float(logits.std())])


def test_logits_are_compared_while_both_have_the_same_text() -> None:
    oracle = made_answer([0, 1, 0], [[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    logits = [[2.0, 0.0], [0.1, 0.0], [90.0, 0.0]]
    found = compare_answers({"a": made_answer([0, 0, 0], logits)}, {"a": oracle}, dtype=torch.float32)
    assert (found["num_decided"], found["num_decided_same"]) == (2, 1)
    assert found["logit_error"] == pytest.approx(2.0 / 2**0.5)
    found = compare_answers({"a": made_answer([0, 1, 0], logits)}, {"a": oracle}, dtype=torch.float32)
    assert found["logit_error"] == pytest.approx(88.0 / 2**0.5)


def test_an_error_that_is_not_a_number_is_not_hidden_by_others() -> None:
    right, wrong = made_answer([0], [[2.0, 0.0]]), made_answer([0], [[float("nan"), 0.0]])
    for found in ({"a": wrong, "b": right}, {"a": right, "b": wrong}):
        compared = compare_answers(found, {"a": right, "b": right}, dtype=torch.float32)
        assert judge("llama", "float32", [RIGHT | compared], num_planned=1).holds is False


def test_one_bit_is_a_difference() -> None:
    alone = made_answer([0, 1], [[1.0, 0.5], [0.0, 1.0]])
    rounded = made_answer([0, 1], [[1.0, 0.5], [0.0, 1.0 + 2**-23]])
    assert compare_bits({"a": alone, "other": rounded}, {"a": alone}) == {"num_rows": 2, "num_equal_rows": 2}
    assert compare_bits({"a": rounded}, {"a": alone}) == {"num_rows": 2, "num_equal_rows": 1}


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
        pytest.param("llama", {"rms_norm_eps": 1e-3}, marks=pytest.mark.full),
        pytest.param("qwen3", {"rope_theta": 500000.0}, marks=pytest.mark.full),
        ("gemma3", {"sliding_window": WINDOW - 1}),
        pytest.param("gemma3", {"query_pre_attn_scalar": 250}, marks=pytest.mark.full),
        pytest.param("gemma3", {"rope_local_base_freq": 11000.0}, marks=pytest.mark.full),
    ],
)
def test_a_tiny_model_shows_a_small_mistake(
    folder_of: Callable[[str], Path], family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    mistaken = write_tiny_model(family, tmp_path, **overrides)
    again = (mistaken / "model.safetensors").read_bytes()
    assert again == (folder_of(family) / "model.safetensors").read_bytes()  # the mistake is in the config alone
    (right, _), (wrong, _) = (
        answer(each, prompts_in_waves(), num_tokens=8, **ORACLE) for each in (folder_of(family), mistaken)
    )
    for found, holds in ((wrong, False), (right, True)):
        compared = compare_answers(found, right, dtype=torch.float32)
        assert judge(family, "float32", [RIGHT | compared], num_planned=1).holds is holds


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_long_and_various_enough(folder_of: Callable[[str], Path], family: str) -> None:
    oracle, _ = answer(folder_of(family), prompts_in_waves(), num_tokens=ANSWER_TOKENS, **ORACLE)
    assert len({token for each in oracle.values() for token in each.token_ids}) > 50
    decided = [margin > 0.1 for each in oracle.values() for margin in margins(each.logits)]
    assert sum(decided) > 0.7 * len(decided)


@pytest.mark.parametrize("config", [{**CONFIG, "block_size": 16, "prefill_chunk_size": 32}, PREEMPTING])
def test_prefixes_and_preemptions_keep_tokens_and_bits(
    folder_of: Callable[[str], Path], config: dict[str, Any]
) -> None:
    model = CheckedModel(folder_of("gemma3"), device="cpu", dtype="bfloat16", num_tokens=6)
    found = model.check(config)
    assert judge("gemma3", "bfloat16", [{"config": config, **found}], num_planned=1).holds
    assert found["num_rows"] == 6 * sum(map(len, prompts_in_waves()))


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"use_prefix_caching": True, "block_size": 150}, "no prefix was found"),
        ({"num_kv_blocks": 200, "block_size": 64, "use_prefix_caching": False}, "no request was preempted"),
    ],
)
def test_a_check_of_something_else_fails(
    folder_of: Callable[[str], Path], config: dict[str, Any], missing: str
) -> None:
    model = CheckedModel(folder_of("llama"), device="cpu", dtype="float32", num_tokens=2)
    with pytest.raises(RuntimeError, match=missing):
        model.check(config)


def test_a_process_that_does_not_end_is_killed() -> None:
    started = time.monotonic()
    assert run_python(["-c", "import time; time.sleep(600)"], seconds=1) == "killed after its time"
    assert time.monotonic() - started < 60


def test_the_first_exception_of_a_process_is_its_error() -> None:
    code = "import logging\ntry:\n  1 / 0\nexcept ZeroDivisionError: logging.exception('a step')\nassert False, 'so'"
    assert run_python(["-c", code], seconds=60) == "ZeroDivisionError: division by zero"
    assert run_python(["-c", "import os; os.abort()"], seconds=60) == "ended with exit code -6"
    assert run_python(["-c", "pass"], seconds=60) is None


def test_the_check_during_which_a_process_ends_has_failed_and_another_process_goes_on() -> None:
    begun: list[int] = []
    processes = iter([(1, "last words"), (0, "again"), (1, None)])

    def perform(first: int) -> tuple[list[dict[str, Any]], str | None]:
        begun.append(first)
        num_records, error = next(processes)
        return [RIGHT] * num_records, error

    planned = [{"block_size": size} for size in (1, 2, 3, 4, 5)]
    records = collect_records(planned, perform, is_time_left=lambda: True)
    assert begun == [0, 2, 3]
    failed = [{"config": planned[1], "error": "last words"}, {"config": planned[2], "error": "again"}]
    assert records == [RIGHT, *failed, RIGHT]
    assert collect_records(planned, perform, is_time_left=lambda: False) == []
    finding = judge("llama", "float32", records, num_planned=5)
    assert finding.holds is False
    assert "2 of 5 configurations; 1 left out: no time" in finding.found
    assert "block_size=2 last words" in finding.found


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"num_decided_same": 99}, False),
        ({"num_decided": 0, "num_decided_same": 0}, False),
        ({"logit_error": 2e-3}, False),
        ({"num_equal_rows": 8}, False),
        ({"num_rows": 0, "num_equal_rows": 0}, False),
        ({"error": "TypeError: no"}, False),
    ],
)
def test_a_model_holds_if_tokens_logits_and_bits_are_right(change: dict[str, Any], *, holds: bool) -> None:
    assert judge("llama", "float32", [RIGHT, RIGHT | change], num_planned=2).holds is holds
    assert judge("llama", "float32", [RIGHT], num_planned=2).holds is False


def test_rounding_of_bf16_explains_more_than_that_of_fp32() -> None:
    for dtype, holds in (("bfloat16", True), ("float32", False)):
        assert judge("llama", dtype, [RIGHT | {"logit_error": 0.08}], num_planned=1).holds is holds


def test_without_time_nothing_holds() -> None:
    found = parity.run(Place(device=torch.device("cpu"), deadline_s=time.monotonic()))
    assert [finding.holds for finding in found.findings] == [False] * 2 * len(FAMILIES)


@pytest.mark.full
def test_in_the_rehearsal_everything_holds() -> None:
    found = parity.run(Place(device=torch.device("cpu"), deadline_s=time.monotonic() + 240))
    assert [finding.holds for finding in found.findings] == [True] * 2 * len(FAMILIES), found.findings
