"""Every kernel in the configurations it ships with, compiled to machine code for five architectures without a GPU."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from zlib import crc32

import pytest
import torch
import triton

from infer_kernels.attention.triton.tile_configs import TileConfig, decode_config, prefill_config
from infer_kernels.checks.cases.attention.launches import ATTENTION_CASES, AttentionCase, attention_tiles
from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_proofs.kernels.compiled.ahead_of_time import SHARED_MEMORY, CompiledKernel
from infer_proofs.kernels.compiled.residency import count_resident_programs
from infer_proofs.kernels.compiled.shipped import SHIPPED_CASES, compile_launch

CAPABILITIES = [80, 89, 90, 100, 120]
QUICK = (80, 90, 120)
Case = LaunchCase | AttentionCase

# Bytes of stack per thread. On sm_100 prefill keeps scores and sums in registers beside tensor memory: it stores a few
# values where blocks are smaller than a tile, or a layer has a window, a soft cap and sinks; a draw stores two.
# Decodes store what they need once where as many programs share a multiprocessor as memory allows.
SPILLS_OF_DECODES = 16
SPILLS_OF_FP8_DECODES = 128  # of decodes whose registers are limited, outside their main loops
SPILLS_ON_BLACKWELL = {"paged_prefill": 40, "sample": 8, "linear_quantized": 32, "fused_moe_quantized": 32}
# Of heads of 256 with a window on sm_90; of 64 with a window and sinks on sm_120; of 256 rows with a soft cap on sm_89;
# where products of chunks begin, of the delta rule without warpgroups.
SPILLS_ELSEWHERE = {
    (90, "paged_prefill"): 56,
    (120, "paged_prefill"): 32,
    (89, "linear_argmax"): 8,
    (80, "gated_delta_rule"): 16,
    (89, "gated_delta_rule"): 16,
    (120, "gated_delta_rule"): 16,
}
SPILLS_OF_TRITON_3_6 = 544  # of decodes with 48 query heads of a key-value head; 120 of others, 64 of products

OTHERS = (80, 89, 100, 120)

# The common case: Llama's shape, in a cache that a GPU engine lays out.
LLAMA = [
    AttentionCase(prefill=prefill, q_heads=32, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
    for prefill in (False, True)
]


@cache
def compiled(case: Case, capability: int) -> CompiledKernel:
    return compile_launch(case.launch, capability, kernel=case.kernel if isinstance(case, LaunchCase) else None)


def other_of(case: Case) -> int:
    """Return the architecture beside sm_90 for which the full run compiles a case: drawn, so that each has a share."""
    return max(case.first_capability, OTHERS[crc32(str(case).encode()) % len(OTHERS)])


def on(capabilities: Sequence[int], cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Each case on each architecture.

    The quick run takes one case of each op for each of `QUICK`, and a third of the others for sm_90, the same ones each
    time. The full run adds the rest for sm_90 and another architecture of each case, and the long run all others.
    """
    first = {case.op: case for case in reversed(cases)}

    def marks(case: Case, capability: int) -> Sequence[pytest.MarkDecorator] | pytest.MarkDecorator:
        if capability in QUICK and case is first[case.op]:
            return ()
        if capability == 90:
            return () if crc32(str(case).encode()) % 3 == 0 else pytest.mark.full
        return pytest.mark.full if capability == other_of(case) else pytest.mark.exhaustive

    return pytest.mark.parametrize(
        ("case", "capability"),
        [
            pytest.param(
                case, capability, id=f"{case.op}: {case.label}, sm_{capability}", marks=marks(case, capability)
            )
            for capability in capabilities
            for case in cases
            if capability >= case.first_capability
        ],
    )


def shipped_config(case: AttentionCase, capability: int) -> TileConfig:
    table = prefill_config if case.prefill else decode_config
    return table(
        group=case.q_heads // case.kv_heads,
        head_dim=case.head_dim,
        itemsize=case.dtype.itemsize,
        cache_itemsize=case.cache_itemsize,
        capability=divmod(capability, 10),
    )


