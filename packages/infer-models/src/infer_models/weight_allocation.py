"""Chooses how each weight of a model is kept in memory, and allocates it."""

import logging
import math
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal, NamedTuple

import torch
from torch import nn

from infer_kernels import QuantizedWeight, has_quantized_kernel
from infer_kernels.quantization import ENCODINGS, Encoding
from infer_models.causal_lm import CausalLM
from infer_models.config.quantization import QuantizationConfig
from infer_models.errors import CheckpointError
from infer_models.layers import Experts, LinearBase, OwnWeight, ShardedLayer, VocabParallelEmbedding, own_weights
from infer_models.quantization import read_quantization
from infer_models.quantization.mxfp4 import STORAGE, Mxfp4Part
from infer_models.stored_format import QuantizationScheme, Storage, StoredFormat
from infer_models.weights import PaddedWeight, StoredWeight, WeightSlice

logger = logging.getLogger("infer_models")

Quantization = Literal["auto", "none", "int8", "int4", "fp8"]
"""Format of weights in memory: as the checkpoint has them where a kernel multiplies them, as numbers of the model's
dtype, or quantized while they are read."""

INT4_GROUP_SIZE = 64
"""Inputs that share a scale where weights are quantized to int4 on the fly."""
_ON_THE_FLY = {
    "int8": Storage(encoding="int8"),
    "int4": Storage(encoding="int4", group_size=INT4_GROUP_SIZE),
    "fp8": Storage(encoding="fp8_e4m3"),
}
_EIGHT_BITS = Storage(encoding="int8")
"""Format of weights that int4 leaves in eight bits: embeddings, LM heads and the products of `_sensitive`."""


def allocate_weights(
    model: CausalLM,
    *,
    quantization: Quantization,
    device: torch.device,
    dtype: torch.dtype,
    memory: torch.device | None = None,
) -> None:
    """Give every matrix of a model that was built without memory for them (`ParameterFactory.defers_matrices`) its own.

    Args:
        model: the model; its config says how its checkpoint is quantized.
        quantization: see `load_model`.
        device: device of the products.
        dtype: dtype of weights that are not quantized.
        memory: device of the weights; None: `device`.

    Raises:
        ValueError: no kernel of `device` multiplies by the weights that `quantization` asks for.
    """
    _require_kernel(quantization, device, dtype)
    layers = _StoredLayers.of(model)
    plan = _Plan(quantization=quantization, layers=layers, device=device, dtype=dtype, sensitive=_sensitive(model))
    chosen = [
        (module, weight, plan.choose(module, weight, stored))
        for module, weight, stored in model.stored_by_module()
        if weight.device.type == "meta"
    ]
    # Kernels multiply by both stacks of experts in one way: quantized, or as numbers of the model's dtype.
    plain_experts = {id(module) for module, _, choice in chosen if isinstance(module, Experts) and choice.is_dense}
    allocated: dict[int, OwnWeight] = {}
    dequantized = 0  # numbers
    for module, weight, choice in chosen:
        storage = None if id(module) in plain_experts else choice.storage
        allocated[id(weight)] = _allocate(weight, storage, device=memory or device, dtype=dtype)
        if storage is None and choice.is_stored_quantized:
            dequantized += math.prod(weight.shape)
    for module in model.modules():
        for name, weight in list(own_weights(module)):
            if id(weight) in allocated:
                delattr(module, name)  # a parameter, which a quantized weight is not
                setattr(module, name, allocated[id(weight)])
    if dequantized and model.config.quantization is not None:
        plan.warn(model.config.quantization.method, dtype, dequantized)


def _sensitive(model: CausalLM) -> re.Pattern[str]:
    """Return the pattern of the products whose errors cost most for their size.

    These are queries, keys and values, what layers with a state have in their place, and the products that end the MLPs
    of the first and the last layer.
    """
    last = model.config.num_layers - 1
    mixed = r"\.(?:(?:q|k|v|qkv)_proj|(?:conv|mamba)\.in_proj|in_proj_qkvz?)\.weight$"
    ends = r"mlp\.down_proj|shared_mlp\.output_linear|feed_forward\.w2"
    return re.compile(rf"{mixed}|\.layers\.(?:0|{last})\.(?:{ends})\.weight$")


def _require_kernel(quantization: Quantization, device: torch.device, dtype: torch.dtype) -> None:
    storage = _ON_THE_FLY.get(quantization)
    if storage is None:
        return
    others = [
        name
        for name, each in _ON_THE_FLY.items()
        if has_quantized_kernel(each.encoding, group_size=each.group_size, in_features=1024, device=device, dtype=dtype)
    ]
    if quantization not in others:
        better = " or ".join(f"`{name}`" for name in others) or "`auto`, which leaves the weights as they are"
        raise ValueError(
            f"`quantization` is `{quantization}`, but no kernel for {device.type} on this machine multiplies by such "
            f"weights; use {better}."
        )


