"""Stop strings that spell special tokens: what ends an answer, by id and by marks in its text."""

import pytest

from infer_engine.frontend.output_processor import OutputProcessor
from infer_engine.frontend.stop_rules import stop_rules
from infer_engine.messages import TokenOutput
from infer_engine.protocol import FinishReason, StepOutput
from infer_models.text import IncrementalDetokenizer, Tokenizer
from infer_proofs.text import byte_fallback, byte_level


def with_special(kind: str) -> Tokenizer:
    tokenizer = byte_level() if kind == "byte_level" else byte_fallback()
    tokenizer.add_special_tokens(["<|a|>", "<|b|>"])
    return Tokenizer(tokenizer)


@pytest.fixture(params=["byte_level", "byte_fallback"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return with_special(request.param)


def answer(tokenizer: Tokenizer, text: str, *stops: str, includes_stop: bool = False) -> tuple[str, str | int | None]:
    """Return the text of an answer that spells `text`, token by token, and what ended it."""
    rules = stop_rules(stops, tokenizer)
    processor = OutputProcessor(
        rules.detokenizer(IncrementalDetokenizer(tokenizer, []), shown_ids=()),
        rules.matcher(),
        stop_token_texts=rules.by_id,
        includes_stop=includes_stop,
    )
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    outputs: list[StepOutput] = []
    for number, token_id in enumerate(token_ids, start=1):
        is_last = number == len(token_ids)
        reason = FinishReason.STOP if token_id in rules.by_id else FinishReason.LENGTH if is_last else None
        outputs.append(
            processor.process(
                TokenOutput(
                    request_id="r",
                    token_ids=[token_id],
                    finish_reason=reason,
                    num_prompt_tokens=1,
                    num_completion_tokens=number,
                )
            )
        )
        if outputs[-1].finished:
            break
    return "".join(output.text for output in outputs), outputs[-1].stop_reason


CASES: list[tuple[str, tuple[str, ...], str, str | None]] = [
    ("one<|a|>two", ("<|a|>",), "one", "<|a|>"),
    ("one\n<|a|>two", ("\n<|a|>",), "one", "\n<|a|>"),
    ("one<|a|>two", ("<|a|>tw",), "one", "<|a|>tw"),
    ("é<|a|><|b|>two", ("<|a|><|b|>",), "é", "<|a|><|b|>"),
    ("one<|a|>two", ("<|a|>tx", "<|b|>t"), "onetwo", None),
    ("on<|b|>e<|a|>t", ("n<|b|>e<|a|>x", "t"), "one", "t"),
    ("é<|a|>", ("x<|a|>", "<|a|>x"), "é", None),
]


# Older SentencePiece tokenizers put a blank before text that follows a special token.
OF_BOTH_KINDS = [case for case in CASES if case[0].endswith("|>") or (case[3] or "").endswith("|>")]


@pytest.mark.parametrize(
    ("kind", "text", "stops", "before", "stop"),
    [("byte_level", *case) for case in CASES] + [("byte_fallback", *case) for case in OF_BOTH_KINDS],
)
def test_an_answer_ends_before_a_stop_string_with_special_tokens(
    kind: str, text: str, stops: tuple[str, ...], before: str, stop: str | None
) -> None:
    tokenizer = with_special(kind)
    found, reason = answer(tokenizer, text, *stops)
    assert (found.lstrip(" "), reason) == (before, stop)
    found, _ = answer(tokenizer, text, *stops, includes_stop=True)
    assert found.lstrip(" ") == before + (stop or "")


def test_text_that_spells_a_special_token_ends_an_answer_too() -> None:
    tokenizer = with_special("byte_level")
    rules = stop_rules(["<|a|>", "x<|a|>"], tokenizer)
    assert rules.matcher().add("1<|a|>2") == ("1", "<|a|>")


def test_stop_strings_without_special_tokens_need_no_marks(tokenizer: Tokenizer) -> None:
    rules = stop_rules(["a", "<|"], tokenizer)
    plain = IncrementalDetokenizer(tokenizer, [])
    assert (rules.by_id, rules.marks) == ({}, {})
    assert rules.detokenizer(plain, shown_ids=()) is plain
