"""`SafetensorsFile`: one file's header.

The format is https://github.com/huggingface/safetensors#format: the header's length as 8 bytes, little-endian; the
header, a JSON object of `{name: {"dtype", "shape", "data_offsets"}}`; the data.
"""

import json
import math
from typing import Any

from infer_models.checkpoint.files.tensor_file import StoredTensor, TensorFile
from infer_models.errors import CheckpointError
from infer_models.file_faults import fault_of_content

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip


class SafetensorsFile(TensorFile):
    """An open safetensors file."""

    def _read_header(self) -> dict[str, StoredTensor]:
        fault = fault_of_content(self.path)
        if fault is not None:
            raise CheckpointError(f"{self.path} {fault}.")
        file_bytes = self._file.seek(0, 2)
        self._file.seek(0)
        if file_bytes < _LENGTH_BYTES:
            raise CheckpointError(f"{self.path} has {file_bytes} bytes: it is truncated, or no safetensors file.")
        length = bytearray(_LENGTH_BYTES)
        self._fill(memoryview(length), "the header's length")
        header_bytes = int.from_bytes(length, "little")
        data_start = _LENGTH_BYTES + header_bytes
        if header_bytes > _MAX_HEADER_BYTES or data_start > file_bytes:
            raise CheckpointError(
                f"{self.path} has {file_bytes} bytes but its first 8 announce a header of {header_bytes}: it is "
                "truncated, or no safetensors file."
            )
        header = bytearray(header_bytes)
        self._fill(memoryview(header), "the header")
        try:
            entries = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{self.path} is no safetensors file: its header is not JSON.") from error
        if not isinstance(entries, dict):
            raise CheckpointError(f"{self.path} is no safetensors file: its header is not an object.")
        entries.pop("__metadata__", None)
        return {
            name: self._locate(name, entry, data_start=data_start, file_bytes=file_bytes)
            for name, entry in entries.items()
        }

    def _locate(self, name: str, entry: Any, *, data_start: int, file_bytes: int) -> StoredTensor:
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]}:
                pass
            case _:
                raise CheckpointError(f"{self.path}: the header's entry of tensor `{name}` is damaged.")
        if dtype not in _ITEM_BYTES:
            raise CheckpointError(f"{self.path}: tensor `{name}` has the unknown dtype {dtype!r}.")
        counts = all(isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in shape)
        if not counts or begin < 0 or end - begin != math.prod(shape) * _ITEM_BYTES[dtype]:
            raise CheckpointError(
                f"{self.path}: tensor `{name}` is {dtype} {shape} but has the bytes from {begin} to {end}: the file is "
                "damaged."
            )
        if data_start + end > file_bytes:
            raise CheckpointError(
                f"{self.path} is truncated: it has {file_bytes} bytes, and tensor `{name}` ends at {data_start + end}."
            )
        return StoredTensor(name=name, dtype=dtype, shape=tuple(shape), start=data_start + begin, num_bytes=end - begin)
