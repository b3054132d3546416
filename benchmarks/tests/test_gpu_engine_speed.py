"""The engine part: what the times say, what the memory says, and that a failing step ends the measurement."""

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from infer_bench.ceilings import Ceilings, ModelCosts, Work
from infer_bench.gpu import engine_speed
from infer_bench.gpu.benchmark_core import BenchmarkCore, CudaTimer, DeviceTimer, StepsFailedError
from infer_bench.gpu.device_memory import MemoryUse, is_capped, judge_kept, judge_peak, judge_use, read_memory
from infer_bench.gpu.engine_speed import (
    ON_GPU,
    REHEARSED,
    EnginePlan,
    StepTimes,
    TimedEngine,
    decode_speed,
    decode_work,
    describe_decode,
    prefill_speed,
)
from infer_bench.gpu.parts import Place
from infer_bench.gpu.tiny_models import tiny_shape
from infer_bench.shapes import write_config
from infer_engine.model_runner.runner import ModelRunner
from infer_engine.protocol import EngineConfig, EngineInfo
from infer_engine.sizing import KVMemory, size_kv_cache
from infer_models import ModelConfig

CPU = torch.device("cpu")
CEILINGS = Ceilings(read_bytes_per_s=2e12, copy_bytes_per_s=1e12, operations_per_s=4e14)


def place(seconds: float = 120.0) -> Place:
    return Place(device=CPU, ceilings=CEILINGS, deadline_s=time.monotonic() + seconds)


@pytest.fixture
def costs(tmp_path: Path) -> ModelCosts:
    """Of Llama-3.2-3B."""
    config = ModelConfig.from_folder(write_config("llama-3.2-3b", tmp_path))
    return ModelCosts(config=config, num_parameters=3_212_749_824, element_bytes=2)


# Times


def test_a_step_reads_the_weights_once_and_the_keys_and_values_of_each_sequence(costs: ModelCosts) -> None:
    alone = decode_work(costs, num_seqs=1, context=512)
    together = decode_work(costs, num_seqs=64, context=512)
    assert alone == costs.decode(511, 1)
    assert together.num_bytes == 2 * 3_212_749_824 + 64 * 512 * 28 * 2 * 8 * 128 * 2
    assert together.operations == 64 * alone.operations


def test_medians_of_steps_give_the_shares_of_bound_and_idle_time() -> None:
    steps = [StepTimes(step_ms=each, launch_ms=6.0, wait_ms=1.0) for each in (9.0, 10.0, 30.0)]
    work = Work(num_bytes=4e9, operations=1.0)
    speed = decode_speed(steps, [4.0, None, 5.0, 6.0], 64, work, CEILINGS)
    assert (speed["step_ms"], speed["slowest_ms"], speed["host_ms"], speed["device_ms"]) == (10.0, 30.0, 9.0, 5.0)
    assert speed["tokens_per_s"] == pytest.approx(6400)
    assert speed["idle_share"] == pytest.approx(0.5)
    assert speed["bound_share"] == pytest.approx(2e-3 / 10e-3)
    assert describe_decode("m", speed).found == (
        "6,400 tokens/s, 20% of the bound; step 10.00 ms: host 9.00, device 5.00, idle 50%"
    )


def test_what_was_not_measured_is_not_known() -> None:
    steps = [StepTimes(step_ms=10.0, launch_ms=6.0, wait_ms=3.0)]
    speed = decode_speed(steps, [None], 1, Work(num_bytes=1.0, operations=1.0), None)
    assert (speed["device_ms"], speed["idle_share"], speed["bound_share"]) == (None, None, None)
    assert describe_decode("m", speed).found == "100 tokens/s; step 10.00 ms: host 7.00, device not known"


def test_a_device_that_takes_longer_alone_than_in_the_step_is_never_idle() -> None:
    steps = [StepTimes(step_ms=1.0, launch_ms=0.5, wait_ms=0.4)]
    assert decode_speed(steps, [1.1], 1, Work(num_bytes=1.0, operations=1.0), None)["idle_share"] == 0.0


def test_a_long_prompt_is_bound_by_arithmetic(costs: ModelCosts) -> None:
    speed = prefill_speed([0.5, 0.2, 0.1], 8192, costs, CEILINGS)
    assert speed["limit"] == "arithmetic"
    assert speed["tokens_per_s"] == pytest.approx(8192 / 0.2)
    assert speed["bound_share"] == pytest.approx(costs.prefill(8192).operations / 4e14 / 0.2)


# The device's own time


class FakeEvent:
    """A CUDA event that notes what is done with it."""

    log: list[str] = []  # noqa: RUF012 - one log of all events
    has_happened = False

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.log.append("record")

    def synchronize(self) -> None:
        self.log.append("wait")

    def query(self) -> bool:
        self.log.append("spinning?")
        return FakeEvent.has_happened

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert end is not self
        return 2.0


