"""What a process may use, from /proc and /sys of both versions of cgroups as containers have them."""

import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import torch

from infer_engine import EngineConfig, sizing
from infer_engine.host_limits import HostLimits, MemoryLimit, ProcessorLimit, read_host_limits
from infer_engine.processes import processors
from infer_engine.processes.processors import limit_threads, use_processors
from infer_engine.sizing import check_weights_fit, kv_memory

MIB = 2**20
V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 23 0:2{number} {root} /sys/fs/cgroup/{name} rw,nosuid - cgroup cgroup rw,{name}\n"
UNLIMITED_V1 = str(2**63 - 4096)


def host(root: Path, *, own: str, mounts: str, files: Mapping[str, str]) -> HostLimits:
    """Return the limits that are found in made-up trees; names of `files` are below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    (root / "proc/self/mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda rw\n" + mounts)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return read_host_limits(root)


def mounts_v1(*names: str, root: str = "/") -> str:
    return "".join(V1.format(number=number, root=root, name=name) for number, name in enumerate(names))


def quota_of(limits: HostLimits) -> float | None:
    return None if limits.quota is None else limits.quota.processors


def limit_of(limits: HostLimits) -> int | None:
    return None if limits.memory is None else limits.memory.limit // MIB


def test_a_container_with_a_namespace_of_its_own_has_its_limits_at_the_mount(tmp_path: Path) -> None:
    files = {
        "memory.max": str(1536 * MIB),
        "memory.current": str(700 * MIB),
        "memory.stat": f"anon {300 * MIB}\ninactive_file {250 * MIB}\nactive_file {150 * MIB}\nfile_mapped {100 * MIB}",
        "cpu.max": "150000 100000",
    }
    found = host(tmp_path, own="0::/\n", mounts=V2.format(root="/"), files=files)
    assert found.memory is not None
    assert (found.memory.limit // MIB, found.memory.used // MIB, found.memory.free // MIB) == (1536, 400, 1136)
    assert quota_of(found) == 1.5
    assert "1,536 MiB of memory, of which 1,136 MiB are free" in found.describe()
    assert "1.5 processors of" in found.describe()


def test_the_smallest_limit_on_the_way_up_decides(tmp_path: Path) -> None:
    files = {
        "kube.slice/memory.max": str(4096 * MIB),
        "kube.slice/cpu.max": "300000 100000",
        "kube.slice/pod.slice/memory.max": str(1024 * MIB),
        "kube.slice/pod.slice/cpu.max": "max 100000",
        "kube.slice/pod.slice/app.scope/memory.max": "max",
        "kube.slice/pod.slice/app.scope/cpu.max": "800000 100000",
        "other.slice/memory.max": str(MIB),
    }
    own = "0::/kube.slice/pod.slice/app.scope\n"
    found = host(tmp_path, own=own, mounts=V2.format(root="/"), files=files)
    assert (limit_of(found), quota_of(found)) == (1024, 3.0)


def test_what_is_used_decides_between_two_limits(tmp_path: Path) -> None:
    files = {
        "a/memory.max": str(2000 * MIB),
        "a/memory.current": str(1900 * MIB),
        "a/b/memory.max": str(500 * MIB),
        "a/b/memory.current": str(100 * MIB),
    }
    assert limit_of(host(tmp_path, own="0::/a/b\n", mounts=V2.format(root="/"), files=files)) == 2000


def test_a_soft_limit_counts_and_a_share_does_not(tmp_path: Path) -> None:
    files = {
        "memory.max": "max",
        "memory.high": str(800 * MIB),
        "memory.low": str(MIB),
        "cpu.weight": "10",
        "cpu.max": "max 100000",
    }
    found = host(tmp_path, own="0::/\n", mounts=V2.format(root="/"), files=files)
    assert (limit_of(found), quota_of(found), found.threads()) == (800, None, None)


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    files = {
        "memory/docker/abc/memory.limit_in_bytes": str(1024 * MIB),
        "memory/docker/abc/memory.usage_in_bytes": str(300 * MIB),
        "memory/docker/abc/memory.stat": f"cache 1\ntotal_inactive_file {100 * MIB}\ntotal_active_file 0",
        "memory/memory.limit_in_bytes": UNLIMITED_V1,
        "cpu/docker/abc/cpu.cfs_quota_us": "50000",
        "cpu/docker/abc/cpu.cfs_period_us": "100000",
        "cpu/docker/abc/cpu.shares": "2048",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
    }
    own = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n"
    found = host(tmp_path, own=own, mounts=mounts_v1("memory", "cpu"), files=files)
    assert found.memory is not None
    assert (limit_of(found), found.memory.used // MIB, quota_of(found)) == (1024, 200, 0.5)


def test_a_mount_of_the_containers_own_group_has_its_files_at_the_top(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": str(512 * MIB)}
    mounts = mounts_v1("memory", root="/docker/abc")
    assert limit_of(host(tmp_path, own="4:memory:/docker/abc\n", mounts=mounts, files=files)) == 512


def test_a_path_of_the_host_that_is_not_mounted_here_falls_back_to_what_is(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": str(512 * MIB)}
    own = "4:memory:/kubepods/besteffort/pod1/abc\n"
    assert limit_of(host(tmp_path, own=own, mounts=mounts_v1("memory"), files=files)) == 512


@pytest.mark.parametrize("path", ["/../../elsewhere", "/../sibling"])
def test_a_path_outside_the_namespace_reads_the_mount_itself(tmp_path: Path, path: str) -> None:
    files = {"memory.max": str(256 * MIB)}
    assert limit_of(host(tmp_path, own=f"0::{path}\n", mounts=V2.format(root="/"), files=files)) == 256


def test_a_limit_above_the_mount_is_known_from_version_1s_statistics(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": UNLIMITED_V1,
        "memory/memory.stat": f"hierarchical_memory_limit {640 * MIB}",
    }
    assert limit_of(host(tmp_path, own="4:memory:/\n", mounts=mounts_v1("memory"), files=files)) == 640


def test_both_versions_side_by_side_are_read_where_their_controllers_are(tmp_path: Path) -> None:
    mounts = mounts_v1("cpu") + V2.format(root="/").replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    files = {
        "cpu/cpu.cfs_quota_us": "200000",
        "cpu/cpu.cfs_period_us": "100000",
        "unified/memory.max": str(300 * MIB),
    }
    found = host(tmp_path, own="1:cpu:/\n0::/\n", mounts=mounts, files=files)
    assert (limit_of(found), quota_of(found)) == (300, 2.0)


@pytest.mark.parametrize("own", ["", "0::/\n", "4:memory:/docker/abc\n"])
def test_without_a_mount_or_a_file_nothing_is_limited(tmp_path: Path, own: str) -> None:
    found = host(tmp_path, own=own, mounts="", files={"memory.max": "1"})
    assert (found.memory, found.quota, found.describe()) == (None, None, "")


@pytest.mark.parametrize("text", ["", "nonsense", "max", "-1 100000", "0 0"])
def test_files_with_something_else_limit_nothing(tmp_path: Path, text: str) -> None:
    files = {"cpu.max": text, "memory.max": text, "memory.stat": "file\nx y\n"}
    found = host(tmp_path, own="0::/\n", mounts=V2.format(root="/"), files=files)
    assert (found.memory, found.quota) == (None, None)


@pytest.mark.parametrize(
    ("quota", "usable", "num_parts", "threads"),
    [(1.5, 8, 1, 1), (7.65, 96, 1, 7), (0.25, 4, 1, 1), (4, 8, 2, 2), (2, 8, 4, 1), (8, 8, 1, None), (9, 8, 2, None)],
)
def test_a_quota_is_worth_its_whole_processors(quota: float, usable: int, num_parts: int, threads: int | None) -> None:
    limit = ProcessorLimit(file=Path("cpu.max"), processors=quota)
    assert HostLimits(memory=None, quota=limit, usable_processors=usable).threads(num_parts) == threads


@pytest.fixture
def quota_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a quota of two processors of eight, in which the user has not chosen a number of threads."""
    limits = HostLimits(memory=None, quota=ProcessorLimit(file=Path("cpu.max"), processors=2.0), usable_processors=8)
    monkeypatch.setattr(processors, "read_host_limits", lambda: limits)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "")


