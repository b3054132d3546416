"""How many prompt tokens are computed beside decodes, by what steps have taken."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_cache import PagedKVCacheManager
from infer_engine.core.engine_core import EngineCore
from infer_engine.core.prefix_sharing import share_with_all
from infer_engine.messages import Submit
from infer_engine.protocol import SamplingParams
from infer_engine.request import Request, RequestState, StepRow
from infer_engine.scheduling import POLICIES, ContinuousScheduler, PrefillShare, Schedule, SchedulerLimits
from infer_engine.scheduling.prefill_share import FLOOR
from infer_engine.step_runner import ComputedPass, PromptLogprobs, SampledTokens, SamplerOutput, no_prompt_logprobs
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import FormulaEngine, ManualClock, expected_tokens, tokens_of

MOST = 512
Noise = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Machine:
    """Milliseconds of a step: before any row, for each decode, for each prompt token; and at least."""

    base: float
    decode: float
    prompt: float
    least: float = 0.0

    def of(self, num_decodes: int, num_prompt_tokens: int = 0) -> float:
        """Return the seconds of a step."""
        return max(self.least, self.base + self.decode * num_decodes + self.prompt * num_prompt_tokens) / 1000

    def share(self, num_decodes: int) -> int:
        """Return the most prompt tokens with which a step takes twice the time of its decodes, within limits."""
        most = 2 * self.of(num_decodes) + 1e-9
        return max((n for n in range(FLOOR, MOST + 1) if self.of(num_decodes, n) <= most), default=FLOOR)


# Near what a step of 0.6 or 0.1 billion weights takes two cores, with and without AVX512-bf16; and two that no CPU is.
MACHINES = {
    "slow rows": Machine(10, 10.3, 10.5, least=60),
    "rows as fast as memory": Machine(15, 2.1, 2.2, least=20),
    "fast rows": Machine(19, 1.4, 1.15),
    "faster rows": Machine(19, 1.4, 0.5),
    "rows alone": Machine(0, 10, 10),
}
slow_and_fast = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


def quiet() -> float:
    return 1.0


def noisy(draw: Random, *, spikes: float = 0.0) -> Noise:
    """Return what makes steps longer and shorter by a tenth, and some eight times as long."""
    return lambda: draw.lognormvariate(0, 0.1) * (8 if draw.random() < spikes else 1)


def burst(share: PrefillShare, machine: Machine, noise: Noise = quiet, *, prompt: int = 150) -> Iterator[int]:
    """Serve 16 requests that come at once; yield the share of 16 decodes after each step."""
    waiting, left = [prompt] * 16, [40]
    share.observe(0, waiting.pop(), machine.of(0, prompt) * noise())
    while left:
        budget, computed, num_decodes = share.num_tokens(len(left)), 0, len(left)
        left = [count - 1 for count in left if count > 1]
        while budget and waiting:
            part = min(budget, waiting[-1])
            computed, budget, waiting[-1] = computed + part, budget - part, waiting[-1] - part
            if not waiting[-1]:
                waiting.pop()
                left.append(40)
        share.observe(num_decodes, computed, machine.of(num_decodes, computed) * noise())
        yield share.num_tokens(16)


def learned(machine: Machine, noise: Noise = quiet, *, most: int = MOST) -> PrefillShare:
    """Return a share that has seen one request alone, and then 16 at once."""
    share = PrefillShare(max_slowdown=2, most=most)
    share.observe(0, 64, 5 * machine.of(0, 64))  # the first step of all, which finds nothing in the caches
    for _ in range(20):
        share.observe(1, 0, machine.of(1) * noise())
    for _ in burst(share, machine, noise):
        pass
    return share


@pytest.mark.covers("configuration/max-decode-slowdown")
@slow_and_fast
def test_share_doubles_the_time_of_the_decodes(machine: Machine) -> None:
    share = learned(machine)
    for num_decodes in (4, 16, 32):
        assert share.num_tokens(num_decodes) == pytest.approx(machine.share(num_decodes), rel=0.2, abs=1)


def test_first_share_of_16_decodes_is_48_tokens() -> None:
    share = PrefillShare(max_slowdown=2, most=MOST)
    assert [share.num_tokens(num_decodes) for num_decodes in (1, 16, 32)] == [33, 48, 64]
    assert PrefillShare(max_slowdown=3, most=MOST).num_tokens(16) == 96


@slow_and_fast
@pytest.mark.parametrize("seed", range(3))
def test_share_is_found_among_noise_and_steps_that_another_process_held_up(machine: Machine, seed: int) -> None:
    noise = noisy(Random(seed), spikes=0.05)  # noqa: S311 - a test's choices
    assert learned(machine, noise).num_tokens(16) == pytest.approx(machine.share(16), rel=0.4, abs=2)


@slow_and_fast
@pytest.mark.parametrize("step", [(1, 0), (16, 20), (0, 512)])
def test_a_step_during_which_the_machine_slept_for_an_hour_leaves_the_share_near_what_it_was(
    machine: Machine, step: tuple[int, int]
) -> None:
    share = learned(machine)
    before = share.num_tokens(16)
    share.observe(*step, 3600.0)
    assert share.num_tokens(16) == pytest.approx(before, rel=0.5, abs=2)
    for _ in burst(share, machine):
        pass
    assert share.num_tokens(16) == pytest.approx(machine.share(16), rel=0.25, abs=2)


@slow_and_fast
def test_share_is_known_before_the_first_burst_once_a_single_request_was_served(machine: Machine) -> None:
    share = PrefillShare(max_slowdown=2, most=MOST)
    share.observe(0, 64, machine.of(0, 64))
    for _ in range(20):
        share.observe(1, 0, machine.of(1))
    assert share.num_tokens(1) == pytest.approx(machine.share(1), rel=0.3, abs=3)


@slow_and_fast
def test_share_stays_when_the_whole_machine_becomes_three_times_as_slow_amid_prompts(machine: Machine) -> None:
    share = learned(machine)
    before = share.num_tokens(16)
    for each in burst(share, machine, lambda: 3.0):  # no step shows the decodes alone until all prompts are computed
        assert each == pytest.approx(before, rel=0.4, abs=2)


@slow_and_fast
def test_an_hour_of_single_decodes_makes_no_later_share_wrong(machine: Machine) -> None:
    noise = noisy(Random(1))  # noqa: S311 - a test's choices
    share = learned(machine, noise)
    for _ in range(3000):
        share.observe(1, 0, machine.of(1) * noise())
    assert share.num_tokens(16) == pytest.approx(machine.share(16), rel=0.4, abs=2)
    assert list(burst(share, machine, noise))[10] == pytest.approx(machine.share(16), rel=0.4, abs=2)


def test_share_follows_when_only_prompt_tokens_become_slower() -> None:
    share = learned(MACHINES["fast rows"])
    before = share.num_tokens(16)
    slower = Machine(19, 1.4, 2.3)  # as at the end of a prompt of many thousands
    for _ in range(3):
        for _ in burst(share, slower):
            pass
    assert share.num_tokens(16) == pytest.approx(slower.share(16), rel=0.35)
    assert share.num_tokens(16) < 0.75 * before


def test_share_is_never_below_its_floor_nor_above_its_most() -> None:
    assert learned(Machine(0, 1, 20)).num_tokens(1) == FLOOR
    assert learned(Machine(100, 1, 0.01)).num_tokens(1) == MOST
    assert learned(Machine(100, 1, 0.01), most=100).num_tokens(1) == 100
    assert learned(Machine(0, 1, 20), most=7).num_tokens(1) == 7


STEPS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 8192), st.floats(0, 1e6)), max_size=40)


@given(steps=STEPS, max_slowdown=st.floats(1, 1000, exclude_min=True), most=st.integers(1, 8192))
def test_share_is_within_its_limits_whatever_steps_take(
    steps: list[tuple[int, int, float]], max_slowdown: float, most: int
) -> None:
    share = PrefillShare(max_slowdown=max_slowdown, most=most)
    for num_decodes, num_prompt_tokens, seconds in steps:
        share.observe(num_decodes, num_prompt_tokens, seconds)
        shares = [share.num_tokens(count) for count in (1, 16, 256)]
        assert min(FLOOR, most) <= shares[0] <= shares[1] <= shares[2] <= most


@given(steps=STEPS.map(lambda steps: [each for each in steps if each[2] > 1e-6]), power=st.integers(-6, 6))
def test_a_machine_that_is_slower_in_all_has_the_same_shares(steps: list[tuple[int, int, float]], power: int) -> None:
    shares = [PrefillShare(max_slowdown=2, most=MOST) for _ in range(2)]
    for num_decodes, num_prompt_tokens, seconds in steps:
        shares[0].observe(num_decodes, num_prompt_tokens, seconds)
        shares[1].observe(num_decodes, num_prompt_tokens, seconds * 2.0**power)
        assert shares[0].num_tokens(16) == shares[1].num_tokens(16)


def test_a_clock_that_stands_still_says_nothing() -> None:
    share = PrefillShare(max_slowdown=2, most=MOST)
    share.observe(1, 100, 0.0)
    assert share.num_tokens(16) == 48


class TimedRunner:
    """Computes nothing, in the time of a machine, one pass after the other."""

    def __init__(self, machine: Machine, clock: ManualClock) -> None:
        self._machine = machine
        self._clock = clock
        self._free_s = 0.0  # when the device has done all that was launched
        self.sizes: list[tuple[int, int]] = []

    def forward(self, schedule: Schedule) -> ComputedPass:
        self.sizes.append(schedule.size)
        self._free_s = done_s = max(self._free_s, self._clock.now) + self._machine.of(*schedule.size)

        def wait() -> PromptLogprobs:
            self._clock.now = max(self._clock.now, done_s)
            return no_prompt_logprobs()

        return ComputedPass(logits=lambda: [0] * len(schedule.needs_sampling), read_prompt_logprobs=wait)

    def sample(self, computed: ComputedPass, rows: Sequence[StepRow]) -> SampledTokens:
        del computed
        return SampledTokens(lambda: SamplerOutput(token_ids=[1] * len(rows)))

    def probe(self) -> None:
        pass


@dataclass(slots=True)
class Served:
    """What 16 requests at once got: the longest wait between two tokens, tokens a second, sizes of the steps."""

    longest_s: float
    tokens_per_s: float
    sizes: list[tuple[int, int]]
    last_share: int


def serve(machine: Machine, *, is_ahead: bool = False, policy: str = "fcfs", **limits: Any) -> Served:
    """Serve one request, and then 16 at once, of 32 to 256 prompt tokens and 64 of answer each."""
    clock = ManualClock()
    runner = TimedRunner(machine, clock)
    manager = PagedKVCacheManager([500], 64, max_chunk=MOST, keeps_prefixes=False)
    scheduler = ContinuousScheduler(
        manager, SchedulerLimits(max_batch_size=32, max_num_batched_tokens=2048, **limits), POLICIES[policy]
    )
    core = EngineCore(
        runner,
        scheduler,
        manager,
        eos_token_ids=frozenset(),
        share_prefix=share_with_all,
        schedules_ahead=is_ahead,
        clock=clock,
    )
    draw = Random(1)  # noqa: S311 - a test's choices
    times: dict[str, list[float]] = {}

    def submit(name: str) -> None:
        params = SamplingParams(temperature=0, ignore_eos=True)
        prompt = [draw.randrange(900) for _ in range(draw.randint(32, 256))]
        core.handle(Submit(request_id=name, prompt_token_ids=prompt, max_tokens=64, seed=0, params=params))

    def run() -> None:
        while core.has_work:
            for output in core.step().outputs:
                times.setdefault(output.request_id, []).append(clock.now)

    submit("first")
    run()
    times.clear()
    runner.sizes.clear()
    began_s = clock.now
    for number in range(16):
        submit(str(number))
    run()
    gaps = [after - before for each in times.values() for before, after in pairwise(each)]
    last_share = core.stats.prefill_tokens_beside_decodes
    return Served(max(gaps), 16 * 64 / (clock.now - began_s), runner.sizes, last_share)


@pytest.mark.covers("configuration/max-decode-slowdown")
@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority", "decode_round_robin"])
@slow_and_fast
def test_no_token_of_16_requests_at_once_waits_for_much_longer_than_two_steps(
    machine: Machine, policy: str, *, is_ahead: bool
) -> None:
    served = serve(machine, max_decode_slowdown=2.0, policy=policy, is_ahead=is_ahead)
    for num_decodes, num_prompt_tokens in served.sizes:
        assert not num_decodes or num_prompt_tokens <= max(FLOOR, 1.3 * machine.share(num_decodes) + 3)
    assert served.longest_s <= 1.3 * max(2 * machine.of(16), machine.of(16, FLOOR))
    assert served.tokens_per_s >= 0.95 * serve(machine, max_prefill_tokens_beside_decodes=48).tokens_per_s
    assert served.last_share >= FLOOR


def test_slow_rows_let_tokens_wait_half_as_long_as_a_fixed_number_of_tokens() -> None:
    machine = MACHINES["slow rows"]
    follows, fixed = serve(machine, max_decode_slowdown=2.0), serve(machine, max_prefill_tokens_beside_decodes=48)
    assert follows.longest_s < 0.6 * fixed.longest_s
    assert follows.last_share < 48 == fixed.last_share


def test_a_pass_of_prompts_alone_is_not_limited() -> None:
    served = serve(MACHINES["slow rows"], max_decode_slowdown=2.0, policy="prefill_first")
    assert served.last_share == 0
    assert max(num_prompt_tokens for _, num_prompt_tokens in served.sizes) > MOST


@pytest.mark.parametrize("step", range(2, 8))
def test_a_pass_that_failed_is_not_learned_from(step: int) -> None:
    def shares(*faults: Fault) -> list[int]:
        clock = ManualClock()
        plan = FaultPlan(
            [Fault(stage="forward", action="sleep", seconds=0.01), *map(replace, faults)], sleep=clock.sleep
        )
        limits = SchedulerLimits(max_batch_size=4, max_num_batched_tokens=2048, max_decode_slowdown=2.0)
        engine = FormulaEngine(num_blocks=512, block_size=2, limits=limits, faults=plan, clock=clock)
        engine.submit("a", [1] * 20, max_tokens=30)
        engine.step()
        engine.submit("b", [2] * 900, max_tokens=1)
        return [engine.step().stats.prefill_tokens_beside_decodes for _ in range(10)]

    fails = Fault(stage="forward", step=step, times=1)
    held_up = Fault(stage="forward", action="sleep", seconds=1000.0, step=step, times=1)
    assert shares(held_up, fails) == shares(fails) != shares(held_up)


@given(seed=st.integers(0, 1000), is_ahead=st.booleans())
def test_tokens_are_those_of_any_other_share_whatever_the_clock_shows(seed: int, *, is_ahead: bool) -> None:
    draw = Random(seed)  # noqa: S311 - a test's choices
    clock = ManualClock()

    def show() -> float:
        clock.now += draw.lognormvariate(-3, 2)
        return clock.now

    engine = FormulaEngine(
        num_blocks=512,
        block_size=2,
        limits=SchedulerLimits(max_batch_size=4, max_num_batched_tokens=256, max_decode_slowdown=2.0),
        clock=show,
        use_async_scheduling=is_ahead,
    )
    prompts = {name: [ord(name)] * draw.randint(1, 150) for name in "abcd"}
    for name, prompt in prompts.items():
        engine.submit(name, prompt, max_tokens=6)
    outputs = engine.run()
    assert {name: tokens_of(outputs[name]) for name in prompts} == {
        name: expected_tokens(prompt, 6) for name, prompt in prompts.items()
    }


def test_drafts_are_rows_of_decodes_and_a_prompt_of_one_token_is_none() -> None:
    submitted = Submit(request_id="", prompt_token_ids=[1], max_tokens=9, seed=0, params=SamplingParams())
    prompt, decode = Request(submitted, arrival=0), Request(submitted, arrival=1)
    decode.state = RequestState.DECODE
    assert Schedule(items=[(decode, 1)], decodes=[decode] * 4).size == (4, 0)
    assert Schedule(items=[(decode, 1), (prompt, 1), (prompt, 7)]).size == (1, 8)
