"""A step sees nothing of the machine: no file, no socket, no clock but the one that it was given. If it fails, it logs.

Every call of a function in C is looked at while a step runs, under whatever name it is called. What kernels and other
code in C++ read and write, the operating system counts.
"""

import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import accumulate, cycle
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from infer_engine.messages import StepResult
from infer_engine.protocol import SamplingParams
from infer_engine.scheduling import SchedulerLimits
from infer_proofs.engine.faults import Fault, FaultPlan
from infer_proofs.engine.formula import FormulaEngine, ManualClock, expected_tokens
from infer_proofs.engine.models import ModelEngine, random_prompt

OUTSIDE = frozenset({"_io", "_socket", "_ssl", "datetime", "fcntl", "io", "mmap", "posix", "select", "socket", "time"})
"""Modules of C whose functions reach the machine: its files, sockets, processes and clocks."""
BUILTINS = frozenset({"input", "open", "print"})
"""Built-in functions that do so."""
COUNTERS = Path("/proc/thread-self/io")
LIMITS = SchedulerLimits(max_batch_size=4, max_num_batched_tokens=16, prefill_chunk_size=4, kv_reserve=0.0)
FEW_BLOCKS = 24
"""Fewer than the requests need together, so that some are preempted."""


class Contact(NamedTuple):
    """A call that reached the machine.

    Attributes:
        name: the function's.
        caller: the module that called it.
        is_logging: whether the log called it.
    """

    name: str
    caller: str
    is_logging: bool


def module_of(function: object) -> str:
    """Return the module of a function of C, or of the type whose method it is."""
    owner = getattr(function, "__self__", None)
    return str(getattr(function, "__module__", None) or (owner if isinstance(owner, type) else type(owner)).__module__)


@contextmanager
def trapped(contacts: list[Contact]) -> Iterator[None]:
    """Add what this thread calls of `OUTSIDE` to `contacts`; test tools do not hear of collected garbage meanwhile."""

    def look(frame: FrameType, event: str, function: object) -> None:
        if event == "c_call":
            name, module = getattr(function, "__name__", "?"), module_of(function)
            if module in OUTSIDE or (module == "builtins" and name in BUILTINS):
                callers = [str(each.f_globals.get("__name__")) for each in stack(frame)]
                contacts.append(Contact(name, callers[0], "logging" in callers))

    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.callbacks.extend(callbacks)


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield `frame` and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def num_reads_and_writes() -> tuple[int, int]:
    """Return how many reads and writes the operating system has counted of this thread, this one among them."""
    counts = dict(line.split(": ") for line in COUNTERS.read_text().splitlines())
    return int(counts["syscr"]), int(counts["syscw"])


def untrusted(contact: Contact) -> bool:
    """Whether the call is more than the core's count of the seconds that its parts take."""
    return not (contact.name == "perf_counter" and contact.caller.startswith("infer_engine.core."))


def send() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", 9))


def write(content: bytes = b"x") -> None:
    """Write to no file, as the operating system's own call."""
    place = os.open(os.devnull, os.O_WRONLY)
    os.write(place, content)
    os.close(place)


@pytest.mark.parametrize(
    ("name", "reach"),
    [
        ("open", lambda: Path(__file__).open("rb").close()),
        ("read", lambda: Path(__file__).read_bytes()),
        ("write", write),
        ("print", lambda: print("x")),
        ("stat", lambda: Path(__file__).stat()),
        ("sendto", send),
        ("time", time.time),
        ("monotonic", time.monotonic),
        ("perf_counter_ns", time.perf_counter_ns),
        ("sleep", lambda: time.sleep(0)),
        ("now", lambda: datetime.now(UTC)),
    ],
)
def test_traps_see_files_sockets_and_clocks(name: str, reach: Callable[[], Any]) -> None:
    contacts: list[Contact] = []
    with trapped(contacts):
        reach()
    assert name in [contact.name for contact in contacts]


class TrappedEngine(FormulaEngine):
    """A core that is trapped in each of its steps, and nowhere else."""

    def __init__(self, *faults: Fault, num_blocks: int = FEW_BLOCKS, **config: Any) -> None:
        """Serve from few blocks of 2 tokens, on a clock that stands still but for what faults sleep."""
        clock = ManualClock()
        super().__init__(
            num_blocks=num_blocks,
            block_size=2,
            limits=LIMITS,
            faults=FaultPlan(list(faults), sleep=clock.sleep),
            clock=clock,
            eos_token_ids=frozenset({expected_tokens([7] * 5, 4)[-1]}),
            **config,
        )
        self.contacts: list[Contact] = []

    def step(self) -> StepResult:
        with trapped(self.contacts):
            result = self.core.step()
        self.check()
        return result


MODES: dict[str, dict[str, Any]] = {
    "continuous": {},
    "prefixes are cached": {"use_prefix_caching": True},
    "prompts are computed whole": {"use_chunked_prefill": False, "num_blocks": 60},
    "prompts first": {"scheduler_policy": "prefill_first"},
    "decodes in turn": {"scheduler_policy": "decode_round_robin"},
    "contiguous": {"kv_cache_backend": "contiguous", "num_blocks": 60},
    "static": {"batching_mode": "static", "batch_wait_timeout_s": 0.0, "num_blocks": 60},
    "scheduled ahead": {"use_async_scheduling": True},
}


