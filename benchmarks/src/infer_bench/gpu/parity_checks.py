"""The parity checks of one tiny model on one device in one dtype, run in a process of their own.

A check runs an engine on the device in some configuration, and compares its greedy tokens and logits with the oracle's;
with `batch_invariant`, also the bits of its logits with those of each request alone.

The oracle is the engine on the CPU in its plainest configuration: fp32, one request at a time, whole prompts, a
contiguous cache. It has exactly the weights that the device loads, because these are exact in bf16. An oracle in bf16
would add rounding of its own, and excuse twice as much.

Each check writes a line of JSON to a file. A check that fails ends the process, because after an illegal access it can
compute nothing more on its GPU; another process continues with the next check.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from infer_bench.agreement import TOLERANCES, JudgedAnswer, compare_tokens
from infer_bench.gpu.parts import free_memory
from infer_bench.gpu.tiny_models import MAX_SEQ_LEN, prompts_in_waves
from infer_engine import EngineConfig
from infer_engine.protocol import EngineStats
from infer_engine.protocol.config import SchedulerPolicy
from infer_engine.testing.models import ModelEngine, sound_tokens

Values = dict[str, Any]
"""Fields of `EngineConfig`."""
Prompts = Mapping[str, Sequence[int]]
"""Token ids by name."""

FIELDS: dict[str, tuple[Any, ...]] = {
    "batching_mode": ("continuous", "static"),
    "kv_cache_backend": ("paged", "contiguous"),
    "use_chunked_prefill": (True, False),
    "use_prefix_caching": (True, False),
    "scheduler_policy": get_args(SchedulerPolicy),
    "batch_invariant": (False, True),
    "block_size": (None, 16, 5),
    "use_cuda_graphs": (None, False),
    "use_fused_products": (None, False),
    "use_async_scheduling": (None, False),
}
"""What is configured, defaults first; on a GPU, None stands for on.

Blocks of 16 tokens are smaller than the kernels' tiles, 5 divides nothing.
"""
SMALL_CHUNKS: Values = {"prefill_chunk_size": 32, "max_num_batched_tokens": 72}
"""A step has room for two chunks and every decode."""
PREEMPTING: Values = {
    "use_prefix_caching": False,
    "batch_invariant": True,
    "block_size": 4,
    "num_kv_blocks": 64,
    "kv_reserve": 0.0,
}
"""Too few blocks for all requests."""
ORACLE: Values = {
    "device": "cpu",
    "dtype": "float32",
    "batching_mode": "static",
    "max_batch_size": 1,
    "use_cpu_graphs": False,
}


def checked_configurations(*, is_rehearsal: bool) -> list[Values]:
    """Return the configurations, the most important first; in a rehearsal, three of them."""
    first, *others = (changed_fields(values) for values in covering(allowed_configurations()))
    return [first, PREEMPTING, *(others[:1] if is_rehearsal else others)]


def allowed_configurations() -> list[Values]:
    """Return every combination of `FIELDS` that `EngineConfig` takes, defaults first."""
    combined = (dict(zip(FIELDS, values, strict=True)) for values in product(*FIELDS.values()))
    return [values for values in combined if _is_allowed(values)]


def _is_allowed(values: Values) -> bool:
    try:
        EngineConfig(**values)
    except ValueError:
        return False
    return values["kv_cache_backend"] == "paged" or values["block_size"] is None  # slots have no blocks


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


def changed_fields(values: Values) -> Values:
    """Return the fields that differ from the defaults, and those that make chunks small, if prompts are chunked."""
    changed = {name: value for name, value in values.items() if value != FIELDS[name][0]}
    return changed | (SMALL_CHUNKS if values["use_chunked_prefill"] else {})


class Answer(NamedTuple):
    """The tokens of an answer, and on the host the logits [tokens, vocab] that each was chosen from."""

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
    found: Answers = {}
    for wave in waves:
        for name, prompt in wave.items():
            engine.submit(name, prompt, max_tokens=num_tokens)
        for name, token_ids in sound_tokens(engine.run()).items():
            rows = [engine.logits.pop((name, len(wave[name]) + index)) for index in range(len(token_ids))]
            found[name] = Answer(token_ids, torch.stack(rows).cpu())
    stats = engine.core.stats
    del engine
    free_memory()
    return found, stats


def compare_answers(found: Answers, oracle: Answers, *, dtype: torch.dtype) -> dict[str, Any]:
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


def compare_bits(found: Answers, alone: Answers) -> dict[str, int]:
    """Compare the logits of the answers in `alone` bit by bit; return `num_rows`, and `num_equal_rows` of them."""
    equal = [
        torch.equal(own, right)
        for name, expected in alone.items()
        for own, right in zip(found[name].logits, expected.logits, strict=True)
    ]
    return {"num_rows": len(equal), "num_equal_rows": sum(equal)}


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
        config = {**self._where, "use_prefix_caching": False, "batch_invariant": True}
        return answer(self._folder, waves, num_tokens=self._num_tokens, **config)[0]

    def check(self, config: Values) -> dict[str, Any]:
        """Return what an engine of `config` shows: what `compare_answers` returns, perhaps also `compare_bits`.

        Raises:
            AssertionError: a request failed.
            RuntimeError: the check compared something else than it should: no prefix was found in the cache though
                prefixes are cached, or no request was preempted though memory is short.
        """
        first, second = prompts_in_waves()
        waves = [first | second] if "num_kv_blocks" in config else [first, second]
        found, stats = answer(self._folder, waves, num_tokens=self._num_tokens, **self._where, **config)
        if EngineConfig(**config).caches_prefixes and not stats.num_cached_tokens:
            raise RuntimeError("no prefix was found in the cache")
        if "num_kv_blocks" in config and not stats.num_preemptions:
            raise RuntimeError("no request was preempted")
        bits = compare_bits(found, self.alone) if config.get("batch_invariant") else {}
        return compare_answers(found, self.oracle, dtype=self._dtype) | bits


def main(folder: str, device: str, dtype: str, num_tokens: int, first: int, seconds: float, output: str) -> None:
    """Perform the checks from the number `first` on, until all are done, one fails, or the time is over.

    The file `output` gets a line for each check. On a CPU, the checks are those of a rehearsal.
    """
    deadline_s = time.monotonic() + seconds
    model = CheckedModel(Path(folder), device=device, dtype=dtype, num_tokens=num_tokens)
    with Path(output).open("w", encoding="utf-8") as lines:
        for config in checked_configurations(is_rehearsal=device == "cpu")[first:]:
            if time.monotonic() > deadline_s:
                return
            started = time.perf_counter()
            found = model.check(config)
            record = {"config": config, **found, "seconds": time.perf_counter() - started}  # compiling included
            print(json.dumps(record), file=lines, flush=True)


if __name__ == "__main__":  # as `parity.py` starts it
    main(**json.loads(sys.argv[1]))
