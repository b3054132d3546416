"""Parity on a GPU, rehearsed: pairs all covered, twins that tell mistakes, processes that may die, verdicts."""

import itertools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine import EngineConfig
from infer_engine.model_runner.runner import Runner

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from gpu import parity
from gpu.answers import Answer, agreement_of, answer, bit_differences, logit_error, margins
from gpu.combinations import allowed_configurations, covering, with_sizes
from gpu.invariance import row_findings
from gpu.isolation import Ended, run_in_turns, run_python, share_of
from gpu.parity import TwinReport, continue_to_the_end, judge_bits, judge_failures, judge_tokens
from gpu.parts import PartReport, Place
from gpu.twin_checks import DEVICE_LOST, ORACLE, WAYS, Check, FailureLog, Twin, all_checks, record_of
from gpu.twins import FAMILIES, WINDOW, prompts_in_waves, write_twin

SUCCESS = Ended(status=0, stdout="", stderr="")
CRASH = Ended(status=-signal.SIGSEGV, stdout="", stderr="first words\nlast words\n")
HEAD = {"num_prompts": 7, "answer_tokens": 24}
AGREED = {"kind": "oracle", "name": "paged", "num_decided": 100, "num_decided_same": 100, "logit_error": 1e-5}
EQUAL = {"kind": "invariance", "name": "in company", "num_rows": 9, "num_equal_rows": 9}
FAILED = {"kind": "oracle", "name": "static", "error": "TypeError: no\nmore", "traceback": "..."}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """What writes a twin, with fields of its `config.json` changed."""

    @cache
    def folder_of(family: str, **overrides: Any) -> Path:
        return write_twin(family, tmp_path_factory.mktemp(family), **overrides)

    return folder_of


@pytest.fixture(scope="module")
def rehearsal() -> PartReport:
    """The whole part, on the CPU."""
    return parity.run(Place(device=torch.device("cpu"), deadline_s=time.monotonic() + 120))


def report(*records: dict[str, Any], dtype: str = "float32", planned: int = 2, **fields: Any) -> TwinReport:
    counts = dict.fromkeys(("oracle", "invariance", "control"), planned)
    return TwinReport(family="llama", dtype=dtype, num_planned=counts, head=HEAD, records=list(records), **fields)


def made_answer(token_ids: list[int], logits: list[list[float]]) -> Answer:
    return Answer(token_ids=token_ids, logits=torch.tensor(logits))


# Which configurations are compared


def test_every_two_values_that_can_meet_do_so() -> None:
    def pairs(configurations: list[dict[str, Any]]) -> set[Any]:
        return {pair for each in configurations for pair in itertools.combinations(sorted(each.items()), 2)}

    allowed, chosen = allowed_configurations(), covering(allowed_configurations())
    assert pairs(chosen) == pairs(allowed)
    assert len(chosen) < len(allowed) / 4
    met = {(each["scheduler_policy"], each["block_size"]) for each in chosen if each["kv_cache_backend"] == "paged"}
    policies = ("fcfs", "prefill_first", "decode_round_robin", "priority")
    assert met == set(itertools.product(policies, (None, 16, 5)))
    assert ("static", True) in {(each["batching_mode"], each["batch_invariant"]) for each in chosen}


def test_the_first_configuration_is_the_default() -> None:
    default = EngineConfig()
    first = EngineConfig(**allowed_configurations()[0])
    for decided in ("resolved_kv_cache_backend", "chunks_prefill", "caches_prefixes", "block_size", "scheduler_policy"):
        assert getattr(first, decided) == getattr(default, decided)


def test_what_was_chosen_is_what_the_engine_decides() -> None:
    for values in allowed_configurations():
        config = EngineConfig(**with_sizes(values))
        assert config.resolved_kv_cache_backend == values["kv_cache_backend"]
        assert config.chunks_prefill == values["use_chunked_prefill"]
        assert config.caches_prefixes == values["use_prefix_caching"]


