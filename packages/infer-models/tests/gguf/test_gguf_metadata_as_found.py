"""What GGUF files of other programs say, leave out, or say in another place: Ollama's, and models that do not write."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gguf
from infer_models import CheckpointError
from infer_models.checkpoint import read_checkpoint_config
from infer_models.config.generation_config import GenerationConfig
from infer_models.text import Tokenizer
from infer_proofs.models import save_tiny, save_tiny_tokenizer
from infer_proofs.models.gguf_files import save_gguf

FULL, SLIDING = "full_attention", "sliding_attention"
BASES = {FULL: {"rope_type": "default", "rope_theta": 1e6}, SLIDING: {"rope_type": "default", "rope_theta": 1e4}}

SIX: dict[str, Any] = {"num_hidden_layers": 6, "layer_types": None}


def save(family: str, folder: Path, metadata: dict[str, Any], **fields: Any) -> Path:
    save_tiny(family, folder, **fields)
    save_tiny_tokenizer(folder)
    save_gguf(folder, folder / "model.gguf", metadata=metadata)
    return folder / "model.gguf"


def rewrite(path: Path, **values: Any) -> None:
    """Write a file anew with other values of keys of its tokenizer."""
    reader, new = gguf.GGUFReader(path), path.with_name("new.gguf")
    writer = gguf.GGUFWriter(new, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        is_kept = not key.startswith("GGUF.") and key != "general.architecture"
        if is_kept and key.removeprefix("tokenizer.ggml.") not in values:
            item = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], item)
    for key, value in values.items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"tokenizer.ggml.{key}", value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    new.rename(path)


def items(path: Path, name: str) -> list[Any]:
    return list(gguf.GGUFReader(path).fields[f"tokenizer.ggml.{name}"].contents())


@pytest.mark.covers("gguf/families")
@pytest.mark.parametrize(
    ("metadata", "fields"),
    [
        ({"rope.global.freq_base": 1e6, "rope.local.freq_base": 2e4}, {FULL: 1e6, SLIDING: 2e4}),
        ({"rope.freq_base_swa": 5e4}, {FULL: 1e6, SLIDING: 5e4}),
        ({}, {FULL: 1e6, SLIDING: 1e4}),
    ],
    ids=["of the 1b", "of llama.cpp", "neither"],
)
def test_bases_of_gemma_3_have_several_names(
    metadata: dict[str, Any], fields: dict[str, float], tmp_path: Path
) -> None:
    # ggml-org/llama.cpp#12367, ollama/ollama#12303
    bases = {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in fields.items()}
    path = save("gemma3", tmp_path, {"rope.freq_base": None} | metadata, rope_parameters=bases, **SIX)
    assert read_checkpoint_config(path).ropes == read_checkpoint_config(tmp_path).ropes


def test_gemma_3_of_ollama_has_neither_an_epsilon_nor_a_scaling(tmp_path: Path) -> None:
    absent = dict.fromkeys(("rope.freq_base", "rope.dimension_count", "attention.layer_norm_rms_epsilon"))
    scaled = BASES | {FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}
    shape = {"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "rope_parameters": scaled, **SIX}
    path = save("gemma3", tmp_path, absent, **shape)
    ours, theirs = read_checkpoint_config(path), read_checkpoint_config(tmp_path)
    assert (ours.norm_eps, ours.ropes) == (theirs.norm_eps, theirs.ropes)
    save_gguf(tmp_path, path, metadata={"rope.scaling.type": "none"})
    assert read_checkpoint_config(path).ropes != theirs.ropes


@pytest.mark.parametrize("pattern", [[True, False, True, False], 2])
def test_the_file_says_which_layers_of_gemma_3_slide(pattern: Any, tmp_path: Path) -> None:
    kinds = [SLIDING, FULL] * 2
    path = save("gemma3", tmp_path, {"attention.sliding_window_pattern": pattern}, layer_types=kinds)
    assert read_checkpoint_config(path).windows == read_checkpoint_config(tmp_path).windows


def test_gemma_3_without_a_window_attends_to_all_before(tmp_path: Path) -> None:
    path = save("gemma3", tmp_path, {"attention.sliding_window": None})  # as Rnj-1
    config = read_checkpoint_config(path)
    assert set(config.windows) == {None}
    assert {None if rope is None else rope.theta for rope in config.ropes} == {1e6}


def test_a_token_without_a_row_of_the_embedding_is_left_out(tmp_path: Path) -> None:
    path = save("gemma3", tmp_path, {})
    tokens, kinds = items(path, "tokens"), items(path, "token_type")
    rewrite(path, tokens=[*tokens, "<image_soft_token>"], token_type=[*kinds, 3])
    assert Tokenizer.from_folder(path).vocab_size == len(tokens) == read_checkpoint_config(path).vocab_size
    rewrite(path, tokens=[*tokens, "words"], token_type=[*kinds, 1])  # of another model's tokenizer
    assert Tokenizer.from_folder(path).vocab_size == len(tokens) + 1


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "lfm2", "gpt_oss"])
def test_a_model_that_sees_later_tokens_is_refused(family: str, tmp_path: Path) -> None:
    # ggml-org/llama.cpp#20746: `attention.causal` of models that embed texts
    path = save(family, tmp_path, {"attention.causal": False})
    with pytest.raises(CheckpointError, match=r"attention\.causal` is False; it must be true"):
        read_checkpoint_config(path)


def test_weights_of_fp16_are_computed_in_bf16(tmp_path: Path) -> None:
    # Activations of models that were trained in bf16 leave the range of fp16
    save_tiny("qwen2", tmp_path)
    save_gguf(tmp_path, tmp_path / "model.gguf", kind_of=lambda _: "F16")
    assert read_checkpoint_config(tmp_path / "model.gguf").dtype == "bfloat16"


def test_ends_are_a_list_too_and_tokens_are_suppressed(tmp_path: Path) -> None:
    # Ollama's `eos_token_ids`, the converter's `suppress_tokens` of Gemma 4
    path = save("llama", tmp_path, {})
    rewrite(path, eos_token_ids=[2, 5, 5, 100_000], suppress_tokens=[7, 8, -1])
    found = GenerationConfig.from_folder(path)
    assert found.eos_token_ids == (2, 5)
    assert found.suppressed_token_ids == (7, 8)


def test_an_end_of_turns_may_be_a_user_defined_token(tmp_path: Path) -> None:
    path = save("llama", tmp_path, {})
    tokens, kinds = items(path, "tokens"), items(path, "token_type")
    rewrite(path, tokens=[*tokens[:-1], "<|im_end|>"], token_type=[*kinds[:-1], 4])
    assert GenerationConfig.from_folder(path).eos_token_ids == (2, len(tokens) - 1)


def test_keys_that_nobody_reads_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = {"expert_weights_scale": 2.5, "vision.block_count": 1, "vocab_size": 320}
    path = save("llama", tmp_path, own)
    rewrite(path, fim_pre_token_ids=[1], words_to_remove=[1], add_space_prefix=False)
    for _ in range(2):
        read_checkpoint_config(path)
        Tokenizer.from_folder(path)
    said = [record.message for record in caplog.records if "nothing here reads" in record.message]
    assert said == [
        f"{path}: the metadata has `llama.expert_weights_scale`, which nothing here reads",
        f"{path}: the metadata has `tokenizer.ggml.words_to_remove`, which nothing here reads",
    ]


@pytest.mark.covers("gguf/tokenizers")
@pytest.mark.parametrize("names", [("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")])
def test_a_file_names_the_tokens_around_a_gap(
    names: tuple[str, str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save("llama", tmp_path, {})
    assert Tokenizer.from_folder(path).infill is None
    rewrite(path, **{f"{name}_token_id": number for number, name in enumerate(names, 7)})
    tokenizer = Tokenizer.from_folder(path)
    assert tokenizer.infill is not None
    prompt = tokenizer.infill.encode("x", "y", max_tokens=20)
    assert [token_id for token_id in prompt if token_id in (7, 8, 9)] == [7, 8, 9]
    assert prompt[-1] == 9
    assert "nothing here reads" not in caplog.text


def test_ministral_3_scales_positions_and_queries(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 32}
    rope |= {"mscale": 1.0, "mscale_all_dim": 0.5, "llama_4_scaling_beta": 0.1}
    save_tiny("ministral3", tmp_path, rope_parameters=rope)
    metadata = {"rope.freq_base": 1e6, "rope.scaling.type": "yarn", "rope.scaling.factor": 16.0}
    metadata |= {"rope.scaling.original_context_length": 32, "rope.scaling.yarn_log_multiplier": 0.5}
    save_gguf(tmp_path, tmp_path / "model.gguf", metadata=metadata | {"attention.temperature_scale": 0.1})
    ours, theirs = read_checkpoint_config(tmp_path / "model.gguf"), read_checkpoint_config(tmp_path)
    assert (ours.ropes, ours.query_scaling) == (theirs.ropes, theirs.query_scaling)
    assert torch.tensor([each.scaling.attention_factor for each in ours.ropes if each]).ne(1.0).all()


def test_granite_4_whose_layers_all_attend_is_a_granite(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # ggml-org/llama.cpp#16177: the converter changes the architecture, and keeps the sizes of layers that are not there
    save_tiny("granite", tmp_path, intermediate_size=96)
    of_others = {"feed_forward_length": 64, "expert_shared_feed_forward_length": 96, "ssm.state_size": 128}
    of_layers = {"attention.head_count_kv": [2, 2, 2], "rope.scaling.finetuned": True, "expert_used_count": 0}
    save_gguf(tmp_path, tmp_path / "model.gguf", metadata=of_others | of_layers)
    ours, theirs = (read_checkpoint_config(each) for each in (tmp_path / "model.gguf", tmp_path))
    assert replace(ours, quantization=None) == replace(theirs, quantization=None)
    assert not caplog.records
