"""The host's time of a step: every kind of step is timed on a GPU's path, and two commits are compared by rounds."""

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from infer_bench.offline import host_step
from infer_bench.offline.host_step import (
    BLOCK_SIZE,
    SAMPLINGS,
    SHAPE,
    Captures,
    Plan,
    build,
    decode,
    on_a_path_to_no_device,
    ratios,
    run_apart,
    summarize,
    time_table,
    timed_step,
)
from infer_bench.results import ROOT
from infer_bench.shapes import write_config
from infer_engine.core.engine_core import EngineCore
from infer_engine.messages import Submit

STAGES = {"schedule", "build inputs, plan", "sample", "settle"}


def test_a_round_times_every_kind_of_step_and_its_stages_are_the_step() -> None:
    found = run_apart(ROOT, Plan(batches=(1, 3), contexts=(80, 130), num_steps=1))
    names = {f"{num_seqs} x {how}" for num_seqs in (1, 3) for how in ("80 tokens, greedy", "130 tokens, greedy")}
    assert found["microseconds"].keys() == names | {"1 x 80 tokens, top-p", "3 x 80 tokens, top-p"}
    assert found["captured_steps"] > 3  # decodes of 1, 2 and 3 requests, and some prompts
    for times in found["microseconds"].values():
        assert times.keys() >= STAGES
        assert all(value > 0 for value in times.values())
        assert sum(value for stage, value in times.items() if stage != "step") == pytest.approx(times["step"])


def test_steps_make_the_same_calls_whatever_the_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each request fills one block in so many steps, so the sum over them is that of any others."""
    contexts = (100, 1500)
    plan = Plan(batches=(3,), contexts=(*contexts, 3 * sum(contexts)), num_steps=BLOCK_SIZE)
    num_calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    def counted_step(core: EngineCore, _: int) -> host_step.Times:
        sys.setprofile(count)
        core.step()
        sys.setprofile(None)
        return {}

    monkeypatch.setattr(host_step, "timed_step", counted_step)
    found = []
    with on_a_path_to_no_device(plan) as captures:
        core, numbers = build(write_config(SHAPE, tmp_path), plan), itertools.count()
        for context in contexts:
            num_calls = 0
            decode(core, numbers, 3, context, SAMPLINGS["greedy"], captures, num_steps=BLOCK_SIZE)
            found.append(num_calls)
    assert found[0] == found[1] > 100 * BLOCK_SIZE


def test_steps_that_are_captured_and_not_replayed_are_an_error(tmp_path: Path) -> None:
    with on_a_path_to_no_device(Plan(batches=(2,), contexts=(80,))):
        core = build(write_config(SHAPE, tmp_path), Plan(batches=(2,), contexts=(80,)))
        with pytest.raises(RuntimeError, match="3 decode steps replayed 0 captures"):
            decode(core, itertools.count(), 2, 80, SAMPLINGS["greedy"], Captures(num_steps=1), num_steps=3)


def test_a_step_in_which_not_all_requests_decode_counts_for_nothing(tmp_path: Path) -> None:
    core = build(write_config(SHAPE, tmp_path), Plan(batches=(2,), contexts=(80,)))
    core.handle(Submit(request_id="a", prompt_token_ids=[5] * 80, max_tokens=9, seed=0, params=SAMPLINGS["greedy"]))
    core.step()
    assert timed_step(core, 1)["step"] > 0
    with pytest.raises(RuntimeError, match="1 of 2 requests decoded in a step of 1"):
        timed_step(core, 2)


def test_commits_are_compared_round_by_round() -> None:
    def rounds(*steps: float) -> list[dict[str, dict[str, float]]]:
        return [{"a": {"step": step, "sample": step / 2}} for step in steps]

    own, other = rounds(10.0, 40.0, 30.0), rounds(20.0, 40.0, 40.0)  # the machine was slower in the later ones
    found = summarize([{"commit": "c", "captured_steps": 7, "microseconds": each} for each in own])
    assert found["microseconds"] == {"a": {"step": 30.0, "sample": 15.0}}
    assert ratios(own, other) == {"a": 0.75}
    assert "| a | 30 | 15 |" in time_table(found["microseconds"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "`--steps` 0"),
        (["--rounds", "0"], "`--rounds` is 0"),
        (["--beside", "/nowhere"], "uv sync"),
    ],
)
def test_flags_that_cannot_be_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        host_step.read_arguments(arguments)
    assert message in capsys.readouterr().err


def test_checkouts_take_turns_and_a_quick_run_saves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run_apart(checkout: Path, plan: Plan) -> dict[str, Any]:
        asked.append(checkout)
        return {
            "commit": checkout.name,
            "captured_steps": 7,
            "microseconds": {"a": {"step": 2.0 + len(asked) % 2, "sample": plan.num_steps}},
        }

    monkeypatch.setattr(host_step, "run_apart", run_apart)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()
    arguments = ["--beside", str(tmp_path), "--rounds", "2", "--out", str(tmp_path / "out")]
    host_step.main(["--quick", *arguments])
    assert asked == [ROOT, tmp_path, tmp_path, ROOT]
    assert f"{ROOT.name} / {tmp_path.name}, median of the rounds' ratios" in (shown := capsys.readouterr().out)
    assert "| a | 1.08 |" in shown
    assert "7 steps captured, and not checked" in shown
    assert not (tmp_path / "out").exists()
    host_step.main(arguments)
    saved = json.loads((tmp_path / "out" / "host-step.json").read_text())
    assert [each["commit"] for each in saved["commits"]] == [ROOT.name, tmp_path.name]
