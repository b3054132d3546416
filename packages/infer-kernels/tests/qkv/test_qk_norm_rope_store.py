"""Preparing queries and keys and writing the cache in one op, on every path; machine code, and wrong arguments."""

from typing import Any

import pytest
import torch
from torch import Tensor

from infer_kernels import KVSlots, NormVariant, apply_rope, rms_norm
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store, qk_norm_rope_store_reference
from infer_kernels.qkv.store_kv import store_kv_reference
from infer_kernels.qkv.transforms import QKNorm, Rotary
from infer_proofs.kernels.compiled.ahead_of_time import compile_only, launch_only
from infer_proofs.kernels.inputs.heads import VARIANTS, some_caches, some_norm, some_rotary, some_slots
from infer_proofs.kernels.pairwise import parametrize_each_value, parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES

HEADS = [(1, 1, 16), (9, 3, 64), (16, 8, 128), (3, 1, 2)]
MODES = [(variant, rotated) for variant in VARIANTS for rotated in (True, False)]
on_every_path = pytest.mark.usefixtures("every_path")


@on_every_path
@parametrize_pairwise(
    block_size=[1, 5, 20],
    heads=[(1, 16), (3, 48), (8, 256)],
    token_major=[False, True],
    skipped=[[], [2, 6], [*range(7)]],
)
def test_slots_are_written_and_nothing_else(
    block_size: int, heads: tuple[int, int], skipped: list[int], *, token_major: bool
) -> None:
    kv_heads, head_dim = heads
    qkv, slots, rotary = torch.randn(7, 3 + 2 * kv_heads, head_dim), torch.randperm(60)[:7], some_rotary(7, head_dim)
    slots[skipped] = -1
    k_cache, v_cache = some_caches(kv_heads, head_dim, slots=60, block_size=block_size, token_major=token_major)
    expected = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots)
    prepared = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, rotary=rotary)
    qk_norm_rope_store(qkv, k_cache, v_cache, slots.int())
    assert torch.equal(k_cache, expected[1])
    assert torch.equal(v_cache, expected[2])
    qk_norm_rope_store(qkv, k_cache, v_cache, slots, rotary=rotary)
    assert_within_roundings(k_cache, prepared[1])
    assert torch.equal(v_cache, prepared[2])


@on_every_path
def test_one_layer_of_a_larger_storage_is_written() -> None:
    storage = torch.zeros(3, 4, 2, 3, 8).transpose(2, 3)  # [layers, blocks, kv_heads, block_size, head_dim]
    qk_norm_rope_store(torch.ones(1, 1 + 2 * 3, 8), storage[1], storage[2], torch.tensor([5]))
    assert storage[0].sum() == 0
    assert torch.equal(storage[1, 2, :, 1], torch.ones(3, 8))
    assert storage[1:].sum() == 48


@on_every_path
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_that_are_not_rotated_equal_the_reference(variant: NormVariant | None, dtype: torch.dtype) -> None:
    qkv, slots, norm = torch.randn(7, 9 + 6, 48).to(dtype), some_slots(7), some_norm(48, dtype, variant)
    k_cache, v_cache = some_caches(3, 48, dtype)
    expected = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, norm=norm)
    q = qk_norm_rope_store(qkv, k_cache, v_cache, slots, norm=norm)
    for actual, wanted in zip((q, k_cache, v_cache), expected, strict=True):
        assert_within_roundings(actual, wanted, 4)


@on_every_path
@pytest.mark.parametrize(("tokens", "q_heads", "kv_heads"), [(1, 64, 8), (33, 1, 1), (11, 3, 1), (3, 8, 8)])
@pytest.mark.parametrize("head_dim", [2, 96, 256])
def test_any_count_of_heads_and_tokens_equals_the_reference(
    tokens: int, q_heads: int, kv_heads: int, head_dim: int
) -> None:
    qkv, caches = torch.randn(tokens, q_heads + 2 * kv_heads, head_dim), some_caches(kv_heads, head_dim)
    slots, rotary, norm = some_slots(tokens), some_rotary(tokens, head_dim), some_norm(head_dim, torch.float32)
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, *caches), expected, strict=True):
        assert_within_roundings(actual, wanted)


