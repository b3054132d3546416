"""Counting what the main loop of a kernel costs, on short pieces of machine code and on kernels that ship."""

from collections import Counter

import pytest

from infer_proofs.kernels.compiled.ahead_of_time import CompiledKernel
from infer_proofs.kernels.compiled.gpu_cards import ARCHITECTURES, CARDS
from infer_proofs.kernels.compiled.instruction_counts import LoopCount, count_loop
from infer_proofs.kernels.compiled.residency import count_resident_programs
from infer_proofs.kernels.compiled.sass import find_loops, innermost
from infer_proofs.kernels.compiled.tensor_products import mean_products

NESTED = """
.text._kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_2:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
.L_x_1:
        /*0020*/                   FFMA R8, R4, R5, R8 ;
        /*0030*/              @!PT LDS RZ, [RZ] ;
        /*0040*/               @P0 BRA `(.L_x_1) ;
        /*0050*/              @!P1 BRA `(.L_x_2) ;
.L_x_3:
        /*0060*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3], R4 ;
        /*0070*/              @!P0 BRA `(.L_x_3) ;
        /*0080*/                   EXIT ;
"""


def kernel_of(*, registers: int = 64, shared_memory: int = 0, num_warps: int = 4, ptx: str = "") -> CompiledKernel:
    return CompiledKernel(
        name="kernel",
        registers=registers,
        spilled_bytes=0,
        shared_memory=shared_memory,
        num_warps=num_warps,
        num_stages=3,
        ptx=ptx,
        machine_code=b"",
        constants={"BLOCK_ROWS": 16},
    )


def count_of(*lines: str, capability: int = 90, num_warps: int = 4, ptx: str = "") -> LoopCount:
    body = "".join(f"        /*{number:04x}*/    {line} ;\n" for number, line in enumerate(lines))
    (loop,) = find_loops(f".L_x_1:\n{body}        /*ffff*/  @P0 BRA `(.L_x_1) ;\n")
    return count_loop(loop, kernel_of(num_warps=num_warps, ptx=ptx), capability)


def test_loops_that_hold_others_and_those_that_wait_are_told_apart() -> None:
    outer, inner = find_loops(NESTED)
    assert [len(loop.body) for loop in (outer, inner)] == [5, 3]
    assert innermost([outer, inner]) == [inner]
    assert [each.never for each in inner.body] == [False, True, False]


def test_each_pipe_takes_its_own_instructions() -> None:
    count = count_of("FFMA R1, R2, R3, R4", "IMAD R1, R2, R3, R4", "LOP3.LUT R1, R2, R3", "MUFU.EX2 R1, R2")
    assert count.ops == Counter(["FFMA", "IMAD", "LOP3", "MUFU", "BRA"])
    # 4 warps are 128 threads: of 128 lanes, 64 lanes for products of integers, 64 and 16.
    assert count.cycles == {"issue": 5.0, "fma": 2.0, "alu": 2.0, "xu": 8.0, "shared": 0.0, "tensor": 0.0}
    assert count.bound == "xu"


@pytest.mark.parametrize(
    ("line", "products", "tensor", "shared"),
    [
        ("HMMA.16816.F32.BF16 R4, R8, R10, R4", 4 * 2048, 4 * 2048 / 1270, 0),
        ("IMMA.16832.S8.S8 R4, R8.ROW, R10.COL, R4", 4 * 4096, 4 * 4096 / 2540, 0),
        ("HGMMA.64x128x16.F32.BF16 R24, R4, gdesc[UR8], R24", 64 * 128 * 16, 64, 128 * 32 / 128),
        ("HGMMA.64x16x16.F32.BF16 R24, gdesc[UR8], R24", 64 * 16 * 16, 8, (64 + 16) * 32 / 128),
        ("QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24", 64 * 64 * 32, 32, (64 + 64) * 32 / 128),
    ],
)
def test_tensor_cycles_follow_from_shape_and_dtype(line: str, products: int, tensor: float, shared: float) -> None:
    count = count_of(line)
    assert (count.products, count.elements) == (products, products // 16)
    assert count.cycles["tensor"] == pytest.approx(tensor)
    assert count.cycles["shared"] == pytest.approx(shared)


def test_shapes_of_the_fifth_generation_are_in_ptx() -> None:
    descriptor = 128 // 16 << 24 | 256 // 8 << 17 | 0x10
    ptx = f"mov.b32 \t%r7, {descriptor};\n@%p1 tcgen05.mma.cta_group::1.kind::f16 [ %r5 + 0 ], %rd1, %rd2, %r7, %p2;\n"
    assert mean_products(ptx) == {False: (128, 256)}
    count = count_of("UTCHMMA gdesc[UR4], gdesc[UR8], tmem[UR6], tmem[UR72], idesc[UR73], UPT", capability=100, ptx=ptx)
    assert count.products == 128 * 256 * 16
    assert count.cycles["tensor"] == 128


def test_bytes_are_those_of_all_threads_and_of_bulk_loads() -> None:
    ptx = (
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 32768;\n"
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd1, {%r3, %r4}], [%r1];\n"
        "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r5], [%rd1, {%r3, %r4}], [%r1];\n"
    )
    assert count_of("UTMALDG.2D [UR8], [UR4]", "UTMALDG.2D [UR8], [UR4]", ptx=ptx).loaded_bytes == 32768
    widths = {"LDG.E.128": 16, "LDG.E.U8": 1, "LDG.E": 4, "LDGSTS.E.BYPASS.128": 16, "LDGSTS.E.64": 8}
    for code, width in widths.items():
        assert count_of(f"{code} R4, desc[UR4][R2.64]").loaded_bytes == 128 * width


def test_bandwidth_is_bound_by_issue_at_the_share_that_is_reached() -> None:
    count = count_of("HGMMA.64x16x16.F32.BF16 R24, R4, gdesc[UR8], R24", *["LOP3.LUT R1, R2, R3"] * 10, "NOP")
    # 13 instructions of 4 warps: 13 cycles of issue, but 20 of logic.
    assert count.bound == "alu"
    assert count.instructions_an_element == 13 * 128 / 1024
    card = CARDS[90]
    assert count.bandwidth_bound(card, 4.0) == pytest.approx(512 / 20 * card.clock_hz * 132)
    assert count.least_cycles(0.25) == 52


@pytest.mark.parametrize(
    ("capability", "registers", "shared_memory", "num_warps", "resident"),
    [
        (90, 168, 71_712, 4, 3),  # 12 warps of registers, and 3 times the memory
        (90, 169, 0, 4, 2),
        (90, 255, 0, 8, 1),
        (80, 64, 82_944, 4, 2),
        (80, 64, 82_945, 4, 1),
        (120, 32, 0, 8, 6),  # 48 warps
        (86, 16, 0, 1, 16),
    ],
)
def test_resident_programs_are_the_least_of_all_limits(
    capability: int, registers: int, shared_memory: int, num_warps: int, resident: int
) -> None:
    kernel = kernel_of(registers=registers, shared_memory=shared_memory, num_warps=num_warps)
    assert count_resident_programs(kernel, capability) == resident


def test_every_architecture_has_a_card() -> None:
    assert CARDS.keys() == ARCHITECTURES.keys()
