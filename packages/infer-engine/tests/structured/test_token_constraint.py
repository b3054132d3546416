"""Which tokens a grammar allows: every bit against brute force, over a small vocabulary."""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from infer_engine.protocol import StructuredOutputs
from infer_engine.structured import compiler as compiler_module
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.constraint import TokenConstraint
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.grammar_text import to_grammar_text

WORDS = [
    b"tr",
    b"ue",
    b"true",
    b"null",
    b'{"',
    b'"}',
    b'": ',
    b'","',
    b"12",
    b"-1",
    b"abc",
    b"<f",
    b"  ",
    b"\xc3",
    b"yes",
]
TOKENS = [bytes([byte]) for byte in range(256)] + WORDS + [b"", b"<eos>", b"<think>"]
EOS, THINK = len(TOKENS) - 2, len(TOKENS) - 1
VOCABULARY = Vocabulary(TOKENS, special_ids=[EOS, THINK], eos_token_ids=[EOS])
BYTES = Vocabulary(TOKENS[:256], special_ids=[], eos_token_ids=[])

KINDS: list[dict[str, Any]] = [
    {"json": {"type": "object", "properties": {"abc": {"type": ["boolean", "null"]}, "n": {"type": "integer"}},
              "required": ["abc"], "additionalProperties": False}},
    {"json_object": True},
    {"regex": r"(yes|tr+ue|é{1,3}|\d+)!?"},
    {"choice": ["yes", "true", "tr", "null  "]},
    {"grammar": 'root ::= "(" root ")" | [a-c]+'},
    {"structural_tag": {"structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": ">"}],
                        "triggers": ["<f"]}},
]  # fmt: skip


def start(kind: dict[str, Any], grammars: GrammarCompiler | None = None) -> TokenConstraint:
    grammars = grammars or GrammarCompiler(lambda: VOCABULARY)
    return grammars.constraint(to_grammar_text(StructuredOutputs(**kind)))


def allowed(constraint: TokenConstraint) -> set[int]:
    bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def accepts(kind: dict[str, Any], grammars: GrammarCompiler, text: bytes) -> bool:
    """Return whether some text that begins with `text` is complete, asked byte by byte."""
    constraint = start(kind, grammars)
    for byte in text:
        if constraint.is_over or byte not in allowed(constraint):
            return False
        constraint.consume(byte)
    return True


@pytest.mark.covers("structured-tools-agents/mask-bits")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: next(iter(kind)))
def test_every_bit_is_what_bytes_say(kind: dict[str, Any]) -> None:
    chosen = random.Random(0)  # noqa: S311 - a test's choices
    constraint, text = start(kind), b""
    by_bytes = GrammarCompiler(lambda: BYTES)
    for _ in range(12):
        if constraint.is_over:
            break
        mask = allowed(constraint)
        expected = {token_id for token_id, token in enumerate(TOKENS[:-3]) if accepts(kind, by_bytes, text + token)}
        assert mask - {EOS} == expected
        token_id = chosen.choice(sorted(mask - {EOS}) or [EOS])
        constraint.consume(token_id)
        text += TOKENS[token_id]


def test_special_tokens_are_no_text() -> None:
    constraint = start({"regex": "[a-z<>]*"})
    assert EOS in allowed(constraint)
    assert THINK not in allowed(constraint)


def test_the_end_is_allowed_where_the_text_may_be_complete_only() -> None:
    constraint = start({"regex": "ab?"})
    assert EOS not in allowed(constraint)
    constraint.consume(ord("a"))
    assert {EOS, ord("b")} <= allowed(constraint)
    assert not constraint.is_over
    constraint.consume(ord("b"))
    assert constraint.is_over


def test_a_mask_is_the_same_until_a_token_is_consumed() -> None:
    constraint = start({"regex": "[ab]{3}"})
    first = constraint.mask()
    assert constraint.mask() is first
    constraint.consume(ord("a"))
    assert constraint.mask() is not first


