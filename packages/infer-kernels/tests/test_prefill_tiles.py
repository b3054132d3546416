"""A bf16 prompt's attention in tiles: its result, its precision, and that it leaves torch's settings alone."""

import pytest
import torch

from infer_kernels import paged_attention, plan_attention
from infer_kernels.attention.cpu.prefill_tiles import TILE
from infer_kernels.reference import paged_attention_reference
from infer_kernels.testing.batches import PagedBatch, random_paged_batch
from infer_kernels.testing.closeness import assert_attention_close

PROMPTS = [(TILE + 1, TILE + 1), (5, 300), (TILE, 2 * TILE), (1, 1), (2 * TILE + 7, 3 * TILE)]  # (rows, tokens)


@pytest.fixture(autouse=True)
def bf16_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the path of a CPU with bf16 instructions; one without them computes its products in fp32."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)


def prompts(*, kv_heads: int = 2, head_dim: int = 32, query_scale: float = 1.0) -> PagedBatch:
    batch = random_paged_batch(
        PROMPTS,
        q_heads=3 * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=16,
        dtype=torch.bfloat16,
        cache_dtype=torch.float16,
        transposed_keys=True,
    )
    batch.q.mul_(query_scale)
    return batch


def attend(batch: PagedBatch, *, window: int | None = None, soft_cap: float | None = None) -> torch.Tensor:
    plan = plan_attention(
        **batch.layout,
        is_prefill=torch.ones(len(PROMPTS), dtype=torch.bool),
        block_size=batch.block_size,
        device="cpu",
    )
    return paged_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, scale=batch.q.shape[2] ** -0.5, window=window, soft_cap=soft_cap
    )


def reference(batch: PagedBatch, *, window: int | None = None, soft_cap: float | None = None) -> torch.Tensor:
    caches = (batch.k_cache.float(), batch.v_cache.float())
    scale = batch.q.shape[2] ** -0.5
    return paged_attention_reference(
        batch.q.float(), *caches, **batch.layout, scale=scale, window=window, soft_cap=soft_cap
    ).to(batch.q.dtype)


@pytest.mark.parametrize("window", [None, 1, 100, TILE, TILE + 1, 1000])
@pytest.mark.parametrize("soft_cap", [None, 0.7])
def test_prompts_with_and_without_history_equal_the_reference(window: int | None, soft_cap: float | None) -> None:
    batch = prompts()
    found = attend(batch, window=window, soft_cap=soft_cap)
    assert_attention_close(found, reference(batch, window=window, soft_cap=soft_cap))


@pytest.mark.parametrize("window", [None, 100])
def test_a_machine_without_bf16_instructions_attends_to_the_same(
    monkeypatch: pytest.MonkeyPatch, window: int | None
) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    batch = prompts()
    assert_attention_close(attend(batch, window=window), reference(batch, window=window))


def test_large_scores_keep_fp32s_bits() -> None:
    batch = prompts(head_dim=64, query_scale=16.0)  # scores of a standard deviation of 16
    exact = reference(batch).float()
    error = (attend(batch).float() - exact).norm() / exact.norm()
    assert error < 5e-3  # scores rounded to bf16 make it 1.6e-2


def test_products_of_fp32_matrices_are_exact_again_afterwards() -> None:
    x, y = torch.randn(4, 384, 64), torch.randn(4, 64, 384)
    before = torch.bmm(x, y)
    attend(prompts())
    assert torch.equal(torch.bmm(x, y), before)
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"  # type: ignore[attr-defined]  # torch has no types for it


@pytest.mark.parametrize("window", [None, 40])
def test_lengths_have_few_shapes_of_products_among_them(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    # oneDNN keeps the code that it makes for each shape: a server would grow with every new length.
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)  # or SDPA would attend
    head_dim = 16
    met: set[tuple[int, ...]] = set()
    multiply = torch.bmm

    def note(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        met.add((*x.shape[1:], y.shape[2]))
        return multiply(x, y)

    monkeypatch.setattr(torch, "bmm", note)
    for history in (0, 5, 64):
        for tokens in range(1, 2 * TILE + 1):
            batch = random_paged_batch(
                [(tokens, history + tokens)],
                q_heads=2,
                kv_heads=1,
                head_dim=head_dim,
                block_size=16,
                dtype=torch.bfloat16,
                cache_dtype=torch.float16,
                transposed_keys=True,
            )
            plan = plan_attention(
                **batch.layout, is_prefill=torch.ones(1, dtype=torch.bool), block_size=batch.block_size, device="cpu"
            )
            paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.25, window=window)
    assert 0 < len(met) <= 50
    assert all(size % 32 == 0 or size == head_dim for shape in met for size in shape)
