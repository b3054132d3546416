"""The parity checks of one tiny model on one device in one dtype, run in a process of their own.

Two kinds of checks run an engine on the device in some configuration:

    oracle       tokens and logits against the oracle's
    invariance   bits of the logits with `batch_invariant`, against those of the request alone

The oracle is the engine on the CPU in its plainest configuration: fp32, one request at a time, whole prompts, a
contiguous cache. It has exactly the weights that the device loads, because these are exact in bf16. An oracle in bf16
would add rounding of its own, and excuse twice as much.

Each check writes a line of JSON to a file, because after an illegal access a process can compute nothing more on its
GPU. The process ends then, and another one continues with the next check.
"""

import json
import logging
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from infer_bench.agreement import TOLERANCES, JudgedAnswer, compare_tokens
from infer_bench.gpu.device_memory import free_memory
from infer_bench.gpu.tiny_models import MAX_SEQ_LEN, prompts_in_waves, random_prompt
from infer_engine import EngineConfig
from infer_engine.protocol import EngineStats
from infer_engine.protocol.config import BatchingMode, KVCacheBackend, SchedulerPolicy
from infer_engine.testing.models import ModelEngine, sound_tokens

Kind = Literal["oracle", "invariance"]
Values = dict[str, Any]
"""Fields of `EngineConfig`."""
Prompts = Mapping[str, Sequence[int]]
"""Token ids by name."""

DEVICE_LOST = 3
"""The exit status of a process whose GPU computes nothing any more."""
ORACLE: Values = {
    "device": "cpu",
    "dtype": "float32",
    "batching_mode": "static",
    "max_batch_size": 1,
    "use_cpu_graphs": False,
}
_NO_PREFIXES: Values = {"use_prefix_caching": False}
WAYS: dict[str, Values] = {
    "in company": _NO_PREFIXES,
    "after a prefix": {"use_prefix_caching": True, "block_size": 16, "prefill_chunk_size": 32},
    "in chunks of 17": {**_NO_PREFIXES, "prefill_chunk_size": 17, "max_num_batched_tokens": 40},
    "contiguous": {"kv_cache_backend": "contiguous"},
    "whole": {"use_chunked_prefill": False},
    "contiguous, in chunks": {"kv_cache_backend": "contiguous", "prefill_chunk_size": 32},
    "static": {"batching_mode": "static"},
    "blocks of 5": {**_NO_PREFIXES, "block_size": 5},
    "decodes in turns": {**_NO_PREFIXES, "scheduler_policy": "decode_round_robin", "max_num_batched_tokens": 4},
    "prefill first": {**_NO_PREFIXES, "scheduler_policy": "prefill_first", "prefill_chunk_size": 16},
    "preempted": {**_NO_PREFIXES, "block_size": 4, "num_kv_blocks": 72, "kv_reserve": 0.0},
}
"""Configurations in which requests are computed beside others, the most important first."""
_SMALL_CHUNKS: Values = {"prefill_chunk_size": 32, "max_num_batched_tokens": 72}
"""A step has room for two chunks and every decode."""
_CONFIGURATIONS_FIRST = 6
"""Configurations compared with the oracle before any bits are compared."""


# Configurations


def allowed_configurations() -> list[Values]:
    """Return every combination of modes, backends, policies and block sizes that `EngineConfig` takes, defaults first.

    Blocks of 16 tokens are smaller than the kernels' tiles, and 5 divides nothing; None leaves the size to the engine.
    The contiguous cache has no block size.
    """
    default = EngineConfig()
    fields = {
        "batching_mode": (default.batching_mode, *get_args(BatchingMode)),
        "kv_cache_backend": (default.resolved_kv_cache_backend, *get_args(KVCacheBackend)),
        "use_chunked_prefill": (default.chunks_prefill, True, False),
        "use_prefix_caching": (default.caches_prefixes, True, False),
        "scheduler_policy": (default.scheduler_policy, *get_args(SchedulerPolicy)),
        "batch_invariant": (default.batch_invariant, True, False),
        "block_size": (default.block_size, None, 16, 5),
    }
    allowed: list[Values] = []
    for combination in product(*map(dict.fromkeys, fields.values())):
        values = dict(zip(fields, combination, strict=True))
        if values["kv_cache_backend"] == "contiguous":
            del values["block_size"]
        if values not in allowed and _is_allowed(values):
            allowed.append(values)
    return allowed


def covering(configurations: Sequence[Values]) -> list[Values]:
    """Return a few of `configurations` that contain every pair of values that any of them contains.

    An error usually shows with one value, or where two meet. The list begins with the first configuration; each later
    one adds as many pairs as possible, so that a list that is cut off has covered the most.
    """
    chosen = [configurations[0]]
    missing = {pair for values in configurations for pair in combinations(values.items(), 2)}
    while missing := missing.difference(combinations(chosen[-1].items(), 2)):
        chosen.append(max(configurations, key=lambda each: len(missing.intersection(combinations(each.items(), 2)))))
    return chosen


