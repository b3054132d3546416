"""The doctor's part `environment`: what it says of a machine, and why a GPU cannot be used."""

import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from infer_engine.doctor import devices, environment, gpu_facts
from infer_engine.doctor.environment import examine_environment
from infer_engine.doctor.gpu_facts import DriverFacts, ask_nvidia_smi, explain_unusable
from infer_engine.doctor.host import (
    HIDDEN,
    describe_memory,
    describe_processors,
    describe_variables,
    versions,
)
from infer_engine.doctor.reported_faults import faults_of
from infer_engine.executor.gpu_links import GpuLink
from infer_engine.host_limits import HostLimits, MemoryLimit, ProcessorLimit
from infer_kernels.compiler_versions import CompilerVersions
from infer_proofs.engine.doctor import examined

DRIVER = DriverFacts(
    node="/dev/nvidia0", driver_version="550.54.15", driver_cuda=(12, 4), libcuda_error="", visible_devices=None
)
GIB = 2**30


def driver_with(**values: Any) -> DriverFacts:
    return replace(DRIVER, **values)


def test_a_cpu_has_its_compiler_threads_and_facts() -> None:
    found = examined(examine_environment)
    assert found.named("failed") == set()
    assert found.named("skipped") == {"GPU"}
    assert found.named("ok") >= {"torch"}
    assert found.details.keys() >= {"versions", "system", "processors", "memory", "compilers", "variables", "driver"}
    assert found.details["device"] == "cpu"
    assert found.details["versions"]["torch"] == versions()["torch"]
    assert len(found.summaries) == 1


def test_secrets_are_said_to_be_set_and_not_shown() -> None:
    environment = {
        "INFER_API_KEY": "very secret",
        "HF_TOKEN": "hf_secret",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "TRITON_CACHE_DIR": "/cache",
        "INFER_CACHE_DIR": "/other",
        "OMP_NUM_THREADS": "4",
        "CC": "gcc-13",
        "AWS_SECRET_ACCESS_KEY": "x",
        "EDITOR": "ed",
    }
    assert describe_variables(environment) == {
        "CC": "gcc-13",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "INFER_API_KEY": HIDDEN,
        "INFER_CACHE_DIR": "/other",
        "OMP_NUM_THREADS": "4",
        "TRITON_CACHE_DIR": "/cache",
    }


def limited(*, quota: float | None = None, memory: int | None = None, usable: int = 8) -> HostLimits:
    """Return limits as a container with 1 GiB in use has them."""
    file = Path("/sys/fs/cgroup/limit")
    return HostLimits(
        memory=None if memory is None else MemoryLimit(file=file, limit=memory, used=GIB),
        quota=None if quota is None else ProcessorLimit(file=file, processors=quota),
        usable_processors=usable,
    )


def test_limits_of_a_container_are_described() -> None:
    cpuinfo = "processor\t: 0\nmodel name\t: A CPU\nflags\t\t: fpu avx2 avx512f amx_bf16 sse\n"
    limits = limited(quota=1.5, memory=4 * GIB)
    processors = describe_processors(cpuinfo, limits=limits)
    assert (processors["model"], processors["instruction_sets"]) == ("A CPU", ["avx2", "avx512f", "amx_bf16"])
    assert (processors["usable_processors"], processors["cgroup_processors"]) == (8, 1.5)
    memory = describe_memory(limits=limits)
    assert (memory["cgroup_limit"], memory["cgroup_free"]) == (4 * GIB, 3 * GIB)
    assert describe_processors(cpuinfo, limits=limited())["cgroup_processors"] is None