# Experts whose inputs are divided over programs keep one address more, which two registers may hold outside the loop.
SPILLS_OF_DIVIDED_EXPERTS = 8


def allowed_spills(case: Case, capability: int) -> int:
    on_device = SPILLS_ON_BLACKWELL.get(case.op, 0) if capability == 100 else 0
    on_device = max(on_device, SPILLS_ELSEWHERE.get((capability, case.op), 0))
    if case.op == "fused_moe_quantized" and case.label.endswith("down, 4 pairs") and capability not in (90, 100):
        return SPILLS_OF_DIVIDED_EXPERTS
    if triton.__version__.startswith("3.6."):
        return SPILLS_OF_TRITON_3_6
    of_decodes = 0
    if case.op == "paged_decode":
        is_limited = capability in (90, 100) and "fp8 cache" in case.label
        of_decodes = SPILLS_OF_FP8_DECODES if is_limited else SPILLS_OF_DECODES
    return max(on_device, of_decodes)


def test_shipped_cases_have_names_of_their_own() -> None:
    names = [str(case) for case in SHIPPED_CASES]
    assert len(set(names)) == len(names)


@pytest.mark.covers("kv-cache/tuned-head-dims")
@on(CAPABILITIES, SHIPPED_CASES)
def test_kernel_fits_shared_memory_and_registers(case: Case, capability: int) -> None:
    kernel = compiled(case, capability)
    assert kernel.shared_memory <= SHARED_MEMORY[capability]
    assert kernel.spilled_bytes <= allowed_spills(case, capability)


@on(CAPABILITIES, ATTENTION_CASES)
def test_programs_that_a_grid_counts_on_are_resident(case: AttentionCase, capability: int) -> None:
    # Those of a captured step take items by number: one that is not resident begins when the others have finished.
    config, resident = shipped_config(case, capability), count_resident_programs(compiled(case, capability), capability)
    assert config.programs_per_sm <= resident, f"make `programs_per_sm` {resident}, or the tile smaller"
    if case.dtype != torch.float32 and case.head_dim >= 64:
        assert resident <= config.programs_per_sm + 1, f"make `programs_per_sm` {resident}: registers are left over"


MULTIPLYING = (
    "paged_prefill",
    "linear_invariant",
    "linear_argmax",
    "fused_products",
    "linear_quantized",
    "linear_fp8",
    "fused_moe",
    "fused_moe_quantized",
)


@on(
    [90],
    [
        case
        for case in SHIPPED_CASES
        if case.op in MULTIPLYING and not any(other in case.label for other in ("pairs", "join", "quantize rows"))
    ],
)
def test_half_precision_is_multiplied_by_warpgroups_on_hopper(case: Case, capability: int) -> None:
    # Rows of 1000 elements, and of 720 codes of four bits, do not start on multiples of 16 bytes, and take a small tile
    # of their own; tiled rows are filled up.
    is_unaligned = re.search(r"\b1000\b|mxfp4, .*\b720 to\b", case.label) and "_tiled" not in case.label
    # A warpgroup multiplies 64 rows, whose sums of 512 elements are more than registers hold.
    is_wide = case.op == "paged_prefill" and " x 512," in case.label
    expected = case.dtype != torch.float32 and not is_unaligned and not is_wide
    assert ("wgmma.mma_async" in compiled(case, capability).ptx) == expected


@on([90], ATTENTION_CASES)
def test_contiguous_caches_are_read_by_descriptors_on_hopper(case: AttentionCase, capability: int) -> None:
    whole_tiles = case.block_size % shipped_config(case, capability).keys == 0
    # All tiles of a window are masked, and masked ones are loaded key by key.
    expected = whole_tiles and case.cache_itemsize == 2 and not case.token_major and case.window is None
    assert ("cp.async.bulk.tensor" in compiled(case, capability).ptx) == expected


