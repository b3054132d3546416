"""What cannot be served: one line that names the cause, exit code 2, no traceback, and no port left open."""

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from infer_proofs.models import save_tiny_llama, save_tiny_tokenizer

FULL = pytest.mark.full
"""Starts a process for a message that the models' tests read too."""


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


def change_config(folder: Path, **fields: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def quantize_otherwise(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    weight = tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors | {"model.layers.1.mlp.up_proj.qweight": weight.int()}, folder / "model.safetensors")
    change_config(folder, quantization_config={"quant_method": "hqq"})


def wrap_config(folder: Path, **fields: object) -> None:
    """Make the checkpoint that of a multimodal model, whose text model has these `fields` too."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": config | fields}))


def drop_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def damage_processor(folder: Path) -> None:
    save_tiny_tokenizer(folder, chat_template=None)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "{% for m in messages %}"}))


@pytest.mark.covers("models/errors-on-the-command-line")
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, ["model.safetensors", "truncated"]),
        (drop_tensor, ["model.layers.1.mlp.up_proj.weight", "missing"]),
        (partial(change_config, model_type="mamba"), ["config.json", "`model_type` is 'mamba'", "`qwen3_moe`"]),
        pytest.param(
            partial(change_config, attention_bias=True), ["model.safetensors", "q_proj.bias", "missing"], marks=FULL
        ),
        pytest.param(
            quantize_otherwise,
            ["config.json", "`quantization_config.quant_method` is 'hqq'", "`gptq`"],
            marks=FULL,
        ),
        pytest.param(partial(change_config, model_type="llava"), ["config.json", "`text_config` is None"], marks=FULL),
        (partial(wrap_config, model_type="opt"), ["config.json", "`text_config.model_type` is 'opt'", "`llama`"]),
        pytest.param(
            partial(wrap_config, model_type="gemma3_text", use_bidirectional_attention=True),
            ["config.json", "`text_config.use_bidirectional_attention` is True"],
            marks=FULL,
        ),
        (drop_tokenizer, ["tokenizer.json"]),
        (damage_processor, ["chat_template.json", "the chat template is broken at line 1"]),
    ],
    ids=[
        *("truncated", "tensor", "family", "bias", "quantized", "text_config", "text family", "text field"),
        *("tokenizer", "processor"),
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


@pytest.mark.covers("models/port-bound-first")
def test_a_port_in_use_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        completed = run_server("--model", str(tmp_path / "nowhere"), "--port", str(port))
    assert completed.returncode == 2
    [line] = completed.stderr.splitlines()
    assert str(port) in line
    assert "in use" in line


def test_a_quantization_without_a_kernel_is_one_line_that_says_what_to_use(folder: Path) -> None:
    completed = run_server("--model", str(folder), "--port", "0", "--device", "cpu", "--quantization", "fp8")
    assert completed.returncode == 2
    [line] = completed.stderr.splitlines()
    assert "`quantization` is `fp8`, but no kernel for cpu" in line


@pytest.mark.covers("models/errors-on-the-command-line")
def test_a_folder_that_is_not_there_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    completed = run_server("--model", str(tmp_path / "nowhere"), "--port", "0")
    assert completed.returncode == 2
    assert len(completed.stderr.splitlines()) == 1
    assert "nowhere" in completed.stderr


@pytest.mark.covers("configuration/max-seq-len-too-long")
def test_a_context_longer_than_the_cache_is_one_line_that_names_the_largest(folder: Path) -> None:
    completed = run_server(
        "--model", str(folder), "--port", "0", "--num-gpu-blocks", "2", "--block-size", "64", "--max-seq-len", "200"
    )
    assert completed.returncode == 2
    [line] = completed.stderr.splitlines()
    assert "lower it to 128" in line