@on_every_path
@pytest.mark.parametrize("rotary_dim", [20, 64])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_of_triton_have_the_bits_of_the_reference_where_no_sum_rounds(
    variant: NormVariant | None, dtype: torch.dtype, rotary_dim: int, every_path: str
) -> None:
    qkv, slots = torch.randint(-8, 9, (5, 9 + 6, 64)).to(dtype), some_slots(5)
    k_cache, v_cache = some_caches(3, 64, dtype)
    rotary, norm = some_rotary(5, rotary_dim), some_norm(64, dtype, variant)
    expected = qk_norm_rope_store_reference(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, k_cache, v_cache), expected, strict=True):
        assert_within_roundings(actual, wanted, 0 if every_path == "triton" else 4)


@on_every_path
def test_strided_qkv_and_out_and_sliced_indices_are_fine() -> None:
    wide, caches = torch.randn(5, 9, 40), some_caches(2, 24)
    qkv, out = wide[:, 1:8, 8:32], torch.zeros(5, 4, 64)[:, 1:, 16:40]
    slots, rotary, norm = some_slots(15)[1::3], some_rotary(15, 24), some_norm(24, torch.float32)
    rotary = Rotary(position_ids=rotary.position_ids[2::3].long(), cos_sin=rotary.cos_sin)
    before, expected = wide.clone(), qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm)
    assert qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm, out=out) is out
    for actual, wanted in zip((out, *caches), expected, strict=True):
        assert_within_roundings(actual, wanted)
    assert torch.equal(wide, before)


@on_every_path
def test_queries_with_nothing_to_prepare_are_copied_only_where_out_is_given() -> None:
    qkv, caches = torch.randn(3, 4 + 2, 16), some_caches(1, 16)
    assert qk_norm_rope_store(qkv, *caches, torch.arange(3)).data_ptr() == qkv.data_ptr()
    out = torch.empty(3, 4, 16)
    qk_norm_rope_store(qkv, *caches, torch.arange(3), out=out)
    assert torch.equal(out, qkv[:, :4])


@on_every_path
def test_no_tokens_write_nothing() -> None:
    caches, none = some_caches(2, 16), torch.empty(0, dtype=torch.int32)
    before = [cache.clone() for cache in caches]
    norm = some_norm(16, torch.float32)
    q = qk_norm_rope_store(torch.empty(0, 7, 16), *caches, none, rotary=some_rotary(0, 16), norm=norm)
    assert q.shape == (0, 3, 16)
    assert all(map(torch.equal, caches, before))


@on_every_path
def test_a_token_among_others_gets_the_bits_it_gets_alone() -> None:
    qkv, rotary, norm = torch.randn(33, 3 + 2, 32), some_rotary(33, 32), some_norm(32, torch.float32)
    together, alone = some_caches(1, 32), some_caches(1, 32)
    q = qk_norm_rope_store(qkv, *together, torch.arange(33), rotary=rotary, norm=norm)
    for token in (0, 7, 32):
        at = slice(token, token + 1)
        one = Rotary(position_ids=rotary.position_ids[at], cos_sin=rotary.cos_sin)
        assert torch.equal(qk_norm_rope_store(qkv[at], *alone, torch.tensor([token]), rotary=one, norm=norm), q[at])
        assert torch.equal(alone[0].transpose(1, 2).flatten(0, 1)[at], together[0].transpose(1, 2).flatten(0, 1)[at])


def separately(
    qkv: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *, rotary: Rotary | None, norm: QKNorm | None
) -> Tensor:
    """The same by the ops that each do one part of it."""
    kv_heads = k_cache.shape[1]
    q, k, v = torch.split(qkv, [qkv.shape[1] - 2 * kv_heads, kv_heads, kv_heads], dim=1)
    if norm is not None:
        q = rms_norm(q, norm.q_weight, norm.eps, variant=norm.variant)
        k = rms_norm(k, norm.k_weight, norm.eps, variant=norm.variant)
    if rotary is not None:
        q, k = apply_rope(q, k, rotary.position_ids, rotary.cos_sin)
    for cache, rows in zip((k_cache, v_cache), store_kv_reference(k, v, k_cache, v_cache, slots), strict=True):
        cache.copy_(rows)
    return q


