"""Greedy answers of an engine with the logits that they were chosen from, and how two sets compare. Starts no process.

Two comparisons: with an oracle, whose arithmetic is another one, up to rounding; with the same engine in other company,
bit by bit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agreement import TOLERANCES, JudgedAnswer, compare_tokens
from gpu.device_memory import free_unreferenced
from gpu.twins import MAX_SEQ_LEN
from infer_engine.testing.models import ModelEngine, sound_tokens

KV_CACHE_MEMORY = "64MiB"
"""Of each engine: more than a batch of the longest requests takes."""

Prompts = Mapping[str, Sequence[int]]
"""Token ids by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an engine gave a request.

    Attributes:
        token_ids: of the answer.
        logits: [tokens, vocab] on the host, in the engine's dtype: what each token was chosen from.
    """

    token_ids: list[int]
    logits: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What an engine gave all its requests.

    Attributes:
        by_name: of each prompt.
        num_cached_tokens: of prompts, found in the cache.
        num_preemptions: of requests that had to give back their memory.
    """

    by_name: dict[str, Answer]
    num_cached_tokens: int
    num_preemptions: int


def answer(folder: Path, waves: Sequence[Prompts], *, num_tokens: int, **config: Any) -> Answers:
    """Answer the prompts of each of `waves` together, one wave after the other, and leave no memory behind.

    Args:
        folder: the checkpoint.
        waves: no name occurs twice.
        num_tokens: of every answer.
        **config: fields of `EngineConfig`.

    Raises:
        AssertionError: a request failed, or the engine lost memory.
    """
    # Not a share of what the device has free: others compute on it at the same time.
    memory = {} if "num_kv_blocks" in config else {"kv_cache_memory": KV_CACHE_MEMORY}
    engine = ModelEngine(folder, **{"max_seq_len": MAX_SEQ_LEN, **memory, **config})
    try:
        found: dict[str, Answer] = {}
        for wave in waves:
            for name, prompt in wave.items():
                engine.submit(name, prompt, max_tokens=num_tokens)
            for name, token_ids in sound_tokens(engine.run()).items():
                length = len(wave[name])
                rows = [engine.logits.pop((name, length + index)) for index in range(len(token_ids))]
                found[name] = Answer(token_ids=token_ids, logits=torch.stack(rows).cpu())
        stats = engine.core.stats
        return Answers(by_name=found, num_cached_tokens=stats.num_cached_tokens, num_preemptions=stats.num_preemptions)
    finally:
        del engine
        free_unreferenced()


def agreement_of(found: Mapping[str, Answer], oracle: Mapping[str, Answer], *, dtype: torch.dtype) -> dict[str, Any]:
    """Compare tokens and logits up to the first difference of each answer; `dtype` is that of the computation.

    Returns:
        The fields of `TokenAgreement`, and `logit_error`: the largest difference of a logit, in standard deviations of
        the oracle's logits of that token.
    """
    names = list(oracle)
    judged = [JudgedAnswer(token_ids=oracle[name].token_ids, margins=margins(oracle[name].logits)) for name in names]
    agreement = compare_tokens([found[name].token_ids for name in names], judged, tolerance=TOLERANCES[dtype])
    return {**agreement.as_json(), "logit_error": max(logit_error(found[name], oracle[name]) for name in names)}


def margins(logits: Tensor) -> list[float]:
    """Return by how much the best of `logits` [tokens, vocab] exceeds the next one, in standard deviations of all."""
    logits = logits.float()
    best = logits.topk(2, dim=-1).values
    margins: list[float] = ((best[:, 0] - best[:, 1]) / logits.std(dim=-1)).tolist()
    return margins


def logit_error(found: Answer, oracle: Answer) -> float:
    """Return the largest difference of a logit, in the oracle's standard deviations, while both have the same text."""
    same = [own == right for own, right in zip(found.token_ids, oracle.token_ids, strict=True)]
    num_rows = 1 + same.index(False) if False in same else len(same)  # that of the first difference is of one text yet
    right = oracle.logits[:num_rows].float()
    off = (found.logits[:num_rows].float() - right).abs().amax(dim=-1) / right.std(dim=-1)
    return float(off.max())


def bit_differences(found: Mapping[str, Answer], alone: Mapping[str, Answer]) -> dict[str, Any]:
    """Compare the logits of the answers in `alone` bit by bit.

    Returns:
        `num_rows` that were compared, how many of them are `num_equal_rows`, and the `first_difference` if there is
        one: of which `request`, at which `token`, by how much at `most`.
    """
    num_rows = num_equal = 0
    first: dict[str, Any] | None = None
    for name, expected in alone.items():
        for index, (own, right) in enumerate(zip(found[name].logits, expected.logits, strict=True)):
            num_rows += 1
            if torch.equal(own, right):
                num_equal += 1
            elif first is None:
                first = {"request": name, "token": index, "most": float((own.float() - right.float()).abs().max())}
    return {"num_rows": num_rows, "num_equal_rows": num_equal, "first_difference": first}
