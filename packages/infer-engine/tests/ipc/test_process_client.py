"""The core in a process of its own: the same tokens, and the right end if either process dies, stops or is refused."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from infer_engine import build_engine
from infer_engine.protocol import (
    CheckpointUnusableError,
    Engine,
    EngineConfig,
    EngineStatus,
    EngineUnavailableError,
    GenerateRequest,
    InvalidRequestError,
    SamplingParams,
)
from infer_proofs.engine.cores import GIVE_UP_S, read, tokens_of

LONG = SamplingParams(max_tokens=100, temperature=0, ignore_eos=True)
Running = tuple[Engine, psutil.Process]


pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture(scope="module")
def folder(folder_of: Callable[[str], Path]) -> Path:
    """A servable tiny Llama."""
    return folder_of("llama")


def config_of(folder: Path, *, step_timeout_s: float = 60.0, max_seq_len: int | None = 128) -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        dtype="float32",
        seed=1,
        max_seq_len=max_seq_len,
        kv_cache_memory="8MiB",
        step_timeout_s=step_timeout_s,
    )


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[Running]:
    """Start an engine; yield it and its core's process."""
    before = set(psutil.Process().children())
    async with build_engine(config) as engine:
        [core] = set(psutil.Process().children()) - before
        yield engine, core


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(folder: Path) -> AsyncIterator[Running]:
    """An engine that tests share which leave its core as it is."""
    async with running(config_of(folder)) as engine_and_core:
        yield engine_and_core
    assert not engine_and_core[1].is_running()


in_the_shared_loop = pytest.mark.asyncio(loop_scope="module")


def requests(*params: SamplingParams) -> list[GenerateRequest]:
    return [GenerateRequest(prompt=[3 + i, 7, 5], params=each) for i, each in enumerate(params)]


@in_the_shared_loop
async def test_a_process_gives_the_same_tokens_as_a_thread(folder: Path, shared: Running) -> None:
    asked = requests(
        SamplingParams(max_tokens=20, temperature=0, logprobs=2),
        SamplingParams(max_tokens=20, seed=5, n=2, logit_bias={9: 3.0}, frequency_penalty=0.5),
        SamplingParams(max_tokens=20, top_p=0.9, top_k=20, stop=("zz",), stop_token_ids=(4,)),
    )
    async with build_engine(config_of(folder), engine_process=False) as in_a_thread:
        made = [[await read(stream) for stream in await e.submit(asked)] for e in (in_a_thread, shared[0])]
    assert [tokens_of(outputs) for outputs in made[0]] == [tokens_of(outputs) for outputs in made[1]]
    listed = [[[i for i, _ in each.top] for o in outputs[0] for each in o.logprobs or ()] for outputs in made]
    assert listed[0] == listed[1]
    assert len(listed[0]) == 20
    assert len(made[0]) == 4


@in_the_shared_loop
async def test_a_request_that_no_message_can_carry_is_refused_and_leaves_the_others_alone(shared: Running) -> None:
    engine, _ = shared
    unsendable = SamplingParams(max_tokens=2, stop=("\ud800",))
    [other] = await engine.submit(requests(LONG))
    with pytest.raises(InvalidRequestError, match="cannot be sent to the engine's process"):
        await engine.submit(requests(LONG, unsendable))
    assert {sequence.request_id for sequence in (await engine.inspect()).sequences} <= {other.request_id}
    assert len(tokens_of(await read(other))) == 100


@in_the_shared_loop
async def test_whole_numbers_of_any_size_reach_the_process(shared: Running) -> None:
    engine, _ = shared
    [stream] = await engine.submit(requests(SamplingParams(max_tokens=2, top_k=2**70, ignore_eos=True)))
    assert len(tokens_of(await read(stream))) == 2