def test_a_covering_begins_with_what_covers_most() -> None:
    rows = [{"a": a, "b": b, "c": c} for a, b, c in itertools.product((0, 1), repeat=3)]
    assert covering(rows) == [rows[0], rows[3], rows[5], rows[6]]
    assert covering([]) == []


def test_every_kind_of_check_is_rehearsed() -> None:
    assert {check.kind for check in all_checks(is_rehearsal=True)} == {"oracle", "invariance", "control"}
    assert len(all_checks(is_rehearsal=False)) == len(covering(allowed_configurations())) + 2 * len(WAYS)


# What two sets of answers have in common


def test_margins_are_in_standard_deviations() -> None:
    logits = torch.tensor([[3.0, 1.0, -4.0]])
    assert margins(logits.bfloat16()) == pytest.approx([2.0 / float(logits.std())])


def test_logits_are_compared_as_long_as_both_have_the_same_text() -> None:
    oracle = made_answer([0, 1, 0], [[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    parted = made_answer([0, 0, 0], [[2.0, 0.0], [0.1, 0.0], [90.0, 0.0]])
    assert logit_error(parted, oracle) == pytest.approx(2.0 / 2**0.5)
    assert logit_error(replace(parted, token_ids=[0, 1, 0]), oracle) == pytest.approx(88.0 / 2**0.5)
    agreement = agreement_of({"a": parted}, {"a": oracle}, dtype=torch.float32)
    assert (agreement["num_decided"], agreement["num_decided_same"]) == (2, 1)


def test_one_bit_is_a_difference() -> None:
    alone = made_answer([0, 1], [[1.0, 0.5], [0.0, 1.0]])
    rounded = made_answer([0, 1], [[1.0, 0.5], [0.0, 1.0 + 2**-23]])
    assert bit_differences({"a": alone, "other": rounded}, {"a": alone})["first_difference"] is None
    found = bit_differences({"a": rounded}, {"a": alone})
    assert (found["num_equal_rows"], found["num_rows"]) == (1, 2)
    assert found["first_difference"] == {"request": "a", "token": 1, "most": 2**-23}


# Twins


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_twin_is_written_again(folder_of: Callable[..., Path], family: str, tmp_path: Path) -> None:
    again = write_twin(family, tmp_path)
    assert (again / "model.safetensors").read_bytes() == (folder_of(family) / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
        ("llama", {"rms_norm_eps": 1e-3}),
        ("qwen3", {"rope_theta": 500000.0}),
        ("gemma3", {"sliding_window": WINDOW - 1}),
        ("gemma3", {"query_pre_attn_scalar": 250}),
        ("gemma3", {"rope_local_base_freq": 11000.0}),
    ],
)
def test_a_twin_tells_a_small_mistake(
    folder_of: Callable[..., Path], family: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    mistaken = write_twin(family, tmp_path, **overrides)
    right, wrong = (answer(each, prompts_in_waves(), num_tokens=8, **ORACLE) for each in (folder_of(family), mistaken))
    found = AGREED | agreement_of(wrong.by_name, right.by_name, dtype=torch.float32)
    assert judge_tokens(report(found)).holds is False


def test_answers_are_long_and_various_enough_to_tell(folder_of: Callable[..., Path]) -> None:
    for family in FAMILIES:
        oracle = answer(folder_of(family), prompts_in_waves(), num_tokens=parity.ANSWER_TOKENS, **ORACLE).by_name
        assert len({token for each in oracle.values() for token in each.token_ids}) > 50
        decided = [margin > 0.1 for each in oracle.values() for margin in margins(each.logits)]
        assert sum(decided) > 0.7 * len(decided)


@pytest.mark.parametrize("way", ["after a prefix", "preempted"])
def test_a_way_is_taken_and_keeps_the_bits(folder_of: Callable[..., Path], way: str) -> None:
    twin = Twin(folder_of("gemma3"), device="cpu", dtype="bfloat16", num_tokens=parity.ANSWER_TOKENS)
    found = twin.perform(Check(kind="invariance", name=way, config={**WAYS[way], "batch_invariant": True}))
    assert found["num_equal_rows"] == found["num_rows"] == 7 * parity.ANSWER_TOKENS


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"use_prefix_caching": True, "block_size": 150}, "no prefix was found"),
        ({"num_kv_blocks": 40, "block_size": 64}, "nobody was preempted"),
    ],
)
def test_a_way_that_was_not_taken_is_a_failure(
    folder_of: Callable[..., Path], config: dict[str, Any], missing: str
) -> None:
    twin = Twin(folder_of("llama"), device="cpu", dtype="float32", num_tokens=2)
    with pytest.raises(RuntimeError, match=missing):
        twin.perform(Check(kind="invariance", name="", config=config))


