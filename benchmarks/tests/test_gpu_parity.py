"""Parity: configurations cover all pairs, tiny models show mistakes, processes may die, and verdicts are right."""

import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_bench.gpu import parity, parity_checks
from infer_bench.gpu.parity import (
    Ended,
    ModelResult,
    collect_records,
    describe_end,
    describe_rows,
    judge_bits,
    judge_failures,
    judge_tokens,
    run_python,
    run_tasks,
)
from infer_bench.gpu.parity_checks import (
    DEVICE_LOST,
    ORACLE,
    WAYS,
    Answer,
    Check,
    CheckedModel,
    agreement_of,
    all_checks,
    allowed_configurations,
    answer,
    bit_differences,
    covering,
    logit_error,
    margins,
    small_chunks,
)
from infer_bench.gpu.parts import Finding, Place
from infer_bench.gpu.tiny_models import FAMILIES, WINDOW, prompts_in_waves, write_tiny_model
from infer_engine import EngineConfig
from infer_engine.model_runner.runner import ModelRunner

SUCCESS = Ended([], 0, stdout="", stderr="")
CRASH = Ended([], -signal.SIGSEGV, stdout="", stderr="first words\nlast words\n")
HEAD = {"num_prompts": 7, "answer_tokens": 24}
AGREED = {"kind": "oracle", "name": "paged", "num_decided": 100, "num_decided_same": 100, "logit_error": 1e-5}
EQUAL = {"kind": "invariance", "name": "in company", "num_rows": 9, "num_equal_rows": 9}
FAILED = {"kind": "oracle", "name": "static", "error": "TypeError: no\nmore", "traceback": "..."}
CHECKS = [Check(kind="oracle", name=name, config={}) for name in ("a", "b", "c", "d")]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that returns the checkpoint of a family."""

    @cache
    def folder_of(family: str) -> Path:
        return write_tiny_model(family, tmp_path_factory.mktemp(family))

    return folder_of


def result(*records: dict[str, Any], dtype: str = "float32") -> ModelResult:
    return ModelResult(family="llama", dtype=dtype, planned=CHECKS[:3], head=HEAD, records=list(records))


def made_answer(token_ids: list[int], logits: list[list[float]]) -> Answer:
    return Answer(token_ids=token_ids, logits=torch.tensor(logits))


# Configurations


def test_every_two_values_that_can_meet_do_so() -> None:
    def pairs(configurations: list[dict[str, Any]]) -> set[Any]:
        return {pair for each in configurations for pair in itertools.combinations(sorted(each.items()), 2)}

    allowed = allowed_configurations()
    chosen = covering(allowed)
    assert pairs(chosen) == pairs(allowed)
    assert len(chosen) < len(allowed) / 4
    met = {(each["scheduler_policy"], each["block_size"]) for each in chosen if each["kv_cache_backend"] == "paged"}
    policies = ("fcfs", "prefill_first", "decode_round_robin", "priority")
    assert met == set(itertools.product(policies, (None, 16, 5)))
    assert ("static", True) in {(each["batching_mode"], each["batch_invariant"]) for each in chosen}


def test_configurations_are_what_the_engine_decides_and_the_default_comes_first() -> None:
    decided = ("resolved_kv_cache_backend", "chunks_prefill", "caches_prefixes")
    for values in allowed_configurations():
        config = EngineConfig(**values, **small_chunks(values))
        asked = (values["kv_cache_backend"], values["use_chunked_prefill"], values["use_prefix_caching"])
        assert tuple(getattr(config, name) for name in decided) == asked
    first, default = EngineConfig(**allowed_configurations()[0]), EngineConfig()
    for name in (*decided, "block_size", "scheduler_policy"):
        assert getattr(first, name) == getattr(default, name)


def test_a_covering_adds_as_many_pairs_as_possible() -> None:
    rows = [{"a": a, "b": b, "c": c} for a, b, c in itertools.product((0, 1), repeat=3)]
    assert covering(rows) == [rows[0], rows[3], rows[5], rows[6]]


def test_every_kind_of_check_is_rehearsed_and_every_way_is_checked() -> None:
    assert {check.kind for check in all_checks(is_rehearsal=True)} == {"oracle", "invariance"}
    assert len(all_checks(is_rehearsal=False)) == len(covering(allowed_configurations())) + len(WAYS)


# Comparisons


def test_margins_are_in_standard_deviations() -> None:
    logits = torch.tensor([[3.0, 1.0, -4.0]])
    assert margins(logits.bfloat16()) == pytest.approx([2.0 / float(logits.std())])


def test_logits_are_compared_while_both_have_the_same_text() -> None:
    oracle = made_answer([0, 1, 0], [[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    different = made_answer([0, 0, 0], [[2.0, 0.0], [0.1, 0.0], [90.0, 0.0]])
    assert logit_error(different, oracle) == pytest.approx(2.0 / 2**0.5)
    assert logit_error(replace(different, token_ids=[0, 1, 0]), oracle) == pytest.approx(88.0 / 2**0.5)
    agreement = agreement_of({"a": different}, {"a": oracle}, dtype=torch.float32)
    assert (agreement["num_decided"], agreement["num_decided_same"]) == (2, 1)


def test_an_error_that_is_not_a_number_is_not_hidden_by_others() -> None:
    right = made_answer([0], [[2.0, 0.0]])
    wrong = made_answer([0], [[float("nan"), 0.0]])
    for found in ({"a": wrong, "b": right}, {"a": right, "b": wrong}):
        error = agreement_of(found, {"a": right, "b": right}, dtype=torch.float32)["logit_error"]
        assert judge_tokens(result(AGREED | {"logit_error": error})).holds is False


def test_one_bit_is_a_difference() -> None:
    alone = made_answer([0, 1], [[1.0, 0.5], [0.0, 1.0]])
    rounded = made_answer([0, 1], [[1.0, 0.5], [0.0, 1.0 + 2**-23]])
    assert bit_differences({"a": alone, "other": rounded}, {"a": alone})["first_difference"] is None
    found = bit_differences({"a": rounded}, {"a": alone})
    assert (found["num_equal_rows"], found["num_rows"]) == (1, 2)
    assert found["first_difference"] == {"request": "a", "token": 1, "most": 2**-23}


# Tiny models


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
    assert judge_tokens(result(AGREED | agreement_of(wrong, right, dtype=torch.float32))).holds is False
    assert judge_tokens(result(AGREED | agreement_of(right, right, dtype=torch.float32))).holds is True


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_long_and_various_enough(folder_of: Callable[[str], Path], family: str) -> None:
    oracle, _ = answer(folder_of(family), prompts_in_waves(), num_tokens=parity.ANSWER_TOKENS, **ORACLE)
    assert len({token for each in oracle.values() for token in each.token_ids}) > 50
    decided = [margin > 0.1 for each in oracle.values() for margin in margins(each.logits)]
    assert sum(decided) > 0.7 * len(decided)


@pytest.mark.parametrize("way", ["after a prefix", "preempted"])
def test_a_way_is_taken_and_keeps_the_bits(folder_of: Callable[[str], Path], way: str) -> None:
    model = CheckedModel(folder_of("gemma3"), device="cpu", dtype="bfloat16", num_tokens=6)
    found = model.perform(Check(kind="invariance", name=way, config={**WAYS[way], "batch_invariant": True}))
    assert found["num_equal_rows"] == found["num_rows"] == 7 * 6


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"use_prefix_caching": True, "block_size": 150}, "no prefix was found"),
        ({"num_kv_blocks": 40, "block_size": 64}, "no request was preempted"),
    ],
)
def test_a_way_that_was_not_taken_is_a_failure(
    folder_of: Callable[[str], Path], config: dict[str, Any], missing: str
) -> None:
    model = CheckedModel(folder_of("llama"), device="cpu", dtype="float32", num_tokens=2)
    with pytest.raises(RuntimeError, match=missing):
        model.perform(Check(kind="invariance", name="", config=config))


def test_a_failure_is_recorded_with_the_cause_that_the_engine_logged(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("in a kernel")

    folder = folder_of("llama")
    monkeypatch.setattr(CheckedModel, "oracle", answer(folder, prompts_in_waves(), num_tokens=2, **ORACLE)[0])
    monkeypatch.setattr(ModelRunner, "forward", fail)
    status = parity_checks.main(
        folder=str(folder),
        device="cpu",
        dtype="float32",
        answer_tokens=2,
        first=len(all_checks(is_rehearsal=True)) - 1,
        seconds=60.0,
        output=str(tmp_path / "lines"),
    )
    assert status == 0
    head, record = parity.read_lines(tmp_path / "lines")
    assert (head["num_prompts"], record["error"]) == (7, "ZeroDivisionError: in a kernel")
    assert "in fail" in record["traceback"]


# Processes


def test_a_process_that_does_not_end_is_killed() -> None:
    started = time.monotonic()
    ended = run_python(["-c", "import time; time.sleep(600)"], seconds=1)
    assert describe_end(ended) == "ended with status -9: killed after its time"
    assert time.monotonic() - started < 60


def test_a_process_gets_variables_and_its_last_line_is_kept() -> None:
    code = "import os, sys; sys.exit(os.environ['OF_OURS'] + os.environ['OMP_NUM_THREADS'])"
    ended = run_python(["-c", code], seconds=60, environment={"OF_OURS": "word "})
    assert describe_end(ended) == "ended with status 1: word 1"
    assert "OF_OURS" not in os.environ


def test_tasks_share_the_time_that_is_left() -> None:
    for num_workers, shares in ((8, [60, 60, 60]), (2, [30, 60, 60]), (1, [20, 30, 60])):
        deadline_s = time.monotonic() + 60
        granted = run_tasks([lambda until_s: until_s] * 3, deadline_s=deadline_s, num_workers=num_workers)
        assert [deadline_s - until_s for until_s in granted] == pytest.approx([60 - share for share in shares], abs=5)


def collect(*processes: tuple[Ended, str]) -> tuple[ModelResult, list[int]]:
    """Collect from processes that end so, with records of these names; return also the check that each began with."""
    begun: list[int] = []
    left = list(processes)
    found = ModelResult(family="llama", dtype="float32", planned=CHECKS)

    def perform(first: int) -> tuple[Ended, list[dict[str, Any]]]:
        begun.append(first)
        ended, names = left.pop(0)
        return ended, [HEAD, *({"kind": "oracle", "name": name} for name in names)] if names else []

    collect_records(found, perform, is_time_left=lambda: bool(left))
    return found, begun


def test_the_check_during_which_a_process_dies_has_failed_and_the_next_process_goes_on() -> None:
    found, begun = collect((CRASH, "a"), (SUCCESS, "cd"))
    assert begun == [0, 2]
    assert [(record["name"], record.get("error")) for record in found.records] == [
        ("a", None),
        ("b", "the process ended with status -11: last words"),
        ("c", None),
        ("d", None),
    ]


def test_a_lost_device_fails_no_further_check() -> None:
    found, begun = collect((Ended([], DEVICE_LOST, stdout="", stderr=""), "ab"), (SUCCESS, "cd"))
    assert begun == [0, 2]
    assert not any("error" in record for record in found.records)


def test_a_process_that_cannot_begin_is_not_started_again() -> None:
    found, begun = collect((CRASH, ""), (SUCCESS, "abcd"))
    assert begun == [0]
    finding = judge_tokens(found)
    assert finding.holds is judge_bits(found).holds is False
    assert "last words" in finding.found


def test_checks_without_time_are_left_out() -> None:
    found, _ = collect((SUCCESS, "ab"), (SUCCESS, "cd"))
    assert found.left_out("oracle") == "; 2 left out, no time left"


# Verdicts


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"num_decided_same": 99}, False),
        ({"logit_error": 2e-3}, False),
        ({"logit_error": float("nan")}, False),
    ],
)
def test_tokens_hold_if_all_decided_ones_are_the_same_and_logits_close(change: dict[str, Any], *, holds: bool) -> None:
    assert judge_tokens(result(AGREED, AGREED | change)).holds is holds


def test_tokens_of_which_none_is_decided_do_not_hold() -> None:
    assert judge_tokens(result(AGREED | {"num_decided": 0, "num_decided_same": 0})).holds is False


def test_rounding_of_bf16_explains_more_than_that_of_fp32() -> None:
    found = AGREED | {"logit_error": 0.08}
    assert judge_tokens(result(found, dtype="bfloat16")).holds is True
    assert judge_tokens(result(found, dtype="float32")).holds is False


def test_nothing_compared_does_not_hold() -> None:
    finding = judge_tokens(result())
    assert (finding.holds, finding.found) == (False, "nothing was compared; 3 left out, no time left")
    assert judge_bits(result(AGREED)).holds is False


def test_bits_hold_if_they_are_equal_in_every_way() -> None:
    assert judge_bits(result(EQUAL)).holds is True
    finding = judge_bits(result(EQUAL, EQUAL | {"name": "static", "num_equal_rows": 8}))
    assert finding.holds is False
    assert finding.found.startswith("equal in 1 of 2 ways; not static")
    assert judge_bits(result(EQUAL | {"num_rows": 0, "num_equal_rows": 0})).holds is False


def test_failures_of_one_cause_are_one_finding() -> None:
    finding, other = judge_failures(result(AGREED, FAILED, FAILED | {"name": "paged"}, FAILED | {"error": ""}))
    assert (finding.what, finding.found) == ("llama float32: 2 of its checks, first `static`", "TypeError: no")
    assert (other.found, other.holds) == ("no message", False)


def test_rows_are_described_by_setting_and_layer() -> None:
    differing = {"on": {"2 to 3": [], "4 to 5": [1, 7]}, "off": {"1": []}}
    first, second = describe_rows("small", {"differing_rows": differing})
    assert first.found == "equal for 1 of 2 layers; not for 4 to 5 (2 batches)"
    assert second == Finding("rows of F.linear, small, off", "equal for 1 of 1 layers")
    assert describe_rows("small", {"error": "no"})[0].holds is False


# The part


def test_without_time_everything_is_left_out_and_nothing_holds() -> None:
    found = parity.run(Place(device=torch.device("cpu"), deadline_s=time.monotonic()))
    assert {finding.holds for finding in found.findings} == {False}


@pytest.mark.full
def test_in_the_rehearsal_everything_holds() -> None:
    found = parity.run(Place(device=torch.device("cpu"), deadline_s=time.monotonic() + 240))
    assert [finding for finding in found.findings if finding.holds is False] == []
    assert sum(finding.holds is True for finding in found.findings) == 2 * 2 * len(FAMILIES)
    assert not any("left out" in finding.found for finding in found.findings)
    assert len(found.details["row_invariance"]) == 2
