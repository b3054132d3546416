"""Every kernel in the configurations it ships with, compiled to machine code for three architectures without a GPU."""

from collections.abc import Callable

import pytest
import torch

from infer_kernels import paged_attention
from infer_kernels.add_rms_norm import add_rms_norm_triton
from infer_kernels.attention.tiles import TiledAttentionPlan
from infer_kernels.gated import gated_triton
from infer_kernels.norm_add_norm import norm_add_norm_triton
from infer_kernels.rms_norm import rms_norm_triton
from infer_kernels.rope import apply_rope_triton
from infer_kernels.store_kv import store_kv_triton
from infer_kernels.testing.ahead_of_time import SHARED_MEMORY, CompiledKernel, compile_only
from infer_kernels.testing.batches import random_paged_batch

CAPABILITIES = [80, 90, 120]


def launch_norms(dtype: torch.dtype) -> None:
    for hidden in (64, 576, 5376):
        x, weight = torch.empty(7, hidden, dtype=dtype), torch.empty(hidden, dtype=dtype)
        rms_norm_triton(x, weight, 1e-6, variant="llama", out=x)
        add_rms_norm_triton(x, x, weight, 1e-6, variant="llama", out=x, residual_out=x)
        norm_add_norm_triton(x, x, weight, weight, 1e-6, variant="gemma", out=x, residual_out=x)


def launch_rope(dtype: torch.dtype) -> None:
    for q_heads, kv_heads, head_dim in ((9, 3, 64), (32, 8, 96), (64, 8, 128), (4, 1, 256)):
        q, k = torch.empty(3, q_heads, head_dim, dtype=dtype), torch.empty(3, kv_heads, head_dim, dtype=dtype)
        apply_rope_triton(q, k, torch.zeros(3, dtype=torch.int32), torch.empty(9, head_dim), q_out=q, k_out=k)


def launch_gated(dtype: torch.dtype) -> None:
    gate_up, out = torch.empty(3, 3072, dtype=dtype), torch.empty(3, 1536, dtype=dtype)
    gated_triton(gate_up, activation="silu", out=out)
    gated_triton(gate_up, activation="gelu_tanh", out=out)


def launch_store_kv(dtype: torch.dtype) -> None:
    for kv_heads, head_dim, block_size in ((3, 64, 64), (8, 128, 64), (1, 256, 32), (8, 96, 5)):
        cache = torch.empty(4, kv_heads, block_size, head_dim, dtype=dtype)
        rows = torch.empty(3, kv_heads, head_dim, dtype=dtype)
        store_kv_triton(rows, rows, cache, cache, torch.zeros(3, dtype=torch.int32))


def attention_kernel(
    capability: int,
    *,
    head_dim: int,
    block_size: int,
    num_queries: int,
    dtype: torch.dtype,
    window: int | None = None,
    soft_cap: float | None = None,
) -> CompiledKernel:
    batch = random_paged_batch(
        [(num_queries, 40)],
        q_heads=8,
        kv_heads=2,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
    )
    plan = TiledAttentionPlan(
        **batch.layout, block_size=block_size, device=torch.device("cpu"), capability=divmod(capability, 10)
    )
    with compile_only(capability) as recording:
        paged_attention(batch.q, batch.k_cache, batch.v_cache, plan, scale=0.1, window=window, soft_cap=soft_cap)
    (kernel,) = recording.compiled
    return kernel


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("launch", [launch_norms, launch_rope, launch_gated, launch_store_kv])
def test_elementwise_kernels_compile_without_spills(
    launch: Callable[[torch.dtype], None], dtype: torch.dtype, capability: int
) -> None:
    with compile_only(capability) as recording:
        launch(dtype)
    assert recording.compiled
    assert {kernel.name: kernel.spilled_bytes for kernel in recording.compiled if kernel.spilled_bytes} == {}


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 64), (96, 64), (128, 64), (256, 32), (16, 16), (128, 5)])
@pytest.mark.parametrize("num_queries", [1, 40])
def test_attention_fits_shared_memory_and_registers(
    head_dim: int, block_size: int, num_queries: int, dtype: torch.dtype, capability: int
) -> None:
    kernel = attention_kernel(
        capability, head_dim=head_dim, block_size=block_size, num_queries=num_queries, dtype=dtype
    )
    assert kernel.shared_memory <= SHARED_MEMORY[capability]
    assert kernel.spilled_bytes == 0


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("num_queries", [1, 40])
@pytest.mark.parametrize("soft_cap", [None, 50.0])
def test_windowed_and_capped_attention_fit_too(num_queries: int, soft_cap: float | None, capability: int) -> None:
    kernel = attention_kernel(
        capability,
        head_dim=256,
        block_size=32,
        num_queries=num_queries,
        dtype=torch.bfloat16,
        window=512,
        soft_cap=soft_cap,
    )
    assert kernel.shared_memory <= SHARED_MEMORY[capability]
    assert kernel.spilled_bytes == 0


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_decode_keeps_two_tiles_of_keys_and_values_in_flight(capability: int) -> None:
    # A block id loaded in the iteration that needs it would leave one: the stages come from loading it one ahead.
    kernel = attention_kernel(capability, head_dim=128, block_size=128, num_queries=1, dtype=torch.bfloat16)
    bytes_of_tile = 64 * 128 * 2
    assert kernel.shared_memory >= 2 * 2 * bytes_of_tile
