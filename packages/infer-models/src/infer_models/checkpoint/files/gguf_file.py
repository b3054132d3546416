"""`GgufFile`: the tensors of a GGUF file by the names, in the order and with the values that models know."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infer_models.checkpoint.files.tensor_file import StoredTensor, TensorFile
from infer_models.errors import CheckpointError
from infer_models.gguf.architecture import Architecture, architecture_of
from infer_models.gguf.block_types import DEQUANTIZED, QUANTIZED
from infer_models.gguf.header import GgufHeader, TensorPlace, read_header
from infer_models.gguf.metadata import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, Metadata, read_factors
from infer_models.gguf.tensor_names import expert_names, model_name, name_within, part_name
from infer_models.quantization.gguf.dequantization import dequantizer
from infer_models.weights import WeightSlice

_OF_CONFIGURATION = (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS)
_OF_OTHER_MODELS = ("v.", "a.", "mm.")
"""Beginnings of names of what sees images and hears, which Ollama's files have beside the text model."""
_HEADS = {"attn_q": ".attention.head_count", "attn_k": ".attention.head_count_kv"}
"""Tensors whose rows are stored in the order of rotated pairs, and the key of the number of heads."""

_FUSED, _OF_MODELS = "attn_qkv", "self_attn.qkv_proj"
"""A tensor with the rows of queries, keys and values, and its name where models have it so."""
_CONVOLUTIONS = ("shortconv.conv", "ssm_conv1d")
"""Tensors [channels, width], which models have with a dimension of one between."""
_ROWS = ("ffn_gate_inp_shexp",)
"""Tensors that are a row of models' matrices."""
_VECTORS = ("ssm_a", "ssm_d", "ssm_norm")
"""Tensors of several dimensions that are vectors of models."""
_DECAY = "ssm_a"
_WITH_SCALE = "NVFP4"
"""The type of which a tensor has one more factor, or each item of a stack has one, in a tensor called `scale`."""
_NUMBERS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor(StoredTensor):
    """The place of a tensor whose rows, columns or values differ from those of models.

    Attributes:
        head_rows: rows of a head, stored in the order of rotated pairs: each row of the first half before that of the
            second half; 0: rows are in the models' order, or in that of `order`.
        order: the stored row of each row; None: rows are all that are stored, in that order.
        stored_rows: rows that are stored, where there is an `order`.
        turns: see `column_turns`; None: columns are in the models' order.
        change: makes the models' values of those that are stored; None: they are the same.
        blocks: name of the type of blocks that are dequantized; "": they are kept, or stored as numbers.
        factor: multiplies the numbers of such blocks.
    """

    head_rows: int = 0
    order: Tensor | None = field(default=None, compare=False)
    stored_rows: int = 0
    turns: tuple[int, int, int] | None = None
    change: Callable[[Tensor], Tensor] | None = None
    blocks: str = ""
    factor: float = 1.0

    @property
    def stored_type(self) -> str:
        """The type of the blocks, or `dtype`."""
        return self.blocks or self.dtype

    @property
    def rows_together(self) -> int:
        """The rows of a head, or all."""
        return self.head_rows or (1 if self.order is None else self.shape[0])

    @property
    def column_turns(self) -> tuple[int, int, int]:
        """In how many turns the columns are stored, of how many heads in each, of how many columns each."""
        return self.turns or (1, 1, self.shape[-1])

    def rows(self, first: int, size: int) -> StoredTensor:
        """Return the place of `size` rows, from `first` on; where there is an `order`, all that are stored are read."""
        if self.order is None:
            return StoredTensor.rows(self, first, size)
        return replace(self, shape=(size, *self.shape[1:]), order=self.order[first : first + size])

    def numbers(self, data: Tensor) -> Tensor:
        """Return the numbers that blocks of rows, uint8 [..., bytes of a row], are dequantized to.

        Raises:
            CheckpointError: one of them is NaN or infinite.
        """
        found = dequantizer(self.blocks)(data.view(-1, data.shape[-1])).view(*data.shape[:-1], -1)
        if not bool(torch.isfinite(found).all()):
            raise CheckpointError(f"tensor `{self.name}` has a scale that is NaN or infinite.")
        return found if self.factor == 1.0 else found * self.factor

    def as_models(self, whole: Tensor) -> Tensor:
        """Return the rows that are read, as bytes or numbers, in the models' order, with the models' values.

        Quantized columns stay as they are.
        """
        if self.head_rows:
            pairs = whole.view(-1, self.head_rows // 2, 2, *whole.shape[1:])
            whole = pairs.transpose(1, 2).reshape(whole.shape)
        if self.order is not None:
            whole = whole[self.order]
        if self.turns is not None and self.dtype not in QUANTIZED:
            heads = whole.reshape(*whole.shape[:-1], *self.turns)
            whole = heads.transpose(-3, -2).reshape(whole.shape)
        return whole if self.change is None else self.change(whole.float())


class GgufFile(TensorFile):
    """An open GGUF file; of a model in several files one of them.

    Attributes:
        path: path of the file.
        tensors: its tensors by the models' names; those that belong to the configuration, and to models that see or
            hear, are left out.
    """

    def __init__(self, path: Path, model: GgufHeader) -> None:
        """Open the file and read its header.

        Args:
            path: path of the file.
            model: header of the model, with the metadata.

        Raises:
            CheckpointError: the file is missing, unreadable, truncated or damaged.
        """
        self._model = model
        super().__init__(path)

    def read(self, stored: StoredTensor) -> Tensor:
        """Return a tensor in the models' order of rows, of quantized ones that are kept so the bytes of each row.

        Raises:
            CheckpointError: the file cannot be read, or a number is NaN or infinite.
        """
        place = stored
        if isinstance(stored, GgufTensor) and stored.order is not None:
            place = replace(stored, shape=(stored.stored_rows, *stored.shape[1:]))
        block = QUANTIZED.get(stored.stored_type) or DEQUANTIZED.get(stored.stored_type)
        if block is not None:
            columns = stored.shape[-1] // block.numbers * block.num_bytes
            place = replace(place, dtype="U8", shape=(*place.shape[:-1], columns))
        whole = super().read(place)
        if not isinstance(stored, GgufTensor):
            return whole
        return stored.as_models(stored.numbers(whole) if stored.blocks else whole)

    def read_into(self, stored: StoredTensor, wanted: WeightSlice) -> None:
        """Copy a part of a tensor into its target, some rows at a time where rows or values differ from the models'.

        Raises:
            CheckpointError: as `check`, or the file cannot be read.
        """
        if not isinstance(stored, GgufTensor):
            super().read_into(stored, wanted)
            return
        self.check(stored, [wanted.shape], wanted.dtypes)
        together = stored.rows_together
        num_rows = max(1, _NUMBERS_AT_ONCE // math.prod(stored.shape[1:]) // together) * together
        for first, piece in wanted.pieces(num_rows):
            piece.fill(self.read(stored.rows(first, piece.shape[0])))

    def _read_header(self) -> dict[str, StoredTensor]:
        architecture, metadata = architecture_of(self._model), Metadata(self._model)
        found: dict[str, StoredTensor] = {}
        scales = {_scale_of(name) for name, place in self._model.tensors.items() if place.kind == _WITH_SCALE}
        scales = {name for name in scales & self._model.tensors.keys() if model_name(name, architecture.names) == name}
        for name, place in read_header(self.path).tensors.items():
            if name in _OF_CONFIGURATION or name.startswith(_OF_OTHER_MODELS) or name in scales:
                continue
            tensor = self._stored(name, place)
            num_experts = place.shape[0] if len(place.shape) == 3 else 0
            experts = expert_names(name, num_experts, architecture.names)
            factors = self._factors(name, len(experts)) if _scale_of(name) in scales else [1.0]
            if not experts:
                if factors != [1.0]:
                    tensor = _as_gguf(tensor, factor=factors[0])
                for part in _parts(tensor, architecture, metadata, self._model):
                    found |= _as_models(part, architecture, metadata)
                continue
            self._check_count(name, num_experts, metadata)
            parts = _halves_of_items(tensor) if len(experts) == 2 * num_experts else tensor
            for index, each in enumerate(experts):
                part = parts.item(index)
                factor = factors[index * len(factors) // len(experts)]
                found[each] = part if factor == 1.0 else _as_gguf(part, factor=factor)
        return found

    def _stored(self, name: str, place: TensorPlace) -> StoredTensor:
        """Return the place of a tensor as it is stored, or as numbers where it is dequantized.

        Raises:
            CheckpointError: nothing that is installed dequantizes it.
        """
        at: dict[str, Any] = {"name": name, "shape": place.shape, "start": place.start, "num_bytes": place.num_bytes}
        if place.kind not in DEQUANTIZED:
            return StoredTensor(dtype=place.kind, **at)
        try:
            dequantizer(place.kind)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: tensor `{name}` is of type {error}") from error
        return GgufTensor(dtype="F32", blocks=place.kind, **at)

    def _factors(self, name: str, num_parts: int) -> list[float]:
        """Return what multiplies the numbers of a tensor, or of each item of a stack.

        Raises:
            CheckpointError: there is neither one nor one for each item.
        """
        factors = read_factors(self._model, _scale_of(name))
        if len(factors) != 1 and (not num_parts or num_parts % len(factors)):
            raise CheckpointError(f"{self.path}: tensor `{_scale_of(name)}` holds {len(factors)} numbers, not one.")
        return factors

    def _check_count(self, name: str, experts: int, metadata: Metadata) -> None:
        """Raise unless a stack of experts has as many as the metadata says.

        Raises:
            CheckpointError: it has another number.
        """
        count = metadata.count(".expert_count", 0)
        if experts != count:
            raise CheckpointError(
                f"{self.path}: tensor `{name}` holds {experts} experts, but `{metadata.architecture}.expert_count` is "
                f"{count}."
            )


def _scale_of(name: str) -> str:
    return f"{name.removesuffix('weight')}scale"


def _halves_of_items(tensor: StoredTensor) -> StoredTensor:
    """Return the place of a stack of twice as many items, which are the halves of its items' rows.

    Raises:
        CheckpointError: the items have no halves.
    """
    items, rows, columns = tensor.shape
    if rows % 2:
        raise CheckpointError(f"tensor `{tensor.name}` holds gates and ups in {rows} rows, which is no even number.")
    return replace(tensor, shape=(2 * items, rows // 2, columns))


def _parts(
    tensor: StoredTensor, architecture: Architecture, metadata: Metadata, model: GgufHeader
) -> list[StoredTensor]:
    """Return the places of queries, keys and values, by their usual names, where they are rows of one tensor.

    Layers whose values are their keys have none of their own.

    Raises:
        CheckpointError: the tensor has other rows than the metadata makes it.
    """
    layer, _, leaf = tensor.name.partition(f".{_FUSED}.")
    output = model.tensors.get(f"{layer}.attn_output.weight")
    if not leaf or output is None or architecture.names.get(_FUSED) == _OF_MODELS:
        return [tensor]
    heads = metadata.count(_HEADS["attn_q"])
    queries = output.shape[-1] * (2 if architecture.has_query_gates else 1)
    keys = (
        output.shape[-1]
        // max(heads, 1)
        * metadata.count_of_layer(_HEADS["attn_k"], int(layer.removeprefix("blk.")), heads)
    )
    values = tensor.shape[0] - queries - keys
    if values not in (0, keys):
        raise CheckpointError(
            f"tensor `{tensor.name}` has {tensor.shape[0]} rows; of the metadata {queries} are of queries, and {keys} "
            "each of keys and values."
        )
    parts, first = [], 0
    for part, rows in {"attn_q": queries, "attn_k": keys, "attn_v": values}.items():
        if rows:
            parts.append(replace(tensor.rows(first, rows), name=f"{layer}.{part}.{leaf}"))
        first += rows
    return parts


def _as_models(tensor: StoredTensor, architecture: Architecture, metadata: Metadata) -> dict[str, StoredTensor]:
    """Return the place of the models' tensors that are stored in one, with what is to be changed in it."""
    within = name_within(tensor.name)
    if within in _CONVOLUTIONS and len(tensor.shape) == 2:
        tensor = replace(tensor, shape=(tensor.shape[0], 1, tensor.shape[1]))
    if within in _ROWS and len(tensor.shape) == 1:
        tensor = replace(tensor, shape=(1, *tensor.shape))
    if within in _VECTORS:
        tensor = replace(tensor, shape=(math.prod(tensor.shape),))
    changes = _changes(tensor, within, architecture, metadata)
    rows = architecture.rows(metadata, within, tensor.shape[0]) if tensor.shape else {}
    if not rows:
        name = model_name(tensor.name, architecture.names)
        return {name: _as_gguf(tensor, **changes) if changes else tensor}
    return {
        part_name(tensor.name, part): _as_gguf(
            replace(tensor, shape=(len(order), *tensor.shape[1:])),
            order=torch.tensor(order),
            stored_rows=tensor.shape[0],
            **changes,
        )
        for part, order in rows.items()
    }


def _changes(tensor: StoredTensor, within: str, architecture: Architecture, metadata: Metadata) -> dict[str, Any]:
    """Return what is to be changed in rows of heads, in columns and in values, as fields of a `GgufTensor`."""
    heads_key = _HEADS.get(within)
    if architecture.has_interleaved_heads and heads_key is not None:
        default = metadata.count(_HEADS["attn_q"])
        count = metadata.count_but_zeros if architecture.has_states else metadata.count
        head_rows = tensor.shape[0] // max(count(heads_key, default), 1)
        return {"head_rows": head_rows} if head_rows and head_rows % 2 == 0 else {}
    turns = architecture.column_turns(metadata, within, tensor.shape[-1]) if tensor.shape else None
    if turns is not None:
        return {"turns": turns}
    if within == _DECAY:
        return {"change": partial(_logarithm_of_decay, tensor.name)}
    is_norm = (within or tensor.name.removesuffix(".weight")).endswith("norm")
    if architecture.norm_shift and is_norm and within not in architecture.unshifted:
        return {"change": partial(_less, shift=architecture.norm_shift)}
    return {}


def _as_gguf(tensor: StoredTensor, **changes: Any) -> GgufTensor:
    if isinstance(tensor, GgufTensor):
        return replace(tensor, **changes)
    return GgufTensor(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        start=tensor.start,
        num_bytes=tensor.num_bytes,
        **changes,
    )


def _less(values: Tensor, *, shift: float) -> Tensor:
    return values - shift


def _logarithm_of_decay(name: str, values: Tensor) -> Tensor:
    """Return the `A_log` whose negative exponential is stored.

    Raises:
        CheckpointError: it is none of any number.
    """
    if not bool((values < 0).all()):
        raise CheckpointError(f"tensor `{name}` holds numbers that are not below 0, which no decay of states is.")
    return torch.log(-values)
