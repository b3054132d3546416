"""A device as launchers see it: its architecture and how many programs it runs at once."""

from dataclasses import dataclass

import torch

from infer_kernels.optional_triton import driver, triton


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's compute capability, such as (9, 0), and its number of multiprocessors."""

    capability: tuple[int, int]
    num_sms: int


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
