"""Hostile grammars cost only the process that tries them, and only for a while."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from infer_engine.frontend.async_engine import AsyncEngine
from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.ipc.thread_client import ThreadCoreClient
from infer_engine.messages import Submit
from infer_engine.protocol import GenerateRequest, SamplingParams, StructuredOutputs
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.grammar_text import to_grammar_text
from infer_engine.structured.sandbox import MAX_GROWTH_BYTES, GrammarSandbox, SandboxSetup
from infer_engine.structured.sandbox_queue import SandboxQueue, grammar_refused
from infer_models.text import dummy_tokenizer
from infer_proofs.engine.cores import INFO, MAX_SEQ_LEN, VOCAB_SIZE, ScriptedCore, read

GOOD = to_grammar_text(StructuredOutputs(choice=("yes", "no")))
ANOTHER = to_grammar_text(StructuredOutputs(choice=("another",)))
SLOW = 'start: %json {"type": "integer", "multipleOf": 999983}'
"""Takes half a minute and hundreds of megabytes to compile; schemas are checked before, so no client can send it."""
TOKENS = [bytes([byte]) for byte in range(256)]


def setup() -> SandboxSetup:
    return SandboxSetup(tokens=TOKENS, special_ids=[], eos_token_ids=[])


@pytest.fixture
def sandbox() -> Iterator[GrammarSandbox]:
    sandbox = GrammarSandbox(setup)
    yield sandbox
    sandbox.close()


def worker_of(sandbox: GrammarSandbox) -> psutil.Process:
    assert sandbox.pid is not None
    return psutil.Process(sandbox.pid)


def test_a_good_grammar_passes_and_is_remembered(sandbox: GrammarSandbox) -> None:
    sandbox.check(GOOD)
    assert sandbox.passed_as(GOOD) == GOOD
    worker_of(sandbox).kill()
    sandbox.check(GOOD)  # asks nobody


NAMES = {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False}
WIDER = to_grammar_text(StructuredOutputs(json=NAMES, strict=False))
REFUSED_BY_THE_LIBRARY = StructuredOutputs(json=NAMES | {"maxProperties": 2}, strict=False)


def test_a_schema_that_the_library_refuses_passes_as_a_wider_one(sandbox: GrammarSandbox) -> None:
    assert sandbox.check(to_grammar_text(REFUSED_BY_THE_LIBRARY)) == WIDER
    assert sandbox.check(WIDER) == WIDER


async def test_the_core_gets_the_grammar_that_has_passed(sandbox: GrammarSandbox) -> None:
    core = ScriptedCore()
    limits = InputLimits(vocab_size=VOCAB_SIZE, max_seq_len=MAX_SEQ_LEN)
    inputs = InputProcessor(dummy_tokenizer(VOCAB_SIZE), limits)
    engine = AsyncEngine(
        ThreadCoreClient(core), inputs, info=INFO, stats=core.stats, max_waiting_requests=9, sandbox=sandbox
    )
    shapes = (REFUSED_BY_THE_LIBRARY, None)
    params = [SamplingParams(max_tokens=1, structured_outputs=each) for each in shapes]
    for stream in await engine.submit([GenerateRequest(prompt=[1], params=each) for each in params]):
        await read(stream)
    assert [each.grammar for each in core.messages if isinstance(each, Submit)] == [WIDER, None]
    await engine.close()


@pytest.mark.parametrize("grammar", ["start: (", '{"grammars": 3}', "start: %json {", "\x00", "start: /(?=a)b/"])
def test_what_is_no_grammar_is_refused_with_its_reason(sandbox: GrammarSandbox, grammar: str) -> None:
    with pytest.raises(GrammarError) as error:
        sandbox.check(grammar)
    assert str(error.value)
    assert sandbox.passed_as(grammar) is None


@pytest.mark.covers("structured-tools-agents/hostile-grammars")
def test_a_slow_grammar_is_ended_and_the_next_one_is_tried_at_once(sandbox: GrammarSandbox) -> None:
    sandbox.check(GOOD)
    worker = worker_of(sandbox)
    before = worker.memory_info().rss
    with pytest.raises(GrammarError, match="too long"):
        sandbox.check(SLOW)
    sandbox.check(ANOTHER)
    assert worker_of(sandbox).pid == worker.pid
    assert not worker.children()
    assert worker.memory_info().rss < before + 50e6


def test_a_large_grammar_is_ended(sandbox: GrammarSandbox) -> None:
    large = "start: " + " | ".join(f'"{"x" * 50}{number}"' for number in range(200_000))
    with pytest.raises(GrammarError):
        sandbox.check(large)
    sandbox.check(GOOD)


@pytest.mark.covers("structured-tools-agents/hostile-grammars")
def test_a_grammar_has_so_much_memory() -> None:
    script = f"""
