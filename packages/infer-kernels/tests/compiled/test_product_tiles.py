"""The tile that products take: of many rows a larger one on sm_90, and of a GPU that no table has that of its kind."""

from dataclasses import astuple
from typing import Any

import pytest
import torch

from infer_kernels import QuantizedWeight, fused_moe
from infer_kernels.linear.product_tiles import choose_experts_tile, choose_product_tile
from infer_kernels.linear.quantized.linear_quantized import linear_quantized_triton
from infer_kernels.linear.quantized.quantized_tiles import choose_fp8_tile, choose_quantized_tile
from infer_kernels.quantization import Encoding
from infer_proofs.kernels.compiled.ahead_of_time import SHARED_MEMORY, compile_afresh, compile_only

EXPERTS, CHOSEN, HIDDEN, INTERMEDIATE = 4, 2, 64, 32


@pytest.mark.parametrize(
    ("capability", "tokens", "rows_of_tile"),
    [(80, 4096, 64), (90, 1, 64), (90, 255, 64), (90, 256, 128), (90, 4096, 128)],
)
def test_experts_of_many_rows_take_larger_tiles_on_hopper(capability: int, tokens: int, rows_of_tile: int) -> None:
    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16)

    ids = torch.zeros(tokens, CHOSEN, dtype=torch.int32)
    gate_up, down = tensor(EXPERTS, 2 * INTERMEDIATE, HIDDEN), tensor(EXPERTS, HIDDEN, INTERMEDIATE)
    with compile_afresh(capability) as log:
        fused_moe(tensor(tokens, HIDDEN), gate_up, down, ids, ids.float(), activation="silu_and_mul")
    products = [kernel for kernel in log.compiled if kernel.name == "_expert_products_kernel"]
    assert [kernel.constants["ROWS"] for kernel in products] == [rows_of_tile] * 2  # gates and ups, down


def weight_of(encoding: Encoding, group_size: int | None = None) -> QuantizedWeight:
    return QuantizedWeight.empty(*(256, 4096), encoding=encoding, group_size=group_size, device=torch.device("cpu"))


WEIGHTS = (weight_of("int8"), weight_of("int4", 32).in_words(), weight_of("mxfp4_tiled", 32))


def tiles_of(capability: int) -> list[tuple[Any, ...]]:
    """Return the tiles of products of a few, of some and of many rows."""
    cpu, layer = torch.device("cpu"), {"in_features": 4096, "out_features": 28672}
    found: list[Any] = []
    with compile_only(capability):
        for rows in (1, 32, 64, 4096):
            for dtype in (torch.bfloat16, torch.float32):
                found.append(choose_product_tile(cpu, dtype, rows=rows, **layer))
                found.append(choose_experts_tile(cpu, dtype, 4096, rows_of_expert=rows))
                found += [choose_quantized_tile(each, dtype, rows=rows, is_invariant=False) for each in WEIGHTS]
            found.append(choose_fp8_tile(weight_of("fp8_e4m3"), rows=rows, is_invariant=True))
    return [astuple(tile) for tile in found]


@pytest.mark.parametrize(("capability", "like"), [(103, 100), (110, 100), (87, 80)])
def test_a_gpu_that_no_table_has_takes_the_tiles_of_its_kind(capability: int, like: int) -> None:
    assert tiles_of(capability) == tiles_of(like)
    assert tiles_of(100)[0] == tiles_of(90)[0] != tiles_of(120)[0]


@pytest.mark.parametrize("capability", [103, 110, 87])
def test_its_tiles_compile_and_fit(capability: int) -> None:
    """Few rows, whose tile is that of 8, and many; codes in words with groups of 32, which not all tiles can have."""
    x, weight = torch.empty(128, 4096, dtype=torch.bfloat16), WEIGHTS[1]
    with compile_afresh(capability) as log:
        for rows in (16, 128):
            out = x.new_empty(rows, weight.out_features)
            linear_quantized_triton(x[:rows], weight, None, out=out, is_invariant=False)
    products = [kernel for kernel in log.compiled if kernel.name == "_linear_quantized_kernel"]
    assert len(products) == 2
    assert all(kernel.shared_memory <= SHARED_MEMORY[capability] for kernel in products)
    assert max(kernel.spilled_bytes for kernel in products) <= 32
