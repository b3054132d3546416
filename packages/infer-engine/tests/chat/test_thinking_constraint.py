"""`ThinkingConstraint`: which tokens it masks, and when."""

import pytest

from infer_engine.chat.thinking_constraint import ThinkingConstraint
from infer_engine.messages import AnswerMarks, ThinkingLimit
from infer_engine.structured.bitmasks import holds
from infer_models.text import REASONING_FORMATS, ReasoningState
from infer_proofs.engine.call_constraints import COMPILER, TOKENIZER, tokens

END = tokens("</think>")
[CALL] = tokens("<|call|>")


def constraint(
    max_tokens: int, state: ReasoningState = ReasoningState.OPEN, *, begin_token_id: int | None = None
) -> ThinkingConstraint:
    limit = ThinkingLimit(
        marks=AnswerMarks(reasoning_format=REASONING_FORMATS["think"], reasoning_state=state),
        max_tokens=max_tokens,
        end_token_ids=END,
        begin_token_id=begin_token_id,
    )
    return ThinkingConstraint(limit, COMPILER.vocabulary(), None)


def forced(reader: ThinkingConstraint) -> list[int]:
    """Go on with the tokens that are the only ones allowed, and return them."""
    found: list[int] = []
    while (mask := reader.mask()) is not None:
        [allowed] = [token for token in range(len(mask) * 32) if holds(mask, token)]
        found.append(allowed)
        reader.consume(allowed)
    return found


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
def test_a_character_is_whole_before_the_end_is_forced(num_bytes: int) -> None:
    reader = constraint(num_bytes)
    single = {TOKENIZER.token_bytes(token): token for token in range(TOKENIZER.vocab_size)}
    for index, byte in enumerate("\N{GRINNING FACE}".encode()):
        assert reader.mask() is None, index
        reader.consume(single[bytes([byte])])
    assert forced(reader) == END


def test_the_end_comes_at_the_limit_and_the_answer_is_free() -> None:
    reader = constraint(5)
    for token_id in tokens("abcde"):
        assert reader.mask() is None
        reader.consume(token_id)
    assert forced(reader) == END
    for token_id in tokens("\n\nYes <think> no </think>"):
        reader.consume(token_id)
        assert reader.mask() is None


def test_thinking_that_the_model_begins_is_counted_from_its_first_token() -> None:
    reader = constraint(2, ReasoningState.MAY_BEGIN)
    for token_id in tokens("<think>ab"):
        assert reader.mask() is None
        reader.consume(token_id)
    assert forced(reader) == END


def test_the_end_is_forced_at_once_where_there_is_no_budget() -> None:
    assert forced(constraint(0)) == END
    reader = constraint(0, ReasoningState.MAY_BEGIN)
    assert reader.mask() is None
    for token_id in tokens("<think>"):
        reader.consume(token_id)
    assert forced(reader) == END


def test_tokens_without_a_text_count_too() -> None:
    reader = constraint(2)
    reader.consume(CALL)
    reader.consume(CALL)
    assert forced(reader) == END


def test_an_answer_without_thinking_is_never_masked() -> None:
    reader = constraint(0, ReasoningState.MAY_BEGIN)
    for token_id in tokens("It is </think> blue."):
        reader.consume(token_id)
        assert reader.mask() is None


# vllm-project/vllm#43757: thinking that began again behind its forced end had no limit
def test_thinking_that_was_ended_does_not_begin_again() -> None:
    [begin] = tokens("<")  # stands for a token of its own
    reader = constraint(1, begin_token_id=begin)
    reader.consume(tokens("a")[0])
    for token_id in END:
        reader.consume(token_id)
    for token_id in tokens("\n\n"):
        mask = reader.mask()
        assert mask is not None
        assert [token for token in range(TOKENIZER.vocab_size) if not holds(mask, token)] == [begin]
        reader.consume(token_id)
    reader.consume(tokens("Y")[0])
    assert reader.mask() is None
    again = constraint(1)
    for token_id in [*tokens("a"), *END, *tokens("<think>")]:
        again.consume(token_id)
    assert forced(again) == END


def test_in_channels_no_other_thinking_may_follow_a_forced_end_and_a_call_may() -> None:
    end, analysis = tokens("<|end|><|start|>assistant<|channel|>"), tokens("analysis")[0]
    marks = AnswerMarks(
        reasoning_format=REASONING_FORMATS["harmony"],
        reasoning_state=ReasoningState.MAY_BEGIN,
        tool_names=("analysis",),
        shown_ids=frozenset(TOKENIZER.special_ids),
    )
    limit = ThinkingLimit(marks=marks, max_tokens=1, end_token_ids=end, begin_token_id=analysis)
    reader = ThinkingConstraint(limit, COMPILER.vocabulary(), None)
    for token_id in tokens("<|channel|>analysis<|message|>a"):
        assert reader.mask() is None
        reader.consume(token_id)
    for token_id in end:
        mask = reader.mask()
        assert mask is not None
        assert holds(mask, token_id)
        assert sum(int(word).bit_count() for word in mask.view("uint32")) == 1
        reader.consume(token_id)
    mask = reader.mask()
    assert mask is not None
    assert [token for token in range(TOKENIZER.vocab_size) if not holds(mask, token)] == [analysis]
    first, *call = tokens('commentary to=functions.analysis <|message|>{"at": "a long analysis"}<|call|>')
    reader.consume(first)
    for token_id in call:
        assert reader.mask() is None
        reader.consume(token_id)
