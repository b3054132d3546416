"""`GgufFile`: the tensors of a GGUF file by the names, in the order and with the values that models know."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from infer_models.checkpoint.files.tensor_file import StoredTensor, TensorFile
from infer_models.errors import CheckpointError
from infer_models.gguf.architectures import LONG_FACTORS, ROPE_FACTORS, SHORT_FACTORS, Architecture, architecture_of
from infer_models.gguf.block_types import QUANTIZED
from infer_models.gguf.header import GgufHeader, read_header
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.tensor_names import expert_names, model_name
from infer_models.weights import WeightSlice

_OF_CONFIGURATION = (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS)
_OF_OTHER_MODELS = ("v.", "a.", "mm.")
"""Beginnings of names of what sees images and hears, which Ollama's files have beside the text model."""
_HEADS = {"attn_q": ".attention.head_count", "attn_k": ".attention.head_count_kv"}
"""Tensors whose rows are stored in the order of rotated pairs, and the key of the number of heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor(StoredTensor):
    """The place of a tensor whose rows or values differ from those of models.

    Attributes:
        head_rows: rows of a head, stored in the order of rotated pairs: each row of the first half before that of the
            second half; 0: rows are in the models' order.
        shift: number to be taken from all values.
    """

    head_rows: int = 0
    shift: float = 0.0

    @property
    def rows_together(self) -> int:
        """The rows of a head."""
        return self.head_rows or 1


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
        """Return a tensor in the models' order of rows, of quantized ones the bytes of each row.

        Raises:
            CheckpointError: the file cannot be read.
        """
        block = QUANTIZED.get(stored.dtype)
        if block is not None:
            columns = stored.shape[-1] // block.numbers * block.num_bytes
            as_bytes = replace(stored, dtype="U8", shape=(*stored.shape[:-1], columns))
            whole = super().read(as_bytes)
        else:
            whole = super().read(stored)
        if isinstance(stored, GgufTensor) and stored.head_rows:
            pairs = whole.view(-1, stored.head_rows // 2, 2, *whole.shape[1:])
            whole = pairs.transpose(1, 2).reshape(whole.shape)
        if isinstance(stored, GgufTensor) and stored.shift:
            whole = whole.float() - stored.shift
        return whole

    def read_into(self, stored: StoredTensor, wanted: WeightSlice) -> None:
        """Copy a part of a tensor into its target; one whose rows or values differ from the models' is read whole.

        Raises:
            CheckpointError: as `check`, or the file cannot be read.
        """
        if not isinstance(stored, GgufTensor):
            super().read_into(stored, wanted)
            return
        self.check(stored, [wanted.shape], wanted.dtypes)
        wanted.fill(self.read(stored))

    def _read_header(self) -> dict[str, StoredTensor]:
        architecture, metadata = architecture_of(self._model), Metadata(self._model)
        found: dict[str, StoredTensor] = {}
        for name, place in read_header(self.path).tensors.items():
            if name in _OF_CONFIGURATION or name.startswith(_OF_OTHER_MODELS):
                continue
            tensor = StoredTensor(
                name=name, dtype=place.kind, shape=place.shape, start=place.start, num_bytes=place.num_bytes
            )
            experts = expert_names(name, place.shape[0] if len(place.shape) == 3 else 0)
            self._check_count(name, len(experts), metadata)
            for index, each in enumerate(experts):
                found[each] = tensor.item(index)
            if not experts:
                found[model_name(name, architecture.names)] = _changed(tensor, architecture, metadata)
        return found

    def _check_count(self, name: str, experts: int, metadata: Metadata) -> None:
        """Raise unless a stack of experts, or none, has as many as the metadata says.

        Raises:
            CheckpointError: it has another number.
        """
        count = metadata.count(".expert_count", 0)
        if experts and experts != count:
            raise CheckpointError(
                f"{self.path}: tensor `{name}` holds {experts} experts, but `{metadata.architecture}.expert_count` is "
                f"{count}."
            )


def _changed(tensor: StoredTensor, architecture: Architecture, metadata: Metadata) -> StoredTensor:
    """Return the place of a tensor with what is to be changed in it."""
    within = tensor.name.rpartition(".")[0].rpartition(".")[2]
    heads_key = _HEADS.get(within)
    if architecture.has_interleaved_heads and heads_key is not None:
        default = metadata.count(_HEADS["attn_q"])
        head_rows = tensor.shape[0] // max(metadata.count(heads_key, default), 1)
        if head_rows and head_rows % 2 == 0:
            return _as_gguf(tensor, head_rows=head_rows)
    if architecture.norm_shift and within.endswith("norm"):
        return _as_gguf(tensor, shift=architecture.norm_shift)
    return tensor


def _as_gguf(tensor: StoredTensor, *, head_rows: int = 0, shift: float = 0.0) -> GgufTensor:
    return GgufTensor(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        start=tensor.start,
        num_bytes=tensor.num_bytes,
        head_rows=head_rows,
        shift=shift,
    )
