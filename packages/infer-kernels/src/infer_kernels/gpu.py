"""A device as launchers see it: its architecture and how many programs it runs at once."""

from dataclasses import dataclass

import torch

from infer_kernels.optional_triton import driver, triton

_MAJORS_OF_SHARED_MEMORY = {9: 228, 10: 228, 11: 228}
_SHARED_MEMORY = {(8, 0): 164, (8, 7): 164}
"""KiB of an SM's shared memory, of capabilities and else of their major versions (CUDA C++ Programming Guide, technical
specifications). Others have at least 100.
"""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's compute capability, such as (9, 0), and its number of multiprocessors."""

    capability: tuple[int, int]
    num_sms: int

    @property
    def tile_major(self) -> int:
        """The major version under which tables have its product tiles: 9 for all that have as much shared memory."""
        return 9 if shared_memory_kib(self.capability) >= 228 else self.capability[0]


def shared_memory_kib(capability: tuple[int, int]) -> int:
    """Return the KiB of shared memory of an SM, at least, also of capabilities that are not listed."""
    return _SHARED_MEMORY.get(capability) or _MAJORS_OF_SHARED_MEMORY.get(capability[0], 100)


def describe_gpu(device: torch.device) -> Gpu:
    """Describe `device`, or what stands in for a GPU where Triton interprets or only compiles."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Gpu((properties.major, properties.minor), properties.multi_processor_count)
    if triton.knobs.runtime.interpret:
        return Gpu((9, 0), 4)
    simulated = driver.active
    properties = simulated.utils.get_device_properties(simulated.get_current_device())
    return Gpu(divmod(simulated.get_current_target().arch, 10), properties["multiprocessor_count"])
