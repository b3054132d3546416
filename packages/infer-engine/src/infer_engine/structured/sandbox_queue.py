"""`SandboxQueue`: has grammars tried in another process before their requests enter the queue."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from infer_engine.protocol import InvalidRequestError, StructuredOutputs
from infer_engine.protocol.structured_outputs import refusal_code
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.sandbox import GrammarSandbox


class SandboxQueue:
    """Tries one grammar at a time, in turns: of each tenant one grammar waits, and the others behind it."""

    def __init__(self, sandbox: GrammarSandbox) -> None:
        """Ask `sandbox`, from a thread, so that the event loop goes on."""
        self._sandbox = sandbox
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="infer-grammar-queue")
        self._turn = asyncio.Lock()
        self._turn_of_tenant: WeakValueDictionary[str | None, asyncio.Lock] = WeakValueDictionary()

    async def check(self, grammar: str, *, tenant: str | None) -> str:
        """Return the grammar to use when `grammar` was found good, at once if it was before.

        Raises:
            GrammarError: it is no grammar, or takes too much time or memory to compile.
        """
        if (passed := self._sandbox.passed_as(grammar)) is not None:
            return passed
        own_turn = self._turn_of_tenant.setdefault(tenant, asyncio.Lock())
        async with own_turn, self._turn:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._sandbox.check, grammar)

    def close(self) -> None:
        """End the process that tries grammars."""
        self._sandbox.close()
        self._thread.shutdown(wait=False)


def grammar_refused(error: GrammarError, outputs: StructuredOutputs | None) -> InvalidRequestError:
    """Return the error for a request with these `outputs` whose grammar cannot be compiled, because of `error`."""
    message = f"`structured_outputs` cannot be compiled: {error}."
    return InvalidRequestError(message, param="structured_outputs", code=refusal_code(outputs))
