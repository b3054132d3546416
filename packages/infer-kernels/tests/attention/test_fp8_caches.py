"""What Triton's kernels over fp8 codes have alone: equal bits after a norm, numbers of any size.

`qkv/test_eight_bit_caches.py` has the rest.
"""

import math

import pytest
import torch
from torch import Tensor

from infer_kernels import KVScales, QKNorm, Rotary, paged_attention, plan_attention, qk_norm_rope_store
from infer_kernels.reference import qk_norm_rope_store_reference

pytestmark = pytest.mark.usefixtures("triton_only")

FP8 = torch.float8_e4m3fn
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SCALES = KVScales(keys=0.37, values=1.7)


def fp8_caches(kv_heads: int, head_dim: int, block_size: int) -> tuple[Tensor, Tensor]:
    shape = (40 // block_size, kv_heads, block_size, head_dim)
    return torch.full(shape, float("nan")).to(FP8), torch.full(shape, float("nan")).to(FP8)


def bits(cache: Tensor) -> Tensor:
    return cache.view(torch.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [1, 7, 33])
def test_prepared_and_stored_codes_are_those_of_the_reference(dtype: torch.dtype, tokens: int) -> None:
    # Squares of small integers add up exactly in any order.
    qkv = torch.randint(-8, 9, (tokens, 5 + 2 * 2, 32)).to(dtype)
    angles = torch.randn(40, 16)
    rotary = Rotary(
        position_ids=torch.randint(40, (tokens,), dtype=torch.int32), cos_sin=torch.cat((angles.cos(), angles.sin()), 1)
    )
    norm = QKNorm(q_weight=torch.ones(32, dtype=dtype), k_weight=torch.ones(32, dtype=dtype), eps=1e-6, variant="llama")
    caches, slots = fp8_caches(2, 32, 8), torch.randperm(40)[:tokens].int()
    expected = qk_norm_rope_store_reference(qkv, *caches, slots, rotary=rotary, norm=norm, scales=SCALES)
    q = qk_norm_rope_store(qkv, *caches, slots, rotary=rotary, norm=norm, scales=SCALES)
    assert torch.equal(q, expected[0])
    assert all(torch.equal(bits(cache), bits(wanted)) for cache, wanted in zip(caches, expected[1:], strict=True))


PHASES = pytest.mark.parametrize("prefill", [False, True], ids=["decode", "prefill"])


def attend_one(q: Tensor, k: Tensor, v: Tensor, *, scale: float, prefill: bool) -> Tensor:
    """Attention of one token [q_heads, head_dim] to keys and values [seq_len, head_dim] of one head, in fp8."""
    (length, head_dim), block_size = k.shape, 64
    blocks = -(-length // block_size)
    k_cache, v_cache = (torch.zeros(blocks * block_size, head_dim).to(FP8) for _ in range(2))
    bits(k_cache)[:length], bits(v_cache)[:length] = bits(k), bits(v)
    plan = plan_attention(
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_table=torch.arange(blocks + 1, dtype=torch.int32)[None],
        block_size=block_size,
        device="cpu",
        is_prefill=torch.tensor([prefill]),
    )
    shape = (blocks, 1, block_size, head_dim)
    return paged_attention(q[None], k_cache.view(shape), v_cache.view(shape), plan, scale=scale)[0]


@PHASES
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_is_the_number_that_it_stands_for(dtype: torch.dtype, *, prefill: bool) -> None:
    # vllm-project/vllm#49077 proves as much of its conversions: subnormal numbers and both codes of NaN are among them.
    codes = torch.arange(256, dtype=torch.uint8).view(FP8)
    q, zeros = torch.ones(2, 256, dtype=dtype), torch.zeros(1, 256).to(FP8)
    attended = attend_one(q, zeros, codes[None], scale=1.0, prefill=prefill)
    assert torch.equal(attended.float().nan_to_num(nan=-1e9), codes.float().expand(2, -1).nan_to_num(nan=-1e9))
    # One key for each code, in its first element: scores are the codes, but for those of NaN.
    keys = torch.zeros(254, 16).to(FP8)
    keys[:, 0] = torch.cat((codes[:127], codes[128:255]))
    q = torch.zeros(1, 16, dtype=dtype)
    q[0, 0] = 1.0
    values = (torch.arange(254 * 16).view(254, 16) % 29 - 14.0).to(FP8)
    wanted = torch.softmax(keys[:, 0].double() / 64, 0) @ values.double()
    attended = attend_one(q, keys, values, scale=1 / 64, prefill=prefill)[0]
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    assert ((attended - wanted).abs() <= tolerance * 14).all()


@PHASES
@pytest.mark.parametrize("exponent", [-120, -90, -24, 17, 90])
def test_queries_of_any_size_keep_their_bits(exponent: int, *, prefill: bool) -> None:
    # bf16 has the range of fp32, fp16 has not: a product in fp16 must not show.
    torch.manual_seed(3)
    q = torch.randn(4, 32).bfloat16()
    k, v = torch.randn(2, 90, 32).to(FP8)
    expected = attend_one(q, k, v, scale=0.25, prefill=prefill)
    size = 2.0**exponent
    if exponent >= -90:  # below, scores are subnormal
        assert torch.equal(attend_one(q * size, k, v, scale=0.25 / size, prefill=prefill), expected)
    if exponent <= 17:  # above, differences of scores are rounding
        mixed = q * torch.tensor([1.0, size, 1.0, size])[:, None].bfloat16()
        attended = attend_one(mixed, k, v, scale=0.25, prefill=prefill)
        assert torch.equal(attended[[0, 2]], expected[[0, 2]])
        assert attended.isfinite().all()


@PHASES
def test_many_weights_too_small_for_fp16_still_add_up(*, prefill: bool) -> None:
    # Each is 2^-26 of the largest, where fp16 ends at 2^-25; together they are all there is of the values.
    keys, values = torch.zeros(200, 16).to(FP8), torch.full((200, 16), 448.0).to(FP8)
    keys[7, 0], values[7] = 26.0, 0.0
    q = torch.zeros(1, 16, dtype=torch.bfloat16)
    q[0, 0] = 1.0
    attended = attend_one(q, keys, values, scale=math.log(2), prefill=prefill).double()
    torch.testing.assert_close(attended, torch.full((1, 16), 199 * 448 * 2.0**-26).double(), rtol=1e-2, atol=0.0)


def test_int8_codes_are_refused_by_name() -> None:
    k_cache, v_cache = torch.zeros(2, 4, 1, 8, 20, dtype=torch.int8)
    with pytest.raises(TypeError, match=r"`k_cache` has dtype torch\.int8; kernels of a GPU take torch\.float8_e4m3fn"):
        qk_norm_rope_store(torch.zeros(1, 3, 16), k_cache, v_cache, torch.tensor([0]))
