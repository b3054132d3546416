"""The plain-torch paths of everything but attention, against the references."""

import pytest
import torch
from torch.nn import functional

from infer_kernels import (
    NormVariant,
    add_rms_norm,
    apply_rope,
    gelu_tanh_and_mul,
    linear,
    norm_add,
    norm_add_norm,
    rms_norm,
    silu_and_mul,
    store_kv,
)
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.reference import (
    add_rms_norm_reference,
    apply_rope_reference,
    gelu_tanh_and_mul_reference,
    norm_add_norm_reference,
    norm_add_reference,
    rms_norm_reference,
    silu_and_mul_reference,
    store_kv_reference,
)

pytestmark = pytest.mark.usefixtures("cpu_path")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
VARIANTS: list[NormVariant] = ["llama", "gemma"]
SHAPES = [(0, 8), (1, 1), (1, 16), (3, 17), (7, 96), (33, 576)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_equals_reference(shape: tuple[int, int], variant: NormVariant, dtype: torch.dtype) -> None:
    x, weight = torch.randn(shape).to(dtype), torch.randn(shape[-1]).to(dtype)
    before, expected = x.clone(), rms_norm_reference(x, weight, 1e-6, variant=variant)
    assert_within_roundings(rms_norm(x, weight, 1e-6, variant=variant), expected)
    assert torch.equal(x, before)
    assert rms_norm(x, weight, 1e-6, variant=variant, out=x) is x
    assert_within_roundings(x, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_takes_heads_inside_packed_qkv(dtype: torch.dtype) -> None:
    heads = torch.randn(5, 9 * 32).to(dtype)[:, 32:128].view(5, 3, 32)
    weight = torch.randn(32).to(dtype)
    assert_within_roundings(rms_norm(heads, weight, 1e-6), rms_norm_reference(heads, weight, 1e-6))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_equals_reference(shape: tuple[int, int], variant: NormVariant, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, *shape).to(dtype)
    weight, before = torch.randn(shape[-1]).to(dtype), residual.clone()
    expected = add_rms_norm_reference(x, residual, weight, 1e-6, variant=variant)
    normalized, new_residual = add_rms_norm(x, residual, weight, 1e-6, variant=variant)
    assert_within_roundings(normalized, expected[0])
    assert torch.equal(new_residual, expected[1])
    assert torch.equal(residual, before)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_add_norm_equals_reference(shape: tuple[int, int], variant: NormVariant, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, *shape).to(dtype)
    post, following = torch.randn(2, shape[-1]).to(dtype)
    expected = norm_add_norm_reference(x, residual, post, following, 1e-6, variant=variant)
    normalized, new_residual = norm_add_norm(x, residual, post, following, 1e-6, variant=variant)
    # A sum that cancels shows a rounding of its terms many times over after the second norm.
    assert_within_roundings(new_residual, expected[1], 4)
    assert_within_roundings(normalized, expected[0], 16)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_add_equals_reference(shape: tuple[int, int], variant: NormVariant, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, *shape).to(dtype)
    weight, before = torch.randn(shape[-1]).to(dtype), (x.clone(), residual.clone())
    expected = norm_add_reference(x, residual, weight, 1e-6, variant=variant)
    # A norm that is off by a rounding of its own is added, and the sum rounds again.
    assert_within_roundings(norm_add(x, residual, weight, 1e-6, variant=variant), expected, 4)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_add_has_the_bits_of_its_parts(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(7, 96).to(dtype), torch.randn(7, 96).to(dtype), torch.randn(96).to(dtype)
    assert torch.equal(norm_add(x, residual, weight, 1e-6), residual + rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize("target", ["x", "residual"])
def test_norm_add_writes_in_place(target: str) -> None:
    x, residual, weight = torch.randn(5, 40), torch.randn(5, 40), torch.randn(40)
    given, expected = {"x": x, "residual": residual}, norm_add(x, residual, weight, 1e-6)
    assert norm_add(x, residual, weight, 1e-6, out=given[target]) is given[target]
    assert torch.equal(given[target], expected)


def test_norm_add_reads_and_writes_strided_rows() -> None:
    x, residual, wide, weight = (
        torch.randn(5, 60)[:, 10:50],
        torch.randn(5, 43)[:, 3:],
        torch.randn(5, 71),
        torch.randn(40),
    )
    rest, expected = wide[:, 40:].clone(), norm_add_reference(x, residual, weight, 1e-6)
    norm_add(x, residual, weight, 1e-6, out=wide[:, :40])
    assert_within_roundings(wide[:, :40], expected)
    assert torch.equal(wide[:, 40:], rest)


def test_add_rms_norm_writes_in_place() -> None:
    x, residual = torch.randn(2, 3, 8)
    expected = add_rms_norm(x, residual, torch.ones(8), 1e-6)
    normalized, stream = add_rms_norm(x, residual, torch.ones(8), 1e-6, out=x, residual_out=residual)
    assert normalized is x
    assert stream is residual
    torch.testing.assert_close((x, residual), expected)


def test_norm_add_norm_writes_in_place() -> None:
    x, residual, weights = *torch.randn(2, 3, 8), torch.randn(2, 8)
    expected = norm_add_norm(x, residual, weights[0], weights[1], 1e-6)
    normalized, stream = norm_add_norm(x, residual, weights[0], weights[1], 1e-6, out=x, residual_out=residual)
    assert normalized is x
    assert stream is residual
    torch.testing.assert_close((x, residual), expected)


def test_norm_variants_round_where_they_say() -> None:
    x, weight = torch.randn(50, 64).bfloat16(), torch.randn(64).bfloat16()
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    once = (exact * (1 + weight.double())).bfloat16()
    twice = exact.bfloat16() * weight
    # fp32 arithmetic may fall on the other side of a rounding here and there; rounding elsewhere shows in a fifth.
    assert (rms_norm(x, weight, 1e-6) != twice).float().mean() < 0.01
    assert (rms_norm(x, weight, 1e-6, variant="gemma") != once).float().mean() < 0.01


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(1, 1), (3, 1), (9, 3)])
@pytest.mark.parametrize("head_dim", [2, 16, 48, 128])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packed", [True, False])
def test_rope_equals_reference(q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, *, packed: bool) -> None:
    qkv = torch.randn(5, q_heads + 2 * kv_heads, head_dim).to(dtype)
    q, k, _ = torch.split(qkv, [q_heads, kv_heads, kv_heads], dim=1)
    if not packed:
        q, k = q.contiguous(), k.contiguous()
    angles = torch.randn(40, head_dim // 2)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.tensor([39, 0, 7, 7, 13], dtype=torch.int32)
    expected = apply_rope_reference(q, k, positions, cos_sin)
    for rotated in (apply_rope(q, k, positions, cos_sin), apply_rope(q, k, positions, cos_sin, q_out=q, k_out=k)):
        assert_within_roundings(rotated[0], expected[0])
        assert_within_roundings(rotated[1], expected[1])


def test_rope_keeps_the_angle_between_equal_distances() -> None:
    angles = torch.arange(50)[:, None] * 10000.0 ** (-torch.arange(8) / 8)
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=-1)
    q, k = torch.randn(2, 1, 1, 16).expand(2, 40, 1, 16)
    rotated_q, rotated_k = apply_rope(q, k, torch.arange(40), cos_sin)
    products = (rotated_q[9:, 0] * rotated_k[:-9, 0]).sum(-1)
    torch.testing.assert_close(products, products[:1].expand(31))


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 17), (7, 1536)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_activations_equal_references(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = torch.randn(shape[0], 2 * shape[1]).to(dtype)
    out = torch.empty(shape, dtype=dtype)
    for op, reference in (
        (silu_and_mul, silu_and_mul_reference),
        (gelu_tanh_and_mul, gelu_tanh_and_mul_reference),
    ):
        assert_within_roundings(op(gate_up), reference(gate_up))
        assert torch.equal(op(gate_up, out=out), op(gate_up))


@pytest.mark.parametrize("block_size", [1, 5, 16])
@pytest.mark.parametrize("token_major", [True, False])
@pytest.mark.parametrize("skipped", [[], [2, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_store_kv_writes_its_slots_and_nothing_else(block_size: int, skipped: list[int], *, token_major: bool) -> None:
    cache = torch.randn(2, 60 // block_size, block_size, 3, 8).transpose(2, 3)
    k_cache, v_cache = cache if token_major else cache.contiguous()
    k, v = torch.randn(2, 7, 3, 8)
    slots = torch.randperm(k_cache.shape[0] * block_size)[:7].int()
    slots[skipped] = -1
    expected = store_kv_reference(k, v, k_cache, v_cache, slots)
    store_kv(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache, expected[0])
    assert torch.equal(v_cache, expected[1])


def test_store_kv_writes_one_layer_of_a_larger_storage() -> None:
    storage = torch.zeros(3, 4, 2, 3, 8).transpose(2, 3)  # [layers, blocks, kv_heads, block_size, head_dim]
    k, v = torch.ones(2, 1, 3, 8)
    store_kv(k, v, storage[1], storage[2], torch.tensor([5]))
    assert storage[0].sum() == 0
    assert torch.equal(storage[1, 2, :, 1], k[0])
    assert storage[1:].sum() == 48


def test_linear_is_a_dense_layer() -> None:
    x, weight, bias = torch.randn(3, 5), torch.randn(7, 5), torch.randn(7)
    assert torch.equal(linear(x, weight), functional.linear(x, weight))
    assert torch.equal(linear(x, weight, bias), functional.linear(x, weight, bias))
