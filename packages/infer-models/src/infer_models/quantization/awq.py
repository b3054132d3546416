"""AWQ, version `gemm`: codes of four bits in words along the outputs, eight of which are interleaved in each word.

    qweight  int32 [in_features, out_features in words]
    scales   [groups, out_features]
    qzeros   int32 [groups, out_features in words]

    word      [31 .. 28] ..                            [3 .. 0]
    output         7      5      3      1      6      4      2      0       of eight

Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", 2023.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.integers import cdiv
from infer_kernels.quantization import INT4_ZERO, pack_pairs
from infer_models.config.json_fields import JsonFields
from infer_models.errors import CheckpointError
from infer_models.quantization.fields import read_group_size
from infer_models.quantization.packing import integer_weight, unpack, words_of
from infer_models.quantization.tensor_values import SCALE_DTYPES, finite_scales
from infer_models.stored_format import Storage, StoredFormat, TensorSpec

_BITS = 4
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Places of eight outputs in a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqFormat:
    """The format of such a layer in a checkpoint.

    Attributes:
        group_size: inputs that share a scale; None: all.
        has_zeros: each scale has a code of zero beside it.
    """

    group_size: int | None
    has_zeros: bool

    @property
    def storage(self) -> Storage:
        """The codes, in another order."""
        return Storage(encoding="int4", group_size=self.group_size, has_zeros=self.has_zeros)

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, TensorSpec]:
        """Return the tensors of the layer `name` with a weight [out_features, in_features]."""
        out_features, in_features = shape
        groups = cdiv(in_features, self.group_size or in_features)
        words = words_of(out_features, _BITS)
        return {
            f"{name}.qweight": TensorSpec(shape=(in_features, words), dtypes=("I32",)),
            f"{name}.scales": TensorSpec(shape=(groups, out_features), dtypes=SCALE_DTYPES),
            f"{name}.qzeros": TensorSpec(shape=(groups, words), dtypes=("I32",), is_required=self.has_zeros),
        }

    def decode(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> QuantizedWeight:
        """Return the weight of the layer `name`.

        Raises:
            CheckpointError: a scale is NaN or infinite, or there are zeros that the configuration excludes.
        """
        out_features, in_features = shape
        scales = finite_scales(f"{name}.scales", tensors[f"{name}.scales"])
        zeros_name = f"{name}.qzeros"
        zeros = None
        if zeros_name in tensors:
            zeros = _unpack_interleaved(tensors[zeros_name], out_features).T.contiguous()
            if not self.has_zeros:
                if bool((zeros != INT4_ZERO).any()):
                    raise CheckpointError(
                        f"tensor `{zeros_name}` holds other zeros than {INT4_ZERO}, but `zero_point` is false."
                    )
                zeros = None
        return integer_weight(
            pack_pairs(_unpack_interleaved(tensors[f"{name}.qweight"], out_features).T),
            bits=_BITS,
            scales=scales.T.contiguous(),
            zeros=zeros,
            in_features=in_features,
            group_size=self.group_size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AwqScheme:
    """Implements `QuantizationScheme`.

    Attributes:
        format: format of all quantized layers.
        method: see `QuantizationScheme`.
    """

    format: AwqFormat
    method: str = "awq"

    def format_of(self, name: str) -> StoredFormat:  # noqa: ARG002 - all layers are stored in one way
        """Return how the layer `name` is stored."""
        return self.format


def read_awq(fields: JsonFields) -> AwqScheme:
    """Read a `quantization_config`.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names it.
    """
    bits = "w_bit" if "w_bit" in fields else "bits"
    if fields.count(bits, _BITS) != _BITS:
        raise fields.invalid(bits, f"{_BITS}")
    version = "version" if "version" in fields else "format"
    if fields.text(version, "gemm").lower() != "gemm":
        raise fields.invalid(version, "`gemm`: other layouts are not read")
    backend = fields.text("backend", "autoawq")
    if backend == "llm-awq":
        raise fields.invalid("backend", "another one: its layout is not read")
    return AwqScheme(
        format=AwqFormat(
            group_size=read_group_size(fields, "q_group_size" if "q_group_size" in fields else "group_size"),
            has_zeros=fields.flag("zero_point", default=True),
        )
    )


def _unpack_interleaved(words: Tensor, count: int) -> Tensor:
    """Return the codes of `count` outputs, uint8 [rows, count], of words int32 [rows, words]."""
    codes = unpack(words, 8 * words.shape[1], _BITS).view(len(words), -1, 8)
    return codes[..., list(_PLACES)].flatten(1)[:, :count]
