"""Tensors that a model has no place for, and whose absence changes no answer: the one list of them.

By their names: computed tables, scales of activations and of the cache (which others read), and parts of other
models in the same files. By their numbers: tensors that add zeros or multiply by one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infer_models.checkpoint.stored_tensors import Source
from infer_models.weights import FLOATS

_COMPUTED = re.compile(
    r"(?:.*\.)?rotary_(?:pos_)?emb\..*|.*\.(?:attn|attention|self_attn)\.(?:masked_)?bias"
    r"|(?:.*\.)?position_ids|.*\.(?:inv_freq|cos_cached|sin_cached)|(?:.*\.)?_extra_state|(?:.*\.)?_metadata"
)
"""Rotary tables, masks and positions that older versions of `transformers` saved, and states of training libraries."""
_OF_ACTIVATIONS = re.compile(
    r".*\.(?:input|output|activation|q|k|v|kv|prob|k_proj\.k|v_proj\.v)_(?:scale|zero_point|global_scale)"
    r"|.*\.act_(?:scale|zero_point)"
)
"""Scales of activations are computed row by row; those of the KV cache are read with the cache."""
HEADS_OF_JUDGES = ("score", "classifier", "v_head", "value_head", "reward_head", "regression_head", "qa_outputs")
"""Names of heads that classifiers and reward models have, in place of an LM head or beside it."""
_OTHER_PARTS = {
    "a vision or audio encoder": re.compile(
        r"(?:model\.)?(?:vision_tower|vision_model|visual|vision_encoder|multi_modal_projector|mm_projector|audio_tower"
        r"|audio_encoder|embed_vision|embed_audio|patch_merger|image_newline|vision_embed_tokens|connector|vit|vqmodel)"
        r"(?:\..*)?"
    ),
    "layers that predict several tokens at once": re.compile(
        r"(?:model\.)?(?:mtp|nextn|mtp_layers|eagle)\..*|.*\.nextn\..*"
    ),
    "a head of a classifier or of training": re.compile(rf"(?:{'|'.join(HEADS_OF_JUDGES)})\..*"),
}
"""Parts of other models, by their description."""
_LAYER = re.compile(r"model\.layers\.(?P<index>\d+)\..*")
_OF_PREDICTION = re.compile(r"model\.layers\.\d+\.(?:eh_proj|enorm|hnorm|shared_head|embed_tokens)\..*")
_WITHOUT_EFFECT_IF_ZERO = re.compile(r"(?:.*[._])?(?:bias|zero_point|lora_B(?:\.\w+)?\.weight)")
_WITHOUT_EFFECT_IF_ONE = re.compile(r".*\.(?:weight_scale|weight_scale_inv|scale)")
_LORA_A = re.compile(r"(?P<place>.*)\.lora_A(?P<adapter>\.\w+)?\.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareTensors:
    """The tensors of a checkpoint that have no place in the model.

    Attributes:
        unexpected: names of tensors that would change answers.
        notes: sentences about tensors that are left unread on purpose, worth a warning.
        remarks: the same, worth a line of the log.
    """

    unexpected: tuple[str, ...]
    notes: tuple[str, ...]
    remarks: tuple[str, ...]


def sort_spare_tensors(names: Iterable[str], sources: Mapping[str, Source], *, num_layers: int) -> SpareTensors:
    """Sort the tensors `names`, for which the model has no place; those that must be zeros are read.

    Raises:
        CheckpointError: a file cannot be read.
    """
    unexpected: list[str] = []
    parts: Counter[str] = Counter()
    predicting = {
        match["index"] for name in sources if _OF_PREDICTION.fullmatch(name) and (match := _LAYER.fullmatch(name))
    }
    beyond: set[int] = set()
    for name in names:
        layer = _LAYER.fullmatch(name)
        part = _other_part(name)
        if layer is not None and int(layer["index"]) >= num_layers:
            if layer["index"] in predicting:
                parts["layers that predict several tokens at once"] += 1
            else:
                beyond.add(int(layer["index"]))
        elif part is not None:
            parts[part] += 1
        elif not (_COMPUTED.fullmatch(name) or _OF_ACTIVATIONS.fullmatch(name) or _is_without_effect(name, sources)):
            unexpected.append(name)
    notes = []
    if beyond:
        notes.append(
            f"`num_hidden_layers` is {num_layers}, but the files hold layers up to {max(beyond)}: {len(beyond)} "
            f"of them {'is' if len(beyond) == 1 else 'are'} left unread"
        )
    return SpareTensors(
        unexpected=tuple(unexpected),
        notes=tuple(notes),
        remarks=tuple(f"{count} tensors of {what} are left unread" for what, count in parts.items()),
    )


def is_of_other_model(name: str) -> bool:
    """Return whether a tensor or a layer is a part of another model in the same files."""
    return _other_part(name) is not None


def _other_part(name: str) -> str | None:
    return next((what for what, pattern in _OTHER_PARTS.items() if pattern.fullmatch(name)), None)


def _is_without_effect(name: str, sources: Mapping[str, Source]) -> bool:
    """Return whether a tensor adds zeros, multiplies by ones, or is half of an adapter whose other half is zeros."""
    adapter = _LORA_A.fullmatch(name)
    if adapter is not None:
        name = f"{adapter['place']}.lora_B{adapter['adapter'] or ''}.weight"
    source = sources.get(name)
    neutral = 0 if _WITHOUT_EFFECT_IF_ZERO.fullmatch(name) else 1 if _WITHOUT_EFFECT_IF_ONE.fullmatch(name) else None
    if source is None or neutral is None or source.tensor.dtype not in (*FLOATS, "I8", "I32", "I64", "U8"):
        return False
    return bool((source.read() == neutral).all())
