"""The contiguous cache under continuous batching: slots in place of blocks, nothing shared, no preemption."""

from typing import Any

import pytest

from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.formula import FormulaEngine, expected_tokens, tokens_of


def engine(*, slots: int = 2, max_seq_len: int = 16, policy: Any = "fcfs", **limits: Any) -> FormulaEngine:
    return FormulaEngine(
        num_blocks=slots * max_seq_len,
        limits=SchedulerLimits(
            **{"max_batch_size": slots, "max_num_batched_tokens": 32, "prefill_chunk_size": 4, **limits}
        ),
        kv_cache_backend="contiguous",
        scheduler_policy=policy,
        use_prefix_caching=None,
    )


@pytest.mark.covers("scheduling/admission-slots")
def test_admission_takes_as_many_as_there_are_slots_whatever_their_lengths_and_the_reserve() -> None:
    served = engine(slots=3, kv_reserve=0.9)
    for name, length in (("a", 15), ("b", 1), ("c", 15), ("d", 1)):
        served.submit(name, [1] * length, max_tokens=1)
    assert served.step().admitted == ["a", "b", "c"]
    served.run()


def test_a_request_joins_as_soon_as_a_slot_is_free() -> None:
    served = engine()
    served.submit("short", [1], max_tokens=2)
    served.submit("long", [2], max_tokens=8)
    served.submit("next", [3], max_tokens=1)
    assert [served.step().admitted for _ in range(3)] == [["short", "long"], [], ["next"]]
    served.run()


@pytest.mark.covers("kv-cache/slot-reuse")
def test_a_slot_is_used_again_from_position_0() -> None:
    served = engine(slots=1)
    served.submit("a", [1] * 10, max_tokens=6)
    served.run()
    served.submit("b", [2] * 5, max_tokens=11)
    served.step()
    assert served.num_free_blocks == 0
    assert tokens_of(served.run()["b"]) == expected_tokens([2] * 5, 11)


def test_a_request_fills_its_slot_to_the_last_position_without_preemption() -> None:
    served = engine()
    for name in "ab":
        served.submit(name, [ord(name)] * 6, max_tokens=10)
    outputs = served.run()
    for name in "ab":
        assert tokens_of(outputs[name]) == expected_tokens([ord(name)] * 6, 10)
    assert served.step().stats.num_preemptions == 0


def test_slots_share_nothing_not_even_between_siblings() -> None:
    served = engine()
    for name in "ab":
        served.submit(name, [1] * 8, max_tokens=1, sibling_group="one request")
    outputs = served.run()
    assert [out[-1].num_cached_tokens for out in outputs.values()] == [0, 0]
    assert served.step().stats.num_computed_tokens == 16
    assert served.num_reused_tokens([1] * 8) == 0


@pytest.mark.parametrize("policy", ["fcfs", "prefill_first", "decode_round_robin", "priority"])
def test_slots_and_blocks_give_the_same_tokens_with_every_policy(policy: str) -> None:
    served = engine(policy=policy)
    for i in range(6):
        served.submit(str(i), [i] * (i + 1), max_tokens=9 - i, priority=i % 2)
    outputs = served.run()
    assert {name: tokens_of(out) for name, out in outputs.items()} == {
        str(i): expected_tokens([i] * (i + 1), 9 - i) for i in range(6)
    }
