"""The checks of one twin on one device in one dtype, in a process of their own. Knows engines; judges nothing.

    python -m gpu.twin_checks --folder CHECKPOINT --device cuda --dtype bfloat16 --seconds 90 --output FILE

The oracle is the engine on the CPU in its plainest path: fp32, one request at a time, computed whole, in a contiguous
cache. Both dtypes are held against it: it has the very weights that the device loads, which are exact in bf16, so what
is seen beside it is the rounding of one side. An oracle in bf16 would round too, elsewhere, and excuse twice as much.
Bits are compared to the device's own, of a request that has an engine to itself.

Each check leaves a line of JSON in the file, so that what was found outlives what comes after it: after an illegal
access a process can compute nothing more on its GPU. The process ends then, and `--first` continues in another one.
"""

import argparse
import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch

from gpu.answers import Answer, Prompts, agreement_of, answer, bit_differences
from gpu.combinations import allowed_configurations, covering, describe, with_sizes
from gpu.twins import prompts_in_waves, random_prompt

Kind = Literal["oracle", "invariance", "control"]

DEVICE_LOST = 3
"""The exit status of a process whose GPU computes nothing any more."""

ORACLE: Mapping[str, Any] = MappingProxyType(
    {"device": "cpu", "dtype": "float32", "batching_mode": "static", "max_batch_size": 1, "use_cpu_graphs": False}
)

PLAIN: Mapping[str, Any] = MappingProxyType({"use_prefix_caching": False})
"""The engine that a request has to itself."""

WAYS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "in company": PLAIN,
        "after a prefix": {"use_prefix_caching": True, "block_size": 16, "prefill_chunk_size": 32},
        "in chunks of 17": {**PLAIN, "prefill_chunk_size": 17, "max_num_batched_tokens": 40},
        "contiguous": {"kv_cache_backend": "contiguous"},
        "whole": {"use_chunked_prefill": False},
        "contiguous, in chunks": {"kv_cache_backend": "contiguous", "prefill_chunk_size": 32},
        "static": {"batching_mode": "static"},
        "blocks of 5": {**PLAIN, "block_size": 5},
        "decodes in turns": {**PLAIN, "scheduler_policy": "decode_round_robin", "max_num_batched_tokens": 4},
        "prefill first": {**PLAIN, "scheduler_policy": "prefill_first", "prefill_chunk_size": 16},
        "preempted": {**PLAIN, "block_size": 4, "num_kv_blocks": 72, "kv_reserve": 0.0},
    }
)
"""Configurations in which requests are computed beside others, the most telling first."""

_COMPANY_TOKENS = (1, 17, 5, 30, 2, 40)
_CONFIGURATIONS_FIRST = 6
"""Those compared before any bits are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison.

    Attributes:
        kind: `oracle` compares tokens with the oracle's, `invariance` bits with those of the request alone, with
            `batch_invariant`; `control` does so without it.
        name: what is compared, in words.
        config: fields of `EngineConfig`.
    """

    kind: Kind
    name: str
    config: Mapping[str, Any]


@cache
def all_checks(*, is_rehearsal: bool) -> list[Check]:
    """Return the checks, the most telling first; of a rehearsal, a few of each kind."""
    chosen = covering(allowed_configurations())
    oracle = [Check(kind="oracle", name=describe(values), config=with_sizes(values)) for values in chosen]
    invariance = [
        Check(kind="invariance", name=way, config={**config, "batch_invariant": True}) for way, config in WAYS.items()
    ]
    control = [Check(kind="control", name=way, config=config) for way, config in WAYS.items()]
    if is_rehearsal:
        return [*oracle[:2], *invariance[:2], *control[:1]]
    return [*oracle[:_CONFIGURATIONS_FIRST], *invariance, *oracle[_CONFIGURATIONS_FIRST:], *control]


