"""`Speculation`: how tokens are drafted, read from JSON as vLLM's `--speculative-config` has it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infer_engine.protocol.values import refusal

MAX_DRAFT_TOKENS = 16

_FIELDS = frozenset(("method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min"))
_ALLOWED = (
    'JSON such as {"method": "ngram", "num_speculative_tokens": 4}, where `prompt_lookup_min` and `prompt_lookup_max` '
    f"may be too, all of 1 to {MAX_DRAFT_TOKENS}"
)


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """How drafts are made.

    Attributes:
        num_tokens: most drafts of a request in a step.
        shortest: fewest last tokens that are looked for in what came before.
        longest: most of them.
    """

    num_tokens: int = 4
    shortest: int = 2
    longest: int = 3


def parse_speculation(name: str, value: object) -> Speculation:
    """Return what `value`, JSON or a mapping, asks for.

    Raises:
        ValueError: it is neither, or asks for what there is not; the message names the field `name`.
    """
    fields = _fields(value)
    if fields is None:
        raise refusal(name, value, _ALLOWED)
    if fields.get("method", "ngram") not in ("ngram", "[ngram]") or fields.get("model", "[ngram]") != "[ngram]":
        raise ValueError(f"`{name}` is {value!r}; its method must be `ngram`, the only one that there is.")
    longest = fields.get("prompt_lookup_max", Speculation.longest)
    shortest = fields.get("prompt_lookup_min", min(longest, Speculation.shortest) if _is_count(longest) else longest)
    num_tokens = fields.get("num_speculative_tokens", Speculation.num_tokens)
    if fields.keys() - _FIELDS or not all(map(_is_count, (longest, shortest, num_tokens))):
        raise refusal(name, value, _ALLOWED)
    speculation = Speculation(num_tokens=num_tokens, shortest=shortest, longest=longest)
    if speculation.shortest > speculation.longest:
        raise refusal(name, value, _ALLOWED)
    return speculation


def _fields(value: object) -> Mapping[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, Mapping) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_DRAFT_TOKENS
