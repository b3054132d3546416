"""`stored_dtype`: the type of a checkpoint's weights, for configurations that do not say it."""

import json
import struct
from collections import Counter
from math import prod
from pathlib import Path
from typing import Any

_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float32"}
_MAX_HEADER_BYTES = 100 << 20


def stored_dtype(folder: Path) -> str | None:
    """Return the type of most plain weights of the first file of weights, as `transformers` calls it.

    It is None where nothing can be read: the file's faults are reported when its weights are loaded.
    """
    numbers: Counter[str] = Counter()
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in _header(path).items():
            if name != "__metadata__" and isinstance(tensor, dict) and tensor.get("dtype") in _NAMES:
                numbers[_NAMES[tensor["dtype"]]] += prod(tensor.get("shape", ()))
        if numbers:
            break
    return max(numbers, key=numbers.__getitem__, default=None)


def _header(path: Path) -> dict[str, Any]:
    """Return a file's header; nothing where it has none."""
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size)) if size <= _MAX_HEADER_BYTES else {}
    except (OSError, ValueError, struct.error):
        return {}
    return header if isinstance(header, dict) else {}