class Twin:
    """A checkpoint on a device, and what it is held against."""

    def __init__(self, folder: Path, *, device: str, dtype: str, num_tokens: int) -> None:
        """Compare greedy answers of `num_tokens` tokens."""
        self._folder = folder
        self._where = {"device": device, "dtype": dtype}
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._num_tokens = num_tokens
        self._alone: dict[bool, dict[str, Answer]] = {}

    @cached_property
    def oracle(self) -> dict[str, Answer]:
        """The right answers."""
        return answer(self._folder, prompts_in_waves(), num_tokens=self._num_tokens, **ORACLE).by_name

    def perform(self, check: Check) -> dict[str, Any]:
        """Return what the check found; the keys are those of `agreement_of` or `bit_differences`.

        Raises:
            AssertionError: a request failed.
            RuntimeError: nothing was compared that should have been: no prefix was found in the cache where prefixes
                are kept, or nobody was preempted where memory is short.
        """
        config = {**self._where, **check.config}
        waves = prompts_in_waves() if check.kind == "oracle" else in_company(in_one_wave="num_kv_blocks" in config)
        found = answer(self._folder, waves, num_tokens=self._num_tokens, **config)
        if config.get("use_prefix_caching") and not found.num_cached_tokens:
            raise RuntimeError("no prefix was found in the cache")
        if "num_kv_blocks" in config and not found.num_preemptions:
            raise RuntimeError("nobody was preempted")
        if check.kind == "oracle":
            return agreement_of(found.by_name, self.oracle, dtype=self._dtype)
        return bit_differences(found.by_name, self._answer_alone(batch_invariant=check.kind == "invariance"))

    def _answer_alone(self, *, batch_invariant: bool) -> dict[str, Answer]:
        """Return every answer where its request has the engine to itself; made once."""
        if batch_invariant not in self._alone:
            waves = [{name: prompt} for wave in prompts_in_waves() for name, prompt in wave.items()]
            config = {**self._where, **PLAIN, "batch_invariant": batch_invariant}
            self._alone[batch_invariant] = answer(self._folder, waves, num_tokens=self._num_tokens, **config).by_name
        return self._alone[batch_invariant]


def in_company(*, in_one_wave: bool) -> list[Prompts]:
    """Return the prompts with others before and behind them; `in_one_wave` asks all at once."""
    first, second = prompts_in_waves()
    others = {f"other {seed}": random_prompt(length, seed=seed) for seed, length in enumerate(_COMPANY_TOKENS)}
    middle = len(others) // 2
    before, behind = dict(list(others.items())[:middle]), dict(list(others.items())[middle:])
    if in_one_wave:
        return [{**before, **first, **second, **behind}]
    return [first, {**before, **second, **behind}]


class FailureLog(logging.Handler):
    """Keeps the first traceback that was logged since the last `take`: an engine logs why a request failed."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        super().__init__()
        self._first: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Note the exception of a record that has one."""
        if self._first is None and record.exc_info is not None:
            self._first = record.exc_info[1]

    def take(self) -> BaseException | None:
        """Return the exception, and forget it."""
        first, self._first = self._first, None
        return first


def record_of(twin: Twin, check: Check, failures: FailureLog) -> dict[str, Any]:
    """Perform `check`; return what it found or why it failed, and how many seconds it took, compiling included."""
    started = time.perf_counter()
    failures.take()
    record: dict[str, Any] = {"kind": check.kind, "name": check.name}
    try:
        record |= twin.perform(check)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this check's finding
        cause = failures.take() or error
        record["error"] = f"{type(cause).__name__}: {cause}"
        record["traceback"] = "".join(traceback.format_exception(cause))
    return record | {"seconds": round(time.perf_counter() - started, 3)}


def is_lost(device: str) -> bool:
    """Whether the device is a GPU that computes nothing any more in this process."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return True
    return False


def main(arguments: list[str] | None = None) -> int:
    """Perform the checks until there are no more or the time is over; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the twin")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--answer-tokens", type=int, default=24, help="of every answer")
    parser.add_argument("--seconds", type=float, default=120.0, help="after which no check is begun")
    parser.add_argument("--first", type=int, default=0, help="checks to leave out")
    parser.add_argument("--rehearsal", action="store_true", help="a few checks of each kind")
    parser.add_argument("--output", type=Path, required=True, help="gets a line for each check, after one of its own")
    args = parser.parse_args(arguments)
    deadline_s = time.monotonic() + args.seconds
    failures = FailureLog()
    logging.getLogger().addHandler(failures)
    twin = Twin(args.folder, device=args.device, dtype=args.dtype, num_tokens=args.answer_tokens)
    with args.output.open("a", encoding="utf-8") as lines:
        started = time.perf_counter()
        num_prompts = len(twin.oracle)
        head = {"oracle_seconds": round(time.perf_counter() - started, 3), "num_prompts": num_prompts}
        print(json.dumps(head | {"answer_tokens": args.answer_tokens}), file=lines, flush=True)
        for check in all_checks(is_rehearsal=args.rehearsal)[args.first :]:
            if time.monotonic() > deadline_s:
                break
            record = record_of(twin, check, failures)
            print(json.dumps(record), file=lines, flush=True)
            if "error" in record and is_lost(args.device):
                return DEVICE_LOST
    return 0


if __name__ == "__main__":
    sys.exit(main())
