"""A checkpoint's words on generation: tokens that end a sequence or are never generated, and how to sample."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infer_models.config.json_fields import JsonFields
from infer_models.config.wrappers import text_fields
from infer_models.gguf.checkpoint_files import is_gguf, read_model_header
from infer_models.gguf.config_fields import SAMPLING_KEYS, sampling_fields
from infer_models.gguf.end_tokens import end_token_ids, suppressed_token_ids
from infer_models.hub import recommended_sampling

TAKEN = ("do_sample", "max_new_tokens", *SAMPLING_KEYS)
_NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "num_beams": (1,),
        "num_beam_groups": (1,),
        "typical_p": (1, 1.0),
        "top_h": (),
        "epsilon_cutoff": (0, 0.0),
        "eta_cutoff": (0, 0.0),
        "penalty_alpha": (0, 0.0),
        "no_repeat_ngram_size": (0,),
        "encoder_repetition_penalty": (1, 1.0),
        "encoder_no_repeat_ngram_size": (0,),
        "min_new_tokens": (0,),
        "min_length": (0,),
        "exponential_decay_length_penalty": (),
        "bad_words_ids": ([],),
        "sequence_bias": ({}, []),
        "forced_bos_token_id": (),
        "forced_eos_token_id": (),
        "stop_strings": ([],),
        "guidance_scale": (1, 1.0),
        "watermarking_config": (),
    }
)
"""Fields of `transformers` that change answers and are not taken, with the values at which they change nothing."""
_WITHOUT_EFFECT = re.compile(
    r"_.*|.*_version|(?:begin_)?suppress_tokens|(?:bos|eos|pad|decoder_start)_token_id|eos_token_ids|cache_.*|compile_config|disable_compile"
    r"|continuous_batching_config|low_memory|max_cache_len|output_.*|prefill_chunk_size|return_dict_in_generate|use_cache"
    r"|diversity_penalty|early_stopping|length_penalty|num_return_sequences|remove_invalid_values|renormalize_logits"
    r"|assistant_.*|is_assistant|max_matching_ngram_size|num_assistant_.*|prompt_lookup_num_tokens|speculation_type"
    r"|target_lookbehind|use_mtp|max_length"
)
"""Fields that change no answer: how `transformers` computes, drafts, returns and searches with beams, and tokens that
others read; and a length that each request has of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """The part of a checkpoint's configuration that concerns generation.

    Attributes:
        eos_token_ids: tokens that end a sequence; empty where the checkpoint names none.
        suppressed_token_ids: tokens that are never generated.
        first_suppressed_token_ids: tokens that are never the first one of an answer.
    """

    eos_token_ids: tuple[int, ...]
    suppressed_token_ids: tuple[int, ...] = ()
    first_suppressed_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_folder(cls, folder: Path) -> "GenerationConfig":
        """Read `generation_config.json`, and `config.json` for fields that it leaves out, or a GGUF file's metadata.

        Raises:
            CheckpointError: a file is damaged, or `config.json` missing where it is needed.
        """
        if is_gguf(folder):
            header = read_model_header(folder)
            return cls(eos_token_ids=end_token_ids(header), suppressed_token_ids=suppressed_token_ids(header))
        path = folder / "generation_config.json"
        fields = JsonFields.from_file(path) if path.exists() else JsonFields(path, {})
        ends = fields
        if "eos_token_id" not in fields:
            ends, _ = text_fields(JsonFields.from_file(folder / "config.json"))
        return cls(
            eos_token_ids=ends.token_ids("eos_token_id"),
            suppressed_token_ids=fields.token_ids("suppress_tokens"),
            first_suppressed_token_ids=fields.token_ids("begin_suppress_tokens"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFields:
    """Recommendations of a checkpoint, unchecked.

    Attributes:
        source: where they come from, for a message.
        taken: fields of `TAKEN` that are there and not null.
        untaken: further fields that would change answers.
    """

    source: str
    taken: Mapping[str, Any]
    untaken: Mapping[str, Any]


def read_generation_fields(folder: Path) -> GenerationFields:
    """Return the fields of `generation_config.json` in a folder, or of a GGUF file's metadata; none where it has none.

    What is known of an installed model counts where its file does not say.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = folder / "generation_config.json"
    known = recommended_sampling(folder)
    if is_gguf(folder):
        fields: dict[str, Any] = {**known, **sampling_fields(read_model_header(folder))}
    else:
        fields = JsonFields.from_file(path).as_dict() if path.exists() else {}
    return GenerationFields(
        source="the model's makers" if known else folder.name if is_gguf(folder) else path.name,
        taken={name: fields[name] for name in TAKEN if name in fields},
        untaken={name: value for name, value in fields.items() if not _is_neutral(name, value)},
    )


def is_of_generation(name: str) -> bool:
    """Return whether a field says how `transformers` generates; older `config.json` files have such fields, too."""
    return name in TAKEN or name in _NEUTRAL or _WITHOUT_EFFECT.fullmatch(name) is not None


def _is_neutral(name: str, value: Any) -> bool:
    """Return whether a field is taken or changes no answer."""
    if name in _NEUTRAL:
        return value in _NEUTRAL[name]
    return is_of_generation(name) or not value
