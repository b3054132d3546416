"""Random quantized weights of every encoding for tests, as files may hold them."""

from math import log2

import torch

from infer_kernels.quantization import Encoding, QuantizedWeight


def random_quantized(
    *shape: int,
    encoding: Encoding,
    group_size: int | None = None,
    has_zeros: bool = False,
    has_minimums: bool = False,
    scale_dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
    seed: int = 0,
) -> QuantizedWeight:
    """Return a weight of `shape`, [..., out_features, in_features], that keeps the size of what it multiplies.

    Args:
        shape: as it computes.
        encoding: encoding of its numbers; all finite codes occur.
        group_size: inputs that share a scale; None: all of a row.
        has_zeros: whether each group has a code of zero of its own; of int4 and int8.
        has_minimums: whether each group has a minimum; likewise, and of int6.
        scale_dtype: dtype of scales and minimums.
        device: device of the weight; None: the host.
        seed: seed of the numbers, which do not depend on the device.
    """
    generator = torch.Generator().manual_seed(seed + sum(shape))
    weight = QuantizedWeight.empty(
        *shape,
        encoding=encoding,
        group_size=group_size,
        has_zeros=has_zeros,
        has_minimums=has_minimums,
        scale_dtype=scale_dtype,
        device=torch.device("cpu"),
    )
    raw = torch.randint(0, 256, weight.values.shape, generator=generator, dtype=torch.uint8)
    if encoding == "fp8_e4m3":
        raw[(raw & 0x7F) == 0x7F] = 0  # NaN
    if encoding in ("int4", "e2m1", "mxfp4", "nvfp4") and shape[-1] % 2:
        raw[..., -1] |= 0xF0  # padding may hold anything
    weight.values.view(torch.uint8).copy_(raw)
    if weight.zeros is not None:
        low, high = (0, 16) if encoding == "int4" else (-128, 128)
        weight.zeros.copy_(torch.randint(low, high, weight.zeros.shape, generator=generator))
    if encoding == "mxfp4":
        half = round(log2(max(1, shape[-1]))) // 2  # the root of the inputs, as a power of two
        weight.scales.copy_(124 - half + torch.randint(0, 3, weight.scales.shape, generator=generator))
        return weight if device is None else weight.map_rows(lambda tensor: tensor.to(device))
    if weight.row_scales is not None:
        weight.row_scales.fill_(1.0)
        # From subnormal ones, and 0, to the largest.
        exponents = torch.randint(-11, 9, weight.scales.shape, generator=generator)
        numbers = torch.ldexp(1 + torch.rand(weight.scales.shape, generator=generator), exponents)
        weight.scales.copy_(numbers.clamp(max=448.0))
        weight.row_scales.copy_(0.5 + torch.rand(weight.row_scales.shape, generator=generator))
        size = weight.dequantize().square().mean().sqrt().clamp(min=1e-6) * max(1, shape[-1]) ** 0.5
        weight.row_scales.div_(size)
        return weight if device is None else weight.map_rows(lambda tensor: tensor.to(device))
    if scale_dtype == torch.int8:
        _fill_bytes(weight, generator)
    else:
        weight.scales.copy_(0.5 + torch.rand(weight.scales.shape, generator=generator))
        if weight.minimums is not None:
            weight.minimums.copy_(4 + 8 * torch.rand(weight.minimums.shape, generator=generator))
    size = weight.dequantize().square().mean().sqrt().clamp(min=1e-6) * max(1, shape[-1]) ** 0.5
    factors = (weight.scale_factors, weight.minimum_factors)
    for each in (weight.scales, weight.minimums) if weight.scale_factors is None else factors:
        if each is not None:
            each.div_(size)
    return weight if device is None else weight.map_rows(lambda tensor: tensor.to(device))


def _fill_bytes(weight: QuantizedWeight, generator: torch.Generator) -> None:
    """Fill scales that are int8, some of them negative, and their factors; likewise minimums."""
    for numbers, factors, mean in (
        (weight.scales, weight.scale_factors, 1.0),
        (weight.minimums, weight.minimum_factors, 8.0),
    ):
        if numbers is not None and factors is not None:
            numbers.copy_(torch.randint(-128, 128, numbers.shape, generator=generator))
            factors.copy_(mean / 64 * (0.5 + torch.rand(factors.shape, generator=generator)))
