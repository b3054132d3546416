"""A grammar that comes to a text which nothing completes is found before it is used."""

from collections.abc import Callable
from typing import Any

import pytest

from infer_engine.protocol import StructuredOutputs
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.constraint import TokenConstraint
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.grammar_text import HEADER, to_grammar_text
from infer_engine.structured.random_walks import RandomWalks

VOCABULARY = Vocabulary([bytes([byte]) for byte in range(256)], special_ids=[], eos_token_ids=[])
GRAMMARS = GrammarCompiler(lambda: VOCABULARY)
WALKS = RandomWalks(VOCABULARY)
OVERLAP = {
    "type": "object",
    "properties": {"points": {"type": "integer"}},
    "patternProperties": {"^point[s]$": {"minimum": 1}},
    "additionalProperties": False,
    "required": ["points"],
}


def begin(grammar: str) -> Callable[[], TokenConstraint]:
    return lambda: GRAMMARS.constraint(grammar)


@pytest.mark.covers("structured-tools-agents/no-dead-ends")
@pytest.mark.parametrize(
    "kind",
    [
        {"json": OVERLAP},
        {"json": OVERLAP, "whitespace": "any"},
        {"json": OVERLAP, "whitespace_pattern": r"[ \n]*"},
    ],
    ids=str,
)
def test_a_dead_end_of_a_schema_is_found(kind: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match=r"may follow .*points.*not complete.*`patternProperties`"):
        WALKS.check(begin(to_grammar_text(StructuredOutputs(**kind))))


@pytest.mark.parametrize("rules", [r"start: /[^\s\S]/", 'start: "a" B\nB: /b+/ & /[^b]+/'])
def test_a_dead_end_of_a_grammar_is_found(rules: str) -> None:
    with pytest.raises(GrammarError):
        WALKS.check(begin(HEADER + rules))


@pytest.mark.parametrize(
    "kind",
    [
        {"json_object": True},
        {"json": OVERLAP | {"patternProperties": {"^p": {"minimum": 1}}}},
        {"json": OVERLAP | {"patternProperties": {"^points$": {"minimum": 1}}}},
        {"choice": ("a", "ab", " \n ")},
        {"regex": " {20}a"},
        {"regex": "[0-9]{3}"},
        {"grammar": 'root ::= "(" root ")" | "x"'},
    ],
    ids=str,
)
def test_what_goes_on_passes(kind: dict[str, Any]) -> None:
    WALKS.check(begin(to_grammar_text(StructuredOutputs(**kind))))