@pytest.mark.covers("kv-cache/tuned-head-dims")
@pytest.mark.parametrize(
    "capability", [pytest.param(80, marks=pytest.mark.full), 90, pytest.param(120, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("case", LLAMA, ids=lambda case: str(case.op))
def test_each_stage_holds_a_tile_of_keys_and_values(case: AttentionCase, capability: int) -> None:
    # A block id loaded in the iteration that needs it would leave one: the stages come from loading it one ahead.
    config = replace(shipped_config(case, capability), rows=64, keys=32, num_warps=4)
    kernels = []
    for num_stages in (2, 3):
        with attention_tiles(replace(config, num_stages=num_stages)):
            kernels.append(compile_launch(case.launch, capability))
    bytes_of_stage = 2 * config.keys * case.head_dim * case.cache_itemsize
    two, three = (kernel.shared_memory for kernel in kernels)
    assert three - two >= bytes_of_stage


@on(CAPABILITIES, ATTENTION_CASES)
def test_keys_and_values_are_loaded_ahead_in_all_stages_but_one(case: AttentionCase, capability: int) -> None:
    # The tile that is being multiplied may be in registers.
    config = shipped_config(case, capability)
    bytes_of_stage = 2 * config.keys * case.head_dim * case.cache_itemsize
    assert config.num_stages > 1
    assert compiled(case, capability).shared_memory >= (config.num_stages - 1) * bytes_of_stage


@on([90], [case for case in ATTENTION_CASES if case.cache_itemsize == 1])
def test_codes_of_a_cache_are_converted_by_fast_instructions(case: AttentionCase, capability: int) -> None:
    # From fp16 to bf16 there is none but by way of fp32: one number at a time, on the unit of special functions.
    assert not re.findall(r"cvt[.a-z]*\.bf16\.f16", compiled(case, capability).ptx)


@on([90], LLAMA)
def test_two_tiles_of_keys_and_values_are_in_flight_on_hopper(case: AttentionCase, capability: int) -> None:
    bytes_of_stage = 2 * shipped_config(case, capability).keys * case.head_dim * case.cache_itemsize
    assert compiled(case, capability).shared_memory >= 2 * bytes_of_stage


@on([80], [case for case in ATTENTION_CASES if case.head_dim % 8 == 0 and case.dtype.itemsize == 2])
def test_copies_into_shared_memory_are_of_16_bytes_on_ampere(case: AttentionCase, capability: int) -> None:
    widths = re.findall(
        r"cp\.async\.c[ag]\.shared\.global [^;]*?, (0x[0-9a-f]+|\d+)[,;]", compiled(case, capability).ptx
    )
    assert widths
    assert {int(width, 0) for width in widths} == {16}


QUANTIZED = [case for case in SHIPPED_CASES if case.op in ("linear_quantized", "fused_moe_quantized")]


@on([80, 120], QUANTIZED)
def test_codes_are_made_numbers_with_their_least_bits(case: LaunchCase, capability: int) -> None:
    # The smallest numbers of e2m1 and e4m3 are made of subnormal ones of fp32, which `.ftz` would make zeros.
    assert not re.findall(r"\b(?:mul|add|sub|fma)\.[a-z.]*ftz", compiled(case, capability).ptx)


@on([90], [case for case in QUANTIZED if case.dtype != torch.float32 and "groups" in case.label])
def test_numbers_of_quantized_weights_stay_in_registers_on_hopper(case: LaunchCase, capability: int) -> None:
    # The operand of a warpgroup's product is registers, `{%r...}`, and not a descriptor of shared memory.
    products = re.findall(r"wgmma\.mma_async[^;]*;", compiled(case, capability).ptx)
    assert all(len(re.findall(r"\{[^}]*\}", product)) == 2 for product in products)


@on([90], [case for case in SHIPPED_CASES if case.op == "linear_fp8" and "4096" in case.label and case.kernel])
def test_fp8_is_multiplied_as_fp8_on_hopper(case: LaunchCase, capability: int) -> None:
    is_product = case.kernel == "_linear_fp8_kernel"
    assert (".f32.e4m3.e4m3" in compiled(case, capability).ptx) == is_product
