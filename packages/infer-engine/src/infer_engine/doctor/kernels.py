"""The part `kernels`: every op that the model uses, on its device, against its reference.

On a GPU the checks are divided among several processes, because each compiles its kernels on one core; the compiled
kernels stay in Triton's cache, where the server finds them. On a CPU the C++ kernels are compiled first, if they are
not yet.
"""

import time
from collections.abc import Sequence

import torch

from infer_engine.doctor.model_ops import ops_of, quantized_ops_of
from infer_engine.doctor.model_reading import read_model, without_weights
from infer_engine.doctor.reporter import Reporter, describe
from infer_engine.gpu_visibility import ask_driver
from infer_engine.model_runner.loading.kv_cache_dtype import choose_kv_cache_dtype
from infer_engine.sizing import choose_block_size, resolve_device
from infer_kernels.checks import CheckImpossibleError, SelfCheck, model_checks
from infer_kernels.cpu.calls import DTYPES
from infer_kernels.cpu.compilation import SWITCH, is_switched_off
from infer_kernels.cpu.library import library
from infer_kernels.gpu_start import prepare_gpu
from infer_models import CheckpointError

NUM_JOINS_ON_GPU, NUM_JOINS_ON_CPU = 1000, 20


def examine_kernels(reporter: Reporter) -> None:
    """Report whether the model's ops agree with their references on the device of the request."""
    try:
        read = read_model(reporter)
        device = resolve_device(reporter.request.device)
        if device.type == "cuda":
            prepare_gpu(device, driver_cuda=ask_driver()[0])
        kv_dtype = choose_kv_cache_dtype(read.engine_config, device=device, dtype=read.dtype)
        quantized = quantized_ops_of(without_weights(read))
    except (CheckpointError, ValueError) as error:
        reporter.skip("kernels", str(error))
        reporter.finish("not checked")
        return
    try:
        ops = ops_of(
            read.config,
            dtype=read.dtype,
            block_size=choose_block_size(read.engine_config, head_dim=read.config.head_dim),
            quantized=quantized,
            kv_dtype=None if kv_dtype == read.dtype else kv_dtype,
        )
    except RuntimeError as error:
        fix = "let every module of the family compute any number of rows, and none"
        reporter.warn("ops", f"not known, as a step without tokens fails: {describe(error)}", fix=fix)
        reporter.finish("not checked")
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        reporter.skip("Triton kernels", "the CPU computes")
        _report_library(reporter, read.dtype)
        if quantized and library(DTYPES[read.dtype]) is not None:
            exactness = "inputs have eight bits, the few outliers of a row up to 23; their products are summed exactly"
            reporter.ok("quantized layers", exactness)
    checks = model_checks(ops, num_joins=NUM_JOINS_ON_GPU if on_gpu else NUM_JOINS_ON_CPU)
    own = share_of(checks, index=reporter.request.share_index, count=reporter.request.num_shares)
    num_right = run_checks(reporter, own, device)
    if on_gpu and reporter.request.share_index == 0:
        _check_other_devices(reporter, checks, device)
    summary = f"{num_right} checks of {len({check.op for check in own})} ops agree with their references"
    if num_right == len(own):
        reporter.ok("ops", summary)
    reporter.finish(summary)


def share_of(checks: Sequence[SelfCheck], *, index: int, count: int) -> list[SelfCheck]:
    """Return the checks of some of the ops: an op's kernels are then compiled by one process only."""
    names = list(dict.fromkeys(check.op for check in checks))
    return [check for check in checks if names.index(check.op) % count == index]


def run_checks(reporter: Reporter, checks: Sequence[SelfCheck], device: torch.device) -> int:
    """Run `checks` while there is time; report wrong ones and those left out, and return the number that agree."""
    num_right = 0
    with torch.inference_mode():
        for index, check in enumerate(checks):
            if reporter.seconds_left <= 0:
                left_out = len(checks) - index
                reporter.unfinished(f"{left_out} of {len(checks)} checks were left out: no time")
                break
            num_right += _is_right(reporter, check, device)
    return num_right


def _is_right(reporter: Reporter, check: SelfCheck, device: torch.device) -> bool:
    """Run one check, report a fault, and return whether it agrees."""
    try:
        check.run(device)
    except CheckImpossibleError as error:
        reporter.skip(str(check), str(error))
        return False
    except AssertionError as error:
        fix = "this machine computes wrong results for this model: please report it"
        reporter.fail(str(check), f"on {device} it differs from its reference: {error}", fix=fix)
        return False
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        reporter.fail(str(check), f"on {device}: {describe(error)}", fix="please report it")
        return False
    return True


def _report_library(reporter: Reporter, dtype: torch.dtype) -> None:
    """Compile the C++ kernels of the model's dtype, or load them from their cache, and report which they are."""
    if is_switched_off():
        reporter.skip("C++ kernels", f"`{SWITCH}` switches them off; plain PyTorch is checked")
        return
    began = time.monotonic()
    found = library(DTYPES[dtype])
    seconds = time.monotonic() - began
    if found is None:
        fix = "the log of `infer-server` says why; plain PyTorch computes, several times slower"
        reporter.warn("C++ kernels", "they cannot be compiled or loaded; plain PyTorch is checked", fix=fix)
        return
    reporter.details(
        cpu_kernels={
            "instruction_set": found.instruction_set,
            "is_amx_refused": found.is_amx_refused,
        }
    )
    made_for = f"for {found.instruction_set}"
    if found.is_amx_refused:
        made_for += ", without AMX, which this system does not grant"
    reporter.ok("C++ kernels", f"{made_for}, ready after {seconds:.1f} s")


def _check_other_devices(reporter: Reporter, checks: Sequence[SelfCheck], device: torch.device) -> None:
    """Run a check of the first two ops on the other GPUs: kernels must go where their tensors are."""
    chosen = list({check.op: check for check in reversed(checks)}.values())[-2:]
    for index in range(torch.cuda.device_count()):
        other = torch.device("cuda", index)
        if other.index == (device.index or 0):
            continue
        torch.cuda.set_device(other)
        run_checks(reporter, chosen, other)
    torch.cuda.set_device(device)