@pytest.mark.usefixtures("quota_of_two")
def test_processes_divide_the_quota_and_the_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_processors([])
    assert os.environ["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    use_processors([0, 1, 2, 3], num_parts=2)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    use_processors([])
    assert os.environ["OMP_NUM_THREADS"] == "6"
    use_processors([0, 1, 2, 3])
    assert os.environ["OMP_NUM_THREADS"] == "4"


@pytest.mark.usefixtures("quota_of_two")
def test_torch_in_a_program_of_the_users_gets_fewer_threads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    limit_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    limit_threads(1)
    assert chosen == [2]


@pytest.mark.covers("configuration/kv-cache-memory-cpu")
def test_the_kv_cache_takes_its_share_of_what_the_container_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = MemoryLimit(file=Path("memory.max"), limit=1000 * MIB, used=600 * MIB)
    limits = HostLimits(memory=limit, quota=None, usable_processors=1)
    monkeypatch.setattr(sizing, "read_host_limits", lambda: limits)
    assert psutil.virtual_memory().available > 400 * MIB
    memory = kv_memory(EngineConfig(), device=torch.device("cpu"), activation_bytes=0)
    assert (memory.free // MIB, memory.share // MIB) == (400, 100)
    of_rank = kv_memory(
        EngineConfig(data_parallel_size=2, tensor_parallel_size=2), device=torch.device("cpu"), activation_bytes=0
    )
    assert (of_rank.free // MIB, of_rank.share // MIB) == (200, 25)


def test_hidden_memory_is_what_the_system_and_the_container_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden() -> None:
        raise FileNotFoundError("/proc/meminfo")

    pages = {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": 400 * MIB // 4096, "SC_PHYS_PAGES": 1000 * MIB // 4096}
    monkeypatch.setattr(psutil, "virtual_memory", hidden)
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    for limit, expected in ((None, (100, 1000)), (300, (75, 300)), (600, (100, 600))):
        memory = limit and MemoryLimit(file=Path("memory.max"), limit=limit * MIB, used=0)
        limits = HostLimits(memory=memory or None, quota=None, usable_processors=1)
        monkeypatch.setattr(sizing, "read_host_limits", lambda limits=limits: limits)
        sizes = kv_memory(EngineConfig(), device=torch.device("cpu"), activation_bytes=0)
        assert (sizes.share // MIB, sizes.free // MIB) == expected


def test_weights_that_do_not_fit_the_container_are_refused_by_its_file() -> None:
    limit = MemoryLimit(file=Path("/sys/fs/cgroup/memory.max"), limit=1000, used=400)
    check_weights_fit(600, num_ranks=1, memory=limit)
    check_weights_fit(10**15, num_ranks=1, memory=None)
    for num_bytes, num_ranks in ((601, 1), (600, 2)):
        with pytest.raises(ValueError, match=r"limit in `/sys/fs/cgroup/memory\.max` is 1000, of which 600 are free"):
            check_weights_fit(num_bytes, num_ranks=num_ranks, memory=limit)
