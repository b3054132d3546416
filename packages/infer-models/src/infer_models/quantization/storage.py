"""`Storage`: how a quantized weight is kept in memory."""

from dataclasses import dataclass

from infer_kernels.quantization import Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """How a quantized weight is kept in memory: the fields of a `QuantizedWeight` without its numbers.

    Attributes:
        encoding: of the numbers.
        group_size: inputs that share a scale; None: all of a row.
        has_zeros: whether each group has a code of zero of its own.
    """

    encoding: Encoding
    group_size: int | None = None
    has_zeros: bool = False
