r"""Triton kernel of `FusedProducts`: a product of at most 16 rows with what comes before and after it.

A program multiplies a tile of outputs, 64 rows of the weight (and as many more where they are gated), with all rows of
x. The weight's rows are the rows of its products, so that few rows of x fill the tensor cores' other side. Where the
outputs make fewer programs than the device runs at once, the inputs are divided over programs too:

    inputs      0        I          2 I        3 I
    products    | split 0  | split 1  | split 2  |      each the sum over its inputs, in fp32
                    \          |          /
                  the last of them to finish adds all, in this order, and does what follows the product

A semaphore counts the splits of a tile that have finished. The last program sets it back to 0, so that a captured CUDA
graph may hold the launch, and which program it is changes no bit. Tiles and splits depend on the weight and the device
alone: a row has the same bits whatever the other rows and their number, up to 16.

The norm before a product needs the mean square of whole rows. The product that made the rows leaves the sum of squares
of each of its tiles of outputs, and every program that reads the rows adds those sums.
"""

# ruff: noqa: N803 - compile-time arguments of kernels are upper case, as Triton writes them

from dataclasses import dataclass

import torch
from torch import Tensor

from infer_kernels.gated_activations import GatedActivation, gate_tile
from infer_kernels.gpu import describe_gpu, shared_memory_kib
from infer_kernels.integers import cdiv, next_power_of_2
from infer_kernels.linear.quantized.join_splits import join_partials
from infer_kernels.norm.rms_norm import NormVariant
from infer_kernels.optional_triton import tl, triton

MAX_ROWS = 16
"""Rows of x: the least that fill a side of the tensor cores."""
MAX_TILES = 1024
"""Tiles of outputs whose inputs may be divided: more than any device's programs."""

_LEAST_INNER = 256
"""Inputs that are worth a program of their own."""
_MAX_SPLITS = 8
_INNER = 64
_NUM_STAGES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingNorm:
    """Rows that the products which read them normalize.

    Attributes:
        rows: [rows, hidden], at most 16 rows.
        squares: [tiles, 16] fp32, the sums of the squares of each tile of a row's elements.
        weight: [hidden], the norm's.
        eps: added to the mean square.
        variant: as for `rms_norm`.
    """

    rows: Tensor
    squares: Tensor
    weight: Tensor
    eps: float
    variant: NormVariant


@triton.jit
def inverse_rms(
    squares: tl.tensor,  # [tiles, ROWS] fp32
    tiles: tl.tensor,
    eps: tl.tensor,
    hidden: tl.tensor,
    TILES: tl.constexpr,  # `tiles` rounded up to a power of two
    ROWS: tl.constexpr,
) -> tl.tensor:
    """1 / sqrt(mean square + eps) of each row: [ROWS]."""
    tile, row = tl.arange(0, TILES)[:, None], tl.arange(0, ROWS)[None, :]
    sums = tl.load(squares + tile * ROWS + row, mask=tile < tiles, other=0.0)
    return tl.math.rsqrt(tl.sum(sums, axis=0) / hidden + eps)


@triton.jit
def normalize(
    x: tl.tensor,  # [INNER, ROWS], some inputs of all rows
    inverse: tl.tensor,  # [ROWS]
    weight: tl.tensor,  # [INNER], those of the norm
    NORM: tl.constexpr,
) -> tl.tensor:
    """The rows with the roundings of `rms_norm`."""
    normalized = x.to(tl.float32) * inverse[None, :]
    scale = weight.to(tl.float32)[:, None]
    if NORM == "gemma":
        return (normalized * (1.0 + scale)).to(x.dtype)
    return (normalized.to(x.dtype).to(tl.float32) * scale).to(x.dtype)