SYSCTL = """
hw.memsize: 17179869184
hw.optional.AdvSIMD: 1
hw.optional.arm.FEAT_BF16: 0
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_FP16: 1
hw.optional.floatingpoint: 1
hw.perflevel0.name: Performance
hw.perflevel0.physicalcpu: 4
machdep.cpu.brand_string: Apple M1
machdep.cpu.core_count: 8
"""
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               20000.
Pages active:                            300000.
Pages inactive:                          280000.
Pages speculative:                         1000.
"""


def made_program(folder: Path, name: str, printed: str) -> None:
    """Write a program that prints a text and complains of an unknown name, as `sysctl` does."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{shutil.which('cat')} <<'END'\n{printed}END\necho unknown oid >&2\nexit 1\n")
    program.chmod(0o755)


def test_a_mac_is_described_by_its_own_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no /proc; what the programs print is in the form of an Apple M1's."""
    made_program(tmp_path, "sysctl", SYSCTL)
    made_program(tmp_path, "vm_stat", VM_STAT)
    monkeypatch.setenv("PATH", str(tmp_path))
    processors = describe_processors("", limits=limited(usable=8))
    assert (processors["model"], processors["performance_cores"]) == ("Apple M1", 4)
    assert processors["instruction_sets"] == ["asimd", "asimdhp", "asimddp"]
    memory = describe_memory("", limits=limited())
    assert (memory["total"], memory["available"]) == (16 * GIB, 300_000 * 16384)


def test_a_system_without_proc_or_such_programs_is_described_by_what_python_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    processors = describe_processors("", limits=limited())
    assert processors["model"] == (platform.processor() or platform.machine())
    assert (processors["instruction_sets"], processors["performance_cores"]) == ([], None)
    assert describe_memory("", limits=limited()) == dict.fromkeys(("total", "available", "cgroup_limit", "cgroup_free"))


def test_an_arm_cpu_without_a_name_is_described_by_its_numbers() -> None:
    """Linux on ARM has no `model name`."""
    cpuinfo = "processor\t: 0\nFeatures\t: fp asimd asimddp sve i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    processors = describe_processors(cpuinfo, limits=limited())
    assert processors["model"].endswith(", implementer 0x41, part 0xd40")
    assert processors["instruction_sets"] == ["asimd", "asimddp", "i8mm", "sve"]


def test_more_threads_than_processors_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 999)
    finding = examined(examine_environment).findings["threads"]
    assert (finding.verdict, "OMP_NUM_THREADS" in finding.fix) == ("warning", True)


def test_threads_that_an_engine_lowers_to_the_quota_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(environment, "read_host_limits", lambda: limited(quota=2.5))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    finding = examined(examine_environment).findings["threads"]
    assert (finding.verdict, finding.found.partition(",")[0]) == ("ok", "2 on 8 processors")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert examined(examine_environment).findings["threads"].verdict == "warning"


def test_a_containers_limit_of_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "read_host_limits", lambda: limited(memory=8 * GIB))
    finding = examined(examine_environment).findings["memory limit"]
    assert (finding.verdict, "may use 8.0 GiB, of which 7.0 GiB are free" in finding.found) == ("ok", True)
    monkeypatch.setattr(environment, "read_host_limits", limited)
    assert "memory limit" not in examined(examine_environment).findings


def test_no_compiler_is_a_warning_that_names_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("INFER_CPU_KERNELS", raising=False)
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    finding = examined(examine_environment).findings["C++ compiler"]
    assert finding.verdict == "warning"
    assert "no-such-compiler" in finding.found
    assert "install g++" in finding.fix


def test_a_cache_that_cannot_be_written_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("INFER_CPU_KERNELS", raising=False)
    monkeypatch.setenv("INFER_CACHE_DIR", str(tmp_path / "file" / "cache"))
    finding = examined(examine_environment).findings["cache of the C++ kernels"]
    assert (finding.verdict, "INFER_CACHE_DIR" in finding.fix) == ("warning", True)


