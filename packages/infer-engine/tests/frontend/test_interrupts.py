"""An interrupt waits for the end of a step: no other call loses an output."""

import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from infer_engine import LLM, SamplingParams
from infer_engine.assembly.core import build_core
from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.frontend.interrupts import deferred_interrupts
from infer_engine.frontend.sync_engine import SyncEngine
from infer_engine.messages import StepResult
from infer_engine.protocol import GenerateRequest, StepOutput
from infer_models.text import dummy_tokenizer
from infer_proofs.engine.cores import MAX_SEQ_LEN, VOCAB_SIZE, ScriptedCore, scripted_tokens, tokens_of
from infer_proofs.engine.faults import Fault, FaultPlan

Interrupted = tuple[LLM, FaultPlan]
NEVER = Fault(stage="forward", action="sleep", request_id="none")


@pytest.fixture(autouse=True)
def python_handles_interrupts() -> Iterator[None]:
    """Take Python's own handler, which processes that were started in the background do not have."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(times: int) -> list[str]:
    """Be interrupted so often in a block that is held back, and return how far it came."""
    done = []
    try:
        with deferred_interrupts():
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
            done.append("the block")
        done.append("what follows")
    except KeyboardInterrupt:
        done.append("interrupted")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return done


def test_an_interrupt_takes_effect_at_the_end_of_the_block() -> None:
    assert interrupted(1) == ["the block", "interrupted"]


def test_a_second_interrupt_takes_effect_at_once() -> None:
    assert interrupted(2) == ["interrupted"]


def test_no_interrupt_changes_nothing() -> None:
    assert interrupted(0) == ["the block", "what follows"]


def test_other_threads_leave_signals_alone() -> None:
    seen = []

    def look() -> None:
        with deferred_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


class InterruptedCore(ScriptedCore):
    """A core whose every step is interrupted when it has computed."""

    def step(self) -> StepResult:
        result = super().step()
        signal.raise_signal(signal.SIGINT)
        return result


def test_what_an_interrupted_step_has_computed_is_handed_over_first() -> None:
    engine = SyncEngine(InterruptedCore())
    input_processor = InputProcessor(
        dummy_tokenizer(VOCAB_SIZE), InputLimits(vocab_size=VOCAB_SIZE, max_seq_len=MAX_SEQ_LEN)
    )
    request = GenerateRequest(prompt=[1], params=SamplingParams(max_tokens=3))
    [prepared] = input_processor.process(request, ids=input_processor.reserve_ids(request))
    outputs: list[StepOutput] = []
    engine.submit(prepared, outputs.append)
    for num_steps in range(1, 4):
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        assert tokens_of(outputs) == scripted_tokens([1], num_steps)


def interrupted_llm(folder: Path, monkeypatch: pytest.MonkeyPatch, interrupt: Callable[[float], None]) -> Interrupted:
    """Return an engine in which `interrupt` is called in a pass that the test chooses."""
    plan = FaultPlan([NEVER], sleep=interrupt)
    monkeypatch.setattr("infer_engine.llm.build_core", partial(build_core, wrap_parts=plan.wrap_parts))
    return LLM(str(folder), dtype="float32", batch_invariant=True), plan


def interrupt_soon(plan: FaultPlan) -> None:
    plan.faults = [Fault(stage="forward", action="sleep", step=plan.step + 5, times=1)]


def test_a_stream_outlives_the_interrupt_of_a_call_beside_it(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, plan = interrupted_llm(folder_of("llama"), monkeypatch, lambda _: signal.raise_signal(signal.SIGINT))
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    [alone] = llm.generate([[5, 6, 7]], params, use_tqdm=False)
    stream = llm.stream([5, 6, 7], params)
    token_ids = list(next(stream).token_ids)
    interrupt_soon(plan)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[8, 9]] * 10, SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)
    token_ids += [token_id for output in stream for token_id in output.token_ids]
    assert token_ids == alone.token_ids
    assert (llm.stats.num_running, llm.stats.num_free_blocks) == (0, llm.stats.num_blocks)


def test_an_interrupted_call_leaves_nothing_behind_for_the_next(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    llm, plan = interrupted_llm(folder_of("llama"), monkeypatch, interrupt)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    interrupt_soon(plan)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5], [6, 7]], params, use_tqdm=False)
    assert llm.stats.num_running == llm.stats.num_waiting == 0
    assert len(llm.generate([[5]], params, use_tqdm=False)[0].token_ids) == 20
