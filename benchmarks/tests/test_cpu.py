"""The CPU's floor: shares that follow from times, stages that add up."""

from pathlib import Path

import pytest

from infer_bench.cpu import steps as cpu_steps
from infer_bench.cpu.floor import Floor, LinearFloor, floor_process, load_packed
from infer_bench.shapes import SHAPES, write_config
from infer_engine.protocol import EngineStats
from infer_models.layers import LinearBase

FLOOR = Floor(row_ms=10.0, batch_ms=20.0, prompt_ms=1024.0)
TINY = SHAPES["llama-30m"] | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def test_the_limit_of_w_is_its_prompts_and_its_decode_steps_at_the_products_own_time() -> None:
    limit = FLOOR.limit_tokens_per_s(num_prompt_tokens=1740, num_steps=63, num_tokens=1024)
    assert limit == pytest.approx(1024 / (1.740 + 63 * 0.020))
    assert FLOOR.stream_share(tokens_per_s=80.0) == pytest.approx(0.8)
    assert FLOOR.prefill_share(2048.0, num_tokens=512) == pytest.approx(0.25)


def test_every_dense_layer_is_in_the_floor(tmp_path: Path) -> None:
    model = load_packed(write_config("llama-30m", tmp_path), is_dummy=True)
    rows: list[tuple[int, int]] = []
    for module in model.modules():
        if isinstance(module, LinearBase):
            module.register_forward_hook(lambda layer, given, _: rows.append((len(given[0]), len(layer.weight))))
    LinearFloor(model).measure_ms(40, repeats=1)
    in_a_pass = rows[: len(rows) // 2]
    assert len(in_a_pass) == 8 * 4 + 1  # qkv, o, gate-up, down; the head
    assert in_a_pass[-1] == (16, SHAPES["llama-30m"]["vocab_size"])
    assert {count for count, _ in in_a_pass[:-1]} == {40}


def test_a_floor_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match=r"`infer-bench cpu-floor` ended with exit code"),
        floor_process(tmp_path, environment={}),
    ):
        pass


def test_stages_add_up_to_the_step_without_what_was_done_twice() -> None:
    stats = EngineStats(schedule_s=0.001, execute_s=0.040, sample_s=0.002)
    stages = cpu_steps.stages_of(stats, busy_s=0.044, floor_ms=20.0, beside=(0.003, 0.002))
    assert stages.step_ms == pytest.approx(44 - 5)
    assert stages.model_ms == pytest.approx(40 - 5 - 5 - 20)
    assert stages.outputs_ms == pytest.approx(1)
    assert stages.floor_share == pytest.approx(20 / 39)


def test_a_floor_whose_share_is_too_small_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPES, "llama-30m", TINY)
    assert cpu_steps.main(["--quick", "--rounds", "1", "--steps", "2", "--least-share", "1.0"]) == 1
    captured = capsys.readouterr()
    assert "| dense layers alone (the floor) |" in captured.out
    assert "`--least-share` is" in captured.err