def weight_bytes(model: CausalLM, *, device: torch.device) -> int:
    """Return the bytes that the weights of a model that was not prepacked take on `device`."""
    return sum(
        _quantized_bytes(weight, device)
        if isinstance(weight, QuantizedWeight)
        else weight.numel() * weight.element_size()
        for weight, _ in model.stored_by_parameter()
    )


def _quantized_bytes(weight: QuantizedWeight, device: torch.device) -> int:
    """Return the bytes of a weight; C++ kernels keep scales of one byte without factors in fp32."""
    is_widened = device.type == "cpu" and weight.scales.element_size() == 1 and weight.scale_factors is None
    widened = 3 * weight.scales.numel() if is_widened else 0
    return weight.num_bytes + widened


def stored_formats(model: CausalLM) -> dict[str, StoredFormat]:
    """Return the formats of a model's quantized weights in its checkpoint by name; others are stored plainly."""
    layers = _StoredLayers.of(model)
    return {
        name: found
        for module, _, stored in model.stored_by_module()
        for name in stored
        if (found := layers.format_of(module, name)) is not None
    }


def _is_product(module: nn.Module, weight: OwnWeight) -> bool:
    """Whether `module` multiplies by `weight` or looks up in it; biases of experts are matrices too."""
    if isinstance(module, Experts):
        return any(weight is each for each in module.unpacked_weights())
    return isinstance(module, LinearBase | VocabParallelEmbedding) and weight is module.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredLayers:
    """The quantized layers of a checkpoint.

    Attributes:
        scheme: their formats; None: all layers are stored plainly.
        names: names of the quantized layers; None: all.
        config: quantization of the model.
    """

    scheme: QuantizationScheme | None
    names: frozenset[str] | None
    config: QuantizationConfig | None

    @classmethod
    def of(cls, model: CausalLM) -> "_StoredLayers":
        config = model.config.quantization
        names = None if config is None else config.layers
        return cls(scheme=read_quantization(config), names=names, config=config)

    def format_of(self, module: nn.Module, name: str) -> StoredFormat | None:
        """Return how the weight `name` of `module` is stored; only weights of products and embeddings ever are.

        Raises:
            CheckpointError: it is quantized, and the configuration does not say how.
        """
        layer = name.removesuffix(".weight")
        is_product = isinstance(module, LinearBase | Experts | VocabParallelEmbedding) and layer != name
        if self.scheme is None or not is_product or not (self.names is None or layer in self.names):
            return None
        found = self.scheme.format_of(layer)
        if found is None and self.names is not None and self.config is not None:
            raise CheckpointError(
                f"{self.config.fields.path}: the files hold `{layer}` quantized, but no group of the "
                f"`{self.config.method}` configuration says how."
            )
        return found


def _allocate(weight: OwnWeight, storage: Storage | None, *, device: torch.device, dtype: torch.dtype) -> OwnWeight:
    if storage is None:
        return nn.Parameter(torch.empty(weight.shape, dtype=dtype, device=device), requires_grad=False)
    return QuantizedWeight.empty(
        *weight.shape,
        encoding=storage.encoding,
        group_size=storage.group_size,
        has_zeros=storage.has_zeros,
        has_minimums=storage.has_minimums,
        scale_dtype=storage.scale_dtype,
        device=device,
    )


def _integers_for(encoding: Encoding) -> tuple[Encoding, ...]:
    """Return the encodings of integers that can hold the numbers of `encoding`, the smallest first."""
    traits = ENCODINGS[encoding]
    is_integer = traits.panel is not None and traits.numbers is None
    return (encoding, *traits.becomes) if is_integer else traits.becomes


def _common_storage(storages: AbstractSet[Storage | None]) -> Storage | None:
    """Return the storage of a weight whose parts could be kept so; None: there is none that holds their numbers.

    Integers of four to eight bits in groups, as files of mixed types have them, are all integers of the most bits.
    """
    if len(storages) == 1:
        return next(iter(storages))
    found = [each for each in storages if each is not None and _integers_for(each.encoding)]
    sizes = [each.group_size for each in found if each.group_size is not None and not each.has_zeros]
    if not sizes or len(sizes) < len(storages):
        return None
    has_minimums = any(each.has_minimums for each in found)
    is_alike = all(each.has_minimums == has_minimums for each in found)
    encoding = next(
        each
        for each in _integers_for(found[0].encoding)
        if all(each in _integers_for(other.encoding) for other in found)
        and (is_alike or ENCODINGS[each].zero == ENCODINGS[each].zero_with_minimums)
    )
    dtypes = {each.scale_dtype for each in found}
    scale_dtype = next(iter(dtypes)) if len(dtypes) == 1 else torch.float32
    return Storage(encoding=encoding, group_size=gcd(*sizes), has_minimums=has_minimums, scale_dtype=scale_dtype)


