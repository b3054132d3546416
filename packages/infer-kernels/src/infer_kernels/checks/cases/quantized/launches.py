"""The kernels of quantized weights in the configurations that ship, as launches to be compiled."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch

from infer_kernels.checks.cases.launch_case import (
    BF16,
    FIRST_FP8_CAPABILITY,
    FP16,
    FP32,
    LaunchCase,
    launch_case,
)
from infer_kernels.embedding import embedding_quantized_triton
from infer_kernels.linear.fused_products_triton import MAX_TILES
from infer_kernels.linear.quantized.linear_fp8 import linear_fp8_triton
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_triton
from infer_kernels.moe.activation import ExpertActivation
from infer_kernels.moe.fused_moe_quantized import choose_expert_tiles, quantized_expert_products_triton
from infer_kernels.quantization import Encoding, QuantizedWeight

OUT_FEATURES = 4096
_FEW_PAIRS = 4
"""So few pairs that the inputs of the second product are divided over programs."""


class _Format(NamedTuple):
    encoding: Encoding
    group_size: int | None = None
    has_zeros: bool = False
    has_minimums: bool = False

    def __str__(self) -> str:
        groups = "rows" if self.group_size is None else f"groups of {self.group_size}"
        beside = ", zeros" if self.has_zeros else ", minimums" if self.has_minimums else ""
        return f"{self.encoding}, {groups}{beside}"

    def empty(self, *shape: int) -> QuantizedWeight:
        """Return a weight as `prepack` and `prepack_experts` give it to the kernels."""
        weight = QuantizedWeight.empty(
            *shape,
            encoding=self.encoding,
            group_size=self.group_size,
            has_zeros=self.has_zeros,
            has_minimums=self.has_minimums,
            device=torch.device("cpu"),
        )
        weight.values.zero_()
        return weight.in_words() if weight.can_be_words() else weight


_FORMATS = (
    _Format("int8"),
    _Format("int8", 128, has_zeros=True),
    _Format("int4", 128),
    _Format("int4", 128, has_zeros=True),
    _Format("int4", 32),
    _Format("mxfp4_tiled", 32),
    _Format("nvfp4_tiled", 16),
    _Format("fp8_e4m3"),
    _Format("fp8_e4m3", 128),
    _Format("int4", 32, has_minimums=True),
    _Format("int8", 32, has_minimums=True),
    _Format("int4", 16, has_minimums=True),
)
_MXFP4_OF_RANKS = _Format("mxfp4", 16)
"""Format of a tensor-parallel model whose ranks cut groups."""
_INT4, _MXFP4, _FP8 = _FORMATS[2], _FORMATS[5], _FORMATS[7]


def quantized_launches() -> Iterator[LaunchCase]:
    """Yield them in the order of a model."""
    yield from _embeddings()
    yield from _layers()
    yield from _fp8_layers()
    yield from _experts()


def _embeddings() -> Iterator[LaunchCase]:
    ids = torch.zeros(3, dtype=torch.int32)
    for format_, dtype, hidden in (
        (_FORMATS[0], BF16, 4096),
        (_FORMATS[3], BF16, 4096),
        (_MXFP4_OF_RANKS, FP16, 2880),
        (_FP8, FP32, 1000),
    ):
        launch = partial(embedding_quantized_triton, ids, format_.empty(100, hidden), dtype=dtype)
        yield launch_case("embedding_quantized", dtype, f"{format_}, hidden {hidden}", launch)


def _layers() -> Iterator[LaunchCase]:
    kernel = "_linear_quantized_kernel"
    for format_ in _FORMATS:
        for rows in (16, 32, 64, 128):
            launch = partial(_layer, format_, BF16, rows, 4096)
            yield launch_case("linear_quantized", BF16, f"{format_}, {rows} rows of 4096", launch, kernel)
        launch = partial(_layer, format_, BF16, 16, 4096, biased=True, is_joined=True)
        yield launch_case("linear_quantized", BF16, f"{format_}, 16 rows of 4096, joined", launch, kernel)
        for dtype, in_features in ((FP32, 4096), (BF16, 1000)):
            launch = partial(_layer, format_, dtype, 128, in_features, biased=True)
            yield launch_case("linear_quantized", dtype, f"{format_}, 128 rows of {in_features}", launch, kernel)
    for format_, in_features in ((_INT4, 4096), (_INT4, 11008), (_Format("int4", 128), 4160), (_FP8, 4096)):
        label = f"{format_}, batch-invariant, {in_features}"
        launch = partial(_layer, format_, FP16, 3, in_features, biased=True, is_invariant=True)
        yield launch_case("linear_quantized", FP16, label, launch, kernel)
    for dtype in (BF16, FP16, FP32):
        launch = partial(_layer, _FORMATS[0], dtype, 16, 4096, biased=True)
        yield launch_case("linear_quantized", dtype, "any", launch, "_join_splits_kernel")


def _fp8_layers() -> Iterator[LaunchCase]:
    make = partial(launch_case, "linear_fp8", first_capability=FIRST_FP8_CAPABILITY)
    kernel = "_linear_fp8_kernel"
    for format_ in (_FP8, _FORMATS[8]):
        for rows in (16, 32, 64, 128):
            yield make(BF16, f"{format_}, {rows} rows of 4096", partial(_fp8_layer, format_, BF16, rows, 4096), kernel)
    yield make(BF16, f"{_FP8}, 128 rows of 1000", partial(_fp8_layer, _FP8, BF16, 128, 1000), kernel)
    for dtype in (BF16, FP32):
        yield make(dtype, "4096", partial(_fp8_layer, _FP8, dtype, 16, 4096), "_quantize_rows_fp8_kernel")


def _experts() -> Iterator[LaunchCase]:
    for format_, dtype, hidden, intermediate in (
        *((each, BF16, 2048, 768) for each in _FORMATS),
        (_MXFP4, BF16, 2880, 2880),
        (_INT4, FP16, 2048, 768),
        (_MXFP4, FP32, 2880, 2880),
        (_MXFP4, FP16, 2880, 2880),
        (_MXFP4_OF_RANKS, BF16, 2880, 720),
        (_FORMATS[0], BF16, 1000, 300),
    ):
        for activation, inputs, outputs in ((ExpertActivation(), hidden, intermediate), (None, intermediate, hidden)):
            kind = "down" if activation is None else "gates and ups"
            label = f"{format_}, {inputs} to {outputs}, {kind}"
            for pairs in (None, _FEW_PAIRS, 2048, 4096) if format_ is _MXFP4 and dtype == BF16 else (None, _FEW_PAIRS):
                launch = partial(_products, format_, inputs, outputs, dtype, activation=activation, pairs=pairs)
                tile = "batch-invariant" if pairs is None else f"{pairs} pairs"
                yield launch_case("fused_moe_quantized", dtype, f"{label}, {tile}", launch)


def _layer(
    format_: _Format,
    dtype: torch.dtype,
    rows: int,
    in_features: int,
    *,
    biased: bool = False,
    is_invariant: bool = False,
    is_joined: bool = False,
) -> None:
    linear_quantized_triton(
        torch.empty(rows, in_features, dtype=dtype),
        format_.empty(OUT_FEATURES, in_features),
        torch.empty(OUT_FEATURES, dtype=dtype) if biased else None,
        out=torch.empty(rows, OUT_FEATURES, dtype=dtype),
        is_invariant=is_invariant,
        semaphores=torch.zeros(MAX_TILES, dtype=torch.int32) if is_joined else None,
    )


def _fp8_layer(format_: _Format, dtype: torch.dtype, rows: int, in_features: int) -> None:
    linear_fp8_triton(
        torch.empty(rows, in_features, dtype=dtype),
        format_.empty(OUT_FEATURES, in_features).in_rows(),
        torch.empty(OUT_FEATURES, dtype=dtype),
        out=torch.empty(rows, OUT_FEATURES, dtype=dtype),
        is_invariant=False,
    )


def _products(
    format_: _Format,
    inputs: int,
    outputs: int,
    dtype: torch.dtype,
    *,
    activation: ExpertActivation | None,
    pairs: int | None,
) -> None:
    experts, tokens = 128, 4
    width = outputs if activation is None else 2 * outputs
    # Compiled and not computed: of 128 experts' weights there is memory for one.
    weight = format_.empty(1, width, inputs).map_rows(lambda tensor: tensor.expand(experts, -1, -1))
    tile, _ = choose_expert_tiles(weight, weight, dtype, pairs=pairs)
    number = pairs or 12
    parts = 2 if activation is None and pairs == _FEW_PAIRS else 1
    quantized_expert_products_triton(
        torch.empty(number if activation is None else tokens, inputs, dtype=dtype),
        weight,
        torch.empty(2, width, dtype=dtype),
        torch.empty(parts, number, outputs, dtype=dtype if parts == 1 else FP32),
        torch.zeros(number, dtype=torch.int32),
        torch.zeros(3, 2, dtype=torch.int32),
        tile=tile,
        activation=activation,
    )