def _is_allowed(values: Values) -> bool:
    try:
        EngineConfig(**values)
    except ValueError:
        return False
    return True


def _describe(values: Values) -> str:
    default = allowed_configurations()[0]
    changed = [f"{name}={value}" for name, value in values.items() if value != default[name]]
    return ", ".join(changed) or "defaults"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison: its kind, a name for people, and the fields of `EngineConfig` that it sets."""

    kind: Kind
    name: str
    config: Values


@cache
def all_checks(*, is_rehearsal: bool) -> list[Check]:
    """Return the checks, the most important first; in a rehearsal, a few of each kind."""
    oracle = [
        Check(kind="oracle", name=_describe(values), config=values | small_chunks(values))
        for values in covering(allowed_configurations())
    ]
    invariance = [
        Check(kind="invariance", name=way, config=config | {"batch_invariant": True}) for way, config in WAYS.items()
    ]
    if is_rehearsal:
        return [*oracle[:2], *invariance[:2]]
    return [*oracle[:_CONFIGURATIONS_FIRST], *invariance, *oracle[_CONFIGURATIONS_FIRST:]]


def small_chunks(values: Values) -> Values:
    """Return the fields that make chunks small, if prompts are chunked."""
    return _SMALL_CHUNKS if values["use_chunked_prefill"] else {}


# Answers and how they compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request.

    Attributes:
        token_ids: of the answer.
        logits: [tokens, vocab], on the host, in the engine's dtype: those that each token was chosen from.
    """

    token_ids: list[int]
    logits: Tensor


Answers = dict[str, Answer]
"""By the name of the prompt."""


def answer(folder: Path, waves: Sequence[Prompts], *, num_tokens: int, **config: Any) -> tuple[Answers, EngineStats]:
    """Answer the prompts of each of `waves` together, one wave after the other, and free all memory.

    Args:
        folder: the checkpoint.
        waves: prompts; every name occurs once.
        num_tokens: of every answer.
        **config: fields of `EngineConfig`.

    Raises:
        AssertionError: a request failed, or the engine lost memory.
    """
    # A fixed size, not a share of the free memory: other processes compute on the device at the same time.
    memory = {} if "num_kv_blocks" in config else {"kv_cache_memory": "64MiB"}
    engine = ModelEngine(folder, **{"max_seq_len": MAX_SEQ_LEN, **memory, **config})
    try:
        found: Answers = {}
        for wave in waves:
            for name, prompt in wave.items():
                engine.submit(name, prompt, max_tokens=num_tokens)
            for name, token_ids in sound_tokens(engine.run()).items():
                rows = [engine.logits.pop((name, len(wave[name]) + index)) for index in range(len(token_ids))]
                found[name] = Answer(token_ids=token_ids, logits=torch.stack(rows).cpu())
        return found, engine.core.stats
    finally:
        del engine
        free_memory()


def agreement_of(found: Answers, oracle: Answers, *, dtype: torch.dtype) -> dict[str, Any]:
    """Compare tokens and logits up to the first difference of each answer; `dtype` is that of the computation.

    Returns:
        The fields of `TokenAgreement`, and `logit_error`: the largest difference of a logit, in standard deviations of
        the oracle's logits of that token.
    """
    judged = [JudgedAnswer(token_ids=right.token_ids, margins=margins(right.logits)) for right in oracle.values()]
    agreement = compare_tokens([found[name].token_ids for name in oracle], judged, tolerance=TOLERANCES[dtype])
    errors = [logit_error(found[name], right) for name, right in oracle.items()]
    return {**agreement.as_json(), "logit_error": float(torch.tensor(errors).max())}  # a NaN is the largest


def margins(logits: Tensor) -> list[float]:
    """Return by how much the best of `logits` [tokens, vocab] exceeds the next one, in standard deviations of all."""
    logits = logits.float()
    best = logits.topk(2, dim=-1).values
    margins: list[float] = ((best[:, 0] - best[:, 1]) / logits.std(dim=-1)).tolist()
    return margins


def logit_error(found: Answer, oracle: Answer) -> float:
    """Return the largest difference of a logit, in the oracle's standard deviations, while both have the same text."""
    same = [own == right for own, right in zip(found.token_ids, oracle.token_ids, strict=True)]
    num_rows = 1 + same.index(False) if False in same else len(same)  # the first different token still has one context
    right = oracle.logits[:num_rows].float()
    return float(((found.logits[:num_rows].float() - right).abs().amax(dim=-1) / right.std(dim=-1)).max())


def bit_differences(found: Answers, alone: Answers) -> dict[str, Any]:
    """Compare the logits of the answers in `alone` bit by bit.

    Returns:
        `num_rows` compared, `num_equal_rows`, and the `first_difference`, or None: in which `request`, at which
        `token`, by how much at `most`.
    """
    num_rows = 0
    differences: list[dict[str, Any]] = []
    for name, expected in alone.items():
        for index, (own, right) in enumerate(zip(found[name].logits, expected.logits, strict=True)):
            num_rows += 1
            if not torch.equal(own, right):
                most = float((own.float() - right.float()).abs().max())
                differences.append({"request": name, "token": index, "most": most})
    first = differences[0] if differences else None
    return {"num_rows": num_rows, "num_equal_rows": num_rows - len(differences), "first_difference": first}


