"""GPUs by NVIDIA's documents: what a multiprocessor executes in a cycle, what programs share it, and cards.

Sources: CUDA C++ Programming Guide, "Throughput of native arithmetic instructions" and "Technical specifications per
compute capability"; the architecture white papers and data sheets (tensor rates and bandwidths, dense, without
sparsity); Nsight Compute's "Pipelines" (which instructions a pipe executes). Tuning guides give a program's 1 KiB of
shared memory that belongs to the system.

Compared with copies of these tables, not with NVIDIA's own pages: what a multiprocessor holds, of all architectures
(guide of CUDA 13.0), and the rates of instructions up to sm_90 (guide of CUDA 12.6). A copy gives sm_86 twice the
16-bit rate below; microbenchmarks of an RTX 3090, and GA10x's pipes as NVIDIA describes them, give this one. Rates of
sm_100 and sm_120 were found in no table: they are taken as those of sm_90 and sm_89.
"""

from dataclasses import dataclass
from typing import Literal

Pipe = Literal["issue", "fma", "alu", "xu", "shared", "tensor"]
"""Where an instruction takes time: its issue, arithmetic, logic, conversions and special functions, shared memory."""
PIPES: tuple[Pipe, ...] = ("issue", "fma", "alu", "xu", "shared", "tensor")

ISSUES_PER_CYCLE = 4
"""Instructions of warps that a multiprocessor starts in a cycle, one for each of its four schedulers."""
SHARED_BYTES_PER_CYCLE = 128
"""Bytes that a multiprocessor's shared memory moves in a cycle."""
ALU_LANES = 64
"""Integer additions, comparisons, logic, shifts, selections, minima and packed conversions."""
INTEGER_MULTIPLY_LANES = 64
"""They take one of the two halves of the FMA pipe."""
XU_LANES = 16
"""Reciprocals, exponentials, and the conversions that are not packed (`F2F`, `I2F`, `F2I`)."""
REGISTERS_OF_SM = 65_536
REGISTERS_AT_ONCE = 256
"""A warp's registers are allocated in units of so many."""
RESERVED_SHARED_MEMORY = 1024
"""Bytes of each program's shared memory that belong to the system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A multiprocessor of one compute capability.

    Attributes:
        fp32_lanes: additions, products or both in one, a cycle.
        fp16_pairs: the same of two 16-bit numbers at once.
        mma: multiply-accumulates a cycle of a warp's tensor instruction (HMMA, IMMA, QMMA) on 16-bit numbers with fp32
            sums. Of bytes they are twice as many, of TF32 half.
        warpgroup_mma: those of a warpgroup's (HGMMA) or of the fifth generation's (UTCHMMA); 0: it has none.
        shared_memory: bytes of a multiprocessor for all its programs.
        warps: that it holds.
        programs: that it holds.
    """

    fp32_lanes: int
    fp16_pairs: int
    mma: int
    warpgroup_mma: int = 0
    shared_memory: int
    warps: int
    programs: int


ARCHITECTURES = {
    80: Architecture(fp32_lanes=64, fp16_pairs=128, mma=1024, shared_memory=167_936, warps=64, programs=32),
    86: Architecture(fp32_lanes=128, fp16_pairs=64, mma=256, shared_memory=102_400, warps=48, programs=16),
    89: Architecture(fp32_lanes=128, fp16_pairs=64, mma=256, shared_memory=102_400, warps=48, programs=24),
    # A warp's instruction reaches about 62% of a warpgroup's rate (Luo et al., "Benchmarking and Dissecting the Nvidia
    # Hopper GPU Architecture", 2024); of sm_100's nothing is published, and it is taken as the same.
    90: Architecture(
        fp32_lanes=128, fp16_pairs=128, mma=1270, warpgroup_mma=2048, shared_memory=233_472, warps=64, programs=32
    ),
    100: Architecture(
        fp32_lanes=128, fp16_pairs=128, mma=1270, warpgroup_mma=4096, shared_memory=233_472, warps=64, programs=32
    ),
    120: Architecture(fp32_lanes=128, fp16_pairs=64, mma=256, shared_memory=102_400, warps=48, programs=24),
}
"""By compute capability, as 10 * major + minor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card that has such multiprocessors.

    Attributes:
        name: as it is sold.
        sms: multiprocessors.
        clock_hz: that they keep under load: the boost clock of the data sheet, of the H100 what it keeps at 700 W.
        bandwidth: bytes/s of its memory that a copy reaches, about 90% of the data sheet's.
    """

    name: str
    sms: int
    clock_hz: float
    bandwidth: float

    @property
    def bytes_per_cycle(self) -> float:
        """Bytes of memory in a cycle, for each multiprocessor."""
        return self.bandwidth / self.sms / self.clock_hz


CARDS = {
    80: Card(name="A100 SXM 80 GB", sms=108, clock_hz=1.41e9, bandwidth=1.8e12),
    86: Card(name="RTX 3090", sms=82, clock_hz=1.695e9, bandwidth=0.84e12),
    89: Card(name="RTX 4090", sms=128, clock_hz=2.52e9, bandwidth=0.91e12),
    90: Card(name="H100 SXM", sms=132, clock_hz=1.755e9, bandwidth=3.0e12),
    100: Card(name="B200", sms=148, clock_hz=1.85e9, bandwidth=7.2e12),
    120: Card(name="RTX 5090", sms=170, clock_hz=2.407e9, bandwidth=1.6e12),
}
"""One for each architecture."""
