"""Steps on a CPU beside their floors: shares follow from times, and a share that is too small fails."""

import pytest

from infer_bench.cpu import steps
from infer_bench.shapes import SHAPES

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
