"""One RMS norm over all heads: machine code, norms of which each rank has a part, gradients, and wrong arguments."""

from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import NormVariant, rms_norm, sharded_rms_norm, sum_of_squares
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import rms_norm_reference, sharded_rms_norm_reference, sum_of_squares_reference
from infer_proofs.kernels.compiled.ahead_of_time import compile_only

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VARIANTS: list[NormVariant] = ["llama", "gemma"]
HEADS = [(1, 1, 2), (8, 2, 16), (9, 3, 20), (5, 1, 64)]
"""(q_heads, kv_heads, head_dim)."""


def parts(qkv: Tensor, heads: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, [tokens, heads * head_dim] each, inside qkv."""
    q_heads, kv_heads, head_dim = heads
    q, k, v = torch.split(qkv, [q_heads * head_dim, kv_heads * head_dim, kv_heads * head_dim], dim=1)
    return q, k, v


@pytest.mark.parametrize(("heads", "dtype"), [((16, 16, 128), torch.bfloat16), ((40, 8, 128), torch.bfloat16)])
@pytest.mark.parametrize("capability", [80, 90, 120])
def test_a_gpu_takes_one_launch_for_each_of_them_and_spills_nothing(
    capability: int, heads: tuple[int, int, int], dtype: torch.dtype
) -> None:
    q, k, _ = parts(torch.empty(5, (heads[0] + 2 * heads[1]) * heads[2], dtype=dtype), heads)
    with compile_only(capability) as log:
        for x in (q, k):
            rms_norm(x, torch.empty(x.shape[1], dtype=dtype), 1e-6, out=x)
    assert [launch.name for launch in log.launches] == ["_rms_norm_kernel", "_rms_norm_kernel"]
    assert all(kernel.spilled_bytes == 0 and "ld.global.v4" in kernel.ptx for kernel in log.compiled)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("tokens", [0, 1, 37])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_ranks_together_are_the_norm_of_whole_rows(
    dtype: torch.dtype, variant: NormVariant, tokens: int, ranks: int
) -> None:
    x, weight = torch.randn(tokens, 6 * 20).to(dtype), torch.randn(6 * 20).to(dtype)
    before, shares = x.clone(), [*zip(x.chunk(ranks, dim=1), weight.chunk(ranks), strict=True)]
    squares = sum((sum_of_squares(share) for share, _ in shares), torch.zeros(tokens))
    normalized = [
        sharded_rms_norm(share, own, 1e-6, squares=squares, width=120, variant=variant) for share, own in shares
    ]
    assert torch.equal(x, before)
    assert_within_roundings(torch.cat(normalized, dim=1), rms_norm_reference(x, weight, 1e-6, variant=variant))
    for share, own in shares:
        assert sharded_rms_norm(share, own, 1e-6, squares=squares, width=120, variant=variant, out=share) is share
    assert torch.equal(x, torch.cat(normalized, dim=1))


@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_equal_those_of_the_references(variant: NormVariant) -> None:
    x, weight = torch.randn(5, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    actual, expected = (
        norm(x, weight, 1e-6, squares=squares(x) + 3.0, width=24, variant=variant)
        for norm, squares in (
            (sharded_rms_norm, sum_of_squares),
            (sharded_rms_norm_reference, sum_of_squares_reference),
        )
    )
    slopes = torch.linspace(-1, 1, 40).view(5, 8)
    gradients = [torch.autograd.grad((result * slopes).sum(), (x, weight)) for result in (actual, expected)]
    torch.testing.assert_close(gradients[0], gradients[1])


RIGHT: dict[str, Any] = {
    "x": torch.ones(3, 8),
    "weight": torch.ones(8),
    "eps": 1e-6,
    "squares": torch.ones(3),
    "width": 16,
    "out": torch.ones(3, 8),
}


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("x", torch.ones(3, 8).double(), TypeError, r"`x` has dtype torch\.float64"),
        ("x", torch.ones(1, 3, 8), ValueError, r"`x` has shape \[1, 3, 8\]; pass \[tokens, hidden\]"),
        ("weight", torch.ones(7), ValueError, r"`weight` has shape \[7\]; pass \[8\]"),
        ("weight", torch.ones(8).half(), TypeError, r"`weight` has dtype torch\.float16 but `x` has torch\.float32"),
        ("squares", torch.ones(3).half(), TypeError, r"`squares` has dtype torch\.float16"),
        ("squares", torch.ones(3, 1), ValueError, r"`squares` has shape \[3, 1\]; pass \[3\], one for each row of `x`"),
        ("squares", torch.ones(3, device="meta"), ValueError, r"`squares` is on meta but `x` is on cpu"),
        ("width", 7, ValueError, r"`width` is 7 but `x` alone has 8 columns; pass those of all ranks together"),
        ("variant", "olmo", ValueError, r"`variant` is 'olmo'"),
        ("out", torch.ones(2, 8), ValueError, r"`out` has shape \[2, 8\]; pass \[3, 8\]"),
    ],
)
def test_wrong_argument_is_named_with_its_fix(name: str, value: object, error: type[Exception], message: str) -> None:
    sharded_rms_norm(**RIGHT)
    with pytest.raises(error, match=message):
        sharded_rms_norm(**RIGHT | {name: value})


def test_sums_of_squares_of_what_are_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`x` has shape \[8\]; pass \[tokens, hidden\]"):
        sum_of_squares(torch.ones(8))
    with pytest.raises(TypeError, match=r"`x` has dtype torch\.int64"):
        sum_of_squares(torch.ones(3, 8).long())
