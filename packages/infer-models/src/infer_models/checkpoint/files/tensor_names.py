"""Brings the names of a checkpoint's tensors into the form that models use.

    model.layers.0.self_attn.q_proj.weight, model.embed_tokens.weight, model.norm.weight, lm_head.weight

In files there may be more in front (`base_model.model.`, `language_model.`, `module.`), or less (`layers.0. ...`, of a
model that was saved without its head), and marks of training within (`_orig_mod`, `_fsdp_wrapped_module`).
"""

import re
from collections.abc import Collection, Iterable, Mapping

_MARKS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer")
"""Components that training puts in."""
_ROOT = "model."
"""Beginning of all names of the decoder."""
_ANCHORS = (
    re.compile(r"(?P<prefix>(?:[\w-]+\.)*)embed_tokens\.(?:weight|weight_\w+|qweight)"),
    re.compile(r"(?P<prefix>(?:[\w-]+\.)*)layers\.0\.self_attn\..+"),
)
"""Tensors that every decoder has; the first that is there shows the prefix of its names."""
_OTHER_MODELS = ("layers", "vision", "visual", "audio", "mtp", "encoder", "draft", "speech", "talker")
"""Parts of prefixes that are not the decoder's."""
_OF_DECODER = (
    "embed_tokens",
    "embed_positions",
    "layers",
    "norm",
    "embedding_norm",
    "embed_tokens_per_layer",
    "per_layer_model_projection",
    "per_layer_projection_norm",
)
_HEADS = ("lm_head",)


def text_names(names: Iterable[str]) -> Mapping[str, str]:
    """Return the models' name of each tensor, by its name in the file."""
    plain = {name: _without_marks(name) for name in names}
    prefix = _decoder_prefix(plain.values())
    if prefix is None or prefix == _ROOT:
        return plain
    return {stored: _renamed(name, prefix) for stored, name in plain.items()}


def _without_marks(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _MARKS)


def _decoder_prefix(names: Collection[str]) -> str | None:
    """Return the prefix of the decoder's names; None where several could be meant, or none is there."""
    for anchor in _ANCHORS:
        found = {match["prefix"] for name in names if (match := anchor.fullmatch(name))}
        own = {each for each in found if not any(part in each for part in _OTHER_MODELS)}
        if own:
            return own.pop() if len(own) == 1 else None
    return None


def _renamed(name: str, prefix: str) -> str:
    """Return the models' name of a tensor of a decoder that begins with `prefix`."""
    if name.startswith(prefix) and name.removeprefix(prefix).split(".")[0] in _OF_DECODER:
        return _ROOT + name.removeprefix(prefix)
    head = next((each for each in _HEADS if f".{each}." in f".{name}"), None)
    if head is not None and not name.startswith(prefix + "layers."):
        outer = name.partition(f"{head}.")[0]
        if prefix.startswith(outer):
            return name.removeprefix(outer)
    return name
