"""Schemas of a public corpus: which are refused, which right values cannot be written, which wrong ones can.

The path is that of a `response_format`: read, tried in the sandbox, compiled; values are matched byte by byte.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher

from infer_engine.protocol import StructuredOutputs
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.grammar_text import to_grammar_text
from infer_engine.structured.sandbox import GrammarSandbox, SandboxSetup

from .conftest import Figure

TOKENS = [bytes([byte]) for byte in range(256)]
EVERY_SCHEMA = pytest.param(1, marks=pytest.mark.full)
SAMPLE = 48
"""One schema of so many."""
MAX_ORDERS = 8


@dataclass
class Judged:
    """What became of the schemas, and how many right and wrong values they have."""

    num_schemas: int = 0
    num_right: int = 0
    num_wrong: int = 0
    refused: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    silently_wrong: list[str] = field(default_factory=list)


class Judge:
    """Compiles schemas as a server does, and says which values they allow."""

    def __init__(self) -> None:
        self._sandbox = GrammarSandbox(lambda: SandboxSetup(tokens=TOKENS, special_ids=[], eos_token_ids=[]))
        self._grammars = GrammarCompiler(lambda: Vocabulary(TOKENS, special_ids=[], eos_token_ids=[]))

    def close(self) -> None:
        self._sandbox.close()

    def begin(self, schema: Any, *, strict: bool) -> LLMatcher:
        grammar = to_grammar_text(StructuredOutputs(json=schema, strict=strict))
        self._sandbox.check(grammar)
        return self._grammars.matcher(grammar)[0]

    def judge(self, name: str, schema: Any, tests: Sequence[dict[str, Any]], judged: Judged) -> None:
        right, wrong = ([test["data"] for test in tests if test["valid"] is valid] for valid in (True, False))
        judged.num_schemas += 1
        judged.num_right += len(right)
        judged.num_wrong += len(wrong)
        orders = list(orders_of(schema))
        try:
            matcher = self.begin(schema, strict=False)
        except (ValueError, GrammarError) as error:
            judged.refused.append(f"{name}: {error}")
            judged.lost += [name] * len(right)
            return
        judged.lost += [f"{name}: {value}" for value in right if not can_be_written(matcher, value, orders)]
        try:
            exact = self.begin(schema, strict=True)
        except (ValueError, GrammarError):
            return  # what is lost is said
        for each in (matcher, exact):
            judged.silently_wrong += [f"{name}: {value}" for value in wrong if can_be_written(each, value, orders)]


def orders_of(schema: Any) -> Iterator[dict[str, int]]:
    """The names of each object that a schema describes, by their place: grammars keep that order."""
    left = [schema]
    while left:
        each = left.pop()
        left += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        if isinstance(each, dict) and isinstance(each.get("properties"), dict):
            required = each.get("required")
            names = [*each["properties"], *(required if isinstance(required, list) else ())]
            yield {name: place for place, name in reversed(list(enumerate(names)))}


def can_be_written(matcher: LLMatcher, value: Any, orders: Sequence[dict[str, int]]) -> bool:
    after = written(matcher, value, orders)
    return after is not None and after.is_accepting()


def written(matcher: LLMatcher, value: Any, orders: Sequence[dict[str, int]]) -> LLMatcher | None:
    """Return what may follow `value`, in one of the orders of the schema; None: it cannot be written."""
    match value:
        case dict() if value:
            ways = (_members(matcher, value, names, orders) for names in likely_orders(value, orders))
            return next((way for way in ways if way is not None), None)
        case list() if value:
            after = consumed(matcher, "[")
            for index, item in enumerate(value):
                after = after and consumed(after, ", " if index else "")
                after = after and written(after, item, orders)
            return after and consumed(after, "]")
        case _:
            texts = dict.fromkeys(json.dumps(value, ensure_ascii=is_ascii) for is_ascii in (False, True))
            return next((after for text in texts if (after := consumed(matcher, text))), None)


def _members(
    matcher: LLMatcher, value: dict[str, Any], names: Sequence[str], orders: Sequence[dict[str, int]]
) -> LLMatcher | None:
    after = consumed(matcher, "{")
    for index, name in enumerate(names):
        key = json.dumps(name, ensure_ascii=False)
        after = after and consumed(after, f"{', ' if index else ''}{key}: ")
        after = after and written(after, value[name], orders)
    return after and consumed(after, "}")


def likely_orders(value: dict[str, Any], orders: Sequence[dict[str, int]]) -> list[tuple[str, ...]]:
    nearest = sorted(orders, key=lambda order: -len(order.keys() & value.keys()))[:MAX_ORDERS]
    found = [tuple(sorted(value, key=lambda name: order.get(name, len(order)))) for order in nearest]
    return list(dict.fromkeys([*found, tuple(value)]))


def consumed(matcher: LLMatcher, text: str) -> LLMatcher | None:
    after, tokens = matcher.deep_copy(), list(text.encode())
    return after if after.try_consume_tokens(tokens) == len(tokens) else None


@lru_cache(maxsize=2)
def judged_corpus(corpus: Path, every: int) -> Judged:
    judged, judge = Judged(), Judge()
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number % every == 0:
                judge.judge(**json.loads(line), judged=judged)
    judge.close()
    return judged


@pytest.mark.parametrize("every", [SAMPLE, EVERY_SCHEMA])
def test_real_schemas_are_taken(schema_corpus: Path, figure: Figure, every: int) -> None:
    judged = judged_corpus(schema_corpus, every)
    figure("schemas_refused", judged.num_schemas, judged.refused)


@pytest.mark.parametrize("every", [SAMPLE, EVERY_SCHEMA])
def test_right_values_of_real_schemas_can_be_written(schema_corpus: Path, figure: Figure, every: int) -> None:
    judged = judged_corpus(schema_corpus, every)
    figure("schema_right_values", judged.num_right, judged.lost)


@pytest.mark.parametrize("every", [SAMPLE, EVERY_SCHEMA])
def test_wrong_values_are_not_written_in_silence(schema_corpus: Path, figure: Figure, every: int) -> None:
    """A wrong value may be written where `strict` refuses the schema by the name of what is not kept."""
    judged = judged_corpus(schema_corpus, every)
    figure("schema_wrong_values", judged.num_wrong, judged.silently_wrong)
