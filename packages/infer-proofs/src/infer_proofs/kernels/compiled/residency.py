"""The number of programs of a compiled kernel that a multiprocessor holds at once."""

from infer_proofs.kernels.compiled.ahead_of_time import CompiledKernel
from infer_proofs.kernels.compiled.gpu_cards import (
    ARCHITECTURES,
    REGISTERS_AT_ONCE,
    REGISTERS_OF_SM,
    RESERVED_SHARED_MEMORY,
)


def count_resident_programs(kernel: CompiledKernel, capability: int) -> int:
    """Return the least of what registers, shared memory, warps and the number of programs allow."""
    architecture = ARCHITECTURES[capability]
    of_warp = -(-kernel.registers * 32 // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    # A scheduler has a quarter of the registers, for the warps that are its own.
    warps = 4 * (REGISTERS_OF_SM // 4 // of_warp)
    return min(
        warps // kernel.num_warps,
        architecture.shared_memory // (kernel.shared_memory + RESERVED_SHARED_MEMORY),
        architecture.warps // kernel.num_warps,
        architecture.programs,
    )
