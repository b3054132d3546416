"""The operands of a product of a quantized weight's tile with a tile of inputs, as functions of kernels pass them on.

Kernels are launched with pointers, strides and numbers one by one, which costs the host the least, and make these of
them. They call them by this module, `operands.TileShape`: what a kernel's module has under a name of its own, Triton
compares at each launch. A field must not be called `values` or `type`: Triton's tuples have attributes of these names.
"""

from typing import NamedTuple

from infer_kernels.optional_triton import tl


class InputRows(NamedTuple):
    """Rows of x.

    Attributes:
        at: [1, rows], pointers to them.
        exist: [1, rows], which there are.
    """

    at: tl.tensor
    exist: tl.tensor


class InputSpan(NamedTuple):
    """Inputs that are multiplied.

    Attributes:
        first: the first of them; a multiple of `TileShape.steps * TileShape.inner`.
        end: their end; there is one.
        in_features: the inputs of a row.
    """

    first: tl.tensor
    end: tl.tensor
    in_features: tl.tensor


class WeightRows(NamedTuple):
    """Outputs of a quantized weight.

    Attributes:
        codes: [outputs], pointers to their bytes.
        scales: [outputs], pointers as `load_scales` takes them.
        zeros: [outputs], pointers as `load_zeros` takes them, or None.
        minimums: [outputs], pointers to fp32, or None.
        row_scales: [outputs], pointers to fp32, or None.
        exist: [outputs], which there are.
    """

    codes: tl.tensor
    scales: tl.tensor
    zeros: tl.tensor
    minimums: tl.tensor
    row_scales: tl.tensor
    exist: tl.tensor


class TileShape(NamedTuple):
    """The compile-time numbers of a product.

    Attributes:
        outputs: outputs of the tile.
        rows: rows of x of the tile.
        inner: inputs of a product, which divide `group_size`; with minimums they may be a multiple of it. Of tiled
            codes they are a multiple of 32, in fp16 32 of MXFP4.
        steps: products of an iteration.
        whole: the inputs of a row are a multiple of `steps * inner`.
        group_size: inputs that share a scale; 0: all do.
        codes: the codes, as `codes_of` calls them.
    """

    outputs: tl.constexpr
    rows: tl.constexpr
    inner: tl.constexpr
    steps: tl.constexpr
    whole: tl.constexpr
    group_size: tl.constexpr
    codes: tl.constexpr
