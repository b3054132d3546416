"""The engine's speed on a GPU: what times say, what memory says, and that all of it runs where there is no GPU."""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass, StepRunner
from infer_engine.protocol import EngineConfig, EngineInfo
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule
from infer_engine.sizing import KVGroupShape, KVMemory, size_kv_cache
from infer_models import ModelConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from ceilings import Ceilings, ModelCosts
from gpu import engine_speed
from gpu.device_memory import MemoryUse, is_capped, judge_kept, judge_peak, judge_use, read_memory
from gpu.engine_speed import REHEARSED, EnginePlan, TimedEngine
from gpu.held_runner import CudaTimer, HeldRunner
from gpu.parts import Place
from gpu.step_times import DecodeSpeed, StepTimes, decode_work, summarize_decode, summarize_prefill
from gpu.stepped_core import SteppedCore, StepsFailedError, tiny, write_folder
from shapes import SHAPES

CPU = torch.device("cpu")
CEILINGS = Ceilings(read_bytes_per_s=2e12, copy_bytes_per_s=1e12, operations_per_s=4e14)


def place(seconds: float = 60.0) -> Place:
    return Place(device=CPU, ceilings=CEILINGS, deadline_s=time.monotonic() + seconds)


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> ModelCosts:
    """Of Llama-3.2-3B."""
    folder = write_folder("llama-3.2-3b", tmp_path_factory.mktemp("llama"), is_tiny=False)
    return ModelCosts(config=ModelConfig.from_folder(folder), num_parameters=3_212_749_824, element_bytes=2)


# What times say


def test_a_step_reads_the_weights_once_and_the_keys_and_values_of_each_sequence(costs: ModelCosts) -> None:
    alone = decode_work(costs, num_seqs=1, context=512)
    together = decode_work(costs, num_seqs=64, context=512)
    assert alone == costs.decode(511, 1)
    assert together.num_bytes == 2 * 3_212_749_824 + 64 * 512 * 28 * 2 * 8 * 128 * 2
    assert together.operations == 64 * alone.operations


def test_a_decodes_share_of_the_bound_is_its_least_time_over_its_step(costs: ModelCosts) -> None:
    steps = [StepTimes(step_ms=each, launch_ms=6.0, wait_ms=1.0) for each in (9.0, 10.0, 30.0)]
    speed = summarize_decode(steps, [4.0, None, 5.0, 6.0], num_seqs=64, context=512.4, costs=costs, ceilings=CEILINGS)
    assert (speed.step_ms, speed.slowest_ms, speed.host_ms, speed.device_ms) == (10.0, 30.0, 9.0, 5.0)
    assert speed.tokens_per_s == pytest.approx(6400)
    assert speed.idle_share == pytest.approx(0.5)
    assert speed.bound_share == pytest.approx((6.4255e9 + 3.758e9) / 2e12 / 10e-3, rel=1e-3)


def test_what_was_not_measured_is_told_as_unknown(costs: ModelCosts) -> None:
    steps = [StepTimes(step_ms=10.0, launch_ms=6.0, wait_ms=3.0)]
    speed = summarize_decode(steps, [None], num_seqs=1, context=1, costs=costs, ceilings=None)
    assert (speed.device_ms, speed.idle_share, speed.bound_share) == (None, None, None)
    assert speed.finding("m").found == "100 tokens/s; step 10.00 ms: host 7.00, device cannot be told"


def test_a_device_that_is_slower_alone_than_in_the_step_does_not_idle_less_than_never() -> None:
    speed = DecodeSpeed(
        num_seqs=1, context=1, step_ms=1.0, slowest_ms=1.0, launch_ms=0.5, wait_ms=0.4, device_ms=1.1, least_ms=0.25
    )
    assert speed.idle_share == 0.0
    assert speed.finding("m").found == (
        "1,000 tokens/s, 25% of the bound; step 1.00 ms: host 0.60, device 1.10, idle 0%"
    )


