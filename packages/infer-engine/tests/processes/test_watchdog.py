"""A step that does not end: noticed while a request waits for it, logged with its place, told to every stream."""

import asyncio
from collections.abc import Callable

import pytest

from infer_engine.processes.watchdog import Watchdog
from infer_engine.protocol import EngineStatus, EngineUnavailableError
from infer_proofs.engine.cores import GIVE_UP_S, ScriptedEngine, read, scripted_tokens, tokens_of

TIMEOUT_S = 1 / 16


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def watchdog_of(
    *, step_age_s: Callable[[], float | None], is_needed: Callable[[], bool], on_stuck: Callable[[], None]
) -> Watchdog:
    return Watchdog(
        timeout_s=0.01,
        step_age_s=step_age_s,
        describe_step=lambda: "It is nowhere.",
        is_needed=is_needed,
        on_stuck=on_stuck,
    )


async def entered(scripted: ScriptedEngine) -> None:
    assert await asyncio.to_thread(scripted.gate.entered.wait, GIVE_UP_S)


@pytest.mark.covers("configuration/step-timeout")
async def test_a_stuck_step_ends_every_stream_and_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    clock = SetClock()
    scripted = ScriptedEngine(step_timeout_s=TIMEOUT_S, clock=clock)
    streams = await scripted.submit([1], [2], [3])
    await entered(scripted)
    clock.now_s = TIMEOUT_S + 0.001
    for stream in streams:
        [last] = await read(stream)
        assert last.error is not None
        assert last.error.code == "engine_stuck"
    assert scripted.engine.status is EngineStatus.DEAD
    with pytest.raises(EngineUnavailableError, match="dead"):
        await scripted.submit([4])
    assert "A step takes longer than 0.0625 s" in caplog.text
    assert "in step" in caplog.text
    scripted.gate.allow()
    await scripted.engine.close()


async def test_a_stuck_engine_computes_no_more_once_its_step_ends() -> None:
    clock = SetClock()
    scripted = ScriptedEngine(step_timeout_s=TIMEOUT_S, clock=clock)
    [stream] = await scripted.submit([1], max_tokens=40)
    await entered(scripted)
    clock.now_s = 1.0
    await read(stream)
    scripted.gate.allow()
    assert scripted.gate.thread is not None
    await asyncio.to_thread(scripted.gate.thread.join, GIVE_UP_S)
    assert scripted.core.stats.num_steps == 1
    await scripted.engine.close()
    assert scripted.engine.status is EngineStatus.DEAD


async def test_steps_within_their_time_are_left_alone_however_many_there_are() -> None:
    clock = SetClock()
    scripted = ScriptedEngine(step_timeout_s=TIMEOUT_S, clock=clock)
    [stream] = await scripted.submit([1], max_tokens=8)
    outputs = []
    for _ in range(8):
        await entered(scripted)
        scripted.gate.entered.clear()
        clock.now_s += TIMEOUT_S  # since the step began; the next one begins afresh
        await asyncio.sleep(TIMEOUT_S / 4)  # a few looks
        scripted.gate.allow(1)
        outputs.append(await anext(aiter(stream)))
    assert tokens_of(outputs) == scripted_tokens([1], 8)
    assert scripted.engine.status is EngineStatus.READY
    await scripted.engine.close()


async def test_a_step_under_way_is_checked_even_when_no_request_waits_for_it() -> None:
    ages, stuck = iter([0.0, 0.005, 0.01, 0.02, 0.021]), asyncio.Event()
    watchdog = watchdog_of(step_age_s=lambda: next(ages), is_needed=lambda: False, on_stuck=stuck.set)
    watchdog.watch()
    async with asyncio.timeout(GIVE_UP_S):
        await stuck.wait()
    assert not watchdog.is_watching


async def test_a_step_that_one_look_found_late_and_the_next_one_ended_is_a_pause_of_everything() -> None:
    ages, states, ended = iter([0.0, 9.0, 0.0, 9.0, None]), [], asyncio.Event()

    def next_age() -> float | None:
        age = next(ages)
        if age is None:
            ended.set()
        return age

    watchdog = watchdog_of(step_age_s=next_age, is_needed=lambda: False, on_stuck=lambda: states.append("stuck"))
    watchdog.watch()
    async with asyncio.timeout(GIVE_UP_S):
        await ended.wait()
    assert states == []


async def test_the_timer_exists_only_while_there_is_something_to_wait_for() -> None:
    answers, ended = [True, True, False], asyncio.Event()

    def is_needed() -> bool:
        answer = answers.pop(0)
        if not answer:
            ended.set()
        return answer

    watchdog = watchdog_of(step_age_s=lambda: None, is_needed=is_needed, on_stuck=ended.set)
    states = [watchdog.is_watching]
    watchdog.watch()
    watchdog.watch()
    states.append(watchdog.is_watching)
    async with asyncio.timeout(GIVE_UP_S):
        await ended.wait()
    states.append(watchdog.is_watching)
    assert states == [False, True, False]
