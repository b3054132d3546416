"""Caches are warm before anything is timed: every shape is compiled for, and what fails or hangs is a line."""

import sys
import time

import pytest
import torch

from infer_bench.gpu import engine_speed, kernel_cache, mode_speed
from infer_bench.gpu.first_light import PARTS
from infer_bench.gpu.kernel_cache import SHAPES, compile_shape, compile_together
from infer_bench.gpu.parts import Finding, Place
from infer_bench.shapes import SHAPES as ALL_SHAPES


def place(seconds: float = 60.0) -> Place:
    return Place(device=torch.device("cpu"), deadline_s=time.monotonic() + seconds)


def test_every_engine_that_is_timed_is_compiled_for_before() -> None:
    assert {*engine_speed.ENGINES, *mode_speed.ENGINES} <= {*SHAPES}
    assert list(PARTS).index("compile") < min(map(list(PARTS).index, ("kernels", "engine", "modes", "profile")))
    for shape in SHAPES:  # six layers have both kinds of Gemma's
        assert ALL_SHAPES[shape].get("sliding_window_pattern", 1) <= kernel_cache.NUM_LAYERS


def test_what_breaks_or_hangs_does_not_hold_and_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys, time; time.sleep(600) if sys.argv[1] == 'slow' else sys.exit(sys.argv[1] == 'bad')"
    monkeypatch.setattr(kernel_cache, "SHAPE_COMMAND", (sys.executable, "-c", script))
    found = compile_together(place(seconds=3.0), ["good", "bad", "slow"])
    assert [(each.what, each.holds) for each in found] == [("good", True), ("bad", False), ("slow", False)]
    assert "exit code 1" in found[1].found
    assert [each.holds for each in compile_together(place(seconds=0.0), ["good"])] == [False]


def test_an_exclusive_gpu_is_used_by_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[list[str]] = []

    def note(_: Place, shapes: list[str]) -> list[Finding]:
        together.append(shapes)
        return []

    monkeypatch.setattr(kernel_cache, "compile_together", note)
    for mode in ("Default", "Exclusive_Process"):
        monkeypatch.setattr(kernel_cache, "ask_nvidia_smi", lambda mode=mode: [{"compute_mode": mode}])
        kernel_cache.run(Place(device=torch.device("cuda", 0), deadline_s=time.monotonic()))
    assert together == [[*SHAPES], *([shape] for shape in SHAPES)]


def test_the_rehearsal_builds_an_engine_of_a_shape() -> None:
    compile_shape("gemma-3-1b", torch.device("cpu"))