@pytest.mark.parametrize(("spin_was_long_enough", "seconds"), [(True, 2e-3), (False, None)])
def test_time_on_a_gpu_begins_after_the_spin_and_ends_with_what_is_queued(
    monkeypatch: pytest.MonkeyPatch, *, spin_was_long_enough: bool, seconds: float | None
) -> None:
    log: list[str] = []
    monkeypatch.setattr(FakeEvent, "log", log)
    monkeypatch.setattr(FakeEvent, "has_happened", not spin_was_long_enough)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: log.append(f"spin {cycles}"))
    timer = CudaTimer()
    timer.time_next_step(spin_s=1e-3)
    for _ in range(2):  # only the first step is timed
        with timer.around("forward"):
            log.append("launches")
        with timer.around("sample"):
            log.append("sample")
    assert log == [
        *("spin 2000000", "record", "launches", "spinning?"),
        *("sample", "record", "wait"),
        *("launches", "sample"),
    ]
    assert (timer.take_seconds(), timer.take_seconds()) == (seconds, None)


def test_without_a_gpu_the_host_is_timed() -> None:
    timer = DeviceTimer()
    timer.time_next_step(spin_s=1.0)
    stages: tuple[Literal["forward", "sample"], ...] = ("forward", "sample")
    for stage in stages:
        with timer.around(stage):
            pass
    assert (timer.take_seconds() or 0.0) > 0


# Memory


def use(used: int, *, peak: int | None = None) -> MemoryUse:
    return MemoryUse(total_bytes=1000, used_bytes=used, peak_bytes=used if peak is None else peak)


@pytest.mark.parametrize(
    ("used", "holds", "holds_if_capped"),
    [(300, False, True), (879, False, True), (881, True, True), (919, True, True), (921, False, False)],
)
def test_an_engine_uses_what_was_asked_within_two_percent_of_the_device(
    used: int, *, holds: bool, holds_if_capped: bool
) -> None:
    assert judge_use("m", 0.9, use(used), capped=False).holds is holds
    assert judge_use("m", 0.9, use(used), capped=True).holds is holds_if_capped


def test_an_engine_never_exceeds_what_was_asked_and_leaves_little_behind() -> None:
    assert judge_peak("m", 0.9, use(890, peak=900)).holds
    assert judge_peak("m", 0.9, use(890, peak=901)).holds is False
    assert judge_kept({"a": 2**20, "b": 3 * 2**20}).found == "3 MiB (b)"
    assert judge_kept({"a": 2**29}).holds
    assert judge_kept({"a": 2**29 + 1, "b": 0}).holds is False


def test_a_peak_adds_what_torch_has_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (300, 1000))  # noqa: ARG005
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 600)  # noqa: ARG005
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 650)  # noqa: ARG005
    assert read_memory(torch.device("cuda")) == MemoryUse(total_bytes=1000, used_bytes=700, peak_bytes=750)
    assert waited


@pytest.mark.parametrize(
    ("shape", "gib", "capped"), [("gemma-3-1b", 60, True), ("gemma-3-1b", 30, False), ("qwen3-0.6b", 120, False)]
)
def test_a_cache_is_capped_if_memory_did_not_limit_it(shape: str, gib: int, *, capped: bool, tmp_path: Path) -> None:
    model_config = ModelConfig.from_folder(write_config(shape, tmp_path))
    config = EnginePlan(shape=shape).config(ON_GPU, tmp_path, CPU)
    block_size = 32 if shape == "gemma-3-1b" else 64
    by_window = [(window, model_config.windows.count(window)) for window in dict.fromkeys(model_config.windows)]
    per_layer = 2 * model_config.kv_heads * block_size * model_config.head_dim * 2
    sizes = size_kv_cache(
        config,
        model_max_seq_len=model_config.max_position_embeddings,
        max_batch_size=256,
        block_size=block_size,
        windows=[window for window, _ in by_window],
        bytes_per_block=[num_layers * per_layer for _, num_layers in by_window],
        max_chunk=512,
        memory=KVMemory(share=gib * 2**30, free=gib * 2**30),
    )
    info = EngineInfo(
        model=shape,
        architecture=model_config.model_type,
        num_parameters=1,
        dtype="bfloat16",
        device="cuda",
        vocab_size=model_config.vocab_size,
        max_seq_len=sizes.max_seq_len,
        num_kv_blocks=sum(sizes.num_blocks),
        block_size=block_size,
        max_batch_size=256,
    )
    assert is_capped(config, info, model_config.windows) is capped


# The core


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    """Of the smallest model."""
    return EnginePlan(shape="llama-3.2-3b").config(REHEARSED, write_config(tiny_shape("llama-3.2-3b"), tmp_path), CPU)


