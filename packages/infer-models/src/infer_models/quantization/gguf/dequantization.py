"""`dequantizer`: makes numbers of blocks that are not kept as they are, with the `gguf` package and its tables."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from infer_models.errors import CheckpointError
from infer_models.gguf.block_types import DEQUANTIZED

_INSTALL = "`pip install gguf`, or `infer-server[gguf]`"
"""What brings the package."""


@cache
def dequantizer(kind: str) -> Callable[[Tensor], Tensor]:
    """Return a function that makes numbers, fp32 [rows, numbers of a row], of uint8 [rows, bytes of a row].

    Args:
        kind: name of one of the types of `DEQUANTIZED`.

    Raises:
        CheckpointError: the package is not installed, or does not know the type.
    """
    try:
        from gguf import GGMLQuantizationType, quants  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise CheckpointError(f"{kind}, which the package `gguf` dequantizes: {_INSTALL}, brings it.") from error

    def numbers_of(data: Tensor) -> Tensor:
        return torch.from_numpy(quants.dequantize(data.numpy(), GGMLQuantizationType[kind]))

    try:
        numbers_of(torch.zeros(1, DEQUANTIZED[kind].num_bytes, dtype=torch.uint8))
    except (KeyError, NotImplementedError) as error:
        raise CheckpointError(f"{kind}, which the installed package `gguf` does not know.") from error
    return numbers_of