@pytest.mark.full  # starts a process
async def test_modules_in_the_working_directory_are_not_the_engines(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise RuntimeError('not the standard library')")
    monkeypatch.chdir(tmp_path)
    async with running(config_of(folder)) as (engine, _):
        assert engine.status is EngineStatus.READY


async def test_a_killed_core_ends_every_stream_and_the_engine_is_dead(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(config_of(folder)) as (engine, core):
        [running_one] = await engine.submit(requests(LONG))
        await anext(aiter(running_one))
        core.suspend()  # so that none ends by itself
        streams = await engine.submit(requests(LONG, LONG))
        core.kill()
        for stream in streams:
            last = (await read(stream))[-1]
            assert last.error is not None
            assert last.error.code == "engine_dead"
        assert engine.status is EngineStatus.DEAD
        with pytest.raises(EngineUnavailableError, match="dead"):
            await engine.submit(requests(LONG))
        with pytest.raises(EngineUnavailableError, match="dead"):
            await engine.inspect()
    assert "ended with exit code -9" in caplog.text


@pytest.mark.full  # starts a process
async def test_a_core_that_is_killed_while_it_has_no_request_is_noticed_too(folder: Path) -> None:
    async with running(config_of(folder)) as (engine, core):
        core.kill()
        async with asyncio.timeout(GIVE_UP_S):
            while engine.status is not EngineStatus.DEAD:  # noqa: ASYNC110 - the engine tells a status, no events
                await asyncio.sleep(0.01)


@pytest.mark.full  # starts a process
async def test_a_stopped_core_is_stuck(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(config_of(folder, step_timeout_s=3.0)) as (engine, core):
        core.suspend()
        [stream] = await engine.submit(requests(LONG))
        last = (await read(stream))[-1]
        assert last.error is not None
        assert last.error.code == "engine_stuck"
        assert engine.status is EngineStatus.DEAD
        core.resume()
    assert f"process, {core.pid}, is silent" in caplog.text


@in_the_shared_loop
async def test_a_suspended_core_holds_up_no_event_loop_and_loses_nothing(shared: Running) -> None:
    engine, core = shared
    params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)
    core.suspend()
    try:
        prompts = [GenerateRequest(prompt=[5] * 120, params=params) for _ in range(500)]
        async with asyncio.timeout(GIVE_UP_S):  # more than the socket holds
            streams = await engine.submit(prompts)
    finally:
        core.resume()
    assert [len(tokens_of(await read(stream))) for stream in streams] == [1] * 500


@in_the_shared_loop
async def test_signals_that_end_a_server_leave_its_core_to_the_server(shared: Running) -> None:
    engine, core = shared
    [stream] = await engine.submit(requests(LONG))
    for number in (signal.SIGINT, signal.SIGTERM):
        core.send_signal(number)
    assert len(tokens_of(await read(stream))) == 100


@pytest.mark.full  # starts a process
async def test_closing_ends_the_process_and_leaves_no_file_open(folder: Path) -> None:
    num_files = psutil.Process().num_fds()
    async with running(config_of(folder)) as (engine, core):
        [stream] = await engine.submit(requests(LONG))
    assert psutil.Process().num_fds() == num_files
    assert engine.status is EngineStatus.STOPPED
    assert not core.is_running()
    assert (await read(stream))[-1].finished


@in_the_shared_loop
async def test_a_snapshot_comes_from_the_process(shared: Running) -> None:
    engine, core = shared
    idle = await engine.inspect()
    core.suspend()  # until it has been asked, so that no request ends before
    try:
        streams = await engine.submit(requests(LONG, LONG))
        inspections = [asyncio.create_task(engine.inspect()) for _ in range(2)]
        await asyncio.sleep(0)
    finally:
        core.resume()
    both = await asyncio.gather(*inspections)
    for stream in streams:
        stream.abort()
    assert idle.sequences == []
    assert both[0] == both[1]
    assert [sequence.state for sequence in both[0].sequences] == ["decode", "decode"]


@pytest.mark.full  # starts two processes
@pytest.mark.skipif(sys.platform != "linux", reason="other systems are left alone")
async def test_an_idle_process_holds_few_pages_of_the_libraries_that_it_loaded(folder: Path) -> None:
    async with running(config_of(folder)) as (_, core):
        assert core.memory_info().shared < bytes_of_files_while_loading() / 2


def bytes_of_files_while_loading() -> int:
    """What a process of its own holds of files once it has imported what a core consists of."""
    load = "import psutil, infer_engine.assembly.runner; print(psutil.Process().memory_info().shared)"
    return int(subprocess.run([sys.executable, "-c", load], capture_output=True, check=True).stdout)


@pytest.mark.full  # starts two processes
async def test_a_core_that_is_told_to_halt_ends_without_the_interpreters_end(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That would read back the libraries that it has let go of, and take longer than `close` waits where disks are slow.
    orderly = tmp_path / "orderly"
    (tmp_path / "sitecustomize.py").write_text(f"import atexit\natexit.register(open, {str(orderly)!r}, 'w')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    await (await asyncio.create_subprocess_exec(sys.executable, "-P", "-c", "")).wait()
    assert orderly.exists()
    orderly.unlink()
    async with running(config_of(folder)) as (_, core):
        pass
    assert not core.is_running()
    assert not orderly.exists()


@pytest.mark.full  # starts a process
def test_what_the_core_logs_is_in_its_engines_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def build_and_close() -> None:
        async with running(EngineConfig(model=str(folder), num_kv_blocks=1, block_size=16)):
            pass

    with caplog.at_level(logging.WARNING):
        asyncio.run(build_and_close())
    assert [(r.name, r.levelname) for r in caplog.records] == [("infer_engine.sizing", "WARNING")]
    assert "max_seq_len is cut" in caplog.text


@pytest.mark.full  # starts a process
def test_a_configuration_that_asks_too_much_is_refused_in_the_same_words(folder: Path) -> None:
    before = psutil.Process().children()
    refusals = []
    for engine_process in (False, True):
        with pytest.raises(ValueError, match="`max_seq_len` is 100000") as refusal:
            build_engine(config_of(folder, max_seq_len=100_000), engine_process=engine_process)
        refusals.append(str(refusal.value))
    assert refusals[0] == refusals[1]
    assert psutil.Process().children() == before


@pytest.mark.full  # starts a process
def test_an_unusable_checkpoint_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if (folder / name).exists():
            (tmp_path / name).write_bytes((folder / name).read_bytes())
    before = psutil.Process().children()
    with pytest.raises(CheckpointUnusableError, match=r"model\.safetensors"):
        build_engine(config_of(tmp_path))
    assert psutil.Process().children() == before


_FRONTEND = """
import asyncio, sys
from infer_engine import EngineConfig, build_engine
engine = build_engine(EngineConfig(model=sys.argv[1], kv_cache_memory="8MiB"))
print("torch" in sys.modules, flush=True)
sys.stdin.read()
"""


def test_a_killed_frontend_ends_its_core_and_never_imported_torch(folder: Path) -> None:
    frontend = subprocess.Popen(
        [sys.executable, "-c", _FRONTEND, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with frontend:
        assert frontend.stdout is not None
        assert frontend.stdout.readline() == "False\n"
        [core] = psutil.Process(frontend.pid).children()
        os.kill(frontend.pid, signal.SIGKILL)
        core.wait(timeout=GIVE_UP_S)
    assert not core.is_running()


def test_what_is_done_while_the_model_loads_happens_once_and_its_error_ends_the_process(folder: Path) -> None:
    before = set(psutil.Process().children())
    seen: list[int] = []

    def fail() -> None:
        seen.append(len(set(psutil.Process().children()) - before))
        raise RuntimeError("no such module")

    with pytest.raises(RuntimeError, match="no such module"):
        build_engine(config_of(folder), while_loading=fail)
    assert seen == [1]  # the core's process was there
    assert set(psutil.Process().children()) == before
