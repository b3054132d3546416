"""Submissions with grammars: they wait for their compilation, and no step waits for them."""

import queue
import threading
from collections.abc import Callable

import pytest

from infer_engine.ipc.core_loop import CoreLoop, Inbox, StepTimer
from infer_engine.messages import Abort, Halt, StepResult, Submit
from infer_engine.protocol import SamplingParams
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.errors import GrammarError
from infer_proofs.engine.cores import ScriptedCore

VOCABULARY = Vocabulary([bytes([byte]) for byte in range(256)], special_ids=[], eos_token_ids=[])
GRAMMAR = 'start: "yes"'


class HeldCompiler(GrammarCompiler):
    """Compiles when it is allowed to."""

    def __init__(self) -> None:
        super().__init__(lambda: VOCABULARY)
        self.begun, self.allowed = threading.Event(), threading.Event()

    def compile(self, grammar: str) -> str:
        self.begun.set()
        assert self.allowed.wait(20)
        return super().compile(grammar)


def submit(name: str, grammar: str | None = None, max_tokens: int = 2) -> Submit:
    params = SamplingParams(temperature=0)
    return Submit(
        request_id=name, prompt_token_ids=[3, 4], max_tokens=max_tokens, seed=0, params=params, grammar=grammar
    )


@pytest.fixture
def core() -> ScriptedCore:
    return ScriptedCore()


def run(core: ScriptedCore, grammars: GrammarCompiler, act: Callable[[Inbox, "queue.Queue[StepResult]"], None]) -> None:
    inbox: Inbox = queue.SimpleQueue()
    results: queue.Queue[StepResult] = queue.Queue()
    timer = StepTimer(lambda: 0.0)
    loop = CoreLoop(core, emit=results.put, timer=timer, inbox=inbox, grammars=grammars)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        act(inbox, results)
    finally:
        inbox.put(Halt())
        thread.join(20)
    assert not thread.is_alive()


def next_id(results: "queue.Queue[StepResult]") -> str:
    """Return the request of the next output."""
    while not (outputs := results.get(timeout=20).outputs):
        pass
    return outputs[0].request_id


def test_others_are_computed_while_a_grammar_is_compiled(core: ScriptedCore) -> None:
    grammars = HeldCompiler()

    def act(inbox: Inbox, results: "queue.Queue[StepResult]") -> None:
        inbox.put(submit("bound", GRAMMAR))
        assert grammars.begun.wait(20)
        inbox.put(submit("free"))
        assert next_id(results) == next_id(results) == "free"
        grammars.allowed.set()
        assert next_id(results) == "bound"

    run(core, grammars, act)


def test_a_grammar_that_is_compiled_goes_on_at_once(core: ScriptedCore) -> None:
    grammars = HeldCompiler()
    GrammarCompiler.compile(grammars, GRAMMAR)

    def act(inbox: Inbox, results: "queue.Queue[StepResult]") -> None:
        inbox.put(submit("bound", GRAMMAR))
        assert next_id(results) == "bound"
        assert not grammars.begun.is_set()

    run(core, grammars, act)


def test_a_request_that_is_aborted_meanwhile_never_reaches_the_core(core: ScriptedCore) -> None:
    grammars = HeldCompiler()

    def act(inbox: Inbox, results: "queue.Queue[StepResult]") -> None:
        inbox.put(submit("bound", GRAMMAR))
        assert grammars.begun.wait(20)
        inbox.put(Abort(request_id="bound"))
        inbox.put(submit("next", GRAMMAR))
        inbox.put(submit("free"))
        assert next_id(results) == "free"
        grammars.allowed.set()
        while next_id(results) != "next":
            pass

    run(core, grammars, act)
    assert "bound" not in {message.request_id for message in core.messages if isinstance(message, Submit | Abort)}


def test_a_compiler_that_breaks_holds_nothing_back_for_ever(core: ScriptedCore) -> None:
    def fail() -> Vocabulary:
        raise RuntimeError("the vocabulary is broken on purpose")

    grammars = GrammarCompiler(fail)

    def act(inbox: Inbox, results: "queue.Queue[StepResult]") -> None:
        inbox.put(submit("bound", GRAMMAR))
        assert next_id(results) == "bound"

    run(core, grammars, act)
    with pytest.raises(GrammarError, match="the log says why"):
        grammars.constraint(GRAMMAR)


def test_what_cannot_be_compiled_goes_on_to_the_core_which_fails_it(core: ScriptedCore) -> None:
    grammars = GrammarCompiler(lambda: VOCABULARY)

    def act(inbox: Inbox, results: "queue.Queue[StepResult]") -> None:
        inbox.put(submit("bad", "start: ("))
        assert next_id(results) == "bad"  # a scripted core knows no grammars

    run(core, grammars, act)
    with pytest.raises(GrammarError):
        grammars.constraint("start: (")
