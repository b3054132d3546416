"""`GrammarGate`: holds submissions back while a thread compiles their grammars, so that no step waits."""

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from infer_engine.messages import Abort, Submit, ToCore
from infer_engine.structured.compiler import GrammarCompiler
from infer_engine.structured.errors import GrammarError


class GrammarGate:
    """Decides which messages may go to the core. For one thread; grammars are compiled in another, one at a time."""

    def __init__(self, grammars: GrammarCompiler, *, on_compiled: Callable[[Submit], None]) -> None:
        """Call `on_compiled`, from any thread, with each submission that was held back, when it may go on."""
        self._grammars = grammars
        self._on_compiled = on_compiled
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="infer-grammar")
        self._held: set[str] = set()

    def holds(self, message: ToCore) -> bool:
        """Return whether `message` must not go to the core: a submission that waits, or the abort of one."""
        match message:
            case Submit(request_id=request_id) if not self._is_ready_for(message):
                self._held.add(request_id)
                self._thread.submit(self._compile, message)
                return True
            case Abort(request_id=request_id) if request_id in self._held:
                self._held.discard(request_id)
                return True
            case _:
                return False

    def release(self, submission: Submit) -> bool:
        """Return whether a submission that was held back may go to the core: it has not been aborted meanwhile."""
        is_wanted = submission.request_id in self._held
        self._held.discard(submission.request_id)
        return is_wanted

    def _is_ready_for(self, submission: Submit) -> bool:
        if submission.grammar is not None:
            return self._grammars.has(submission.grammar)
        return submission.thinking_limit is None or self._grammars.has_vocabulary

    def _compile(self, submission: Submit) -> None:
        try:
            with contextlib.suppress(GrammarError):  # the core meets it again, and fails the request
                if submission.grammar is None:
                    self._grammars.vocabulary()
                else:
                    self._grammars.compile(submission.grammar)
        finally:  # whatever happened: nobody else would end the request
            self._on_compiled(submission)