@pytest.mark.parametrize(
    ("driver", "wheel_cuda", "cause", "fix"),
    [
        ({}, None, "built for CPUs", "wheel for CUDA"),
        ({"visible_devices": ""}, "12.8", "hides every GPU", "unset"),
        ({"visible_devices": "-1"}, "12.8", "`CUDA_VISIBLE_DEVICES` is '-1'", "unset"),
        ({"libcuda_error": "no such file", "driver_cuda": None}, "12.8", "no such file", "--gpus all"),
        ({}, "13.0", "driver 550.54.15 knows CUDA up to 12.4", "torch wheel for CUDA 12, as docs/gpu.md says"),
        ({}, "12.4", "torch says so", "nvidia-smi"),
        ({}, "12.9", "torch says so", "nvidia-smi"),  # 12.4 runs it; `EESSI/software-layer#1491`
        ({"node": "/dev/dxg", "libcuda_error": "no such file"}, "13.0", "no such file", "driver in Windows"),
    ],
)
def test_the_reason_why_torch_cannot_use_a_gpu_is_said(
    driver: dict[str, Any], wheel_cuda: str | None, cause: str, fix: str
) -> None:
    found, advice = explain_unusable(driver_with(**driver), wheel_cuda=wheel_cuda, torch_says="torch says so")
    assert cause in found
    assert fix in advice


@pytest.mark.parametrize(
    ("torch_says", "visible_devices", "cause", "fix"),
    [
        ("No CUDA GPUs are available", None, "MIG is enabled, and no slice", "nvidia-smi mig -cgi"),
        ("No CUDA GPUs are available", "9", "names 1, and none of them can be used", "nvidia-smi -L"),
        ("No CUDA GPUs are available", "MIG-1a2b", "a process sees one MIG slice", "nvidia-smi -L"),
        ("Error 802: system not yet initialized", "0", "Error 802", "nvidia-fabricmanager"),  # pytorch/pytorch#35710
        ("Error 803: system has unsupported ...", None, "Error 803", "restart"),  # vllm-project/vllm#15335
        ("Error 804: forward compatibility was ...", None, "Error 804", "compat"),  # gpustack/gpustack#1254
    ],
)
def test_what_torch_says_has_a_fix_of_its_own(
    torch_says: str, visible_devices: str | None, cause: str, fix: str
) -> None:
    driver = driver_with(visible_devices=visible_devices)
    found, advice = explain_unusable(driver, wheel_cuda="12.8", torch_says=torch_says, has_mig=True)
    assert cause in found
    assert fix in advice


@pytest.mark.parametrize("library", [True, False])
def test_wsl_2_without_a_driver_of_nvidias_computes_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, library: bool
) -> None:
    """Any GPU of Windows has that node: only with NVIDIA's driver is it a failure that torch cannot use it."""
    (tmp_path / "libcuda").touch()
    monkeypatch.setattr(gpu_facts, "WSL_LIBRARY", tmp_path / ("libcuda" if library else "none"))
    driver = driver_with(node="/dev/dxg", driver_cuda=None, driver_version=None, libcuda_error="not found")
    monkeypatch.setattr(environment, "read_driver", lambda _: driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finding = examined(examine_environment, device="auto").findings["GPU"]
    assert (finding.verdict, "a GPU in WSL2, /dev/dxg" in finding.found) == ("failed" if library else "skipped", True)


def test_a_gpu_that_torch_cannot_use_is_a_failure_on_auto_and_none_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "read_driver", lambda _: DRIVER)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = examined(examine_environment, device="auto")
    assert found.named("failed") == {"GPU"}
    assert "there is an NVIDIA GPU, /dev/nvidia0, but" in found.findings["GPU"].found
    assert "--device cpu" in found.findings["GPU"].fix
    assert examined(examine_environment, device="cpu").named("failed") == set()


def test_a_gpu_that_was_asked_for_and_is_not_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "`device` is 'cuda:1'" in examined(examine_environment, device="cuda:1").findings["GPU"].found