class _Choice(NamedTuple):
    """The format of a weight in memory.

    Attributes:
        storage: format of a quantized weight; None: numbers of the model's dtype.
        is_product: the weight is multiplied by, or looked up in.
        is_stored_quantized: a part of it is quantized in the checkpoint.
    """

    storage: Storage | None
    is_product: bool = True
    is_stored_quantized: bool = False

    @property
    def is_dense(self) -> bool:
        """A weight that could be quantized is not."""
        return self.is_product and self.storage is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """Chooses the format of each weight in memory.

    Attributes:
        quantization: see `load_model`.
        layers: quantized layers of the checkpoint.
        device: device of the products.
        sensitive: finds the names of weights that int4 leaves in eight bits.
    """

    quantization: Quantization
    layers: _StoredLayers
    device: torch.device
    dtype: torch.dtype
    sensitive: re.Pattern[str]

    def choose(self, module: nn.Module, weight: OwnWeight, stored: Mapping[str, StoredWeight]) -> _Choice:
        """Return the format of a weight, chosen for it alone."""
        if not isinstance(module, ShardedLayer) or not _is_product(module, weight):
            return _Choice(None, is_product=False)
        if self.quantization in ("auto", "none"):
            is_quantized, storages = self._stored_as(module, stored)
            storage = _common_storage(storages) if self.quantization == "auto" else None
            is_table = isinstance(module, VocabParallelEmbedding)
            if is_table and storage is not None and storage.encoding == "mxfp4":
                storage = replace(storage, encoding="int8")  # the same numbers
            is_integer = storage is not None and not storage.has_zeros and bool(_integers_for(storage.encoding))
            is_looked_up = is_table and is_integer
            is_small = is_table or module.role == "exact"
            if is_small and storage not in (None, _EIGHT_BITS) and not is_looked_up:
                return _Choice(None)  # of few bits, and their errors cost most for their size
            storage = storage and self._where_served(storage, weight, stored)
            return _Choice(storage, is_stored_quantized=is_quantized)
        match module.role:
            case "dense" if self.quantization == "int4" and any(map(self.sensitive.search, stored)):
                return _Choice(self._where_served(_EIGHT_BITS, weight, stored))
            case "dense":
                return _Choice(self._where_served(_ON_THE_FLY[self.quantization], weight, stored))
            case "vocabulary" if self.quantization != "fp8":
                return _Choice(self._where_served(_EIGHT_BITS, weight, stored))
            case _:
                return _Choice(None)

    def warn(self, method: str, dtype: torch.dtype, dequantized: int) -> None:
        """Log the cost of `dequantized` numbers."""
        kept = dequantized * dtype.itemsize / 2**30
        why = (
            "as asked"
            if self.quantization == "none"
            else f"because no kernel of {self.device.type} multiplies by weights that are stored so"
        )
        logger.warning(
            "%s weights are dequantized to %s, %s: they take %.2f GiB, where 8 bits would take %.2f GiB%s",
            method,
            str(dtype).removeprefix("torch."),
            why,
            kept,
            dequantized / 2**30,
            "" if self.quantization == "none" else "; `quantization=int8` keeps 8 bits",
        )

    def _stored_as(self, module: nn.Module, stored: Mapping[str, StoredWeight]) -> tuple[bool, set[Storage | None]]:
        """Return whether a part of a weight is quantized in the checkpoint, and how the parts could be kept."""
        if all(isinstance(each, Mxfp4Part) for each in stored.values()):
            return True, {STORAGE}
        formats = {self.layers.format_of(module, name) for name in stored}
        if any(isinstance(each, PaddedWeight) for each in stored.values()):
            return formats != {None}, {None}  # its codes and scales are of heads without the padding
        return formats != {None}, {None if each is None else each.storage for each in formats}

    def _where_served(self, storage: Storage, weight: OwnWeight, stored: Mapping[str, StoredWeight]) -> Storage | None:
        """Return `storage`, with smaller groups where ranks cut them; None where no kernel multiplies it."""
        group_size = storage.group_size
        if group_size is not None:
            for each in stored.values():
                if isinstance(each, WeightSlice) and self.quantization == "auto":
                    group_size = gcd(group_size, each.shares[-1].start)
                elif isinstance(each, Mxfp4Part):
                    group_size = gcd(group_size, each.weight.first_column)
            storage = replace(storage, group_size=group_size)
        in_features = weight.shape[-1]
        is_cut = any(
            isinstance(each, WeightSlice) and each.shares[-1].size < each.shares[-1].total for each in stored.values()
        )
        candidates = [_widened(storage)] if is_cut else [storage, _widened(storage)]
        return next((each for each in candidates if self._has_kernel(each, in_features)), None)

    def _has_kernel(self, storage: Storage, in_features: int) -> bool:
        return has_quantized_kernel(
            storage.encoding,
            group_size=storage.group_size,
            in_features=in_features,
            has_minimums=storage.has_minimums,
            scale_dtype=storage.scale_dtype,
            device=self.device,
        )


def _widened(storage: Storage) -> Storage:
    """Return a storage of the same numbers that more kernels know, and that can be cut anywhere."""
    traits = ENCODINGS[storage.encoding]
    encoding = storage.encoding if traits.is_for_triton else traits.becomes[-1]
    return replace(storage, encoding=encoding, scale_dtype=torch.float32)
