"""Folders that cannot be loaded: the error says the cause and what to do, and the doctor says the same."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from infer_engine.doctor.checkpoint import examine_checkpoint
from infer_engine.doctor.reporter import Reporter
from infer_engine.protocol.doctor import DoctorRequest
from infer_models import CheckpointError, GenerationConfig, load_model
from infer_models.hub import resolve_checkpoint
from infer_models.text import Tokenizer
from infer_proofs.models import save_tiny, save_tiny_tokenizer

LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 2471645608\n".encode()
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>"


@pytest.fixture(autouse=True)
def without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the doctor sets it for good


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "model"
    save_tiny("llama", place)
    save_tiny_tokenizer(place)
    return place


def refusal_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(resolve_checkpoint(str(folder)), device=torch.device("cpu"), dtype=torch.float32)
    message = str(caught.value)
    assert "\n" not in message
    return message


def doctors_findings(folder: Path) -> list[dict[str, str]]:
    """Return what the doctor's part about the model reports."""
    lines: list[bytes] = []
    request = DoctorRequest(seconds=60, device="cpu", dtype="auto", model=str(folder))
    examine_checkpoint(Reporter(request, lines.append))
    findings = (json.loads(line) for line in lines)
    return [each for each in findings if "verdict" in each]


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LFS, "is a pointer of Git LFS, not the file itself: run `git lfs install` and `git lfs pull`"),
        (PAGE, "is a web page that was saved in place of the file"),
        (b"", "is empty"),
    ],
)
def test_a_file_that_holds_something_else_says_what(folder: Path, file: str, content: bytes, message: str) -> None:
    # huggingface/transformers#27923, microsoft/OmniParser#34, codefuse-ai/MFTCoder#20
    (folder / file).write_bytes(content)
    if file in ("model.safetensors", "config.json"):
        refusal = refusal_of(folder)
    else:
        with pytest.raises(CheckpointError) as caught:
            read_rest(folder)
        refusal = str(caught.value)
    assert f"{file} {message}" in refusal


def read_rest(folder: Path) -> None:
    Tokenizer.from_folder(folder)
    GenerationConfig.from_folder(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GGUF\x03\x00\x00\x00", "is a GGUF file under another name; give the file itself"),
        (b"PK\x03\x04archive/data.pkl", "is a zip archive, such as `torch.save` writes"),
        (b"\x1f\x8b\x08\x00", "is compressed with gzip"),
    ],
)
def test_weights_of_another_kind_are_named(folder: Path, content: bytes, message: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert message in refusal_of(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_that_leads_nowhere_says_where(folder: Path, file: str) -> None:
    # debpalash/VoiceStudio#1056, keiretsu-labs/kubernetes-manifests#2517
    (folder / file).unlink()
    (folder / file).symlink_to("../../blobs/abcdef")
    if file == "tokenizer.json":
        with pytest.raises(CheckpointError) as caught:
            Tokenizer.from_folder(folder)
        refusal = str(caught.value)
    else:
        refusal = refusal_of(folder)
    assert f"{file} is missing: it is a link to ../../blobs/abcdef, which leads nowhere" in refusal


def test_a_shard_whose_link_leads_nowhere_is_named(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, max_shard_size="100KB")
    shard = sorted(tmp_path.glob("*.safetensors"))[1]
    shard.unlink()
    shard.symlink_to("../blobs/abc")
    assert f"{shard.name} is missing: it is a link to ../blobs/abc" in refusal_of(tmp_path)


def test_missing_shards_are_counted(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, max_shard_size="40KB")
    for shard in sorted(tmp_path.glob("*.safetensors"))[2:]:
        shard.unlink()
    refusal = refusal_of(tmp_path)
    assert "model.safetensors.index.json: model-00003-of-" in refusal
    assert "more are missing in the folder; download or copy the rest" in refusal


def test_a_tensor_that_the_index_puts_elsewhere_is_named_with_the_file(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, max_shard_size="100KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    name = "model.norm.weight"
    shard = tmp_path / index[name]
    save_file({each: tensor for each, tensor in load_file(shard).items() if each != name}, shard)
    assert f"the index puts `{name}` into {shard.name}, which does not hold it" in refusal_of(tmp_path)


def test_an_empty_tensor_is_what_one_rank_saved(folder: Path) -> None:
    # huggingface/accelerate#2155
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"model.norm.weight": torch.empty(0)}, path)
    assert "`model.norm.weight` has shape [0] but `config.json` makes it [64]; empty ones are what one" in refusal_of(
        folder
    )


def without_head(folder: Path, architecture: str, *, is_tied: bool, **others: torch.Tensor) -> None:
    """Take the LM head from a checkpoint, and say that it is a model of another class."""
    path, config = folder / "model.safetensors", folder / "config.json"
    stored = {name: each for name, each in load_file(path).items() if name != "lm_head.weight"}
    save_file(stored | {name.replace("__", "."): each for name, each in others.items()}, path)
    fields = json.loads(config.read_text()) | {"architectures": [architecture], "tie_word_embeddings": is_tied}
    config.write_text(json.dumps(fields))


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize(
    ("architecture", "what"),
    [
        ("LlamaForSequenceClassification", "a classifier or a reward model"),
        ("LlamaForTokenClassification", "a classifier or a reward model"),
        ("LlamaForQuestionAnswering", "a classifier or a reward model"),
        ("LlamaForRewardModel", "a classifier or a reward model"),
        ("SkyworkRewardModel", "a classifier or a reward model"),
        ("LlamaModel", "a model without a head, as for embeddings"),
    ],
)
def test_a_model_that_does_not_write_is_refused(folder: Path, architecture: str, what: str, *, is_tied: bool) -> None:
    # vllm-project/vllm#5181, #10184, sgl-project/sglang#35531
    without_head(folder, architecture, is_tied=is_tied)
    assert f"`architectures` is `{architecture}`, {what}, and the files hold no LM head" in refusal_of(folder)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_classifier_is_no_model_that_writes(folder: Path, *, is_tied: bool) -> None:
    without_head(folder, "LlamaForCausalLM", is_tied=is_tied, score__weight=torch.ones(2, 64))
    assert "the files hold `score.weight` and no LM head: it is a classifier" in refusal_of(folder)


def test_a_model_that_was_saved_by_another_class_writes_if_it_has_a_head(folder: Path) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["LlamaModel"]}))
    load_model(folder, device=torch.device("cpu"), dtype=torch.float32)


