"""`PackedFormat`: `pack-quantized` of compressed-tensors, codes of four or eight bits in words along the inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.integers import cdiv
from infer_models.errors import CheckpointError
from infer_models.quantization.integer_weights import dequantize_by_group, integer_storage, integer_weight
from infer_models.quantization.packed_words import bytes_of, unpack, words_of
from infer_models.quantization.storage import Storage
from infer_models.quantization.stored_format import TensorSpec
from infer_models.quantization.tensor_values import (
    SCALE_DTYPES,
    checked_groups,
    finite_scales,
    require_groups_in_order,
    require_shape,
    require_zeros,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """How such a layer lies in a checkpoint.

        weight_packed      int32 [out_features, in_features in words]
        weight_scale       [out_features, groups], of tensors without groups and channels one number
        weight_zero_point  int32 [out_features in words, groups], of weights that are not symmetric
        weight_g_idx       int32 [in_features], the group of each input
        weight_shape       int64 [2], out_features and in_features

    Attributes:
        bits: of a code, 4 or 8.
        group_size: inputs that share a scale; None: all.
        is_one_scale: the whole weight has one scale.
        has_zeros: whether each scale has a code of zero beside it.
        is_reordered: groups are of inputs in another order (`actorder`).
    """

    bits: int
    group_size: int | None = None
    is_one_scale: bool = False
    has_zeros: bool = False
    is_reordered: bool = False

    @property
    def storage(self) -> Storage | None:
        """The codes as they are; None for groups in another order, and groups of int8 with zeros of their own."""
        return (
            None
            if self.is_reordered
            else integer_storage(self.bits, group_size=self.group_size, has_zeros=self.has_zeros)
        )

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, TensorSpec]:
        """Return the tensors of the layer `name` with a weight [out_features, in_features]."""
        out_features, in_features = shape
        groups = cdiv(in_features, self.group_size or in_features)
        specs = {
            f"{name}.weight_packed": TensorSpec(
                shape=(out_features, words_of(in_features, self.bits)), dtypes=("I32",)
            ),
            f"{name}.weight_scale": TensorSpec(
                shape=() if self.is_one_scale else (out_features, groups), dtypes=SCALE_DTYPES
            ),
            f"{name}.weight_shape": TensorSpec(shape=(2,), dtypes=("I64", "I32")),
        }
        if self.has_zeros:
            zeros = (words_of(out_features, self.bits), groups)
            specs[f"{name}.weight_zero_point"] = TensorSpec(shape=zeros, dtypes=("I32",))
        else:
            specs[f"{name}.weight_zero_point"] = TensorSpec(shape=None, dtypes=("I8", "I32", "I64"), is_required=False)
        specs[f"{name}.weight_g_idx"] = TensorSpec(
            shape=(in_features,), dtypes=("I32", "I64"), is_required=self.is_reordered
        )
        return specs

    def decode(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> Tensor | QuantizedWeight:
        """Return the weight of the layer `name`.

        Raises:
            CheckpointError: a scale is NaN or infinite, the file says another shape, or groups are in an order that the
                configuration excludes.
        """
        out_features, in_features = shape
        require_shape(f"{name}.weight_shape", tensors[f"{name}.weight_shape"], shape)
        scales = finite_scales(f"{name}.weight_scale", tensors[f"{name}.weight_scale"])
        zeros = None
        if self.has_zeros:
            words = tensors[f"{name}.weight_zero_point"].T
            zeros = unpack(words, out_features, self.bits).T.contiguous()
        else:
            require_zeros(f"{name}.weight_zero_point", tensors)
        weight = integer_weight(
            bytes_of(tensors[f"{name}.weight_packed"], in_features, self.bits),
            bits=self.bits,
            scales=scales.reshape(1, 1).repeat(out_features, 1) if self.is_one_scale else scales,
            zeros=zeros,
            in_features=in_features,
            group_size=self.group_size,
        )
        groups_name = f"{name}.weight_g_idx"
        groups = tensors.get(groups_name)
        if self.is_reordered:
            if groups is None:
                raise CheckpointError(f"tensor `{groups_name}` is missing, though `actorder` is `group`.")
            return dequantize_by_group(weight, checked_groups(groups_name, groups, scales.shape[1]))
        # All -1: of a layer that was calibrated without an order.
        if groups is not None and self.group_size is not None and not bool((groups == -1).all()):
            require_groups_in_order(groups_name, groups, self.group_size, because="`actorder` is not `group`")
        return weight if self.storage is not None else weight.dequantize()
