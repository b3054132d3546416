"""Steps on a CPU beside their floors: shares follow from times, and a share that is too small fails."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from infer_bench.offline import steps
from infer_bench.offline.steps import Measured, SteppedEngine
from infer_bench.shapes import SHAPES, write_config

TINY = SHAPES["llama-30m"] | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
TIMES = {"read": 5.0, "products": 6.0, "schedule": 1.0, "forward pass": 8.0, "choose tokens": 0.5, "rest": 0.5}


def test_a_floors_share_is_of_the_whole_step() -> None:
    assert steps.share_of(TIMES, "read") == pytest.approx(0.5)
    assert steps.share_of(TIMES, "products") == pytest.approx(0.6)
    assert "| **step** | **10.00 ms** |" in steps.stage_table({"1 sequence": TIMES})


def test_a_share_that_is_too_small_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "llama-30m", TINY)
    arguments = ["--quick", "--rounds", "1", "--steps", "2", "--least-share"]
    assert steps.main([*arguments, "1e6"]) == 1
    assert "| floor: products |" in (captured := capsys.readouterr()).out
    assert "wanted" in captured.err
    assert steps.main([*arguments, "0"]) == 0


def test_a_step_has_its_decodes_and_so_many_tokens_of_prompts(tmp_path: Path) -> None:
    engine = SteppedEngine(
        write_config(TINY, tmp_path), quantization="none", max_batch_size=3, beside=600, device="cpu", is_eager=False
    )
    assert [step["tokens"] for step in engine.decode(3, num_steps=1)] == [3]
    assert [step["tokens"] for step in engine.mixed(3, 600, num_steps=2)] == [603] * 2  # of parts of two prompts
    assert engine.floors.measure(603, num_logits=3)["products"] > 0


def test_each_quantization_is_compared_with_the_first() -> None:
    measured = {
        "none": Measured(milliseconds={"1 sequence": TIMES}, weight_bytes=9_000_000, share_of_bf16=1.02),
        "int8": Measured(
            milliseconds={"1 sequence": TIMES | {"forward pass": 3.0}}, weight_bytes=4_500_000, share_of_bf16=0.51
        ),
    }
    lines = steps.quantization_table({"measured": {name: asdict(each) for name, each in measured.items()}}).splitlines()
    assert lines[2] == "| weights | 9.0 MB | 4.5 MB, 0.51 of bf16 |"
    assert lines[3] == "| a step of one sequence | 10 ms, floor 5 | 5 ms, floor 5: 2.00 times faster |"


def test_a_result_has_the_memory_of_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "llama-30m", TINY)
    flags = ["--shape", "llama-30m", "--rounds", "1", "--steps", "2", "--quantization", "none", "none"]
    assert steps.main([*flags, "--out", str(tmp_path)]) == 0
    saved = json.loads((tmp_path / "cpu-steps-llama-30m.json").read_text())
    assert list(saved["measured"]) == ["none"]
    found = saved["measured"]["none"]
    assert set(found["milliseconds"]) == {"1 sequence", "16 sequences", "prompt of 1024"}
    vocabulary = 2 * 8192 * 128  # a packed head that is tied is a copy, without a compiler it is none
    plain = found["weight_bytes"] / found["share_of_bf16"]
    assert found["weight_bytes"] - plain in (pytest.approx(0), pytest.approx(vocabulary))
