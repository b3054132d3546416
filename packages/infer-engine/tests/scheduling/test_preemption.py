"""Memory pressure: which request is preempted, that no token changes, and that all requests finish."""

from typing import Any

import pytest

from infer_engine.messages import TokenOutput
from infer_engine.protocol import SamplingParams
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import FormulaEngine, collect, expected_tokens, tokens_of

POLICIES = ["fcfs", "prefill_first", "decode_round_robin", "priority"]


def engine(
    *, num_blocks: int, block_size: int = 1, batch: int = 8, chunk: int | None = 8, **config: Any
) -> FormulaEngine:
    return FormulaEngine(
        num_blocks=num_blocks,
        block_size=block_size,
        limits=SchedulerLimits(
            max_batch_size=batch, max_num_batched_tokens=32, prefill_chunk_size=chunk, kv_reserve=0.0
        ),
        **config,
    )


def submit_all(served: FormulaEngine, num_requests: int, *, length: int, max_tokens: int) -> dict[str, list[int]]:
    """Submit requests and return what each must get."""
    for i in range(num_requests):
        served.submit(str(i), [i] * length, max_tokens=max_tokens, priority=-i)
    return {str(i): expected_tokens([i] * length, max_tokens) for i in range(num_requests)}


def tokens(outputs: dict[str, list[TokenOutput]]) -> dict[str, list[int]]:
    return {name: tokens_of(out) for name, out in outputs.items()}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 48), (3, 16), (7, 7)])
def test_a_pool_of_little_more_than_one_request_serves_all_without_a_livelock(
    *, policy: str, caching: bool, block_size: int, num_blocks: int
) -> None:
    served = engine(num_blocks=num_blocks, block_size=block_size, scheduler_policy=policy, use_prefix_caching=caching)
    expected = submit_all(served, 6, length=10, max_tokens=30)
    # In every step the request that runs longest computes a token at least, and no other takes its memory.
    assert tokens(served.run(max_steps=6 * (10 + 30))) == expected
    stats = served.step().stats
    assert 0 < stats.num_preemptions <= 6 * 30


@pytest.mark.covers("requests/same-when-preempted", "scheduling/preempted-output")
@pytest.mark.parametrize("policy", POLICIES)
def test_outputs_are_as_undisturbed(policy: str) -> None:
    def run(num_blocks: int) -> tuple[dict[str, list[TokenOutput]], int]:
        served = engine(num_blocks=num_blocks, scheduler_policy=policy)
        submit_all(served, 5, length=6, max_tokens=20)
        return served.run(), served.step().stats.num_preemptions

    undisturbed, none = run(1000)
    disturbed, some = run(40)
    assert none == 0 < some
    assert disturbed == undisturbed


def test_a_preempted_request_without_chunking_gets_the_same_tokens() -> None:
    served = engine(num_blocks=40, chunk=None, use_chunked_prefill=False)
    expected = submit_all(served, 5, length=6, max_tokens=20)
    assert tokens(served.run()) == expected
    assert served.step().stats.num_preemptions > 0


def test_the_request_that_came_first_computes_in_every_step() -> None:
    served = engine(num_blocks=40)
    submit_all(served, 5, length=6, max_tokens=20)
    outputs: dict[str, list[TokenOutput]] = {}
    for num_steps in range(1, 21):
        collect(served.step(), outputs)
        assert len(outputs["0"]) == num_steps
    served.run()


def test_a_request_that_waits_is_not_preempted_for_the_one_at_the_head_of_the_queue() -> None:
    served = engine(num_blocks=20)
    served.submit("running", [1] * 10, max_tokens=5)
    served.step()
    served.submit("waiting", [2] * 12, max_tokens=2)
    for _ in range(3):
        assert served.step().stats.num_preemptions == 0
    assert [out.error for out in served.run()["waiting"]] == [None, None]


@pytest.mark.covers("scheduling/preempted-goes-first")
def test_a_preempted_request_goes_before_all_that_have_not_run() -> None:
    served = engine(num_blocks=24, scheduler_policy="priority")
    served.submit("old", [1] * 6, max_tokens=14)
    served.submit("young", [2] * 6, max_tokens=14, priority=5)
    served.step()
    served.submit("urgent", [3] * 12, max_tokens=1, priority=-9)
    order: list[str] = []
    while served.core.has_work:
        order += served.step().admitted
    assert order == ["young", "urgent"]


