"""The tensors of a checkpoint's files by the names that models know, each once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from infer_models.checkpoint.files.gguf_file import GgufFile
from infer_models.checkpoint.files.safetensors_file import SafetensorsFile
from infer_models.checkpoint.files.tensor_file import StoredTensor, TensorFile
from infer_models.checkpoint.files.tensor_names import text_names
from infer_models.checkpoint.files.weight_files import WeightFiles, find_weight_files
from infer_models.errors import CheckpointError
from infer_models.gguf.checkpoint_files import is_gguf, read_model_header


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A tensor, or a part of one, in an open file."""

    file: TensorFile
    tensor: StoredTensor

    def read(self) -> Tensor:
        """Return the tensor as it is stored."""
        return self.file.read(self.tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensors:
    """The tensors in the open files of a checkpoint.

    Attributes:
        sources: places of tensors, by the names that models use.
        unindexed: tensors that the index does not name, which count only where the model lacks them otherwise.
        files: files of the checkpoint.
    """

    sources: Mapping[str, Source]
    unindexed: Mapping[str, Source]
    files: WeightFiles


@contextmanager
def open_tensors(folder: Path) -> Iterator[StoredTensors]:
    """Open the files of the weights of a folder, or of a GGUF model, and read their headers.

    Raises:
        CheckpointError: as `find_weight_files` and `SafetensorsFile`, or a tensor is in several files with different
            numbers and no index says which is meant.
    """
    files = find_weight_files(folder)
    with ExitStack() as stack:
        found: dict[str, list[Source]] = {}
        opened = [stack.enter_context(each) for each in _open(folder, files.paths)]
        names = text_names(name for file in opened for name in file.tensors)
        for file in opened:
            for stored, tensor in file.tensors.items():
                found.setdefault(names[stored], []).append(Source(file=file, tensor=tensor))
        chosen = {name: _chosen(name, sources, files) for name, sources in found.items()}
        indexed = {name: each for name, each in chosen.items() if each.tensor.name in files.index}
        sources = indexed or chosen  # where there is no index, or one of other names
        unindexed = {name: each for name, each in chosen.items() if name not in sources}
        yield StoredTensors(sources=sources, unindexed=unindexed, files=files)


def _open(checkpoint: Path, paths: Sequence[Path]) -> Iterator[TensorFile]:
    """Open the files of a checkpoint one after another."""
    model = read_model_header(checkpoint) if is_gguf(checkpoint) else None
    for path in paths:
        yield SafetensorsFile(path) if model is None else GgufFile(path, model)


def _chosen(name: str, copies: list[Source], files: WeightFiles) -> Source:
    """Return the copy that the index names, or the first of equal ones."""
    first, *others = copies
    if not others:
        return first
    for each in copies:
        if files.index.get(each.tensor.name) == each.file.path:
            return each
    for other in others:
        if (other.tensor.dtype, other.tensor.shape) != (first.tensor.dtype, first.tensor.shape) or not torch.equal(
            first.read().view(torch.uint8), other.read().view(torch.uint8)
        ):
            raise CheckpointError(
                f"{other.file.path}: tensor `{other.tensor.name}` is also in {first.file.path.name}, with other "
                f"numbers, and no index says which is `{name}`."
            )
    return first