@triton.jit(do_not_specialize=["rows", "iterations", "norm_tiles"])
def _fused_product_kernel(
    out: tl.tensor,  # [rows, outputs]
    x: tl.tensor,  # [rows, in_features]
    weight: tl.tensor,  # [outputs, in_features]; with a GATE [2 * outputs, in_features]: gates, then ups
    bias: tl.tensor,  # [as many as `weight` has rows], or None
    residual: tl.tensor,  # [rows, outputs], is added; or None
    squares: tl.tensor,  # fp32 [tiles, ROWS], takes the sums of the squares of `out`; None without `residual`
    norm_weight: tl.tensor,  # [in_features]; None without a NORM
    norm_squares: tl.tensor,  # fp32 [norm_tiles, ROWS], of x; None without a NORM
    partials: tl.tensor,  # fp32 [SPLITS, ROWS, rows of `weight`]; None with one split
    semaphores: tl.tensor,  # [tiles] int32, zeros before and after
    rows: tl.tensor,
    in_features: tl.tensor,
    outputs: tl.tensor,
    iterations: tl.tensor,  # of a split
    norm_tiles: tl.tensor,
    eps: tl.tensor,
    out_stride: tl.tensor,
    x_stride: tl.tensor,
    weight_stride: tl.tensor,
    residual_stride: tl.tensor,
    BLOCK: tl.constexpr,  # outputs of a program
    ROWS: tl.constexpr,
    INNER: tl.constexpr,
    NORM_TILES: tl.constexpr,
    SPLITS: tl.constexpr,
    WHOLE: tl.constexpr,  # in_features is a multiple of INNER
    NORM: tl.constexpr,  # the norm before the product: its variant, or None
    GATE: tl.constexpr,  # the activation of gates: its name, or None
) -> None:
    tile, split = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)
    output = tile.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, INNER)
    in_rows, in_outputs = (row < rows)[None, :], (output < outputs)[:, None]
    mask = in_outputs & in_rows
    if NORM is not None:
        inverse = inverse_rms(norm_squares, norm_tiles, eps, in_features, NORM_TILES, ROWS)
    x_at = x + row.to(tl.int64)[None, :] * x_stride + inner[:, None]
    weight_at = weight + output[:, None] * weight_stride + inner[None, :]
    up_at = weight_at + outputs.to(tl.int64) * weight_stride
    products = tl.zeros((BLOCK, ROWS), tl.float32)
    ups = tl.zeros((BLOCK, ROWS), tl.float32)
    first = split * iterations * INNER
    for start in range(first, tl.minimum(first + iterations * INNER, in_features), INNER):
        if WHOLE:
            weight_mask, x_mask = in_outputs, in_rows
        else:
            weight_mask = in_outputs & (start + inner < in_features)[None, :]
            x_mask = in_rows & (start + inner < in_features)[:, None]
        weight_tile = tl.load(weight_at + start, mask=weight_mask, other=0.0)
        x_tile = tl.load(x_at + start, mask=x_mask, other=0.0)
        if NORM is not None:
            scale = tl.load(norm_weight + start + inner, mask=start + inner < in_features, other=0.0)
            x_tile = normalize(x_tile, inverse, scale, NORM)
        products = tl.dot(weight_tile, x_tile, products)
        if GATE is not None:
            up_tile = tl.load(up_at + start, mask=weight_mask, other=0.0)
            ups = tl.dot(up_tile, x_tile, ups)

    is_last = True
    if SPLITS > 1:
        width = outputs if GATE is None else 2 * outputs
        at = row.to(tl.int64)[None, :] * width + output[:, None]
        stride = ROWS * width
        own = partials + split.to(tl.int64) * stride + at
        tl.store(own, products, mask=mask)
        if GATE is not None:
            tl.store(own + outputs, ups, mask=mask)
        # All threads' sums are written before the semaphore says so.
        tl.debug_barrier()
        is_last = tl.atomic_add(semaphores + tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1
    if is_last:
        if SPLITS > 1:
            tl.store(semaphores + tile, 0)
            products = join_partials(partials + at, stride, mask, SPLITS)
            if GATE is not None:
                ups = join_partials(partials + at + outputs, stride, mask, SPLITS)
        dtype: tl.constexpr = out.dtype.element_ty
        if bias is not None:
            products += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)[:, None]
            if GATE is not None:
                ups += tl.load(bias + outputs + output, mask=output < outputs, other=0.0).to(tl.float32)[:, None]
        result = products.to(dtype)
        if GATE is not None:
            gates, ups = result.to(tl.float32), ups.to(dtype).to(tl.float32)
            result = gate_tile(gates, ups, dtype, GATE == "gelu_tanh")
        if residual is not None:
            carried_at = residual + row.to(tl.int64)[None, :] * residual_stride + output[:, None]
            carried = tl.load(carried_at, mask=mask, other=0.0).to(tl.float32)
            result = (result.to(tl.float32) + carried).to(dtype)
            stored = tl.where(mask, result.to(tl.float32), 0.0)
            tl.store(squares + tile * ROWS + row, tl.sum(stored * stored, axis=0))
        tl.store(out + row.to(tl.int64)[None, :] * out_stride + output[:, None], result, mask=mask)


