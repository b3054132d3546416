"""The `infer-server` command: what it prints, and how it fails."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

import httpx
import pytest

from infer_engine.protocol import CheckpointUnusableError, Engine, EngineConfig
from infer_proofs.server import FAKE_INFO, server_process
from infer_server.cli import main


def must_not_build(config: EngineConfig) -> Engine:
    raise AssertionError(config)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what went to standard error, after checking that it is one line and all there is."""
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("infer-server: ")
    return line


@pytest.mark.covers("configuration/num-gpu-blocks")
@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--bogus", "1"], "--bogus"),
        (["bogus"], "bogus"),
        (["--port", "x"], "--port"),
        (["--port", "70000"], "`port` is 70000"),
        (["--dtype", "int3"], "--dtype"),
        (["--block-size", "0"], "`block_size` is 0"),
        (["--max-body-size", "much"], "`max_body_size`"),
        (["--shutdown-timeout", "nan"], "`shutdown_timeout`"),
        (["--num-kv-blocks", "3", "--kv-cache-memory", "1GiB"], "`num_kv_blocks` is 3"),
        (["--num-gpu-blocks=3", "--kv-cache-memory", "1GiB"], "`num_gpu_blocks` is 3"),
        (["--num-gpu-blocks", "0"], "`num_gpu_blocks` is 0"),
        (["--num-gpu-blocks", "x"], "--num-gpu-blocks"),
        (["--num-gpu-blocks", "3", "--num-kv-blocks", "4"], "`num_gpu_blocks` is 3 but `num_kv_blocks` is 4"),
        (["--batching-mode", "static", "--kv-cache-backend", "paged"], "`kv_cache_backend` is 'paged'"),
        (["--scheduler-policy", "lifo"], "--scheduler-policy"),
        (["--step-timeout-s", "nan"], "`step_timeout_s` is nan"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
        (["--host", "no..host"], "no..host"),
        (["--served-model-name", "a\udcff"], "`served_model_name`"),
    ],
)
def test_what_cannot_work_is_one_line_and_exit_code_2(
    arguments: Sequence[str], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, build_engine=must_not_build) == 2
    assert cause in one_line(capsys)


@pytest.mark.parametrize("error", [CheckpointUnusableError("config.json:\n not there"), ValueError("`max_seq_len`")])
def test_engine_that_cannot_start_is_one_line_and_exit_code_2(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: EngineConfig) -> Engine:
        raise error

    assert main(["--port", "0"], build_engine=refuse) == 2
    assert str(error).split()[0] in one_line(capsys)


@pytest.mark.covers("models/port-bound-first")
def test_port_in_use_is_an_error_before_the_model_loads(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--port", str(port)], build_engine=must_not_build) == 2
    assert f"Port {port} of 127.0.0.1 is in use" in one_line(capsys)


def test_every_flag_reaches_its_field() -> None:
    seen: list[EngineConfig] = []

    def remember(config: EngineConfig) -> Engine:
        seen.append(config)
        raise ValueError("enough")

    flags = ["--model", "m", "--no-use-chunked-prefill", "--kv-cache-memory", "1GiB", "--max-seq-len=64"]
    flags += ["--kv-cache-backend", "contiguous", "--scheduler-policy", "priority", "--batch-invariant"]
    main(["--port", "0", *flags], build_engine=remember)
    main(["--port", "0", "--batching-mode=static", "--batch-wait-timeout-s=0"], build_engine=remember)
    joining = EngineConfig(
        model="m",
        use_chunked_prefill=False,
        kv_cache_memory="1GiB",
        max_seq_len=64,
        kv_cache_backend="contiguous",
        scheduler_policy="priority",
        batch_invariant=True,
    )
    assert seen == [joining, EngineConfig(batching_mode="static", batch_wait_timeout_s=0.0)]


@pytest.mark.covers(
    "configuration/names-on-the-command-line",
    "command-line-and-library/flags",
    "command-line-and-library/boolean-flags",
)
def test_help_groups_the_flags_and_says_what_each_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"], build_engine=must_not_build) == 0
    text = capsys.readouterr().out
    server, engine = text[text.index("Server ─") : text.index("Engine ─")], text[text.index("Engine ─") :]
    assert all(flag in server for flag in ("--host", "--port", "--served-model-name", "--shutdown-timeout"))
    assert all(flag in engine for flag in ("--model", "--max-batch-size", "--no-use-chunked-prefill"))
    assert "Address to listen on." in server


@pytest.mark.covers("command-line-and-library/serves-demo")
def test_module_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "infer_server", "--version"]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip() == "0.1.0"


