"""The program of the process that tries grammars; `infer_engine.structured.sandbox` starts it and says why.

For each grammar it forks: the child has the vocabulary already, and the limits of one grammar.
"""

import contextlib
import gc
import os
import resource
import select
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.random_walks import RandomWalks
from infer_engine.structured.sandbox import (
    MAX_CPU_S,
    MAX_GROWTH_BYTES,
    MAX_WALL_S,
    SandboxSetup,
    Verdict,
)

NICENESS = 5
"""Steps of the engine come first; but on a busy machine a grammar must still be compiled in time."""
TOO_MUCH_TIME = "it takes too long to compile; make it simpler"
TOO_MUCH_MEMORY = "it takes too much memory to compile; make it simpler"


def main() -> None:
    """Answer grammars with verdicts until the other process closes the connection."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the other process ends this one
    os.nice(NICENESS)
    connection = Connection(int(sys.argv[1]))
    try:
        vocabulary = vocabulary_of(msgspec.msgpack.decode(connection.recv_bytes(), type=SandboxSetup))
        walks = RandomWalks(vocabulary)
        gc.freeze()
        connection.send_bytes(b"ready")
        while True:
            verdict = _try(connection.recv_bytes().decode(), vocabulary, walks)
            connection.send_bytes(msgspec.msgpack.encode(verdict))
    except (EOFError, OSError):
        return


def vocabulary_of(setup: SandboxSetup) -> Vocabulary:
    """Return the vocabulary that `setup` describes."""
    return Vocabulary(setup.tokens, special_ids=setup.special_ids, eos_token_ids=setup.eos_token_ids)


def _try(grammar: str, vocabulary: Vocabulary, walks: RandomWalks) -> Verdict:
    """Compile `grammar` in a forked process, and return what it says, or which limit has ended it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            limit_this_process()
            os.write(writer, _compile(grammar, vocabulary, walks))
        os._exit(0)
    os.close(writer)
    answer = _read(reader, deadline_s=time.monotonic() + MAX_WALL_S)
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if answer:
        return msgspec.msgpack.decode(answer, type=Verdict)
    ran_out_of_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    return Verdict(error=TOO_MUCH_TIME if ran_out_of_time else TOO_MUCH_MEMORY)


def limit_this_process() -> None:
    """Limit the CPU time and the memory that this process may use from here on."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        most = pages * resource.getpagesize() + MAX_GROWTH_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _compile(grammar: str, vocabulary: Vocabulary, walks: RandomWalks) -> bytes:
    """Return the encoded verdict of `grammar`, whose texts must not end in the middle."""
    try:
        grammars = GrammarCompiler(lambda: vocabulary)
        text = grammars.compile(grammar)
        walks.check(lambda: grammars.constraint(grammar))
        verdict = Verdict(error=None, wider=None if text == grammar else text)
    except GrammarError as failure:
        verdict = Verdict(error=str(failure))
    return msgspec.msgpack.encode(verdict)


def _read(reader: int, *, deadline_s: float) -> bytes:
    """Return what the process at the other end of `reader` writes until it ends, or nothing if it is late."""
    parts: list[bytes] = []
    while select.select([reader], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        part = os.read(reader, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return b""


if __name__ == "__main__":
    main()