def test_sequences_of_one_grammar_do_not_meet() -> None:
    grammars = GrammarCompiler(lambda: VOCABULARY)
    text = to_grammar_text(StructuredOutputs(choice=("yes", "null")))
    one, other = grammars.constraint(text), grammars.constraint(text)
    one.consume(ord("y"))
    assert allowed(one) == {ord("e")}
    assert ord("n") in allowed(other)


def test_an_illegal_token_is_an_error_from_then_on() -> None:
    constraint = start({"regex": "a+"})
    constraint.consume(ord("b"))
    assert not constraint.is_over
    with pytest.raises(GrammarError, match="doesn't satisfy the grammar"):
        constraint.mask()


def test_a_limit_is_an_error_and_never_the_end_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_LEXER_STATES", 60)
    constraint = start({"regex": r"(a|b)*a(a|b){12}"})
    letters = itertools.cycle("abbabaabbbabaab")
    with pytest.raises(GrammarError):
        consume_for_ever(constraint, map(ord, letters))


def consume_for_ever(constraint: TokenConstraint, token_ids: Iterator[int]) -> None:
    for token_id in itertools.islice(token_ids, 200):
        if not constraint.is_over:
            assert constraint.mask().any()
            constraint.consume(token_id)


def test_grammars_that_were_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_module, "MAX_KEPT", 2)
    grammars = GrammarCompiler(lambda: VOCABULARY)
    texts = [to_grammar_text(StructuredOutputs(regex=letter)) for letter in "abc"]
    for text in (texts[0], texts[1], texts[0], texts[2]):
        grammars.compile(text)
    assert [grammars.has(text) for text in texts] == [True, False, True]


def test_the_vocabulary_is_made_when_the_first_grammar_comes() -> None:
    made: list[Vocabulary] = []

    def make() -> Vocabulary:
        made.append(VOCABULARY)
        return VOCABULARY

    grammars = GrammarCompiler(make)
    assert not made
    for letter in "ab":
        grammars.compile(to_grammar_text(StructuredOutputs(regex=letter)))
    assert len(made) == 1


def encoder(kind: str) -> tuple[list[bytes], Callable[[str], list[int]]]:
    """Return the tokens of a tokenizer, and how it encodes a text by itself."""
    words = ["customer", "_", "number", "cust", '":', "{", '"', "é", *"abcdefghijklmnopqrstuvwxyz", "\n"]
    if kind == "bytes":
        return [word.encode() for word in words], lambda text: greedy(text, words)
    spaced = [f" {word}" for word in words]  # as SentencePiece puts a blank before a text
    tokens = [*words, *spaced, " "]
    return [word.encode() for word in tokens], lambda text: greedy(f" {text}", tokens)


def greedy(text: str, words: list[str]) -> list[int]:
    found = []
    while text:
        best = max((word for word in words if text.startswith(word)), key=len)
        found.append(words.index(best))
        text = text[len(best) :]
    return found


# guidance-ai/llguidance#267 and mlc-ai/xgrammar#776: forced texts in tokens that a model does not write
@pytest.mark.parametrize("kind", ["bytes", "blank before a text"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"customer_number":', ["{", '"', "customer", "_", "number", '":']),
        (b"", []),
        ("né".encode(), ["n", "é"]),
        ("né".encode()[:-1], ["n"]),  # a character that is not whole
        ("é".encode()[1:] + b"n", []),  # a text that begins within one
    ],
)
def test_a_text_is_tokenized_as_within_another_one(kind: str, text: bytes, expected: list[str]) -> None:
    tokens, encode = encoder(kind)
    vocabulary = Vocabulary(tokens, special_ids=[], eos_token_ids=[], encode=encode)
    for _ in range(2):  # the second time it is known
        assert [tokens[i].decode() for i in vocabulary.tokenize(text)] == expected


def test_a_text_that_the_tokenizer_changes_or_cannot_encode_has_no_tokens() -> None:
    tokens = [b"a", b"b"]
    for encode in (lambda _: [1], lambda _: []):
        assert Vocabulary(tokens, special_ids=[], eos_token_ids=[], encode=encode).tokenize(b"a") == []
    assert Vocabulary(tokens, special_ids=[], eos_token_ids=[]).tokenize(b"a") == []
