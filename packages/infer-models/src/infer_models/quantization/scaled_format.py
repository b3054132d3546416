"""`ScaledFormat`: weights of eight bits, FP8 or int8, one number a byte, in rectangles that share a scale."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from infer_kernels import QuantizedWeight
from infer_kernels.integers import cdiv
from infer_models.errors import CheckpointError
from infer_models.quantization.tensor_values import SCALE_DTYPES, finite_scales, require_no_nan, require_zeros
from infer_models.stored_format import Storage, TensorSpec

_DTYPES = {"fp8_e4m3": "F8_E4M3", "int8": "I8"}
_POWERS_OF_TWO = "F8_E8M0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleGrid:
    """The rectangle of numbers of a weight that share a scale.

    Attributes:
        rows: outputs; None: all.
        columns: inputs; None: all.
    """

    rows: int | None = 1
    columns: int | None = None

    def shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Return the scales' shape of a weight [out_features, in_features]; rectangles at edges may be partial."""
        rows, columns = (
            1 if size is None else cdiv(total, size)
            for size, total in zip((self.rows, self.columns), shape, strict=True)
        )
        return rows, columns

    def stored_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes that the scales may have in a file.

        Where all inputs share a scale, the file tells whether all rows do: one scale has no shape.
        """
        rows, groups = self.shape(shape)
        if self.columns is None and self.rows in (None, 1):
            each_row = (shape[0], 1)
            return ((), each_row, shape[:1]) if self.rows is None else (each_row, shape[:1], ())
        return ((rows, groups), (rows, 1, groups, 1))

    def by_row(self, scales: Tensor, shape: tuple[int, int]) -> Tensor:
        """Return the scales of each row, [out_features, groups]."""
        if self.columns is None and self.rows in (None, 1):
            return scales.reshape(-1, 1).expand(shape[0], 1).contiguous()
        scales = scales.reshape(self.shape(shape))
        return scales.repeat_interleave(self.rows or shape[0], dim=0)[: shape[0]].contiguous()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledFormat:
    """The format of such a layer in files: `weight`, a tensor of scales, and for int8 perhaps `weight_zero_point`.

    Attributes:
        encoding: encoding of the numbers.
        grid: rectangles of numbers that share a scale.
        scale_names: names of the tensor of scales; a checkpoint has one of them.
        has_zeros: each scale has a code of zero beside it.
    """

    encoding: Literal["fp8_e4m3", "int8"]
    grid: ScaleGrid
    scale_names: tuple[str, ...] = ("weight_scale",)
    has_zeros: bool = False

    @property
    def storage(self) -> Storage | None:
        """One scale for each row or group; None for groups with a code of zero of their own."""
        if self.has_zeros and self.grid.columns is not None:
            return None
        return Storage(encoding=self.encoding, group_size=self.grid.columns, has_zeros=self.has_zeros)

    def tensors(self, name: str, shape: tuple[int, int]) -> Mapping[str, TensorSpec]:
        """Return the tensors of the layer `name` with a weight [out_features, in_features]."""
        first, *others = self.grid.stored_shapes(shape)
        dtypes = (*SCALE_DTYPES, _POWERS_OF_TWO)
        specs = {f"{name}.weight": TensorSpec(shape=shape, dtypes=(_DTYPES[self.encoding],))}
        for each in self.scale_names:
            specs[f"{name}.{each}"] = TensorSpec(
                shape=first, other_shapes=tuple(others), dtypes=dtypes, is_required=len(self.scale_names) == 1
            )
        if self.encoding == "int8":
            specs[f"{name}.weight_zero_point"] = TensorSpec(
                shape=first, other_shapes=tuple(others), dtypes=("I8",), is_required=self.has_zeros
            )
        return specs

    def decode(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> Tensor | QuantizedWeight:
        """Return the weight of the layer `name`.

        Raises:
            CheckpointError: there are no scales, a value is NaN or infinite, or there are zeros that the configuration
                excludes.
        """
        values = tensors[f"{name}.weight"]
        if self.encoding == "fp8_e4m3":
            require_no_nan(f"{name}.weight", values)
        scale_name = next((each for each in self.scale_names if f"{name}.{each}" in tensors), None)
        if scale_name is None:
            names = " or ".join(f"`{name}.{each}`" for each in self.scale_names)
            raise CheckpointError(f"tensor {names} is missing, which `config.json` makes a part of `{name}.weight`.")
        scale_name = f"{name}.{scale_name}"
        weight = QuantizedWeight(
            encoding=self.encoding,
            values=values,
            scales=self.grid.by_row(finite_scales(scale_name, tensors[scale_name]), shape),
            zeros=self._zeros(f"{name}.weight_zero_point", shape, tensors),
            in_features=shape[1],
            group_size=self.grid.columns or shape[1],
        )
        return weight if self.storage is not None else weight.dequantize()

    def _zeros(self, name: str, shape: tuple[int, int], tensors: Mapping[str, Tensor]) -> Tensor | None:
        """Return the codes of zero, int8 [out_features, groups]; None: they are 0."""
        if self.has_zeros:
            return self.grid.by_row(tensors[name], shape)
        require_zeros(name, tensors)
        return None
