"""Which tile experts take: on sm_90 a larger one where an expert has many rows on average."""

import pytest
import torch

from infer_kernels import fused_moe
from infer_proofs.kernels.compiled.ahead_of_time import compile_afresh

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