def test_a_prompts_share_of_the_bound_is_of_arithmetic(costs: ModelCosts) -> None:
    speed = summarize_prefill([500.0, 200.0, 100.0], num_tokens=8192, chunk_size=512, costs=costs, ceilings=CEILINGS)
    assert speed.limit == "arithmetic"
    assert speed.tokens_per_s == pytest.approx(8192 / 0.2)
    assert speed.bound_share == pytest.approx(costs.prefill(8192).operations / 4e14 / 0.2)


# Holding the device back


class FakeTimer:
    """Writes down when it is asked."""

    def __init__(self, log: list[str], *, holds: bool = True) -> None:
        self._log = log
        self._holds = holds

    def start(self, held_s: float) -> None:
        self._log.append(f"hold {held_s}")

    def is_held(self) -> bool:
        self._log.append("held?")
        return self._holds

    def stop(self) -> float:
        self._log.append("stop")
        return 0.25


class FakeRunner:
    """Writes down what it computes."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def forward(self, schedule: Schedule) -> ComputedPass:
        del schedule
        self._log.append("forward")
        return ComputedPass(logits=None)

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        del logits, requests
        self._log.append("choose")
        return SamplerOutput(token_ids=[])

    def probe(self) -> None:
        self._log.append("probe")


def test_the_device_is_held_before_the_launches_and_timed_until_the_tokens_are_there() -> None:
    log: list[str] = []
    runner = HeldRunner(FakeRunner(log), FakeTimer(log))
    runner.hold(0.5)
    for _ in range(2):  # the second pass is as ever
        runner.sample(runner.forward(Schedule()).logits, [])
    assert log == ["hold 0.5", "forward", "held?", "choose", "stop", "forward", "choose"]
    assert (runner.take_device_s(), runner.take_device_s()) == (0.25, None)


def test_a_device_that_was_not_held_long_enough_was_not_timed() -> None:
    log: list[str] = []
    runner = HeldRunner(FakeRunner(log), FakeTimer(log, holds=False))
    runner.hold(0.5)
    runner.sample(runner.forward(Schedule()).logits, [])
    assert runner.take_device_s() is None


class FakeEvent:
    """A CUDA event that writes down what is done with it, and has not happened."""

    log: list[str] = []  # noqa: RUF012 - one log of all events
    made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1
        self.name = f"event {FakeEvent.made}"

    def record(self) -> None:
        self.log.append(f"{self.name} recorded")

    def synchronize(self) -> None:
        self.log.append(f"{self.name} awaited")

    def query(self) -> bool:
        return False

    def elapsed_time(self, end: "FakeEvent") -> float:
        self.log.append(f"{self.name} to {end.name}")
        return 2.0


def test_time_on_a_gpu_begins_after_the_spin_and_ends_after_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: FakeEvent.log.append(f"spin {cycles}"))
    timer = CudaTimer()
    timer.start(1e-3)
    assert timer.is_held()
    assert timer.stop() == 2e-3
    assert FakeEvent.log == [
        "spin 2000000",
        "event 1 recorded",
        "event 2 recorded",
        "event 2 awaited",
        "event 1 to event 2",
    ]


# Memory


def use(used: int, *, peak: int | None = None) -> MemoryUse:
    return MemoryUse(total_bytes=1000, used_bytes=used, peak_bytes=used if peak is None else peak)


@pytest.mark.parametrize(("used", "holds"), [(879, False), (881, True), (900, True), (919, True), (921, False)])
def test_an_engine_uses_what_was_asked_within_two_percent_of_the_device(used: int, *, holds: bool) -> None:
    assert judge_use("m", 0.9, use(used), capped=False).holds is holds


@pytest.mark.parametrize(("used", "holds"), [(300, True), (919, True), (921, False)])
def test_an_engine_whose_cache_is_full_may_use_less(used: int, *, holds: bool) -> None:
    assert judge_use("m", 0.9, use(used), capped=True).holds is holds


def test_an_engine_never_exceeds_what_was_asked() -> None:
    assert judge_peak("m", 0.9, use(890, peak=900)).holds
    assert judge_peak("m", 0.9, use(890, peak=901)).holds is False


def test_the_engine_that_left_most_is_the_one_to_name() -> None:
    assert judge_kept({"a": 2**20, "b": 3 * 2**20}).found == "3 MiB (b)"
    assert judge_kept({"a": 2**29}).holds
    assert judge_kept({"a": 2**29 + 1, "b": 0}).holds is False


def test_a_peak_is_what_is_in_use_and_what_torch_had_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (300, 1000))  # noqa: ARG005
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 600)  # noqa: ARG005
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 650)  # noqa: ARG005
    found = read_memory(torch.device("cuda"))
    assert (found.total_bytes, found.used_bytes, found.peak_bytes) == (1000, 700, 750)
    assert waited


@pytest.mark.parametrize(("shape", "gib", "capped"), [("gemma-3-1b", 60, True), ("gemma-3-1b", 30, False),
                                                     ("qwen3-0.6b", 120, False)])  # fmt: skip
def test_a_cache_is_full_where_memory_did_not_limit_it(shape: str, gib: int, *, capped: bool, tmp_path: Path) -> None:
    model_config = ModelConfig.from_folder(write_folder(shape, tmp_path, is_tiny=False))
    config = EnginePlan(shape=shape).config(engine_speed.ON_GPU, tmp_path, CPU)
    block_size = 32 if shape == "gemma-3-1b" else 64
    by_window = [(window, model_config.windows.count(window)) for window in dict.fromkeys(model_config.windows)]
    per_layer = 2 * model_config.kv_heads * block_size * model_config.head_dim * 2
    sizes = size_kv_cache(
        config,
        model_max_seq_len=model_config.max_position_embeddings,
        max_batch_size=256,
        block_size=block_size,
        groups=[KVGroupShape(window=window, bytes_per_block=count * per_layer) for window, count in by_window],
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


# The engine


class FailingRunner:
    """Fails every pass, or every choice; counts the attempts."""

    attempts = 0

    def __init__(self, inner: StepRunner, *, fails: str) -> None:
        self._inner = inner
        self._fails = fails

    def forward(self, schedule: Schedule) -> ComputedPass:
        self._fail("forward")
        return self._inner.forward(schedule)

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        self._fail("choose")
        return self._inner.sample(logits, requests)

    def probe(self) -> None:
        self._inner.probe()

    def _fail(self, stage: str) -> None:
        if stage == self._fails:
            FailingRunner.attempts += 1
            raise RuntimeError("no kernel image is available")


def as_it_is(runner: StepRunner) -> StepRunner:
    return runner


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    """Of the smallest model."""
    return EnginePlan(shape="llama-3.2-3b").config(REHEARSED, write_folder("llama-3.2-3b", tmp_path, is_tiny=True), CPU)


@pytest.mark.parametrize("stage", ["forward", "choose"])
def test_the_first_failure_ends_it_all_and_tells_its_cause(stage: str, config: EngineConfig) -> None:
    core = SteppedCore(config, around_runner=partial(FailingRunner, fails=stage))
    core.submit(4, 8, max_tokens=4)
    FailingRunner.attempts = 0
    with pytest.raises(StepsFailedError, match="RuntimeError: no kernel image") as caught:
        core.step()
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert FailingRunner.attempts == 1


class NotANumberRunner(FailingRunner):
    """Computes nothing that is a number."""

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        return self._inner.sample(torch.full_like(logits, float("nan")), requests)


def test_a_request_that_the_core_fails_is_raised(config: EngineConfig) -> None:
    core = SteppedCore(config, around_runner=partial(NotANumberRunner, fails=""))
    core.submit(1, 8, max_tokens=4)
    with pytest.raises(StepsFailedError, match=r"request 0 failed: .* is not finite"):
        core.step()


def test_a_batch_that_does_not_decode_as_a_whole_is_raised(config: EngineConfig) -> None:
    core = SteppedCore(config, around_runner=as_it_is)
    core.submit(2, 8, max_tokens=3)
    core.prefill_all()
    assert core.decode_step().stats.num_step_tokens == 2
    core.submit(1, 8, max_tokens=3)
    with pytest.raises(StepsFailedError, match="3 of 3 requests took part in a step of 10 tokens"):
        core.decode_step()
    core.finish()
    with pytest.raises(StepsFailedError, match="some have ended"):
        core.decode_step()


def test_a_batch_that_does_not_fit_is_raised(config: EngineConfig) -> None:
    core = SteppedCore(config, around_runner=as_it_is)
    core.submit(5, 8, max_tokens=3)  # of four at most
    with pytest.raises(StepsFailedError, match="some ended before others began"):
        core.prefill_all()


def test_requests_that_are_aborted_leave_no_memory_behind(config: EngineConfig) -> None:
    core = SteppedCore(config, around_runner=as_it_is)
    core.submit(4, 8, max_tokens=50)
    core.prefill_all()
    core.abort_all()
    assert core.stats.num_free_blocks == core.stats.num_blocks
    assert core.stats.num_running == 0


def test_the_largest_step_is_as_large_as_the_configuration_allows(config: EngineConfig) -> None:
    engine = TimedEngine(place(), config, ModelConfig.from_folder(Path(config.model or "")))
    engine.take_largest_step()
    assert engine.core.stats.steps_by_tokens[6] == 1  # 33 to 64 tokens; `max_num_batched_tokens` is 64
    assert engine.core.stats.num_prompt_tokens == 64
    assert engine.core.stats.num_running == 0


def test_every_shape_is_cut_to_layers_of_each_kind(tmp_path: Path) -> None:
    folder = write_folder("gemma-3-1b", tmp_path, is_tiny=True)
    assert ModelConfig.from_folder(folder).windows == (32, None)
    assert tiny(SHAPES["llama-3.2-3b"])["rope_scaling"]["rope_type"] == "llama3"


def test_qwen3_is_the_real_one(tmp_path: Path) -> None:
    found = ModelConfig.from_folder(write_folder("qwen3-0.6b", tmp_path, is_tiny=False))
    assert (found.vocab_size, found.hidden_size, found.num_layers, found.intermediate_size) == (151936, 1024, 28, 3072)
    assert (found.q_heads, found.kv_heads, found.head_dim) == (16, 8, 128)
    assert (found.max_position_embeddings, found.tie_word_embeddings) == (40960, True)


# The part


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that replaces the plans."""

    def replace(*made: EnginePlan) -> None:
        monkeypatch.setattr(engine_speed, "PLANS", made)

    return replace