# The checks of one model


class CheckedModel:
    """A checkpoint on a device, with the answers that it is compared with."""

    def __init__(self, folder: Path, *, device: str, dtype: str, num_tokens: int) -> None:
        """Compare greedy answers of `num_tokens` tokens."""
        self._folder = folder
        self._where = {"device": device, "dtype": dtype}
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._num_tokens = num_tokens

    @cached_property
    def oracle(self) -> Answers:
        """The right answers."""
        return answer(self._folder, prompts_in_waves(), num_tokens=self._num_tokens, **ORACLE)[0]

    @cached_property
    def alone(self) -> Answers:
        """The answers of the device, with `batch_invariant`, to each request alone."""
        waves = [{name: prompt} for wave in prompts_in_waves() for name, prompt in wave.items()]
        config = {**self._where, **_NO_PREFIXES, "batch_invariant": True}
        return answer(self._folder, waves, num_tokens=self._num_tokens, **config)[0]

    def perform(self, check: Check) -> dict[str, Any]:
        """Return what the check found, as `agreement_of` or `bit_differences` returns it.

        Raises:
            AssertionError: a request failed.
            RuntimeError: the check compared something else than it should: no prefix was found in the cache though
                prefixes are cached, or no request was preempted though memory is short.
        """
        config = {**self._where, **check.config}
        waves = prompts_in_waves() if check.kind == "oracle" else in_company(in_one_wave="num_kv_blocks" in config)
        found, stats = answer(self._folder, waves, num_tokens=self._num_tokens, **config)
        if config.get("use_prefix_caching") and not stats.num_cached_tokens:
            raise RuntimeError("no prefix was found in the cache")
        if "num_kv_blocks" in config and not stats.num_preemptions:
            raise RuntimeError("no request was preempted")
        if check.kind == "oracle":
            return agreement_of(found, self.oracle, dtype=self._dtype)
        return bit_differences(found, self.alone)

    def record(self, check: Check) -> dict[str, Any]:
        """Perform `check`; return what it found, or why it failed, and its seconds, which include compiling."""
        started = time.perf_counter()
        record: dict[str, Any] = {"kind": check.kind, "name": check.name}
        with FirstFailure() as failure:
            try:
                record |= self.perform(check)
            except Exception as error:  # noqa: BLE001 - any failure is this check's finding
                cause = failure.exception or error
                record["error"] = f"{type(cause).__name__}: {cause}"
                record["traceback"] = "".join(traceback.format_exception(cause))
        return record | {"seconds": round(time.perf_counter() - started, 3)}


def in_company(*, in_one_wave: bool) -> list[Prompts]:
    """Return the prompts with others before and behind them; `in_one_wave` sends all at once."""
    first, second = prompts_in_waves()
    before, behind = (
        {f"other {length}": random_prompt(length, seed=7) for length in lengths}
        for lengths in ((1, 17, 5), (30, 2, 40))
    )
    if in_one_wave:
        return [{**before, **first, **second, **behind}]
    return [first, {**before, **second, **behind}]


class FirstFailure(logging.Handler):
    """Keeps the first exception that is logged in its `with` block: an engine logs why a request failed."""

    exception: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the exception of `record`, if it is the first."""
        if self.exception is None and record.exc_info is not None:
            self.exception = record.exc_info[1]

    def __enter__(self) -> Self:
        """Begin to listen."""
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Listen no more."""
        logging.getLogger().removeHandler(self)


def is_lost(device: str) -> bool:
    """Return whether the device is a GPU that computes nothing any more in this process."""
    if device == "cpu":
        return False
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return True
    return False


def main(folder: str, device: str, dtype: str, answer_tokens: int, first: int, seconds: float, output: str) -> int:
    """Perform the checks from the number `first` on, until all are done or the time is over; return the exit status.

    The file `output` gets a head line, then a line for each check. On a CPU, the checks are those of a rehearsal.
    """
    deadline_s = time.monotonic() + seconds
    model = CheckedModel(Path(folder), device=device, dtype=dtype, num_tokens=answer_tokens)
    with Path(output).open("w", encoding="utf-8") as lines:
        head = {"num_prompts": len(model.oracle), "answer_tokens": answer_tokens}
        print(json.dumps(head), file=lines, flush=True)
        for check in all_checks(is_rehearsal=device == "cpu")[first:]:
            if time.monotonic() > deadline_s:
                break
            record = model.record(check)
            print(json.dumps(record), file=lines, flush=True)
            if "error" in record and is_lost(device):
                return DEVICE_LOST
    return 0


if __name__ == "__main__":  # as `parity.py` starts it
    sys.exit(main(**json.loads(sys.argv[1])))
