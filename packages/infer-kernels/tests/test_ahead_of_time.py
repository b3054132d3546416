"""Every kernel in the configurations it ships with, compiled to machine code for three architectures without a GPU."""

import re
from dataclasses import replace
from functools import cache

import pytest
import torch
import triton

from infer_kernels.attention.triton.tile_configs import TileConfig, decode_config, prefill_config
from infer_kernels.testing.ahead_of_time import SHARED_MEMORY, CompiledKernel
from infer_kernels.testing.shipped import SHIPPED_CASES, compile_launch
from infer_kernels.testing.shipped_attention import ATTENTION_CASES, AttentionCase, attention_tiles

CAPABILITIES = [80, 90, 120]

# Bytes of stack per thread. In fp32, multiplied without tensor cores, attention stores a few values before its first
# piece of work and reads them once for each: not in the loop over keys. Triton 3.6 does the same in bf16 for heads of
# 256 on sm_90; on sm_120 it writes a word beside each use of descriptors, and decodes with heads of 64 spill too.
SPILLS_IN_FULL_PRECISION = 16
SPILLS_OF_TRITON_3_6 = {80: 0, 90: 56, 120: 88}

# The common case: Llama's shape, in a cache that a GPU engine lays out.
LLAMA = {
    prefill: AttentionCase(prefill=prefill, q_heads=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
    for prefill in (False, True)
}


@cache
def compiled(name: str, capability: int) -> CompiledKernel:
    (case,) = [case for case in SHIPPED_CASES if str(case) == name]
    return compile_launch(case.launch, capability)


def compiled_attention(case: AttentionCase, capability: int) -> CompiledKernel:
    return compiled(f"{case.op}: {case.label}", capability)


def shipped_config(case: AttentionCase, capability: int) -> TileConfig:
    table = prefill_config if case.prefill else decode_config
    return table(
        group=case.q_heads // case.kv_heads,
        head_dim=case.head_dim,
        itemsize=case.dtype.itemsize,
        capability=divmod(capability, 10),
    )


def allowed_spills(name: str, capability: int) -> int:
    if "paged" not in name:
        return 0
    of_compiler = SPILLS_OF_TRITON_3_6[capability] if triton.__version__.startswith("3.6.") else 0
    return max(of_compiler, SPILLS_IN_FULL_PRECISION if "fp32" in name else 0)


def test_shipped_cases_have_names_of_their_own() -> None:
    names = [str(case) for case in SHIPPED_CASES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", [str(case) for case in SHIPPED_CASES])
def test_kernel_fits_shared_memory_and_registers(name: str, capability: int) -> None:
    kernel = compiled(name, capability)
    assert kernel.shared_memory <= SHARED_MEMORY[capability]
    assert kernel.spilled_bytes <= allowed_spills(name, capability)


@pytest.mark.parametrize(
    "name", [str(case) for case in SHIPPED_CASES if case.op in ("paged_prefill", "linear_invariant")]
)
def test_half_precision_is_multiplied_by_warpgroups_on_hopper(name: str) -> None:
    # Rows of 1000 elements do not start on multiples of 16 elements, and take a small tile of their own.
    expected = "fp32" not in name and "1000 to" not in name
    assert ("wgmma.mma_async" in compiled(name, 90).ptx) == expected


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: f"{case.op}: {case.label}")
def test_contiguous_caches_are_read_by_descriptors_on_hopper(case: AttentionCase) -> None:
    whole_tiles = case.block_size % shipped_config(case, 90).keys == 0
    # All tiles of a window are masked, and masked ones are loaded key by key.
    expected = whole_tiles and case.dtype.itemsize == 2 and not case.token_major and case.window is None
    assert ("cp.async.bulk.tensor" in compiled_attention(case, 90).ptx) == expected


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("case", LLAMA.values(), ids=lambda case: str(case.op))
def test_each_stage_holds_a_tile_of_keys_and_values(case: AttentionCase, capability: int) -> None:
    # A block id loaded in the iteration that needs it would leave one: the stages come from loading it one ahead.
    config = replace(shipped_config(case, capability), rows=64, keys=32, num_warps=4)
    kernels = []
    for num_stages in (2, 3):
        with attention_tiles(replace(config, num_stages=num_stages)):
            kernels.append(compile_launch(case.launch, capability))
    bytes_of_stage = 2 * config.keys * case.head_dim * case.dtype.itemsize
    two, three = (kernel.shared_memory for kernel in kernels)
    assert three - two >= bytes_of_stage


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: f"{case.op}: {case.label}")
def test_keys_and_values_are_loaded_ahead_in_all_stages_but_one(case: AttentionCase, capability: int) -> None:
    # The tile that is being multiplied may be in registers.
    config = shipped_config(case, capability)
    bytes_of_stage = 2 * config.keys * case.head_dim * case.dtype.itemsize
    assert config.num_stages > 1
    assert compiled_attention(case, capability).shared_memory >= (config.num_stages - 1) * bytes_of_stage


@pytest.mark.parametrize("case", LLAMA.values(), ids=lambda case: str(case.op))
def test_two_tiles_of_keys_and_values_are_in_flight_on_hopper(case: AttentionCase) -> None:
    bytes_of_stage = 2 * shipped_config(case, 90).keys * case.head_dim * case.dtype.itemsize
    assert compiled_attention(case, 90).shared_memory >= 2 * bytes_of_stage


@pytest.mark.parametrize(
    "case",
    [case for case in ATTENTION_CASES if case.head_dim % 8 == 0 and case.dtype.itemsize == 2],
    ids=lambda case: f"{case.op}: {case.label}",
)
def test_copies_into_shared_memory_are_of_16_bytes_on_ampere(case: AttentionCase) -> None:
    widths = re.findall(
        r"cp\.async\.c[ag]\.shared\.global [^;]*?, (0x[0-9a-f]+|\d+)[,;]", compiled_attention(case, 80).ptx
    )
    assert widths
    assert {int(width, 0) for width in widths} == {16}