def test_weights_of_mlx_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    stored = load_file(path)
    layer = "model.layers.0.mlp.up_proj"
    ends = {f"{layer}.scales": torch.ones(96, 1), f"{layer}.biases": torch.ones(96, 1)}
    save_file(stored | ends | {f"{layer}.weight": torch.ones(96, 8, dtype=torch.uint32)}, path)
    assert "its weights are quantized by MLX, which is not read" in refusal_of(folder)


def test_an_adapter_names_the_model_that_it_is_of(tmp_path: Path) -> None:
    # arcee-ai/mergekit#197, lm-sys/FastChat#1689
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "Qwen/Qwen3-0.6B"}))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    refusal = refusal_of(tmp_path)
    assert "config.json is missing: the folder holds an adapter (adapter_config.json) of `Qwen/Qwen3-0.6B`" in refusal
    assert "`merge_and_unload()`" in refusal


def test_an_adapter_beside_a_configuration_is_named_too(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{}")
    assert "holds an adapter (adapter_config.json) of an unnamed model" in refusal_of(folder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["params.json", "consolidated.safetensors"], "a checkpoint in its maker's own layout"),
        (["consolidated.00.pth", "checklist.chk"], "a checkpoint in its maker's own layout"),
        (["model_index.json"], "a pipeline of `diffusers`"),
        (["checkpoint-500/config.json"], "the checkpoint seems to be in a folder inside this one; give `"),
        (["snapshots/abc/config.json", "refs/main"], "the checkpoint seems to be in a folder inside this one; give `"),
        ([], "the folder is empty"),
        (["README.md"], "a checkpoint folder needs it"),
    ],
)
def test_a_folder_without_a_configuration_says_what_it_holds(tmp_path: Path, files: list[str], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    refusal = refusal_of(tmp_path)
    assert f"{tmp_path / 'config.json'} is missing" in refusal
    assert message in refusal


def test_a_folder_below_the_checkpoint_names_the_one_above(folder: Path) -> None:
    (folder / "original").mkdir()
    (folder / "original" / "notes.txt").touch()
    assert f"the checkpoint seems to be the folder above; give `{folder}`" in refusal_of(folder / "original")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("consolidated.safetensors", "its maker's own layout"),
        ("model.gguf", "is no GGUF file"),
        ("pytorch_model.bin", "pytorch_model.bin, a pickle, which can run code; only safetensors are read"),
        ("tf_model.h5", "tf_model.h5, of another library"),
    ],
)
def test_a_configuration_without_weights_of_ours_says_what_is_there(folder: Path, name: str, message: str) -> None:
    (folder / "model.safetensors").rename(folder / name)
    assert message in refusal_of(folder)


def test_a_model_of_the_hub_without_safetensors_says_what_is_downloaded(folder: Path) -> None:
    snapshot = folder.parent / "snapshots" / "abc"
    snapshot.parent.mkdir()
    folder.rename(snapshot)
    (snapshot / "model.safetensors").unlink()
    assert "of the Hub only safetensors are downloaded" in refusal_of(snapshot)


def test_a_file_in_place_of_a_folder_is_named(folder: Path) -> None:
    path = folder / "tiny.gguf"
    path.write_bytes(b"GGUF" + bytes(20))
    assert "is GGUF version 0" in refusal_of(path)
    path.write_bytes(b"PK\x03\x04" + bytes(20))
    assert "is a zip archive" in refusal_of(path)
    assert "is a file; give the folder" in refusal_of(folder / "model.safetensors")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_says_so(folder: Path) -> None:
    (folder / "model.safetensors").chmod(0)
    assert "cannot be read: Permission denied; let the user that runs the server read it" in refusal_of(folder)


def lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    save_tiny("llama", folder, max_shard_size="100KB")
    (folder / "model.safetensors.index.json").unlink()
    min(folder.glob("*.safetensors")).unlink()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(LFS),
        lose_a_shard,
        lambda folder: shutil.move(folder / "model.safetensors", folder / "consolidated.safetensors"),
    ],
)
def test_the_doctor_says_the_same(folder: Path, damage: Callable[[Path], object]) -> None:
    damage(folder)
    failed = {each["found"] for each in doctors_findings(folder) if each["verdict"] == "failed"}
    assert failed == {refusal_of(folder)}


def test_the_doctor_warns_of_what_loading_warns_of(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 2, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    findings = [each for each in doctors_findings(folder) if each["what"] == "weights"]
    warnings = [each["found"] for each in findings if each["verdict"] == "warning"]
    assert len(warnings) == 2
    assert "says that weights are quantized (`gptq`), but none is in the files" in warnings[0]
    assert "`num_hidden_layers` is 2" in warnings[1]


def test_weights_that_are_quantized_in_an_unknown_way_are_named_as_they_are_stored(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.self_attn.q_proj"
    tensors[f"{name}.W_q"] = tensors.pop(f"{name}.weight")
    save_file(tensors, path)
    assert f"the files hold `{name}.W_q`, so weights are quantized in a way that is not read here" in refusal_of(folder)
