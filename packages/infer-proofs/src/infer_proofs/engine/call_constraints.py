"""Constraints of calls in tests: a small tokenizer, and which parts of a text they mask."""

from collections.abc import Sequence
from typing import Any

import tokenizers

from infer_engine.chat.call_constraint import CallConstraint
from infer_engine.chat.output_form import AnswerForm
from infer_engine.chat.output_grammar import arguments_grammar
from infer_engine.messages import AnswerMarks
from infer_engine.protocol import ChatPrompt, Tool
from infer_engine.structured.bitmasks import holds
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_models.text import REASONING_FORMATS, ReasoningState, Tokenizer, ToolCallFormat
from infer_proofs.text import split_byte_level

SPECIAL = (
    *("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|channel|>", "<|message|>", "<|start|>", "<|call|>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "\uff5cDSML\uff5c"),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_call_start|>", "<|tool_call_end|>"),
)
PIECES = ("></", '":{"', '": {', ' {"', '{"', "}}", "}}\n", '":', "</tool_call>", "()")


def make_tokenizer() -> Tokenizer:
    """Return a tokenizer that has marks as tokens, and tokens that reach from one part of a call into the next."""
    raw = split_byte_level()
    raw.add_tokens([tokenizers.AddedToken(each, normalized=False) for each in ("<tool_call>", *PIECES)])
    raw.add_special_tokens(list(SPECIAL))
    return Tokenizer(raw)


TOKENIZER = make_tokenizer()
[END] = [i for i in TOKENIZER.special_ids if TOKENIZER.id_to_token(i) == "<|im_end|>"]
COMPILER = GrammarCompiler(
    lambda: Vocabulary(
        TOKENIZER.vocabulary_bytes(),
        special_ids=TOKENIZER.special_ids,
        eos_token_ids=[END],
        encode=lambda text: TOKENIZER.encode(text, add_special_tokens=False),
    )
)


def constraint(
    calls: ToolCallFormat,
    *,
    tools: Sequence[Tool],
    state: ReasoningState = ReasoningState.NONE,
    reasoning: str = "think",
    max_calls: int = 64,
    strict: bool = False,
) -> CallConstraint:
    """Return the constraint of an answer that may call `tools`; `strict`: tokens that end a head are looked at too."""
    marks = AnswerMarks(
        reasoning_format=REASONING_FORMATS[reasoning],
        reasoning_state=state,
        tool_call_format=calls,
        tool_names=tuple(tool.name for tool in tools),
        strict_names=tuple(tool.name for tool in tools) if strict else (),
        max_calls=max_calls,
        shown_ids=frozenset(TOKENIZER.special_ids),
    )
    form = AnswerForm(
        reasoning_format=None,
        reasoning_state=state,
        tool_call_format=calls,
        token_id_of=lambda text: TOKENIZER.token_to_id(text) if text in SPECIAL else None,
    )
    grammar = arguments_grammar(ChatPrompt(messages=(), tools=tuple(tools)), form)
    return CallConstraint(marks, *COMPILER.matcher(grammar))


def tokens(text: str) -> list[int]:
    """Return the ids of `text`, of which marks and pieces are tokens."""
    return TOKENIZER.encode(text, add_special_tokens=False)


def masked(text: str, calls: ToolCallFormat, **how: Any) -> str:
    """Return the part of `text` in which tokens were masked; `...` stands for the rest where one is not allowed."""
    reader, seen = constraint(calls, **how), ""
    for token_id in tokens(text):
        mask = reader.mask()
        if mask is not None:
            if not holds(mask, token_id):
                return seen + "..."
            seen += TOKENIZER.decode([token_id], skip_special_tokens=False)
        reader.consume(token_id)
        if reader.is_over:
            return seen + "|"
    return seen