@parametrize_pairwise(mode=MODES, dtype=DTYPES, heads=HEADS, tokens=[1, 37, 110])
@pytest.mark.usefixtures("plain_pytorch")
def test_bits_are_those_of_the_separate_ops(
    mode: tuple[NormVariant | None, bool], dtype: torch.dtype, heads: tuple[int, int, int], tokens: int
) -> None:
    (variant, rotated), (q_heads, kv_heads, head_dim) = mode, heads
    qkv = torch.randn(tokens, q_heads + 2 * kv_heads, head_dim).to(dtype)
    caches, slots = some_caches(kv_heads, head_dim, dtype), torch.randperm(120)[:tokens].int()
    rotary, norm = some_rotary(tokens, head_dim) if rotated else None, some_norm(head_dim, dtype, variant)
    k_cache, v_cache = caches[0].clone(), caches[1].clone()
    expected = separately(qkv, k_cache, v_cache, slots, rotary=rotary, norm=norm)
    assert torch.equal(qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm), expected)
    assert torch.equal(caches[0], k_cache)
    assert torch.equal(caches[1], v_cache)


def test_no_gradient_flows_and_the_cache_wants_none() -> None:
    qkv, caches = torch.randn(3, 7, 16, requires_grad=True), some_caches(2, 16, torch.float32)
    weight = torch.ones(16, requires_grad=True)
    norm = QKNorm(q_weight=weight, k_weight=weight, eps=1e-6, variant="llama")
    q = qk_norm_rope_store(qkv, *caches, torch.arange(3), rotary=some_rotary(3, 16), norm=norm)
    assert not q.requires_grad
    assert not caches[0].requires_grad
    assert not caches[1].requires_grad


