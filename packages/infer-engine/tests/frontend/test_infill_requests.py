"""Requests that fill a gap: their prompts, their ends, and how they are refused or cut where they are too long."""

from typing import Any

import pytest
import tokenizers

from infer_engine.frontend.input_processor import InputLimits, InputProcessor
from infer_engine.frontend.tokenizer_pool import prompt_characters
from infer_engine.messages import Submit
from infer_engine.protocol import (
    ContextLengthExceededError,
    GenerateRequest,
    InfillPrompt,
    InvalidRequestError,
    SamplingParams,
)
from infer_models.text import Tokenizer, dummy_tokenizer
from infer_proofs.text import byte_level

TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
MAX_SEQ_LEN = 32


def tokenizer_with_gaps() -> Tokenizer:
    raw = byte_level()
    raw.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True) for text in TOKENS])
    return Tokenizer(raw)


TOKENIZER = tokenizer_with_gaps()
IDS = tuple(TOKENIZER.token_to_id(text) for text in TOKENS)


def submitted(prompt: InfillPrompt, *, tokenizer: Tokenizer = TOKENIZER, clips: bool = False, **params: Any) -> Submit:
    processor = InputProcessor(tokenizer, InputLimits(vocab_size=400, max_seq_len=MAX_SEQ_LEN), seed=0)
    request = GenerateRequest(prompt=prompt, params=SamplingParams(**{"max_tokens": 4} | params), clip_max_tokens=clips)
    [processed] = processor.process(request, ids=processor.reserve_ids(request))
    return processed.submission


@pytest.mark.covers("requests/infill")
def test_a_gap_is_a_prompt_in_the_models_format_that_ends_at_its_tokens() -> None:
    submission = submitted(InfillPrompt(prefix="ab", suffix="cd"), stop_token_ids=(7,), stop=("<|im_end|>",))
    text = TOKENIZER.decode(submission.prompt_token_ids, skip_special_tokens=False)
    assert text == "<|fim_prefix|>ab<|fim_suffix|>cd<|fim_middle|>"
    end = TOKENIZER.token_to_id("<|im_end|>")
    assert set(submission.params.stop_token_ids) == {7, end, *IDS}


def test_an_answer_that_ignores_ends_ignores_those_of_the_format() -> None:
    assert submitted(InfillPrompt(prefix="ab", suffix="cd"), ignore_eos=True).params.stop_token_ids == ()


def test_a_model_that_fills_no_gaps_refuses_them_by_the_field() -> None:  # ggml-org/llama.vscode#42
    with pytest.raises(InvalidRequestError, match="no tokens for that") as refused:
        submitted(InfillPrompt(prefix="ab", suffix="cd"), tokenizer=dummy_tokenizer(300))
    assert refused.value.param == "suffix"


def test_a_gap_in_too_long_a_text_is_refused_or_cut_so_that_an_answer_has_room() -> None:
    long = InfillPrompt(prefix="0123456789" * 3, suffix="")
    with pytest.raises(ContextLengthExceededError):
        submitted(long)
    for max_tokens, answer_tokens in ((4, 4), (0, 1), (1000, 16), (None, 16)):
        cut = InfillPrompt(prefix="0123456789" * 30, suffix="", cuts=True)
        submission = submitted(cut, max_tokens=max_tokens, clips=True)
        assert (len(submission.prompt_token_ids), submission.max_tokens) == (MAX_SEQ_LEN - answer_tokens, answer_tokens)


def test_all_texts_of_a_prompt_count_as_characters() -> None:
    assert prompt_characters(InfillPrompt(prefix="ab", suffix="c", files=(("d.py", "efg"),))) == 10