def test_a_failure_is_recorded_with_the_cause_that_the_engine_logged(
    folder_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("in a kernel")

    twin = Twin(folder_of("llama"), device="cpu", dtype="float32", num_tokens=2)
    assert twin.oracle
    failures = FailureLog()
    logging.getLogger().addHandler(failures)
    try:
        monkeypatch.setattr(Runner, "forward", fail)
        record = record_of(twin, all_checks(is_rehearsal=True)[0], failures)
        monkeypatch.undo()
        assert "error" not in record_of(twin, all_checks(is_rehearsal=True)[0], failures)
    finally:
        logging.getLogger().removeHandler(failures)
    assert record["error"] == "ZeroDivisionError: in a kernel"
    assert "in fail" in record["traceback"]


# Processes


def test_checks_need_nothing_but_what_a_bare_machine_has(folder_of: Callable[..., Path], tmp_path: Path) -> None:
    output = tmp_path / "lines"
    flags = ["--folder", str(folder_of("llama")), "--device", "cpu", "--answer-tokens", "2", "--rehearsal"]
    lacks = "import sys; sys.modules |= dict.fromkeys(['transformers', 'httpx', 'openai', 'hypothesis', 'matplotlib'])"
    code = f"{lacks}; from gpu.twin_checks import main; sys.exit(main())"
    ended = run_python(["-c", code, *flags, "--first", "3", "--output", str(output)], seconds=60)
    assert ended.status == 0, ended.stderr
    head, *records = parity.read_lines(output)
    assert head["num_prompts"] == 7
    assert [record["name"] for record in records] == [check.name for check in all_checks(is_rehearsal=True)[3:]]


def test_a_process_that_does_not_end_is_killed() -> None:
    ended = run_python(["-c", "import time; print('begun', flush=True); time.sleep(60)"], seconds=2)
    assert (ended.status, ended.stdout) == (None, "begun\n")
    assert "killed when its time was over" in ended.describe()


def test_a_process_gets_variables_and_tells_its_last_words() -> None:
    code = "import os, sys; sys.exit(os.environ['OF_OURS'] + os.environ['OMP_NUM_THREADS'])"
    ended = run_python(["-c", code], seconds=30, environment={"OF_OURS": "word "})
    assert ended.describe() == "ended with status 1: word 1"
    assert "OF_OURS" not in os.environ


def test_tasks_share_the_time_that_is_left() -> None:
    assert share_of(60, num_left=8, num_workers=8) == 60
    assert share_of(60, num_left=5, num_workers=2) == 20
    deadline_s = time.monotonic() + 90
    granted = run_in_turns([lambda until: until] * 3, deadline_s=deadline_s, num_workers=1)
    assert [round(deadline_s - until) for until in granted] == [60, 45, 0]


CHECKS = [Check(kind="oracle", name=name, config={}) for name in ("a", "b", "c", "d")]


def continued(*processes: tuple[Ended, list[dict[str, Any]]]) -> tuple[TwinReport, list[int]]:
    """What becomes of processes that end so; with the checks that each began with."""
    begun, left, found = [], list(processes), report(planned=4)

    def perform(first: int) -> tuple[Ended, list[dict[str, Any]]]:
        begun.append(first)
        return left.pop(0)

    continue_to_the_end(found, CHECKS, perform, is_time_left=lambda: bool(left))
    return found, begun


def records_of(names: str) -> list[dict[str, Any]]:
    return [HEAD, *({"kind": "oracle", "name": name} for name in names)]


def test_a_process_that_dies_fails_one_check_and_the_next_one_goes_on_behind_it() -> None:
    found, begun = continued((CRASH, records_of("a")), (SUCCESS, records_of("cd")))
    assert begun == [0, 2]
    assert [(record["name"], record.get("error")) for record in found.records] == [
        ("a", None),
        ("b", "the process ended with status -11: last words"),
        ("c", None),
        ("d", None),
    ]


def test_a_lost_device_was_told_of_already() -> None:
    lost = Ended(status=DEVICE_LOST, stdout="", stderr="")
    found, begun = continued((lost, records_of("ab")), (SUCCESS, records_of("cd")))
    assert begun == [0, 2]
    assert not any("error" in record for record in found.records)


def test_a_process_that_cannot_begin_is_not_started_again() -> None:
    found, begun = continued((CRASH, []), (SUCCESS, records_of("abcd")))
    assert begun == [0]
    assert "last words" in found.failure


def test_checks_that_had_no_time_are_left_out() -> None:
    found, _ = continued((SUCCESS, records_of("ab")), (SUCCESS, records_of("cd")))
    assert found.num_left_out("oracle") == 2


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
def test_tokens_hold_if_all_decided_ones_are_the_same_and_logits_are_close(change: dict[str, Any], holds: bool) -> None:  # noqa: FBT001 - a case
    assert judge_tokens(report(AGREED, AGREED | change)).holds is holds


def test_tokens_of_which_none_is_decided_do_not_hold() -> None:
    assert judge_tokens(report(AGREED | {"num_decided": 0, "num_decided_same": 0})).holds is False


def test_rounding_of_bf16_explains_more_than_that_of_fp32() -> None:
    found = AGREED | {"logit_error": 0.08}
    assert judge_tokens(report(found, dtype="bfloat16")).holds is True
    assert judge_tokens(report(found, dtype="float32")).holds is False


def test_nothing_compared_is_no_success() -> None:
    finding = judge_tokens(report(planned=3))
    assert finding.holds is None
    assert finding.found == "nothing was compared; 3 left out, no time left"
    assert judge_bits(report(planned=3)).holds is None


def test_bits_hold_if_they_are_equal_in_every_way() -> None:
    assert judge_bits(report(EQUAL)).holds is True
    finding = judge_bits(report(EQUAL, EQUAL | {"name": "static", "num_equal_rows": 8}))
    assert finding.holds is False
    assert finding.found == "equal in 1 of 2 ways; not static"


def test_failures_of_one_cause_are_one_line() -> None:
    finding, other = judge_failures(report(AGREED, FAILED, FAILED | {"name": "paged"}, FAILED | {"error": ""}))
    assert (finding.what, finding.found) == ("llama float32: 2 of its checks, first `static`", "TypeError: no")
    assert (other.found, other.holds) == ("no message", False)


def test_rows_are_told_by_setting_and_layer() -> None:
    first, second = row_findings(
        "small", {"differing_rows": {"on": {"2 to 3": [], "4 to 5": [1, 7]}, "off": {"1": []}}}
    )
    assert first.found == "equal for 1 of 2 layers; not for 4 to 5 (2 batches)"
    assert (second.found, second.holds) == ("equal for 1 of 1 layers", None)
    assert row_findings("small", {"error": "no"})[0].holds is False


def test_the_rehearsal_finds_that_everything_holds(rehearsal: PartReport) -> None:
    assert [finding for finding in rehearsal.findings if finding.holds is False] == []
    assert sum(finding.holds is True for finding in rehearsal.findings) == 2 * 2 * len(FAMILIES)
    assert not any("left out" in finding.found for finding in rehearsal.findings)
    assert len(rehearsal.details["row_invariance"]) == 2


def test_without_time_everything_is_left_out_and_nothing_holds() -> None:
    found = parity.run(Place(device=torch.device("cpu"), deadline_s=time.monotonic()))
    assert {finding.holds for finding in found.findings} == {None}
