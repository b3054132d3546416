"""Servers in cgroups with limits, and in containers that have little of a machine.

Sources: vllm-project/vllm#45086, Comfy-Org/ComfyUI#14938, sgl-project/sglang#40066, openclaw/openclaw#109585 (memory);
ollama/ollama#17916, llmmanorg/llmman#322, tobocop2/lilbee#660 (processors); h2oai/h2o-llmstudio#974 (users).
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import infer_models
from infer_kernels.cpu import library

CGROUPS = Path("/sys/fs/cgroup")
LIMIT = 1536 * 2**20
Group = Callable[..., Path]


@pytest.fixture
def cgroup() -> Iterator[Group]:
    """Return a function that makes a cgroup of a controller with a file's text; skipped where none can be made."""
    made: list[Path] = []

    def make(controller: str, **texts: str) -> Path:
        top = CGROUPS / controller if (CGROUPS / controller).is_dir() else CGROUPS
        group = top / f"infer-test-{os.getpid()}-{len(made)}"
        try:
            group.mkdir()
            made.append(group)
            version = "v1" if (group / "cgroup.clone_children").exists() else "v2"
            name, _, text = texts[version].partition("=")
            (group / name).write_text(text)
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        return group

    yield make
    deadline = time.monotonic() + 20
    for group in made:
        while group.exists() and time.monotonic() < deadline:
            try:
                group.rmdir()
            except OSError:  # its processes are ending
                time.sleep(0.05)


def run_in(group: Path, program: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of Python inside a cgroup."""
    entering = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(__import__('os').getpid()))\n"
    return subprocess.run(
        [sys.executable, "-c", entering + program, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose keys and values of one long sequence take more than the limit."""
    folder = tmp_path_factory.mktemp("wide")
    demo = Path(infer_models.__file__).parent / "demo"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, folder)
    config = json.loads((demo / "config.json").read_text())
    heads = {"num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "num_hidden_layers": 4}
    (folder / "config.json").write_text(json.dumps(config | heads | {"max_position_embeddings": 131072}))
    return folder


FILL = """
import sys
from infer_engine import LLM, SamplingParams
llm = LLM(sys.argv[1], load_format="dummy", device="cpu")
prompts = [[5 + (i * 37 + k * 11) % 900 for k in range(min(1000, llm.info.max_seq_len - 8))] for i in range(5)]
done = llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)
print(llm.info.num_kv_blocks * llm.info.block_size * 4 * 2 * 32 * 128 * 2, len(done))
"""


def test_a_server_in_a_small_cgroup_fills_its_cache_and_lives(cgroup: Group, wide: Path) -> None:
    group = cgroup("memory", v1=f"memory.limit_in_bytes={LIMIT}", v2=f"memory.max={LIMIT}")
    run = run_in(group, FILL, str(wide), OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    kv_bytes, num_done = map(int, run.stdout.split())
    assert (kv_bytes < LIMIT / 3, num_done) == (True, 5)


def test_weights_larger_than_a_cgroup_are_refused_and_not_killed(cgroup: Group, wide: Path, tmp_path: Path) -> None:
    shutil.copytree(wide, tmp_path / "large")
    config = json.loads((wide / "config.json").read_text())
    large = config | {"num_hidden_layers": 60, "intermediate_size": 40_000, "torch_dtype": "float32"}
    (tmp_path / "large/config.json").write_text(json.dumps(large))
    group = cgroup("memory", v1=f"memory.limit_in_bytes={LIMIT}", v2=f"memory.max={LIMIT}")
    run = run_in(group, FILL, str(tmp_path / "large"), INFER_CPU_KERNELS="0", OMP_NUM_THREADS="1")
    assert run.returncode == 1
    assert "the container's limit in `" in run.stderr
    assert f"is {LIMIT}, of which" in run.stderr


THREADS = """
import os, torch
from infer_engine.processes.processors import limit_threads
for chosen in ("", "4"):
    os.environ["OMP_NUM_THREADS"] = chosen
    torch.set_num_threads(4)
    limit_threads(1)
    print(torch.get_num_threads())
"""


def test_a_quota_decides_the_threads(cgroup: Group) -> None:
    group = cgroup("cpu", v1="cpu.cfs_quota_us=100000", v2="cpu.max=100000 100000")
    usable = len(os.sched_getaffinity(0))
    run = run_in(group, THREADS, OMP_NUM_THREADS="")
    assert run.stdout.split() == ["1" if usable > 1 else "4", "4"], run.stderr


def test_a_library_that_may_not_be_mapped_is_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise OSError("kernels.so: failed to map segment from shared object")

    monkeypatch.delenv("INFER_CPU_KERNELS", raising=False)
    module = sys.modules[library.__module__]  # its package has the function under the same name
    monkeypatch.setattr(module, "build", refuse)
    monkeypatch.setattr(module, "_libraries", {})
    assert library("float32") is None
    assert "may be mounted `noexec`: set `INFER_CACHE_DIR`" in caplog.text


def test_a_server_without_home_user_or_cache_answers(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "Nowhere/None", "INFER_CPU_KERNELS": "0"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "file/cache"), "HOME": "/nonexistent"}
    command = [sys.executable, "-m", "infer_server", "--port", "0", "--kv-cache-memory", "16MiB"]
    with subprocess.Popen(
        command, env=environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    ) as server:
        try:
            assert server.stdout is not None
            url = next(line.split()[-1].decode() for line in server.stdout if line.startswith(b"listens on"))
            reply = httpx.post(f"{url}/v1/completions", json={"prompt": "A", "max_tokens": 2}, timeout=60)
            assert reply.status_code == 200
            server.terminate()
            assert server.wait(timeout=30) == 0
        finally:
            server.kill()
