"""The doctor's part `model`: a whole checkpoint is fine, and a damaged one is said to be what it is."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from infer_engine.doctor.checkpoint import examine_checkpoint
from infer_kernels.cpu import library
from infer_models import ModelConfig
from infer_proofs.engine.doctor import Examined, examined
from infer_proofs.engine.models import ALL_FAMILIES, save_servable
from infer_proofs.models.gguf_files import save_gguf

GIB = 2**30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_servable("llama", tmp_path)
    return tmp_path


def examine(folder: Path) -> Examined:
    found = examined(examine_checkpoint, model=str(folder))
    assert len(found.summaries) == 1
    return found


@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_a_whole_checkpoint_is_fine(folder_of: Callable[[str], Path], family: str) -> None:
    found = examine(folder_of(family))
    assert found.named("failed") == set()
    assert found.named("ok") == {"config.json", "weights", "tokenizer", "memory", "chat template"}
    assert found.details["model"]["model_type"] == ModelConfig.from_folder(folder_of(family)).model_type
    assert found.details["memory_estimate"]["kv_tokens"] > 0


def test_experts_in_mxfp4_are_counted_as_they_are_loaded(folder_of: Callable[[str], Path], tmp_path: Path) -> None:
    """Five bits a weight where kernels multiply by such weights, and else those of the dtype."""
    config = ModelConfig.from_folder(folder_of("gpt_oss"))
    assert config.moe is not None
    expected = examine(folder_of("gpt_oss")).details["memory_estimate"]["weights"]
    if library() is not None:
        experts = 3 * config.num_layers * config.moe.num_experts * config.moe.intermediate_size * config.hidden_size
        expected -= experts * 4 - experts * 5 // 8
    fields = json.loads((folder_of("gpt_oss") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"quantization_config": {"quant_method": "mxfp4"}}))
    assert examine(tmp_path).details["memory_estimate"]["weights"] == expected


def test_a_gguf_file_is_fine_and_its_types_are_counted(tmp_path: Path) -> None:
    save_servable("llama", tmp_path)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=lambda name: "Q8_0" if "attn" in name else None)
    found = examined(examine_checkpoint, model=str(path))
    assert found.named("failed") == set()
    assert {"config.json", "weights", "types", "tokenizer", "memory", "chat template"} <= found.named("ok")
    num_layers = ModelConfig.from_folder(path).num_layers
    assert f"{4 * num_layers} Q8_0; in memory" in found.findings["types"].found
    assert found.summaries[0].startswith(f"{path}: llama")
    path.write_bytes(path.read_bytes()[:-100])
    cut = examined(examine_checkpoint, model=str(path))
    assert "is truncated" in cut.findings["config.json"].found


def test_what_types_take_that_are_dequantized_is_a_warning(tmp_path: Path) -> None:
    save_servable("llama", tmp_path, hidden_size=256, intermediate_size=256)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, kind_of=lambda name: "IQ3_S" if "ffn" in name else None)
    found = examined(examine_checkpoint, model=str(path))
    assert found.named("failed") == set()
    assert "weights of IQ3_S are dequantized: they take" in found.findings["weights"].found


def test_the_demo_model_is_fine_and_its_path_is_not_shown() -> None:
    found = examined(examine_checkpoint, model="infer-demo")
    assert found.named("failed") == found.named("warning") == set()
    assert "site-packages" not in str(found)
    assert found.summaries[0].startswith("infer-demo: llama")


@pytest.mark.covers("command-line-and-library/doctor-finds-faults")
def test_a_truncated_file_is_a_failure_and_the_rest_is_looked_at(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    found = examine(folder)
    assert found.named("failed") == {"weights"}
    assert "is truncated" in found.findings["weights"].found
    assert "tokenizer" in found.named("ok")


def test_a_config_of_another_shape_is_a_failure(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 97}))
    assert "`config.json` makes it" in examine(folder).findings["weights"].found


@pytest.mark.parametrize(
    ("text", "cause"), [("{", "config.json"), ('{"model_type": "mamba"}', "mamba"), (None, "config.json")]
)
def test_a_config_that_cannot_be_read_is_a_failure(folder: Path, text: str | None, cause: str) -> None:
    (folder / "config.json").unlink()
    if text is not None:
        (folder / "config.json").write_text(text)
    found = examine(folder)
    assert found.named("failed") == {"config.json"}
    assert cause in found.findings["config.json"].found


def test_a_model_that_is_not_there_is_a_failure_and_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = examined(examine_checkpoint, model="nobody/no-such-model")
    assert found.named("failed") == {"config.json"}
    assert "downloads nothing" in found.findings["config.json"].fix


@pytest.mark.parametrize("text", [None, "{}", "not json"])
def test_a_tokenizer_that_cannot_be_read_is_a_failure(folder: Path, text: str | None) -> None:
    (folder / "tokenizer.json").unlink()
    if text is not None:
        (folder / "tokenizer.json").write_text(text)
    found = examine(folder)
    assert found.named("failed") == {"tokenizer"}
    assert "tokenizer.json" in found.findings["tokenizer"].found


def test_a_template_that_refuses_a_plain_message_is_a_failure(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('never') }}")
    found = examine(folder)
    assert found.named("failed") == {"chat template"}
    assert "never" in found.findings["chat template"].found


def test_weights_that_do_not_fit_are_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    finding = examine(folder).findings["memory"]
    assert (finding.verdict, "weights take" in finding.found) == ("failed", True)


def test_a_cache_for_less_than_the_longest_request_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = examine(folder).details["memory_estimate"]["weights"]
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=weights + 10**6))
    finding = examine(folder).findings["memory"]
    assert finding.verdict == "warning"
    assert "--max-seq-len" in finding.fix
    assert "--kv-cache-memory" in finding.fix


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_memory_of_a_gpu_is_estimated_without_its_index(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Only what needs a GPU is left out: torch's own checks of a device run."""
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("torch._C._cuda_setDevice", current.append)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (79 * GIB, 80 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(is_integrated=False))
    found = examined(examine_checkpoint, device=device)
    assert "79.0 GiB are free on cuda:0" in found.findings["memory"].found
    assert current == [0]
