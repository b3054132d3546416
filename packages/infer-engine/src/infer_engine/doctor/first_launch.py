"""The first two launches on a GPU: a kernel that Triton compiles, and a matrix product of torch's library.

They fail where driver, wheel and GPU do not fit together, which shows in no version alone.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from infer_engine.doctor.reporter import Reporter, describe
from infer_engine.model_runner.runner import use_device
from infer_engine.sizing import resolve_device
from infer_kernels import resolve_token_ids

FIXES: Mapping[str, str] = MappingProxyType(
    {
        "no kernel image": "install a torch wheel that was built for this GPU, an older or a newer one",
        "unsupported toolchain": "upgrade the driver: it is too old for the code that the compiler makes",
        "UNSUPPORTED_PTX": "upgrade the driver: it is too old for the code that the compiler makes",
        "ptxas": (
            "set `TRITON_PTXAS_BLACKWELL_PATH` (before compute capability 9.0 `TRITON_PTXAS_PATH`) to the `ptxas` of a "
            "CUDA that knows this GPU"
        ),
        "CUBLAS_STATUS_NOT_INITIALIZED": "free memory of the GPU; take other versions of cuBLAS from `LD_LIBRARY_PATH`",
        "out of memory": "free memory of the GPU",
        "busy or unavailable": "end the other process that uses the GPU",
    }
)
"""Remedies by a part of a message."""
_SIZE = 256


def examine_first_launches(reporter: Reporter) -> None:
    """Report whether a kernel of Triton and a product of torch compute on the GPU of the request."""
    device = resolve_device(reporter.request.device)
    use_device(device)  # Triton launches on the current GPU
    for what, launch in (("a Triton kernel", _launch_kernel), ("a matrix product", _multiply)):
        examine_launch(reporter, what, launch, device)


def examine_launch(reporter: Reporter, what: str, launch: Callable[[torch.device], bool], device: torch.device) -> None:
    """Report the outcome of `launch`, which returns whether the result is right."""
    try:
        is_right = launch(device)
    except Exception as error:  # noqa: BLE001 - of Triton's compiler, its driver, torch: each has types of its own
        fixes = [fix for part, fix in FIXES.items() if part in str(error)]
        fix = fixes[0] if fixes else "see what `nvidia-smi` says, and please report it"
        reporter.fail(what, f"cannot be launched on {device}: {describe(error)}", fix=fix)
        return
    if is_right:
        reporter.ok(what, f"computes on {device}")
    else:
        reporter.fail(what, f"computes wrongly on {device}", fix="the GPU or its driver is broken, or please report it")


def _launch_kernel(device: torch.device) -> bool:
    token_ids = torch.tensor([5, -1, -2], dtype=torch.int32, device=device)
    resolve_token_ids(token_ids, torch.tensor([7, 9], device=device))
    return token_ids.tolist() == [5, 7, 9]


def _multiply(device: torch.device) -> bool:
    """Multiply numbers whose products and sums bf16 holds."""
    ones = torch.ones(_SIZE, _SIZE, dtype=torch.bfloat16, device=device)
    return bool((torch.mm(ones, ones) == _SIZE).all())