@contextmanager
def made_gpus(
    monkeypatch: pytest.MonkeyPatch,
    *,
    free: int = 79 * GIB,
    mode: str = "Default",
    name: str = "A GPU",
    mig: str = "Disabled",
    capability: tuple[int, int] = (9, 0),
    links: Sequence[GpuLink] = (),
) -> Iterator[None]:
    """Let torch say that there are two GPUs, and `nvidia-smi` that both have a compute mode."""
    major, minor = capability
    gpu = SimpleNamespace(name=name, major=major, minor=minor, total_memory=80 * GIB, is_integrated=False)
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        patch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
        patch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 80 * GIB))
        told = {"name": name, "compute_mode": mode, "mig.mode.current": mig}
        patch.setattr(devices, "ask_nvidia_smi", lambda: [told] * 2)
        patch.setattr(environment, "read_host_limits", lambda: limited(usable=16))
        patch.setattr("infer_kernels.gpu_start.require_launcher", lambda: None)
        patch.setattr(devices, "explain_gpu_links", lambda _: links)
        patch.setattr(devices, "examine_first_launches", lambda reporter: reporter.ok("launches", "made up"))
        yield


def test_a_gpu_is_described_and_its_kernels_are_checked_by_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with made_gpus(monkeypatch):
        found = examined(examine_environment, device="cuda:1")
    assert found.named("failed") == found.named("warning") == set()
    assert found.findings["GPU"].found == "A GPU, compute capability 9.0, 80.0 GiB"
    assert "launches" in found.named("ok")
    assert (found.details["device"], found.details["kernel_processes"]) == ("cuda:1", 4)
    assert [gpu["memory"] for gpu in found.details["gpus"]] == [80 * GIB] * 2


def compilers(triton: str, ptxas: str | None) -> CompilerVersions:
    return CompilerVersions(triton=triton, ptxas=ptxas, ptxas_blackwell="13.1.80", assembled_by="ptxas")


HOPPERS = {
    "fla-org/flash-linear-attention#1262",
    "fla-org/flash-linear-attention#640, unslothai/unsloth#5276",
    "fla-org/flash-linear-attention#984",
}


@pytest.mark.parametrize(
    ("capability", "triton", "ptxas", "reports"),
    [
        ((9, 0), "3.6.0", "12.8.93", HOPPERS),
        ((9, 0), "3.6.0+fb.1", None, HOPPERS - {"fla-org/flash-linear-attention#1262"}),
        ((9, 0), "3.7.1", "13.1.80", {"fla-org/flash-linear-attention#984"}),
        ((9, 0), "3.8.0", "12.8.92", set()),
        ((9, 0), "3.9.0", "13.4.59", set()),
        ((8, 0), "3.6.0", "12.8.93", set()),
        ((10, 3), "3.8.0", "13.3.33", {"triton-lang/triton#10821"}),
        ((10, 0), "3.6.0", "12.9.86", {"triton-lang/triton#10821"}),
        ((10, 3), "3.9.0", "13.4.59", set()),
    ],
)
def test_reports_of_wrong_code_are_those_of_a_device_and_its_compilers(
    capability: tuple[int, int], triton: str, ptxas: str | None, reports: set[str]
) -> None:
    assert {fault.report for fault in faults_of(capability, compilers(triton, ptxas))} == reports


def test_what_others_reported_of_the_compilers_is_a_warning_that_our_checks_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "compiler_versions", lambda _: compilers("3.7.1", "13.1.80"))
    monkeypatch.setattr(environment, "read_driver", lambda _: driver_with(driver_cuda=(13, 0)))
    with made_gpus(monkeypatch):
        found = examined(examine_environment, device="cuda")
    assert found.named("warning") == {"reported in fla-org/flash-linear-attention#984"}
    [warning] = [each for each in found.findings.values() if each.verdict == "warning"]
    assert "here triton 3.7.1 with ptxas 13.1.80 compiles for 9.0" in warning.found
    assert "if the parts `kernels` and `engine` pass with these versions" in warning.fix
    assert found.summaries[0].endswith("on a GPU, triton 3.7.1 with ptxas 13.1.80, driver 550.54.15")
    assert found.details["kernel_compilers"] == {
        "triton": "3.7.1",
        "ptxas": "13.1.80",
        "ptxas_blackwell": "13.1.80",
        "assembled_by": "ptxas",
        "driver": "550.54.15",
    }