from infer_engine.structured.sandbox_process import limit_this_process
limit_this_process()
bytearray(2 * {MAX_GROWTH_BYTES})
"""
    run = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert run.stderr.endswith("MemoryError\n")


def test_a_process_that_has_ended_is_replaced(sandbox: GrammarSandbox) -> None:
    sandbox.check(GOOD)
    first = worker_of(sandbox)
    first.kill()
    first.wait(10)
    sandbox.check(ANOTHER)
    assert worker_of(sandbox).pid != first.pid


def test_a_closed_screen_leaves_no_process_and_refuses() -> None:
    sandbox = GrammarSandbox(setup)
    sandbox.check(GOOD)
    worker = worker_of(sandbox)
    sandbox.close()
    assert not worker.is_running()
    with pytest.raises(GrammarError, match="stopped"):
        sandbox.check(ANOTHER)


def test_the_process_ends_with_the_one_that_started_it() -> None:
    script = f"""
import os
from infer_engine.structured.sandbox import GrammarSandbox, SandboxSetup
sandbox = GrammarSandbox(lambda: SandboxSetup(tokens={TOKENS!r}, special_ids=[], eos_token_ids=[]))
sandbox.check({GOOD!r})
print(sandbox.pid, flush=True)
os._exit(0)
"""
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(int(run.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


class _HeldSandbox(GrammarSandbox):
    """Tries grammars when it is allowed to, and notes them."""

    def __init__(self) -> None:
        super().__init__(setup)
        self.tried: list[str] = []
        self.permits = threading.Semaphore(0)

    def check(self, grammar: str) -> str:
        assert self.permits.acquire(timeout=20)
        self.tried.append(grammar)
        if grammar.startswith("bad"):
            raise GrammarError("it is bad")
        return grammar


async def test_tenants_take_turns() -> None:
    sandbox = _HeldSandbox()
    sandbox_queue = SandboxQueue(sandbox)
    checks = [asyncio.ensure_future(sandbox_queue.check(f"a{number}", tenant="a")) for number in range(4)]
    await asyncio.sleep(0)
    checks.append(asyncio.ensure_future(sandbox_queue.check("b0", tenant="b")))
    await asyncio.sleep(0)
    sandbox.permits.release(5)
    await asyncio.gather(*checks)
    assert sandbox.tried.index("b0") <= 2
    sandbox_queue.close()


async def test_the_event_loop_goes_on_and_a_refusal_names_the_field() -> None:
    sandbox = _HeldSandbox()
    sandbox_queue = SandboxQueue(sandbox)
    check = asyncio.ensure_future(sandbox_queue.check("bad", tenant=None))
    await asyncio.sleep(0.01)
    assert not check.done()
    sandbox.permits.release()
    with pytest.raises(GrammarError, match="it is bad") as refusal:
        await check
    refused = grammar_refused(refusal.value, StructuredOutputs(regex="a"))
    assert (refused.param, refused.code) == ("structured_outputs", "invalid_grammar")
    assert "it is bad" in refused.message
    sandbox_queue.close()
