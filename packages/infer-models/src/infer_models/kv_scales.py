"""Scales of an FP8 KV cache in a checkpoint: two numbers for each layer, by which codes are multiplied.

self_attn.k_scale, self_attn.v_scale                  vLLM; compressed-tensors with a `kv_cache_scheme`
self_attn.k_proj.k_scale, self_attn.v_proj.v_scale    ModelOpt
self_attn.k_proj.output_scale, self_attn.v_proj...    older files of compressed-tensors
self_attn.qkv_proj.k_scale, self_attn.attn.k_scale    llm-compressor, files that vLLM saved
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from infer_kernels import KVScales
from infer_models.errors import CheckpointError

_NAME = re.compile(
    r"model\.layers\.(?P<layer>[0-9]+)\.self_attn\."
    r"(?:(?:attn\.|qkv_proj\.)?(?P<side>[kv])_scale|(?P<outer>[kv])_proj\.(?:output_scale|(?P=outer)_scale))"
)


def read_kv_scales(names: Iterable[str], read: Callable[[str], float]) -> Mapping[int, KVScales]:
    """Return the scales of each layer that has both.

    Args:
        names: names of all tensors of a checkpoint, as the text model has them; others are left out.
        read: returns the number in the tensor of a name.

    Raises:
        CheckpointError: a scale is not a positive, finite number, a layer has one scale without the other or two
            different ones; the message names the tensor.
    """
    found: dict[int, dict[str, tuple[str, float]]] = {}
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        side = match["side"] or match["outer"]
        sides = found.setdefault(int(match["layer"]), {})
        number = read(name)
        if side in sides and sides[side][1] != number:
            raise CheckpointError(f"Tensors `{sides[side][0]}` and `{name}` are both the scale of one layer's cache.")
        if not (number > 0 and math.isfinite(number)):
            raise CheckpointError(f"Tensor `{name}` is {number}; a scale must be positive and finite.")
        sides[side] = (name, number)
    for sides in found.values():
        if len(sides) == 1:
            ((name, _),) = sides.values()
            raise CheckpointError(f"Tensor `{name}` is a scale of keys or values, and the other one is missing.")
    return MappingProxyType(
        {layer: KVScales(keys=sides["k"][1], values=sides["v"][1]) for layer, sides in found.items()}
    )