@pytest.fixture
def core(config: EngineConfig) -> BenchmarkCore:
    """A core whose steps are not timed."""
    return BenchmarkCore(config, around=lambda _: nullcontext())


@pytest.mark.parametrize("stage", ["forward", "sample"])
def test_the_first_failure_ends_everything_with_its_cause(
    stage: str, core: BenchmarkCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def fail(*_: object) -> None:
        attempts.append(stage)
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(ModelRunner, stage, fail)
    core.submit(4, 8, max_tokens=4)
    with pytest.raises(StepsFailedError, match="RuntimeError: no kernel image") as caught:
        core.step()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert attempts == [stage]


def test_a_request_that_the_core_fails_is_raised(core: BenchmarkCore, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = ModelRunner.sample

    def sample_from_nan(runner: ModelRunner, logits: torch.Tensor, requests: Any) -> Any:
        return sample(runner, torch.full_like(logits, float("nan")), requests)

    monkeypatch.setattr(ModelRunner, "sample", sample_from_nan)
    core.submit(1, 8, max_tokens=4)
    with pytest.raises(StepsFailedError, match=r"request 0 failed: .* is not finite"):
        core.step()


def test_a_batch_that_does_not_decode_as_a_whole_is_raised(core: BenchmarkCore) -> None:
    core.submit(2, 8, max_tokens=3)
    core.prefill_all()
    assert core.decode_step().stats.num_step_tokens == 2
    core.submit(1, 8, max_tokens=3)
    with pytest.raises(StepsFailedError, match="3 of 3 requests took part in a step of 10 tokens"):
        core.decode_step()
    core.finish()
    with pytest.raises(StepsFailedError, match="some have ended"):
        core.decode_step()
    core.submit(5, 8, max_tokens=3)  # of four at most
    with pytest.raises(StepsFailedError, match="some ended before others began"):
        core.prefill_all()


def test_aborted_requests_leave_no_memory_behind(core: BenchmarkCore) -> None:
    core.submit(4, 8, max_tokens=50)
    core.prefill_all()
    core.abort_all()
    assert core.stats.num_free_blocks == core.stats.num_blocks
    assert core.stats.num_running == 0


def test_the_largest_step_is_as_large_as_the_configuration_allows(config: EngineConfig) -> None:
    engine = TimedEngine(place(), config, ModelConfig.from_folder(Path(config.model or "")))
    engine.compute_largest_step()
    assert engine.core.stats.steps_by_tokens[6] == 1  # 33 to 64 tokens; `max_num_batched_tokens` is 64
    assert engine.core.stats.num_prompt_tokens == 64
    assert engine.core.stats.num_running == 0


# The part


def test_the_rehearsal_measures_every_engine() -> None:
    report = engine_speed.run(place(seconds=240))
    assert not any(finding.holds is False for finding in report.findings), report.findings
    saved = json.loads(json.dumps(report.details))
    assert list(saved) == ["llama-3.2-3b", "qwen3-0.6b", "gemma-3-1b", "llama-3.2-3b at 50%"]
    for name in list(saved)[:3]:
        assert {"prompt of 32", "prompt of 96", "batch 1", "batch 4"} <= saved[name].keys()
        batch = saved[name]["batch 4"]
        assert batch["num_seqs"] == 4
        assert REHEARSED.context < batch["context"] < REHEARSED.context + 20
        assert 0 < batch["launch_ms"] + batch["wait_ms"] <= batch["slowest_ms"]
        assert batch["device_ms"] > 0
    assert saved["llama-3.2-3b at 50%"]["prompt of 96"]["chunk_size"] == 64


def test_an_engine_that_fails_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = (EnginePlan(shape="gpt-9"), EnginePlan(shape="qwen3-0.6b", is_for_prompts=True))
    monkeypatch.setattr(engine_speed, "PLANS", plans)
    report = engine_speed.run(place())
    first, *others = report.findings
    assert (first.what, first.found, first.holds) == ("gpt-9", "KeyError: 'gpt-9'", False)
    assert "KeyError" in report.details["gpt-9"]["failure"]
    assert {finding.what for finding in others} == {f"qwen3-0.6b at 50%, prompt of {num} by 64" for num in (32, 96)}


def test_what_there_is_no_time_for_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_speed, "PLANS", (EnginePlan(shape="qwen3-0.6b"),))
    (finding,) = engine_speed.run(place(seconds=0)).findings
    assert (finding.what, finding.found, finding.holds) == ("qwen3-0.6b", "left out: no time", False)
    monkeypatch.setattr(engine_speed, "ENGINE_S", 0.0)
    report = engine_speed.run(place(seconds=5))  # too late for any batch or prompt
    assert {finding.holds for finding in report.findings} == {False}
    assert report.findings[-1].what == "qwen3-0.6b, batch 4"
    assert report.details["qwen3-0.6b"]["steps_by_tokens"][6] == 1
