"""`Speculation`: how tokens are drafted, read from JSON as vLLM's `--speculative-config` has it.

Drafts change no token. So a larger number of them is a most that is cut to `MAX_DRAFT_TOKENS`, and fields that only
shape drafts are passed over.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeGuard

from infer_engine.protocol.stats import MAX_DRAFT_TOKENS
from infer_engine.protocol.values import refusal

SpeculationMethod = Literal["suffix", "ngram", "draft_model", "mtp"]

NUM_TOKENS: Mapping[str, int] = MappingProxyType({"suffix": MAX_DRAFT_TOKENS, "ngram": 4, "draft_model": 4, "mtp": 3})
"""Most drafts of a request in a step, by method, where `num_speculative_tokens` is left out."""
_LOOKUPS = ("prompt_lookup_max", "prompt_lookup_min")
_OF_METHOD: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "suffix": ("suffix_decoding_max_cached_requests",),
        "ngram": ("model", *_LOOKUPS),
        "draft_model": ("model",),
        "mtp": (),
    }
)
_ALLOWED = (
    'JSON such as {"method": "suffix", "num_speculative_tokens": 8}; the methods are `suffix`, with '
    "`suffix_decoding_max_cached_requests` of 0 or more, `ngram`, with `prompt_lookup_max` and `prompt_lookup_min` "
    "of at least 1, `draft_model`, with a `model`, and `mtp`; `num_speculative_tokens` is at least 1; or `none`"
)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count(value: object) -> TypeGuard[int]:
    return _is_whole(value) and value >= 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


_WITHOUT_EFFECT: Mapping[str, Callable[[object], bool]] = MappingProxyType(
    {
        "acceptance_method": lambda value: value == "rejection_sampler",
        "attention_backend": lambda value: isinstance(value, str),
        "disable_by_batch_size": _is_count,
        "disable_padded_drafter_batch": _is_switch,
        "draft_tensor_parallel_size": lambda value: _is_count(value) and value == 1,
        "enforce_eager": _is_switch,
        "max_model_len": _is_count,
        "rejection_sample_method": lambda value: value in ("strict", "probabilistic"),
        "speculative_token_tree": lambda value: isinstance(value, str),
        "suffix_decoding_max_spec_factor": _is_number,
        "suffix_decoding_max_tree_depth": _is_count,
        "suffix_decoding_min_token_prob": _is_number,
    }
)
"""Fields of vLLM's that decide on drafts or kernels, never on tokens, by the values that are passed over."""


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """The way in which drafts are made.

    Attributes:
        method: how: `suffix`, `ngram`, `draft_model` or `mtp`, by a layer of the model that predicts a token further.
        num_tokens: most drafts of a request in a step.
        uses_earlier_answers: with `suffix`, whether earlier answers are looked into.
        shortest: with `ngram`, fewest last tokens that are looked for in what came before.
        longest: most of them.
        model: with `draft_model`, the model that drafts: a folder, a GGUF file or a Hub id.
    """

    method: SpeculationMethod = "suffix"
    num_tokens: int = MAX_DRAFT_TOKENS
    uses_earlier_answers: bool = True
    shortest: int = 2
    longest: int = 3
    model: str | None = None


def parse_speculation(name: str, value: object) -> Speculation | None:
    """Return what `value`, JSON, a mapping or `none`, asks for; None: no drafts.

    Raises:
        ValueError: it is none of these, or asks for what there is not; the message names the field `name`.
    """
    if value == "none":
        return None
    fields = _fields(value)
    if fields is None:
        raise refusal(name, value, _ALLOWED)
    method = _method(fields)
    if method is None:
        raise ValueError(f"`{name}` is {value!r}; its method must be `suffix`, `ngram`, `draft_model` or `mtp`.")
    unknown = fields.keys() - {"method", "num_speculative_tokens", *_OF_METHOD[method]}
    for field in sorted(unknown):
        if field not in _WITHOUT_EFFECT or not _WITHOUT_EFFECT[field](fields[field]):
            problem = f"without `{field}` {fields[field]!r}, which there is not with the method `{method}`"
            raise refusal(name, value, f"{problem}, or {_ALLOWED}")
    longest = fields.get("prompt_lookup_max", Speculation.longest)
    shortest = fields.get("prompt_lookup_min", min(longest, Speculation.shortest) if _is_count(longest) else longest)
    num_tokens = fields.get("num_speculative_tokens", NUM_TOKENS[method])
    num_answers = fields.get("suffix_decoding_max_cached_requests", 1)
    model = fields.get("model") if method == "draft_model" else None
    are_counts = all(map(_is_count, (longest, shortest, num_tokens))) and _is_whole(num_answers)
    is_named = method != "draft_model" or (isinstance(model, str) and bool(model.strip()))
    if not are_counts or not is_named or shortest > longest:
        raise refusal(name, value, _ALLOWED)
    return Speculation(
        method=method,
        num_tokens=min(num_tokens, MAX_DRAFT_TOKENS),
        uses_earlier_answers=num_answers > 0,
        shortest=min(shortest, MAX_DRAFT_TOKENS),
        longest=min(longest, MAX_DRAFT_TOKENS),
        model=model,
    )


def _method(fields: Mapping[str, Any]) -> SpeculationMethod | None:
    """Return the method that `fields` ask for; None: one that there is not."""
    looks_up = fields.get("model") == "[ngram]" or any(name in fields for name in _LOOKUPS)
    match fields.get("method", "ngram" if looks_up else "draft_model" if "model" in fields else "suffix"):
        case "ngram" | "[ngram]":
            return "ngram" if fields.get("model", "[ngram]") == "[ngram]" else None
        case "draft_model":
            return "draft_model"
        case "mtp" | "qwen3_next_mtp" | "qwen3_5_mtp":  # vLLM has had a name for each family
            return "mtp"
        case "suffix":
            return "suffix"
        case _:
            return None


def _fields(value: object) -> Mapping[str, Any] | None:
    """Return the fields of `value` that are set; None: it is neither JSON of an object nor a mapping."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping):
        return None
    return {name: field for name, field in value.items() if field is not None}