def test_a_request_that_is_preempted_in_its_prompt_begins_it_again() -> None:
    served = engine(num_blocks=24, chunk=2, batch=2)
    served.submit("old", [1] * 2, max_tokens=20)
    served.step()
    served.submit("long", list(range(20)), max_tokens=2)
    outputs = served.run()
    computed = [count for step in served.runner.schedules for name, count in step if name == "long"]
    assert sum(computed) > 20 + 1
    assert outputs["long"][-1].num_prompt_tokens == 20
    assert tokens_of(outputs["long"]) == expected_tokens(list(range(20)), 2)


@pytest.mark.covers("requests/aborted")
def test_an_abort_of_a_preempted_request_leaves_nothing_behind() -> None:
    served = engine(num_blocks=16)
    served.submit("old", [1] * 4, max_tokens=10)
    served.submit("young", [2] * 4, max_tokens=10)
    while not served.step().stats.num_preemptions:
        pass
    served.abort("young")
    assert tokens_of(served.run()["old"])[-1] == expected_tokens([1] * 4, 10)[-1]


def test_rows_and_blocks_are_all_there_after_many_preemptions() -> None:
    served = engine(num_blocks=40, batch=5)
    submit_all(served, 10, length=6, max_tokens=20)
    served.run()
    for i in range(5):
        served.submit(f"again {i}", [i], max_tokens=3)
    assert len(served.step().admitted) == 5
    served.run()


def test_a_reader_of_what_a_preempted_request_was_to_write_in_the_same_step_begins_again_too() -> None:
    served = FormulaEngine(
        num_blocks=40,
        block_size=8,
        limits=SchedulerLimits(max_batch_size=4, max_num_batched_tokens=32, prefill_chunk_size=4, kv_reserve=0.0),
        windows={4: 20},
        faults=FaultPlan([Fault(stage="grow", action="refuse", request_id="oldest", times=1)]),
        scheduler_policy="priority",
        use_prefix_caching=True,
    )
    prompt = list(range(24))
    served.submit("oldest", prompt, max_tokens=3, priority=1)
    served.step()
    served.submit("ahead", prompt, max_tokens=3, priority=0)
    served.step()  # it finds what the other computes in this step, and is a chunk ahead from then on
    # It fills a block, which the other takes over at once. That one's next block is refused: its victim is the writer.
    assert served.step().stats.num_preemptions == 2
    assert {tuple(tokens_of(out)) for out in served.run().values()} == {tuple(expected_tokens(prompt, 3))}


@pytest.mark.parametrize("batching_mode", ["continuous", "static"])
@pytest.mark.parametrize("num_generated", [1, 7, 19])
def test_a_request_that_another_core_began_goes_on_where_that_was(batching_mode: str, num_generated: int) -> None:
    prompt, wanted = [5] * 10, expected_tokens([5] * 10, 20)
    params = SamplingParams(temperature=0, prompt_logprobs=1)
    served = engine(num_blocks=100, batch=2, batching_mode=batching_mode, chunk=4)
    begun = wanted[:num_generated]
    served.submit("moved", prompt, max_tokens=20, params=params, generated_token_ids=begun)
    served.submit("beside", [6] * 10, max_tokens=20)
    found = served.run()
    assert tokens(found) == {"moved": wanted[num_generated:], "beside": expected_tokens([6] * 10, 20)}
    assert [output.prompt_logprobs for output in found["moved"]] == [None] * (20 - num_generated), "told before"
    last = found["moved"][-1]
    assert (last.num_prompt_tokens, last.num_completion_tokens) == (10, 20)


def test_a_request_that_another_core_began_finds_prefixes_and_measures_no_prompt() -> None:
    served = engine(num_blocks=100, use_prefix_caching=True)
    prompt, wanted = [5] * 16, expected_tokens([5] * 16, 20)
    served.submit("before", prompt, max_tokens=20)
    served.run()
    num_computed = served.step().stats.num_computed_tokens
    params = SamplingParams(temperature=0, prompt_logprobs=1)
    served.submit("moved", prompt, max_tokens=20, params=params, generated_token_ids=wanted[:8])
    assert tokens(served.run())["moved"] == wanted[8:]
    assert served.step().stats.num_computed_tokens - num_computed < len(prompt)
