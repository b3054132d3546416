"""The held-out loss of quantized weights: the text's last tenth, the loss itself, and ratios that fail."""

import json
import math
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from infer_bench.quality import quantization_loss
from infer_bench.quality.quantization_loss import Side, count_same, held_out_part, judge_sides, token_windows
from infer_bench.quality.questions import QUESTIONS
from infer_bench.results import ROOT
from infer_models.hub import demo_model_folder

PLAY = "\n\n".join(f"ROMEO:\nSpeech {number}: what light through yonder window breaks?" for number in range(400)) + "\n"


@pytest.fixture(scope="module")
def train_demo() -> ModuleType:
    """The script that trained the demo model."""
    spec = spec_from_file_location("train_demo", ROOT / "examples" / "train_demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["train_demo"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def play(tmp_path: Path) -> Path:
    """A text with a tenth to hold out."""
    (tmp_path / "play.txt").write_text(PLAY, encoding="utf-8")
    return tmp_path / "play.txt"


def test_the_held_out_part_is_what_the_demo_model_was_not_trained_on(train_demo: ModuleType) -> None:
    training_text, held_out_text = train_demo.split(PLAY)
    assert held_out_part(PLAY) == held_out_text
    assert training_text + held_out_text == PLAY
    assert held_out_part("one paragraph of words") == "rds"


@pytest.mark.parametrize(("num_tokens", "context"), [(2, 2), (97, 1000), (200, 64), (193, 64)])
def test_the_loss_is_that_of_transformers_window_by_window(num_tokens: int, context: int) -> None:
    folder = demo_model_folder()
    windows = token_windows(folder, PLAY, context=context, num_tokens=num_tokens)
    assert max(map(len, windows)) == min(context, num_tokens)
    assert sum(map(len, windows)) == num_tokens - (num_tokens % context == 1)  # a token alone has no loss
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = torch.cat(
            [cross_entropy(theirs(row[None, :-1]).logits[0], row[1:], reduction="none") for row in windows]
        )
    found = judge_sides({"none": Side(folder, "none")}, windows)["none"]
    assert found.nats_per_token == pytest.approx(expected.mean().item(), rel=1e-2, abs=5e-3)  # bf16


def test_losses_are_saved_with_their_ratios(play: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "infer-demo", "--text", str(play), "--quantization", "none", "int8", "--exact"]
    assert quantization_loss.main([*flags, "--tokens", "100", "--out", str(tmp_path)]) == 0
    saved = json.loads((tmp_path / "quantization-loss-demo.json").read_text())
    assert saved["num_tokens"] == 100
    plain, int8, exact = (saved["judgements"][name] for name in ("none", "int8", "int8, exact inputs"))
    assert 0.5 < plain["nats_per_token"] < math.log(1024)
    assert 6e6 < plain["weight_bytes"] < 8e6
    assert (plain["ratio"], plain["standard_error"]) == (1.0, 0.0)
    assert int8["ratio"] == pytest.approx(int8["nats_per_token"] / plain["nats_per_token"]) != 1.0
    assert int8["share_of_bf16"] == pytest.approx(0.55, abs=0.1)
    assert exact["weight_bytes"] == plain["weight_bytes"]
    assert f"| int8 | {int8['nats_per_token']:.4f} | " in capsys.readouterr().out


def test_a_ratio_above_what_is_allowed_fails(play: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--quick", "--text", str(play), "--quantization", "none", "--tokens", "50"]
    assert quantization_loss.main([*flags, "--most", "none=0.99"]) == 1
    assert "limit missed: loss of none: 1, wanted at most 0.99" in capsys.readouterr().err
    assert quantization_loss.main([*flags, "--most", "none=1"]) == 0


def test_answers_are_counted_whole() -> None:
    assert count_same([[1, 2], [3], [4]], [[1, 2], [3, 5], [4]]) == 2
    assert len(set(QUESTIONS)) == 50


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--text t --most int3=1", "int3 is none of none, int8, int4"),
        ("--text t --context 1", "must be at least 2"),
        ("--text t --tokens 0", "must be at least 2"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        quantization_loss.main(flags.split())
    assert message in capsys.readouterr().err


def test_a_text_that_is_too_short_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.txt").write_text("a", encoding="utf-8")
    assert quantization_loss.main(["--text", str(tmp_path / "short.txt")]) == 2
    assert "a loss needs two" in capsys.readouterr().err
