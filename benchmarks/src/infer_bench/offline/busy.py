"""The rate of an engine on a CPU beside busy processes, with two threads and with one.

    uv run infer-bench busy
    uv run infer-bench busy --beside 0 1 12 --threads 1 2 --sequences 1 16

Each number of threads has an engine in a process of its own. They generate in turn, while the other one sleeps, so that
all meet the same machine. Busy processes have a session each, as other users' programs do, which Linux may schedule as
one group each, or that of the engine (`--same-session`). Nothing is judged: what a machine gives a process is its own.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

from infer_bench.results import argument_parser, save, table
from infer_bench.shapes import NO_DRAFTS

BUSY = "while True: pass"
SETTLE_S = 2.0
"""Seconds after busy processes have started, in which nothing is measured."""


class Side:
    """An engine with a number of threads, in a process of its own."""

    def __init__(self, num_threads: int, *, model: str | None, num_tokens: int) -> None:
        """Start the process."""
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, model, num_tokens), daemon=True)
        with patch.dict(os.environ, OMP_NUM_THREADS=str(num_threads)):  # which the process inherits
            self._process.start()
        self._connection.recv()

    def tokens_per_s(self, num_sequences: int) -> float:
        """Return the output tokens per second of so many requests at once."""
        self._connection.send(num_sequences)
        return float(self._connection.recv())

    def close(self) -> None:
        """End the process."""
        self._connection.send(0)
        self._process.join()


def serve(connection: Connection, model: str | None, num_tokens: int) -> None:
    """Generate for as many requests as each message says, and answer with tokens per second; 0 ends it."""
    from infer_engine import LLM, SamplingParams  # noqa: PLC0415 - not in the process that starts this one

    llm = LLM(model, device="cpu", use_prefix_caching=False, **NO_DRAFTS)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_tokens)
    connection.send(None)
    while num_sequences := connection.recv():
        began_s = time.perf_counter()
        llm.generate([f"{number}, said" for number in range(num_sequences)], params, use_tqdm=False)
        connection.send(num_sequences * num_tokens / (time.perf_counter() - began_s))


@contextmanager
def busy_processes(count: int, *, have_own_sessions: bool) -> Iterator[None]:
    """Run so many processes that compute without a pause."""
    with ExitStack() as stack:
        for _ in range(count):
            process = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=have_own_sessions)  # noqa: S603 - a fixed command
            stack.callback(process.wait)
            stack.callback(process.kill)
        if count:
            time.sleep(SETTLE_S)
        yield


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each number of busy processes and of sequences: by threads, the rates of all rounds."""
    rows = []
    with ExitStack() as stack:
        sides = {count: Side(count, model=args.model, num_tokens=args.tokens) for count in args.threads}
        for side in sides.values():
            stack.callback(side.close)
        for beside in args.beside:
            with busy_processes(beside, have_own_sessions=not args.same_session):
                for num_sequences in args.sequences:
                    for side in sides.values():  # adapts to the machine, unmeasured
                        side.tokens_per_s(num_sequences)
                    rates: dict[int, list[float]] = {count: [] for count in sides}
                    for number in range(args.rounds):
                        for count in sides if number % 2 == 0 else reversed(sides):
                            rates[count].append(sides[count].tokens_per_s(num_sequences))
                    rows.append({"beside": beside, "sequences": num_sequences, "tokens_per_s": rates})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and save the result."""
    parser = argument_parser(__doc__, quick="few tokens, one round, the demo model beside one process")
    parser.add_argument("--model", help="left out: the default model")
    parser.add_argument("--beside", type=int, nargs="+", help="busy processes; left out: 0, 1 and 12")
    parser.add_argument("--same-session", action="store_true", help="busy processes are in the session of the engine")
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, 2], help="the first is what others are compared with"
    )
    parser.add_argument("--sequences", type=int, nargs="+", default=[1], help="requests at once")
    parser.add_argument("--tokens", type=int, help="of an answer; left out: 64, or 8 with `--quick`")
    parser.add_argument("--rounds", type=int, help="left out: 8, or 1 with `--quick`")
    args = parser.parse_args(arguments)
    args.beside = args.beside or ([1] if args.quick else [0, 1, 12])
    args.rounds = args.rounds or (1 if args.quick else 8)
    args.tokens = args.tokens or (8 if args.quick else 64)
    args.model = args.model or ("infer-demo" if args.quick else None)
    rows = measure(args)
    cells = []
    for row in rows:
        medians = {count: statistics.median(rates) for count, rates in row["tokens_per_s"].items()}
        one = medians[args.threads[0]]
        cells.append(
            [str(row["beside"]), str(row["sequences"])]
            + [f"{median:.1f} ({median / one:.2f})" for median in medians.values()]
        )
    head = ["beside", "sequences", *(f"{count} threads, tokens/s" for count in args.threads)]
    print(f"medians of {args.rounds} rounds of {args.tokens} tokens\n\n{table(head, cells)}")
    if not args.quick:
        save("busy", {"same_session": args.same_session, "rows": rows}, args.out)