def cpu_caches(kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Caches with keys transposed inside their blocks: strides that no kernel takes."""
    k_cache = torch.randn(30, kv_heads, head_dim, 4).to(dtype).mT
    return k_cache, torch.randn(30, kv_heads, 4, head_dim).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_dtype", DTYPES)
def test_heads_stored_in_transposed_caches_of_any_dtype_equal_reference(
    cache_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    qkv, caches = torch.randn(7, 9 + 6, 16).to(dtype), cpu_caches(3, 16, cache_dtype)
    slots = torch.tensor([3, -1, 119, 0, -1, 12, 7])
    expected = qk_norm_rope_store_reference(qkv, *caches, slots)
    assert torch.equal(qk_norm_rope_store(qkv, *caches, slots), expected[0])
    assert torch.equal(caches[0], expected[1])
    assert torch.equal(caches[1], expected[2])


@pytest.mark.parametrize(("variant", "rotated"), MODES)
@pytest.mark.parametrize(("dtype", "cache_dtype"), [(torch.bfloat16, torch.float16), (torch.float32, torch.float32)])
def test_prepared_keys_reach_a_transposed_cache_as_the_reference_has_them(
    dtype: torch.dtype, cache_dtype: torch.dtype, variant: NormVariant | None, *, rotated: bool
) -> None:
    qkv, caches = torch.randn(7, 9 + 6, 48).to(dtype), cpu_caches(3, 48, cache_dtype)
    rotary, norm = some_rotary(7, 48) if rotated else None, some_norm(48, dtype, variant)
    slots = torch.tensor([3, -1, 39, 0, -1, 12, 7])
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm)
    q = qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm)
    for actual, wanted in zip((q, *caches), expected, strict=True):
        assert_within_roundings(actual.to(dtype), wanted.to(dtype), 4)
    assert torch.equal(caches[1], expected[2])


@pytest.mark.parametrize("skipped", [[], [1, 4], [0, 1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_slots_looked_into_once_serve_every_layer(dtype: torch.dtype, skipped: list[int]) -> None:
    slots = torch.randperm(120)[:7].to(dtype)
    slots[skipped] = -1
    wrapped = KVSlots(slots, block_size=4)
    for _layer in range(3):
        qkv, caches = torch.randn(7, 9 + 6, 16), cpu_caches(3, 16, torch.float32)
        expected = store_kv_reference(qkv[:, 9:12], qkv[:, 12:], *caches, slots)
        qk_norm_rope_store(qkv, *caches, wrapped)
        assert torch.equal(caches[0], expected[0])
        assert torch.equal(caches[1], expected[1])


def test_slots_of_blocks_of_another_size_are_refused() -> None:
    caches, slots = cpu_caches(3, 16, torch.float32), KVSlots(torch.arange(3), block_size=8)
    before = [cache.clone() for cache in caches]
    with pytest.raises(ValueError, match=r"`slots` are of blocks of 8 tokens but `k_cache` has blocks of 4"):
        qk_norm_rope_store(torch.ones(3, 7, 16), *caches, slots)
    assert all(map(torch.equal, caches, before))


@pytest.mark.parametrize(
    ("slots", "error", "message"),
    [
        (torch.arange(2), ValueError, r"`slots` has shape \[2\]; pass \[3\], one for each token"),
        (torch.arange(3).float(), TypeError, r"`slots` has dtype torch\.float32"),
        (torch.arange(3, device="meta"), ValueError, r"`slots` is on meta but `k_cache` is on cpu"),
    ],
)
def test_wrapped_slots_are_checked_like_others(slots: Tensor, error: type[Exception], message: str) -> None:
    caches = cpu_caches(3, 16, torch.float32)
    with pytest.raises(error, match=message):
        qk_norm_rope_store(torch.ones(3, 1 + 2 * 3, 16), *caches, KVSlots(slots, block_size=4))


def test_a_kernel_stores_neither_heads_of_another_dtype_nor_transposed_keys() -> None:
    qkv, slots, caches = torch.zeros(3, 4 + 6, 16).bfloat16(), torch.arange(3), some_caches(3, 16, torch.float16)
    transposed = cpu_caches(3, 16, torch.bfloat16)
    with launch_only(90):
        with pytest.raises(TypeError, match=r"`qkv` has dtype torch\.bfloat16 but `k_cache` has torch\.float16"):
            qk_norm_rope_store(qkv, *caches, slots)
        with pytest.raises(ValueError, match=r"`k_cache` has stride 4 in its last dimension"):
            qk_norm_rope_store(qkv, *transposed, slots)


def launch(
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    *,
    dtype: torch.dtype,
    variant: NormVariant | None,
    tokens: int = 5,
    rotated: bool = True,
    first: int = 0,
) -> None:
    """Call once, with slots and positions from `first` on in their buffers."""
    qkv = torch.empty(tokens, q_heads + 2 * kv_heads, head_dim, dtype=dtype)
    caches = some_caches(kv_heads, head_dim, dtype, token_major=True)
    staged = torch.zeros(2, 64, dtype=torch.int32)[:, first : first + tokens]
    rotary = Rotary(position_ids=staged[0], cos_sin=torch.empty(9, head_dim)) if rotated else None
    qk_norm_rope_store(qkv, *caches, staged[1], rotary=rotary, norm=some_norm(head_dim, dtype, variant))


@parametrize_each_value(
    capability=[80, 90, 120],
    variant=VARIANTS,
    dtype=[torch.bfloat16, torch.float32],
    heads=[(9, 3, 64), (32, 8, 96), (64, 16, 256)],
)
def test_one_launch_that_spills_nothing(
    variant: NormVariant | None, dtype: torch.dtype, heads: tuple[int, int, int], capability: int
) -> None:
    q_heads, kv_heads, head_dim = heads
    with compile_only(capability) as log:
        launch(q_heads, kv_heads, head_dim, dtype=dtype, variant=variant)
    assert [launch.name for launch in log.launches] == ["qk_norm_rope_store_kernel"]
    (kernel,) = log.compiled
    assert kernel.spilled_bytes == 0
    # Halves of heads move 16 bytes at a time.
    assert "ld.global.v4" in kernel.ptx
    assert "st.global.v4" in kernel.ptx


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("variant", ["llama", None])
def test_one_variant_serves_any_tokens(variant: NormVariant | None, *, rotated: bool) -> None:
    with launch_only(90) as log:
        for tokens, first in ((7, 0), (8, 0), (16, 4), (1, 0), (1, 3), (33, 1)):
            launch(9, 3, 64, dtype=torch.float16, variant=variant, rotated=rotated, tokens=tokens, first=first)
    assert (len(log.variants), len(log.launches)) == (1, 6)


def test_queries_with_nothing_to_prepare_take_no_programs() -> None:
    with launch_only(90) as log:
        launch(64, 1, 128, dtype=torch.float16, variant=None, rotated=False, tokens=16)
    assert [launch.grid for launch in log.launches] == [(1, 1, 1)]


QKV, CACHE, SLOTS = torch.zeros(3, 4 + 4, 16), torch.zeros(5, 2, 4, 16), torch.arange(3)
POSITIONS, COS_SIN, WEIGHT = SLOTS, torch.zeros(9, 16), torch.zeros(16)
RIGHT: dict[str, Any] = {"qkv": QKV, "k_cache": CACHE, "v_cache": CACHE, "slots": SLOTS, "out": torch.zeros(3, 4, 16)}
RIGHT_ROTARY: dict[str, Any] = {"position_ids": POSITIONS, "cos_sin": COS_SIN}
RIGHT_NORM: dict[str, Any] = {"q_weight": WEIGHT, "k_weight": WEIGHT, "eps": 1e-6, "variant": "llama"}
TENSORS = [
    name
    for name, value in (RIGHT | RIGHT_ROTARY | RIGHT_NORM).items()
    if isinstance(value, Tensor) and name != "k_cache"  # what others are compared with
]


def call_with(name: str, value: object) -> Tensor:
    """Call with right arguments but one."""
    given = {name: value}
    own, rotary, norm = (
        right | {key: given[key] for key in right.keys() & given} for right in (RIGHT, RIGHT_ROTARY, RIGHT_NORM)
    )
    return qk_norm_rope_store(**own, rotary=Rotary(**rotary), norm=QKNorm(**norm))


@pytest.mark.parametrize("name", TENSORS)
def test_tensor_of_wrong_dtype_is_refused(name: str) -> None:
    value = (RIGHT | RIGHT_ROTARY | RIGHT_NORM)[name]
    with pytest.raises(TypeError, match=rf"`{name}` has dtype torch\.\w+"):
        call_with(name, value.to(torch.float64 if value.is_floating_point() else torch.int16))


@pytest.mark.parametrize("name", TENSORS)
def test_tensor_with_a_dimension_too_many_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"`{name}` has shape \["):
        call_with(name, (RIGHT | RIGHT_ROTARY | RIGHT_NORM)[name].unsqueeze(0))


@pytest.mark.parametrize("name", TENSORS)
def test_tensor_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"`{name}` is on meta but .* move one"):
        call_with(name, (RIGHT | RIGHT_ROTARY | RIGHT_NORM)[name].to("meta"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("qkv", QKV[:, :4], r"`qkv` has 4 heads; pass at least 5: `k_cache` has 2"),
        ("qkv", QKV[..., :8], r"`qkv` has shape \[3, 8, 8\]; pass \[3, 8, 16\], head_dim as of `k_cache`"),
        ("qkv", torch.zeros(3, 16, 8).mT, r"`qkv` has stride 8 in its last dimension"),
        ("v_cache", CACHE[1:], r"`v_cache` has shape \[4, 2, 4, 16\]; pass \[5, 2, 4, 16\]"),
        ("slots", SLOTS[:2], r"`slots` has shape \[2\]; pass \[3\]"),
        ("out", torch.zeros(3, 5, 16), r"`out` has shape \[3, 5, 16\]; pass \[3, 4, 16\]"),
        ("position_ids", POSITIONS[:2], r"`position_ids` has shape \[2\]; pass \[3\]"),
        (
            "cos_sin",
            torch.zeros(9, 18),
            r"`cos_sin` has shape \[9, 18\]; pass \[max_position, rotary_dim\] with an even",
        ),
        ("q_weight", torch.zeros(8), r"`q_weight` has shape \[8\]; pass \[16\]"),
        ("k_weight", torch.zeros(32)[::2], r"`k_weight` has stride 2"),
        ("variant", "qwen", r"`variant` is 'qwen'; pass \"llama\" or \"gemma\""),
    ],
)
def test_wrong_value_is_named_with_its_fix(name: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call_with(name, value)


def test_heads_of_odd_size_are_refused() -> None:
    cache = torch.zeros(5, 2, 4, 15)
    with pytest.raises(ValueError, match="`k_cache` has head_dim 15; pass an even one"):
        qk_norm_rope_store(torch.zeros(3, 8, 15), cache, cache, SLOTS)