@pytest.mark.covers("scheduling/no-io")
@pytest.mark.parametrize("mode", MODES)
def test_a_step_does_no_io_whatever_it_does(mode: str) -> None:
    engine = TrappedEngine(**MODES[mode])
    for name in "abcde":  # more than the batch, prompts of several chunks, more tokens than the pool holds
        engine.submit(name, [ord(name)] * 9, max_tokens=20)
    for _ in range(3):
        engine.step()
    engine.abort("a")
    engine.submit("eos", [7] * 5, max_tokens=9)
    engine.abort("e")
    engine.inspect()
    engine.step()
    engine.finish("b", num_completion_tokens=1)
    outputs = engine.run()
    engine.step()  # an idle one, which audits the memory
    stats = engine.core.stats
    assert {output.finish_reason for output in outputs["eos"]} == {None, "eos"}
    assert (stats.num_aborted, stats.num_finished, stats.num_leaked_blocks) == (2, 4, 0)
    assert (stats.num_preemptions > 0) == (stats.num_blocks == FEW_BLOCKS)
    assert engine.contacts == []


@pytest.mark.covers("scheduling/no-io")
@pytest.mark.parametrize("stage", ["schedule", "grow", "allocate", "forward", "sample", "execute", "wait"])
@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_that_fails_logs_and_does_no_other_io(
    stage: Any, *, ahead: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = TrappedEngine(Fault(stage=stage, times=1), use_async_scheduling=ahead)
    for name in "ab":
        engine.submit(name, [ord(name)] * 5, max_tokens=6)
    engine.run()
    assert engine.faults.triggered == [stage]
    assert caplog.messages != []
    assert engine.contacts != []
    assert [contact for contact in engine.contacts if not contact.is_logging] == []


@pytest.mark.covers("scheduling/no-io")
@pytest.mark.parametrize("mode", ["continuous", "prompts first", "prefixes are cached", "scheduled ahead"])
def test_the_clock_changes_nothing_but_the_seconds_that_are_counted(mode: str) -> None:
    def steps(clock: Callable[[], float]) -> list[tuple[Any, list[str], int]]:
        engine = FormulaEngine(num_blocks=FEW_BLOCKS, block_size=2, limits=LIMITS, clock=clock, **MODES[mode])
        for name in "abcde":
            engine.submit(name, [ord(name)] * 9, max_tokens=12)
        results = []
        while engine.core.has_work:
            result = engine.step()
            results.append((result.outputs, result.admitted, result.stats.num_free_blocks))
        return results

    jumps = accumulate(cycle([0.0, 1e-9, 3.0, 0.0, 1e6]))
    assert steps(lambda: next(jumps)) == steps(lambda: 0.0)


PARAMS = {
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "drawn": SamplingParams(temperature=0.9, top_p=0.8, top_k=30, repetition_penalty=1.2, ignore_eos=True),
    "logprobs": SamplingParams(logprobs=2, prompt_logprobs=1, ignore_eos=True),
    "biased": SamplingParams(logit_bias={5: 4.0}, presence_penalty=1.0, min_tokens=3, stop_token_ids=(5,)),
}


@pytest.fixture
def model_engine(folder_of: Callable[[str], Path], family: str) -> ModelEngine:
    """An engine over a model that has a request of each kind."""
    engine = ModelEngine(folder_of(family), block_size=4, prefill_chunk_size=8)
    for number, (name, params) in enumerate(PARAMS.items()):
        engine.submit(name, random_prompt(11 + 7 * number), max_tokens=6, params=params)
    return engine


@pytest.mark.covers("scheduling/no-io")
def test_a_step_of_a_model_sees_only_the_clock_by_which_it_counts_its_seconds(model_engine: ModelEngine) -> None:
    contacts: list[Contact] = []
    for number in range(100):
        with trapped(contacts):
            model_engine.core.step()
        if number == 3:
            model_engine.abort("drawn")
    assert not model_engine.core.has_work
    assert contacts != []
    assert [contact for contact in contacts if untrusted(contact)] == []


@pytest.mark.covers("scheduling/no-io")
@pytest.mark.skipif(not COUNTERS.exists(), reason="the operating system does not count the reads of a thread")
def test_a_step_of_a_model_reads_and_writes_nothing_in_cpp_either(model_engine: ModelEngine) -> None:
    def steps() -> None:
        while model_engine.core.has_work:
            model_engine.core.step()

    def added(act: Callable[[], object]) -> tuple[int, int]:
        before = num_reads_and_writes()
        act()
        after = num_reads_and_writes()
        return after[0] - before[0], after[1] - before[1]

    nothing = added(lambda: None)
    assert added(write) == (nothing[0], nothing[1] + 1)
    assert added(steps) == nothing