def test_the_rehearsal_measures_every_engine() -> None:
    report = engine_speed.run(place())
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


def test_an_engine_that_fails_ends_no_other(plans: Callable[..., None]) -> None:
    plans(EnginePlan(shape="gpt-9"), EnginePlan(shape="qwen3-0.6b", measures_decode=False))
    report = engine_speed.run(place())
    first, *others = report.findings
    assert (first.what, first.found, first.holds) == ("gpt-9", "KeyError: 'gpt-9'", False)
    assert "KeyError" in report.details["gpt-9"]["failure"]
    assert {finding.what for finding in others} == {f"qwen3-0.6b, prompt of {num} by 16" for num in (32, 96)}


def test_what_there_is_no_time_for_is_said_to_be_left_out(plans: Callable[..., None]) -> None:
    plans(EnginePlan(shape="qwen3-0.6b"))
    report = engine_speed.run(place(seconds=0))
    assert [(finding.what, finding.found, finding.holds) for finding in report.findings] == [
        ("qwen3-0.6b", "left out: no time", False)
    ]


def test_no_batch_is_begun_in_the_last_seconds(plans: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    plans(EnginePlan(shape="qwen3-0.6b"))
    monkeypatch.setattr(engine_speed, "ENGINE_S", 0.0)
    report = engine_speed.run(place(seconds=3))
    assert {finding.found for finding in report.findings} == {"left out: no time"}
    assert [finding.what for finding in report.findings][-1] == "qwen3-0.6b, batch 4"
    assert report.details["qwen3-0.6b"]["steps_by_tokens"][6] == 1
