"""What cannot be served: one line that names the cause, exit code 2, no traceback, and no port left open."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from infer_models.testing import save_tiny_llama, save_tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    save_tiny_llama(folder)
    save_tiny_tokenizer(folder)
    return folder


def run_server(*flags: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "infer_server", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def rename_model_type(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))


def drop_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, ["model.safetensors", "truncated"]),
        (drop_tensor, ["model.layers.1.mlp.up_proj.weight", "missing"]),
        (rename_model_type, ["config.json", "`model_type`", "mamba"]),
        (drop_tokenizer, ["tokenizer.json"]),
    ],
)
def test_a_damaged_checkpoint_is_one_line_and_exit_code_2(
    folder: Path, damage: Callable[[Path], None], words: list[str]
) -> None:
    damage(folder)
    completed = run_server("--model", str(folder), "--port", "0")
    assert completed.returncode == 2
    assert completed.stdout == ""
    [line] = completed.stderr.splitlines()
    assert all(word in line for word in words), line


def test_a_port_in_use_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        completed = run_server("--model", str(tmp_path / "nowhere"), "--port", str(port))
    assert completed.returncode == 2
    [line] = completed.stderr.splitlines()
    assert str(port) in line
    assert "in use" in line


def test_a_folder_that_is_not_there_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    completed = run_server("--model", str(tmp_path / "nowhere"), "--port", "0")
    assert completed.returncode == 2
    assert len(completed.stderr.splitlines()) == 1
    assert "nowhere" in completed.stderr


def test_a_context_longer_than_the_cache_is_one_line_that_names_the_largest(folder: Path) -> None:
    completed = run_server(
        "--model", str(folder), "--port", "0", "--num-gpu-blocks", "2", "--block-size", "64", "--max-seq-len", "200"
    )
    assert completed.returncode == 2
    [line] = completed.stderr.splitlines()
    assert "lower it to 128" in line