@dataclass(frozen=True, slots=True)
class _Division:
    """The division of a product over programs: tiles of so many outputs, and the inputs in parts."""

    outputs: int
    tiles: int
    splits: int
    iterations: int


def programs_per_sm(capability: tuple[int, int]) -> int:
    """Return how many programs are wanted of a product for each multiprocessor, which has room for all of them.

    Loads of as many are in flight, and hide each other's waits.
    """
    return 3 if shared_memory_kib(capability) >= 164 else 2


def divide_product(device: torch.device, *, outputs: int, in_features: int, is_gated: bool) -> _Division:
    """Divide the product of a layer over the programs that `device` runs at once."""
    gpu = describe_gpu(device)
    # Gates and ups are a tile each: twice the shared memory, of which only sm_90 has enough for three programs.
    block = 32 if is_gated and gpu.capability[0] != 9 else 64
    tiles, iterations = cdiv(outputs, block), cdiv(in_features, _INNER)
    splits = max(
        1, min(programs_per_sm(gpu.capability) * gpu.num_sms // tiles, _MAX_SPLITS, in_features // _LEAST_INNER)
    )
    if tiles > MAX_TILES:
        splits = 1
    each = cdiv(iterations, splits)
    return _Division(block, tiles, cdiv(iterations, each), each)


def fused_product_triton(
    x: Tensor | PendingNorm,
    weight: Tensor,
    bias: Tensor | None,
    *,
    semaphores: Tensor,
    activation: GatedActivation | None = None,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Launch the kernel; unchecked.

    Args:
        x: [rows, in_features], bf16 or fp16, 1 to 16 rows with stride 1 in the last dimension; may await its norm.
        weight: [outputs, in_features], or with an activation [2 * outputs, in_features]; rows at multiples of 16 bytes.
        bias: [as many as `weight` has rows], or None.
        semaphores: [MAX_TILES] int32, zeros.
        activation: activation of the gates.
        residual: [rows, outputs], is added.

    Returns:
        [rows, outputs] and, with a residual, the sums of its squares [tiles, 16] fp32.
    """
    norm = x if isinstance(x, PendingNorm) else None
    read = x.rows if isinstance(x, PendingNorm) else x
    (rows, in_features), is_gated = read.shape, activation is not None
    outputs = weight.shape[0] // 2 if is_gated else weight.shape[0]
    division = divide_product(read.device, outputs=outputs, in_features=in_features, is_gated=is_gated)
    out = read.new_empty(rows, outputs)
    squares = None if residual is None else read.new_empty(division.tiles, MAX_ROWS, dtype=torch.float32)
    is_split = division.splits > 1
    norm_tiles = 1 if norm is None else norm.squares.shape[0]
    _fused_product_kernel[(division.tiles, division.splits)](
        out,
        read,
        weight,
        bias,
        residual,
        squares,
        None if norm is None else norm.weight,
        None if norm is None else norm.squares,
        read.new_empty(division.splits, MAX_ROWS, weight.shape[0], dtype=torch.float32) if is_split else None,
        semaphores,
        rows,
        in_features,
        outputs,
        division.iterations,
        norm_tiles,
        0.0 if norm is None else norm.eps,
        out.stride(0),
        read.stride(0),
        weight.stride(0),
        0 if residual is None else residual.stride(0),
        BLOCK=division.outputs,
        ROWS=MAX_ROWS,
        INNER=_INNER,
        NORM_TILES=next_power_of_2(norm_tiles),
        SPLITS=division.splits,
        WHOLE=in_features % _INNER == 0,
        NORM=None if norm is None else norm.variant,
        GATE=activation,
        num_warps=4,
        num_stages=_NUM_STAGES,
        enable_fp_fusion=False,
    )
    return out, squares
