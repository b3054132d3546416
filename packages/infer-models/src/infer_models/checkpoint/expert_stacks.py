"""Finds the parts that a model wants inside tensors that hold several of them, and makes stacks of experts.

    experts.gate_up_proj  [experts, 2 * inner, hidden]    experts.0.gate_proj.weight, experts.0.up_proj.weight, ...
    experts.down_proj     [experts, hidden, inner]        experts.0.down_proj.weight, ...
    self_attn.qkv_proj.weight [rows, hidden]              self_attn.q_proj.weight, k_proj, v_proj
    mlp.gate_up_proj.weight   [2 * inner, hidden]         mlp.gate_proj.weight, mlp.up_proj.weight

Parts are whole rows, so each is one piece of a file, and nothing is copied. Only plain numbers are found so.
"""

import re
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from infer_models.checkpoint.files.tensor_file import StoredTensor
from infer_models.checkpoint.stored_tensors import Source
from infer_models.stored_format import TensorSpec
from infer_models.weights import FLOATS

_EXPERT = re.compile(r"(?P<place>.+\.experts)\.(?P<index>\d+)\.(?P<part>gate|up|down)_proj\.weight")
_FUSED = {"q": "qkv_proj", "k": "qkv_proj", "v": "qkv_proj", "gate": "gate_up_proj", "up": "gate_up_proj"}
_ORDER = {"qkv_proj": ("q", "k", "v"), "gate_up_proj": ("gate", "up")}
_PART = re.compile(r"(?P<place>.+)\.(?P<part>q|k|v|gate|up)_proj\.(?P<leaf>weight|bias)")


def find_parts(wanted: Mapping[str, TensorSpec], sources: Mapping[str, Source]) -> tuple[dict[str, Source], set[str]]:
    """Return the places of wanted tensors that are parts of others, and the names of those others."""
    parts: dict[str, Source] = {}
    divided: set[str] = set()
    for name in wanted:
        if name in sources:
            continue
        whole = _expert_in_stack(name, sources) or _layer_in_fused(name, wanted, sources)
        if whole is not None:
            of, parts[name] = whole
            divided.add(of)
    return parts, divided


def stack_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with those of experts in stacks, [experts, ...]."""
    stacks: defaultdict[str, defaultdict[int, dict[str, Tensor]]] = defaultdict(lambda: defaultdict(dict))
    stacked: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            stacked[name] = tensor
        else:
            stacks[match["place"]][int(match["index"])][match["part"]] = tensor
    for place, experts in stacks.items():
        in_order = [experts[index] for index in range(len(experts))]
        stacked[f"{place}.gate_up_proj"] = torch.stack([torch.cat((each["gate"], each["up"])) for each in in_order])
        stacked[f"{place}.down_proj"] = torch.stack([each["down"] for each in in_order])
    return stacked


def _expert_in_stack(name: str, sources: Mapping[str, Source]) -> tuple[str, Source] | None:
    match = _EXPERT.fullmatch(name)
    if match is None:
        return None
    place, index, part = match["place"], int(match["index"]), match["part"]
    stack = f"{place}.down_proj" if part == "down" else f"{place}.gate_up_proj"
    of = next((each for each in (stack, f"{stack}.weight") if each in sources), None)
    if of is None or not _is_plain(sources[of].tensor, dimensions=3) or index >= sources[of].tensor.shape[0]:
        return None
    expert = sources[of].tensor.item(index)
    if part != "down":
        half = expert.shape[0] // 2
        expert = expert.rows(0 if part == "gate" else half, half)
    return of, Source(file=sources[of].file, tensor=expert)


def _layer_in_fused(
    name: str, wanted: Mapping[str, TensorSpec], sources: Mapping[str, Source]
) -> tuple[str, Source] | None:
    match = _PART.fullmatch(name)
    if match is None:
        return None
    place, part, leaf = match["place"], match["part"], match["leaf"]
    of = f"{place}.{_FUSED[part]}.{leaf}"
    specs = [wanted.get(f"{place}.{each}_proj.{leaf}") for each in _ORDER[_FUSED[part]]]
    if of not in sources or not _is_plain(sources[of].tensor, dimensions=2 if leaf == "weight" else 1):
        return None
    rows = [spec.shape[0] for spec in specs if spec is not None and spec.shape]
    if len(rows) < len(specs) or sum(rows) != sources[of].tensor.shape[0]:
        return None
    before = rows[: _ORDER[_FUSED[part]].index(part)]
    tensor = sources[of].tensor.rows(sum(before), rows[len(before)])
    return of, Source(file=sources[of].file, tensor=tensor)


def _is_plain(tensor: StoredTensor, *, dimensions: int) -> bool:
    return tensor.dtype in FLOATS and len(tensor.shape) == dimensions