@pytest.mark.covers("command-line-and-library/platforms")
def test_windows_is_refused_in_one_sentence_before_a_module_that_it_lacks_is_imported() -> None:
    """`sys.platform` changes after Python's own modules are there, which would import others by it."""
    program = """import sys, asyncio, subprocess
sys.modules |= {"fcntl": None, "resource": None}
sys.platform = "win32"
import infer_server.__main__
sys.exit(infer_server.__main__.main())"""
    ran = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, check=False, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
    assert "in WSL2 (`wsl --install`)" in ran.stderr


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"], build_engine=must_not_build) == 0
    assert capsys.readouterr().out.strip() == "0.1.0"


@pytest.mark.parametrize(
    "statement",
    [
        "import infer_server.cli; infer_server.cli.main(['--help']); assert 'litestar' not in sys.modules",
        "import infer_server.cli; infer_server.cli.main(['doctor', '--help']); assert 'litestar' not in sys.modules",
        "import infer_server.doctor.command",
        "import infer_server; infer_server.create_app",
        "import infer_server.connections.server, infer_proofs.server",
    ],
)
def test_nothing_of_the_server_imports_torch(statement: str) -> None:
    check = f"import sys; {statement}; assert not {{'torch', 'triton', 'infer_models'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.covers("command-line-and-library/first-curl")
def test_server_says_what_it_loaded_and_where_it_listens_then_serves_until_sigterm() -> None:
    with server_process("--log-level", "warning") as server:
        assert httpx.post(f"{server.url}/v1/completions", json={"prompt": "x"}).status_code == 200
        assert server.terminate() == (0, "")
    assert f"fake-model (fake, {FAKE_INFO.num_parameters / 1e6:.2f} million parameters)" in server.banner[0]
    assert server.banner[5] == f"clients    base URL {server.url}/v1 for OpenAI's, {server.url} for Anthropic's\n"
    assert f"curl -N {server.url}/v1/chat/completions" in server.banner[8]


@pytest.mark.covers("http/api-keys")
@pytest.mark.parametrize(
    ("flags", "variable", "keys"),
    [
        (["--api-key", "a", "--api-key", "b"], None, ("a", "b")),
        ([], "a, b", ("a", "b")),
        pytest.param(["--api-key", "a"], "b", ("a",), marks=pytest.mark.full),
        pytest.param([], None, (), marks=pytest.mark.full),
    ],
)
def test_keys_come_from_the_flags_or_else_from_the_environment(
    flags: list[str], variable: str | None, keys: tuple[str, ...]
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "INFER_API_KEY"}
    if variable is not None:
        environment["INFER_API_KEY"] = variable
    with server_process(*flags, environment=environment) as server, httpx.Client(base_url=server.url) as client:
        tried = [client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}) for key in ("a", "b", "c")]
    assert [reply.status_code == 200 for reply in tried] == [not keys or key in keys for key in ("a", "b", "c")]
    assert ("$INFER_API_KEY" in server.banner[8]) is bool(keys)


@pytest.mark.parametrize("listed", ["", "a,,b", "a,\xe9"])
def test_keys_of_the_environment_that_nobody_could_send_are_no_reason_to_serve_everybody(
    listed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFER_API_KEY", listed)
    assert main(["--port", "0"], build_engine=must_not_build) == 2
    assert "`INFER_API_KEY`" in one_line(capsys)


def test_help_has_no_flags_that_nobody_needs(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"], build_engine=must_not_build)
    assert "--empty" not in capsys.readouterr().out