def test_what_keeps_gpus_from_computing_together_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with made_gpus(monkeypatch, links=[GpuLink("shared memory", "it has 64 MiB", "start it with more")]):
        found = examined(examine_environment, device="cuda")
    assert found.named("warning") == {"shared memory"}
    assert found.findings["shared memory"].fix == "start it with more"


def test_a_gpu_that_kernels_are_not_made_for_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with made_gpus(monkeypatch, name="Tesla T4", capability=(7, 5)):
        found = examined(examine_environment, device="cuda")
    assert found.named("failed") == {"GPU"}
    assert found.findings["GPU"].found.startswith("Tesla T4 has compute capability 7.5, and kernels are made for 8.0")
    assert found.details["device"] == "cpu"  # so that no kernel is tried


def test_a_gpu_without_triton_is_a_failure_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "HAS_TRITON", False)
    with made_gpus(monkeypatch):
        found = examined(examine_environment, device="cuda")
    assert found.named("failed") == {"Triton"}
    assert "install `infer-kernels[triton]`" in found.findings["Triton"].found


def test_an_exclusive_gpu_gets_one_process_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with made_gpus(monkeypatch, mode="Exclusive_Process"):
        found = examined(examine_environment, device="cuda")
        assert found.details["kernel_processes"] == 1
        assert "the GPU takes one process" in found.findings["compute mode"].found
        busy = "CUDA-capable device(s) is/are busy or unavailable"
        monkeypatch.setattr(torch.cuda, "mem_get_info", raising(RuntimeError(busy)))
        assert "a second process is refused" in examined(examine_environment, device="cuda").findings["GPU"].found


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_a_mig_slice_is_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pytorch/pytorch#130181`: a process sees one slice, so ranks cannot have several."""
    with made_gpus(monkeypatch, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", mig="Enabled"):
        found = examined(examine_environment, device="cuda")
    assert "`--tensor-parallel-size` is 1" in found.findings["MIG"].found


def test_gpus_that_the_environment_names_and_that_are_not_there_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,5")
    with made_gpus(monkeypatch):
        found = examined(examine_environment, device="cuda")
        assert "names 3, and 2 of them can be used" in found.findings["visible GPUs"].found
        assert "names 3" in examined(examine_environment, device="cuda:2").findings["GPU"].found


def test_a_gpu_that_no_process_may_use_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with made_gpus(monkeypatch, mode="Prohibited"):
        found = examined(examine_environment, device="auto")
    assert found.named("failed") == {"compute mode"}
    assert "nvidia-smi --compute-mode=DEFAULT" in found.findings["compute mode"].fix


def test_memory_that_others_use_is_a_warning_with_the_flag_to_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    with made_gpus(monkeypatch, free=30 * GIB):
        finding = examined(examine_environment, device="auto").findings["GPU memory"]
    assert (finding.verdict, "--gpu-memory-utilization" in finding.fix) == ("warning", True)
    assert "at most 0.37" in finding.fix


def test_a_gpu_beyond_the_last_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with made_gpus(monkeypatch):
        assert "there are 2 GPUs" in examined(examine_environment, device="cuda:2").findings["GPU"].found


def made_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_nvidia_smi_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_smi(tmp_path, "echo 'A GPU, 550.54, 9.0, 81559 MiB, 3 MiB, Default, Disabled'", monkeypatch)
    [gpu] = ask_nvidia_smi()
    assert (gpu["name"], gpu["compute_mode"], gpu["mig.mode.current"]) == ("A GPU", "Default", "Disabled")


@pytest.mark.parametrize("script", ["exit 9", "echo nonsense", "exec sleep 60"])
def test_an_nvidia_smi_that_fails_or_hangs_says_nothing(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_facts, "SMI_TIMEOUT_S", 0.3)
    made_smi(tmp_path, script, monkeypatch)
    assert ask_nvidia_smi() == []
