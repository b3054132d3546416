"""Thousands of steps of random traffic over schedulers and KV cache managers alone; no model, no tensors."""

import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import settings

from infer_engine.messages import StepResult
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.faults import Fault, FaultPlan, Stage
from infer_proofs.engine.formula import FormulaEngine, expected_tokens

NUM_STEPS = 50 * settings().max_examples
"""1,250 by default, 10,000 in the `full` profile."""
LIMITS: dict[str, Any] = {
    "max_batch_size": 6,
    "max_num_batched_tokens": 16,
    "prefill_chunk_size": 5,
    "max_prefill_tokens_beside_decodes": None,
}
FEW_TOKENS: dict[str, Any] = {"num_blocks": 24, "block_size": 2, "max_prefill_tokens_beside_decodes": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "fcfs": {"num_blocks": 24, "block_size": 2},
    "fcfs with a reserve": {"num_blocks": 24, "block_size": 2, "kv_reserve": 0.2},
    "prefill first": {"num_blocks": 24, "block_size": 2, "scheduler_policy": "prefill_first"},
    "round robin": {"num_blocks": 40, "scheduler_policy": "decode_round_robin"},
    "priority": {"num_blocks": 24, "block_size": 2, "scheduler_policy": "priority"},
    "prefixes": {"num_blocks": 24, "block_size": 2, "use_prefix_caching": True},
    "windows": {"num_blocks": 24, "block_size": 2, "windows": {3: 12, 8: 16}, "use_prefix_caching": True},
    "turns": FEW_TOKENS | {"use_prefix_caching": True},
    "turns by priority": FEW_TOKENS | {"scheduler_policy": "priority", "windows": {3: 9, 8: 12}},
    "whole prompts": {"num_blocks": 24, "block_size": 2, "prefill_chunk_size": None, "use_chunked_prefill": False},
    "contiguous": {"num_blocks": 6 * 10, "block_size": 4, "kv_cache_backend": "contiguous"},
    "static": {
        "num_blocks": 6 * 10,
        "block_size": 4,
        "prefill_chunk_size": None,
        "batching_mode": "static",
        "batch_wait_timeout_s": 0,
    },
}


class Traffic:
    """Requests that come, go on and go away at random, and what each has got so far."""

    def __init__(self, engine: FormulaEngine, seed: int) -> None:
        self.engine = engine
        self.num_submitted = 0
        self.num_ended = 0
        self._draw = random.Random(seed)  # noqa: S311 - a test's choices
        self._expected: dict[str, list[int]] = {}

    def arrive(self) -> None:
        """Submit a request now and then, and abort one more rarely."""
        draw = self._draw
        if len(self._expected) < 14 and draw.random() < 0.7:
            name = str(self.num_submitted)
            self.num_submitted += 1
            prompt = [draw.randrange(2)] * draw.randint(1, 14) + [draw.randrange(3)]
            max_tokens = draw.randint(1, 12)
            group = "siblings" if draw.random() < 0.2 else None
            self.engine.submit(name, prompt, max_tokens=max_tokens, priority=draw.randrange(3), sibling_group=group)
            self._expected[name] = expected_tokens(prompt, max_tokens)
        if self._expected and draw.random() < 0.03:
            name = draw.choice(list(self._expected))
            if draw.random() < 0.3:
                self.engine.abort(name)
            else:
                self.engine.finish(name, num_completion_tokens=draw.choice([0, 3]))
            del self._expected[name]

    def take(self, result: StepResult) -> None:
        """Compare each token with the expected one."""
        for output in result.outputs:
            if output.error is not None:
                assert output.request_id.endswith("7"), "only these are planned to fail"
                del self._expected[output.request_id]
                continue
            expected = self._expected[output.request_id]
            assert output.token_ids == [expected[output.num_completion_tokens - 1]]
            if output.finish_reason is not None:
                assert output.num_completion_tokens == len(expected)
                del self._expected[output.request_id]
                self.num_ended += 1


STAGES: list[Stage] = ["grow", "allocate", "forward", "sample", "execute", "wait"]
AHEAD = [name for name, config in CONFIGS.items() if config.get("scheduler_policy") != "prefill_first"]


def build(name: str, faults: FaultPlan | None = None, *, is_ahead: bool = False) -> FormulaEngine:
    """Build an engine; one that schedules ahead has a device that lags behind the host."""
    config = CONFIGS[name]
    limits = {"kv_reserve": 0.0, **LIMITS, **{key: config[key] for key in config if key in (*LIMITS, "kv_reserve")}}
    others = {key: value for key, value in config.items() if key not in limits}
    if is_ahead:
        others |= {"use_async_scheduling": True, "lag": random.Random(7)}  # noqa: S311 - a test's choices
    return FormulaEngine(limits=SchedulerLimits(**limits), faults=faults, **others)


@pytest.mark.covers("configuration/use-async-scheduling", "kv-cache/audit-is-empty")
@pytest.mark.parametrize(
    ("name", "is_ahead"), [*((name, False) for name in CONFIGS), *((name, True) for name in AHEAD)]
)
@pytest.mark.hypothesis  # `tests_full` runs it again, with more steps
def test_random_steps_keep_every_invariant(name: str, *, is_ahead: bool) -> None:
    engine = build(name, is_ahead=is_ahead)
    traffic = Traffic(engine, seed=len(name))
    for _ in range(NUM_STEPS):
        traffic.arrive()
        traffic.take(engine.step())
        engine.runner.schedules.clear()
    for result in iter(lambda: engine.step() if engine.core.has_work else None, None):
        traffic.take(result)
    assert engine.num_free_blocks == engine.kv_cache_manager.num_blocks
    assert traffic.num_ended > NUM_STEPS / 10
    assert_whole(engine)


@pytest.mark.covers("kv-cache/audit-is-empty")
@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("name", ["fcfs", "windows", "static", "round robin", "priority", "turns"])
@pytest.mark.hypothesis
def test_random_steps_with_faults_keep_every_invariant(name: str, *, is_ahead: bool) -> None:
    draw = random.Random(1)  # noqa: S311 - a test's choices
    plan = FaultPlan([Fault(stage="forward", request_id="none")])
    engine = build(name, plan, is_ahead=is_ahead)
    traffic = Traffic(engine, seed=1)
    for step in range(NUM_STEPS // 2):
        if step % 20 == 0:
            culprit = str(traffic.num_submitted + (7 - traffic.num_submitted) % 10)
            plan.faults = [Fault(stage=draw.choice(STAGES), request_id=culprit)]
        if step % 40 == 0:
            plan.faults = [Fault(stage=draw.choice(STAGES[2:]), step=plan.step + draw.randrange(1, 20), times=1)]
        traffic.arrive()
        traffic.take(engine.step())
    plan.faults.clear()
    for result in iter(lambda: engine.step() if engine.core.has_work else None, None):
        traffic.take(result)
    assert engine.core.stats.num_failed_passes > 5
    assert_whole(engine)


def assert_whole(engine: FormulaEngine) -> None:
    """Check that as many can run at once as at the start: no row and no block is lost."""
    for i in range(6):
        engine.submit(f"last {i}", [i], max_tokens=2)
    assert len(engine.step().admitted) == 6
    engine.run()


def test_a_simulation_imports_no_torch() -> None:
    script = """
import sys
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.formula import FormulaEngine
engine = FormulaEngine(num_blocks=9, limits=SchedulerLimits(max_batch_size=2, max_num_batched_tokens=8))
engine.submit("a", [1, 2, 3], max_tokens=4)
engine.run()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
