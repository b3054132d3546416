"""The engine part: what times and memory say, and that a failing step ends the measurement."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_bench.ceilings import Ceilings, ModelCosts, Work
from infer_bench.gpu import engine_speed
from infer_bench.gpu.benchmark_core import BenchmarkCore, StepsFailedError
from infer_bench.gpu.engine_speed import (
    REHEARSED,
    MemoryUse,
    compute_largest_step,
    decode_work,
    judge_memory,
    read_memory,
    speed_of,
)
from infer_bench.gpu.parts import Place
from infer_bench.shapes import write_config
from infer_engine.model_runner.runner import ModelRunner
from infer_models import ModelConfig

CEILINGS = Ceilings(read_bytes_per_s=2e12, copy_bytes_per_s=1e12, operations_per_s=4e14)


def place(seconds: float = 120.0) -> Place:
    return Place(device=torch.device("cpu"), ceilings=CEILINGS, deadline_s=time.monotonic() + seconds)


def core(**config: Any) -> BenchmarkCore:
    return BenchmarkCore(place(), "llama-3.2-3b", **{"max_batch_size": 4, "kv_cache_memory": "32MiB", **config})


def test_a_step_reads_the_weights_once_and_the_keys_and_values_of_each_sequence(tmp_path: Path) -> None:
    config = ModelConfig.from_folder(write_config("llama-3.2-3b", tmp_path))
    costs = ModelCosts(config=config, num_parameters=3_212_749_824, element_bytes=2)
    alone, together = (decode_work(costs, num_seqs, context=512) for num_seqs in (1, 64))
    assert alone == costs.decode(511, 1)
    assert together.num_bytes == 2 * 3_212_749_824 + 64 * 512 * 28 * 2 * 8 * 128 * 2
    assert together.operations == 64 * alone.operations


def test_speed_is_a_share_of_what_the_device_has_shown() -> None:
    speed = speed_of(place(), Work(num_bytes=4e9, operations=1.0), num_tokens=64, seconds=1e-2)
    assert speed["tokens_per_s"] == pytest.approx(6400)
    assert (speed["bound_share"], speed["limit"]) == (pytest.approx(0.2), "memory")
    unknown = speed_of(
        Place(device=torch.device("cpu"), deadline_s=0.0), Work(num_bytes=1, operations=1), num_tokens=1, seconds=1
    )
    assert unknown["bound_share"] is None


@pytest.mark.parametrize(
    ("used", "peak", "kept", "has_windows", "holds"),
    [
        (890, 900, 2**29, False, True),
        (890, 901, 0, False, False),  # more than its share
        (879, 879, 0, False, False),  # too little
        (300, 300, 0, True, True),
        (890, 901, 0, True, False),
        (890, 890, 2**29 + 1, False, False),  # not freed
    ],
)
def test_an_engine_uses_its_share_never_more_and_leaves_little_behind(
    used: int, peak: int, kept: int, *, has_windows: bool, holds: bool
) -> None:
    use = MemoryUse(total_bytes=1000, used_bytes=used, peak_bytes=peak, kept_bytes=kept)
    assert judge_memory("m", 0.9, use, has_windows=has_windows).holds is holds


def test_a_peak_adds_what_torch_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (300, 1000))  # noqa: ARG005
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 600)  # noqa: ARG005
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 650)  # noqa: ARG005
    assert read_memory(torch.device("cuda")) == MemoryUse(total_bytes=1000, used_bytes=700, peak_bytes=750)
    assert waited


@pytest.mark.parametrize("stage", ["forward", "sample"])
def test_the_first_failure_ends_everything_with_its_cause(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []

    def fail(*_: object) -> None:
        attempts.append(stage)
        raise RuntimeError("no kernel image is available")

    failing = core()
    monkeypatch.setattr(ModelRunner, stage, fail)
    failing.submit(4, 8, max_tokens=4)
    with pytest.raises(StepsFailedError, match="RuntimeError: no kernel image"):
        failing.step()
    assert attempts == [stage]


def test_a_request_that_the_core_fails_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = ModelRunner.sample

    def sample_from_nan(runner: ModelRunner, logits: torch.Tensor, requests: Sequence[Any]) -> Any:
        return sample(runner, torch.full_like(logits, float("nan")), list(requests))

    monkeypatch.setattr(ModelRunner, "sample", sample_from_nan)
    failing = core()
    failing.submit(1, 8, max_tokens=4)
    with pytest.raises(StepsFailedError, match=r"request 0 failed: .* is not finite"):
        failing.step()


def test_a_batch_that_does_not_decode_as_a_whole_is_raised() -> None:
    made = core()
    made.submit(2, 8, max_tokens=3)
    made.prefill_all()
    assert made.decode_step().stats.num_step_tokens == 2
    made.submit(1, 8, max_tokens=3)
    with pytest.raises(StepsFailedError, match="3 of 3 requests took part in a step of 10 tokens"):
        made.decode_step()
    made.finish()
    with pytest.raises(StepsFailedError, match="some have ended"):
        made.decode_step()
    made.submit(5, 8, max_tokens=3)  # of four at most
    with pytest.raises(StepsFailedError, match="some ended before others began"):
        made.prefill_all()


def test_the_largest_step_is_as_large_as_the_configuration_allows() -> None:
    made = core(max_num_batched_tokens=64)
    compute_largest_step(made, REHEARSED)
    assert made.stats.steps_by_tokens[6] == 1  # 33 to 64 tokens
    assert made.stats.num_prompt_tokens == 64


def test_the_rehearsal_measures_engines_and_a_failing_one_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_speed, "ENGINES", {"gpt-9": 0.9, "qwen3-0.6b": 0.5})
    report = engine_speed.run(place())
    first, *others = report.findings
    assert (first.what, first.found, first.holds) == ("gpt-9", "KeyError: 'gpt-9'", False)
    assert {finding.holds for finding in others} == {None}
    saved = json.loads(json.dumps(report.details))["qwen3-0.6b"]
    assert {"prompt of 32", "prompt of 96", "batch 1", "batch 4"} <= saved.keys()
    batch = saved["batch 4"]
    assert REHEARSED.context < batch["context"] < REHEARSED.context + 20
    assert 0 < batch["host_ms"] <= batch["ms"] <= batch["slowest_ms"]


def test_what_there_is_no_time_for_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_speed, "ENGINES", {"qwen3-0.6b": 0.9})
    (finding,) = engine_speed.run(place(seconds=0)).findings
    assert (finding.what, finding.found, finding.holds) == ("qwen3-0.6b", "left out: no time", False)
    monkeypatch.setattr(engine_speed, "ENGINE_S", 0.0)
    report = engine_speed.run(place(seconds=5))  # too late for any batch or prompt
    assert {finding.holds for finding in report.findings} == {False}
