"""What `config.json` files say, and leave out, in the world: `transformers` on the same folder is the oracle.

From vllm-project/vllm#28542, #8793, #30433, #17306, #44738, huggingface/transformers#42612, #36822, and
others beside the tests.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from infer_engine import LLM, EngineConfig, SamplingParams, build_engine
from infer_engine.model_runner.loading.rank_loading import load_rank
from infer_engine.sizing import KVMemory
from infer_models import CausalView, CheckpointError, ModelConfig, load_model
from infer_models.weight_allocation import Quantization
from infer_proofs.models import (
    LLAMA3_SCALING,
    LONGROPE_SCALING,
    YARN_SCALING,
    save_tiny,
    save_tiny_tokenizer,
)
from infer_proofs.models.compressed_layers import compressed_config, quantize_compressed

CPU = torch.device("cpu")
IDS = torch.randint(3, 300, (60,), generator=torch.Generator().manual_seed(1))
LINEAR: dict[str, Any] = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}


def edit(folder: Path, *left_out: str, **fields: Any) -> None:
    """Change fields of `config.json`."""
    path = folder / "config.json"
    read = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({name: value for name, value in read.items() if name not in left_out}))


def edit_tensors(folder: Path, **tensors: torch.Tensor) -> None:
    """Add tensors to the weights, or replace them; their names have `__` in place of dots."""
    path = folder / "model.safetensors"
    named = {name.replace("__", "."): each.contiguous() for name, each in tensors.items()}
    save_file(load_file(path) | named, path, metadata={"format": "pt"})


@torch.no_grad()
def ours(folder: Path, length: int = 60, *, quantization: Quantization = "auto") -> torch.Tensor:
    """Return the logits of a text."""
    model = load_model(folder, device=CPU, dtype=torch.float32, quantization=quantization)
    positions = model.first_position(length) + torch.arange(length)
    logits: torch.Tensor = model(IDS[:length], positions, CausalView())
    return logits


@torch.no_grad()
def theirs(folder: Path, length: int = 60) -> torch.Tensor:
    """Return those of `transformers`."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    logits: torch.Tensor = model(IDS[None, :length]).logits[0]
    return logits


def assert_same(folder: Path, length: int = 60) -> None:
    """Check that `transformers` computes the same from the folder."""
    torch.testing.assert_close(ours(folder, length), theirs(folder, length), rtol=0, atol=1e-4)


def engine(folder: Path, **fields: Any) -> LLM:
    """Return an engine over the folder."""
    save_tiny_tokenizer(folder)
    given: dict[str, Any] = {"dtype": "float32", "kv_cache_memory": "16MiB", "max_batch_size": 2} | fields
    return LLM(str(folder), **given)


def newer(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Write a scaling as `transformers` 5 does."""
    return {"rope_parameters": dict(scaling)}


def older(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Write it as `transformers` 4 does."""
    fields = {name: value for name, value in scaling.items() if name not in ("rope_type", "rope_theta")}
    return {"rope_theta": scaling["rope_theta"], "rope_scaling": fields | {"type": scaling["rope_type"]}}


def mixed(scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Write it beside a table without a scaling, as whoever follows a model's card does."""
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    return {"rope_parameters": plain, "rope_scaling": dict(scaling)}


@pytest.mark.parametrize("write", [newer, older, mixed])
def test_phi_reads_longrope_in_every_dialect(tmp_path: Path, write: Any) -> None:
    save_tiny("phi3", tmp_path, original_max_position_embeddings=32)
    edit(tmp_path, "rope_parameters", "rope_theta", "rope_scaling")
    edit(tmp_path, **write(LONGROPE_SCALING))
    for length in (20, 32, 33, 60):
        assert_same(tmp_path, length)


@pytest.mark.parametrize("family", ["gemma3", "olmo3"])
def test_full_layers_are_scaled_where_a_scaling_is_added(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path)
    edit(tmp_path, rope_scaling=YARN_SCALING)
    assert_same(tmp_path)


def test_a_table_that_is_missing_is_the_familys(tmp_path: Path) -> None:
    for family in ("ministral3", "gpt_oss", "smollm3", "gemma3"):
        folder = tmp_path / family
        save_tiny(family, folder)
        edit(folder, "rope_parameters", "rope_theta", "rope_scaling")
        assert_same(folder)


def test_fields_that_contradict_each_other_are_both_named(tmp_path: Path) -> None:
    save_tiny("qwen3", tmp_path)
    edit(tmp_path, rope_parameters={"rope_theta": 7e5}, rope_scaling={"type": "linear", "factor": 2.0})
    with pytest.raises(CheckpointError, match=r"`rope_parameters\.rope_theta` is 700000, but `rope_scaling`"):
        ours(tmp_path)
    scaling = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    edit(tmp_path, rope_parameters=None, rope_scaling=scaling, original_max_position_embeddings=64)
    with pytest.raises(
        CheckpointError,
        match=r"`rope_scaling\.original_max_position_embeddings` is 32; .*`original_max_position_embeddings` beside",
    ):
        ours(tmp_path)


def test_null_and_zero_are_as_transformers_takes_them(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    edit(tmp_path, rope_parameters=YARN_SCALING | {"mscale": 0, "mscale_all_dim": 0, "beta_fast": None})
    assert_same(tmp_path)
    edit(tmp_path, rope_scaling={})
    assert_same(tmp_path)


def test_a_window_that_is_null_is_none(tmp_path: Path) -> None:
    save_tiny("qwen2", tmp_path, max_position_embeddings=8192)
    edit(tmp_path, use_sliding_window=True, sliding_window=None, max_window_layers=0, layer_types=None)
    assert load_model(tmp_path, device=CPU, dtype=torch.float32).config.windows == (None,) * 3


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_later_layers_slide_where_a_file_does_not_list_them(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    edit(tmp_path, layer_types=None)
    assert load_model(tmp_path, device=CPU, dtype=torch.float32).config.windows == (None, 8, 8)
    assert_same(tmp_path)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_qwen_3_may_slide(tmp_path: Path, family: str) -> None:
    save_tiny(family, tmp_path, use_sliding_window=True, sliding_window=8, max_window_layers=1)
    assert_same(tmp_path)


@pytest.mark.parametrize("family", ["llama", "granite", "smollm3", "qwen3", "qwen3_moe", "olmo2", "olmo3", "gemma3"])
def test_biases_are_computed_where_the_file_has_them(tmp_path: Path, family: str) -> None:
    has_mlp_bias = {"mlp_bias": True} if family in ("llama", "granite", "smollm3") else {}
    save_tiny(family, tmp_path, attention_bias=True, **has_mlp_bias)
    assert_same(tmp_path)


@pytest.mark.parametrize("head_dim", [100, 120, 18])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "granite"])
def test_heads_of_any_size_are_padded(tmp_path: Path, family: str, head_dim: int) -> None:
    save_tiny(family, tmp_path, head_dim=head_dim)
    edit(tmp_path, head_dim=head_dim)
    assert_same(tmp_path)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_padded_heads_in_an_engine(tmp_path: Path, quantization: str) -> None:
    twin = save_tiny("llama", tmp_path, head_dim=100, tie_word_embeddings=True)
    prompt, expected = IDS[:20].tolist(), IDS[:20]
    with torch.no_grad():
        for _ in range(5):
            expected = torch.cat([expected, twin(expected[None]).logits[0, -1:].argmax(-1)])
    greedy = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    [done] = engine(tmp_path, quantization=quantization).generate([prompt], greedy, use_tqdm=False)
    if quantization == "none":
        assert done.token_ids == expected[20:].tolist()
    assert len(done.token_ids) == 5


def test_quantized_weights_of_padded_heads_are_dequantized_and_not_quantized_anew(tmp_path: Path) -> None:
    twin = save_tiny("llama", tmp_path, head_dim=100)
    path = tmp_path / "model.safetensors"
    tensors, weights = load_file(path), {"num_bits": 8, "type": "int", "strategy": "channel"}
    for index in range(3):
        for name in (f"model.layers.{index}.self_attn.{each}_proj" for each in "qkvo"):
            parts, worth = quantize_compressed(tensors.pop(f"{name}.weight"), weights=weights, layout="int-quantized")
            tensors |= {f"{name}.{end}": part.contiguous() for end, part in parts.items()}
            twin.get_parameter(f"{name}.weight").data = worth
    save_file(tensors, path, metadata={"format": "pt"})
    edit(tmp_path, quantization_config=compressed_config(weights=weights, layout="int-quantized", inputs=None))
    expected = ours(tmp_path, quantization="none")
    with torch.no_grad():
        torch.testing.assert_close(expected, twin(IDS[None]).logits[0], rtol=0, atol=1e-4)
    assert torch.equal(ours(tmp_path, quantization="auto"), expected)


@pytest.mark.parametrize(
    ("scaling", "positions", "longest"),
    [
        (YARN_SCALING | {"factor": 4.0, "original_max_position_embeddings": 64}, 64, 256),
        (YARN_SCALING | {"factor": 4.0, "original_max_position_embeddings": 16}, 64, 64),
        (LINEAR, 64, 192),
        (DYNAMIC, 64, 192),
        (LLAMA3_SCALING, 64, 64),
    ],
    ids=["yarn", "yarn that is counted already", "linear", "dynamic", "llama3"],
)
def test_scaling_lengthens_the_context(tmp_path: Path, scaling: dict[str, Any], positions: int, longest: int) -> None:
    save_tiny("qwen2", tmp_path, max_position_embeddings=positions)
    edit(tmp_path, rope_parameters=scaling)
    llm = engine(tmp_path)
    prompt = [5] * (longest - 4)
    [done] = llm.generate([prompt], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    assert len(done.token_ids) == 4
    with pytest.raises(ValueError, match=r"`max_position_embeddings` of config\.json, and its `rope_scaling`"):
        engine(tmp_path, max_seq_len=longest + 1)


def test_short_texts_of_dynamic_scaling_are_as_they_are_without(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, max_position_embeddings=40)
    edit(tmp_path, rope_parameters=DYNAMIC)
    assert_same(tmp_path, 40)
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    assert (model.first_position(40), model.first_position(41)) == (0, 40)


@pytest.mark.parametrize("mode", [{}, {"use_prefix_caching": False}, {"use_cpu_graphs": False}])
def test_each_request_of_longrope_has_the_factors_of_its_length(tmp_path: Path, mode: dict[str, Any]) -> None:
    twin = save_tiny("phi3", tmp_path, original_max_position_embeddings=32)
    prompts = [IDS[:length].tolist() for length in (20, 45, 20, 20)]
    lengths = [6, 6, 40, 6]  # the third begins as the first and ends as a long one
    params = [SamplingParams(max_tokens=count, temperature=0, ignore_eos=True) for count in lengths]
    llm = engine(tmp_path, block_size=16, **mode)
    together = llm.generate(prompts, params, use_tqdm=False)
    for index in (0, 1, 3):
        ids = torch.tensor(prompts[index])
        with torch.no_grad():
            for _ in range(6):
                ids = torch.cat([ids, twin(ids[None]).logits[0, -1:].argmax(-1)])
        assert together[index].token_ids == ids[len(prompts[index]) :].tolist()
    [alone] = llm.generate([prompts[2]], [params[2]], use_tqdm=False)
    assert together[2].token_ids == alone.token_ids != together[0].token_ids[:6] + alone.token_ids[6:]


@pytest.mark.covers("models/tied-heads")
def test_a_head_that_differs_is_used_although_the_file_says_tied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny("qwen3", tmp_path, tie_word_embeddings=True)
    edit_tensors(tmp_path, lm_head__weight=torch.randn(320, 64, generator=torch.Generator().manual_seed(3)))
    with caplog.at_level(logging.WARNING):
        logits = ours(tmp_path)
    assert "`tie_word_embeddings` is true, but" in caplog.text
    edit(tmp_path, tie_word_embeddings=False)
    torch.testing.assert_close(logits, theirs(tmp_path), rtol=0, atol=1e-4)


def test_a_head_that_is_equal_stays_tied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny("qwen3", tmp_path, tie_word_embeddings=True)
    edit_tensors(tmp_path, lm_head__weight=load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"])
    model = load_model(tmp_path, device=CPU, dtype=torch.float32)
    assert model.config.tie_word_embeddings
    assert caplog.text == ""
    assert_same(tmp_path)


def save_with_one_table(folder: Path, stored: str) -> Any:
    """Save a tied model whose one table has the name `stored`."""
    twin = save_tiny("llama", folder, tie_word_embeddings=True)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[stored] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    return twin


TABLES = pytest.mark.parametrize("stored", ["lm_head.weight", "model.embed_tokens.weight"])


@TABLES
@pytest.mark.parametrize("says_tied", [True, None])
def test_a_table_that_is_alone_serves_both(tmp_path: Path, stored: str, says_tied: bool | None) -> None:  # noqa: FBT001
    twin = save_with_one_table(tmp_path, stored)
    edit(tmp_path, tie_word_embeddings=says_tied)
    with torch.no_grad():
        torch.testing.assert_close(ours(tmp_path), twin(IDS[None]).logits[0], rtol=0, atol=1e-4)


@TABLES
def test_a_table_that_is_alone_is_not_both_where_the_file_says_that_there_are_two(tmp_path: Path, stored: str) -> None:
    save_with_one_table(tmp_path, stored)
    edit(tmp_path, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"is missing, .*set `tie_word_embeddings` to true in config.json"):
        ours(tmp_path)


def save_with_unread_fields(folder: Path) -> str:
    """Save a model; return the fields of its files that nothing reads."""
    save_tiny("llama", folder)
    edit(folder, logits_scaling=8.0, unsloth_version="2025.3", rope_scaling={"rope_type": "default", "cut": 3})
    save_tiny_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"split_special_tokens": True, "legacy": True}))
    return "`logits_scaling`, `rope_scaling.cut` of config.json and `split_special_tokens` of tokenizer_config.json"


def unread_in(messages: list[str]) -> list[str]:
    return [line for line in messages if line.startswith("Nothing here reads")]


def test_what_nothing_reads_is_said_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    named = save_with_unread_fields(tmp_path)
    with caplog.at_level(logging.WARNING):
        LLM(str(tmp_path), dtype="float32", kv_cache_memory="16MiB", max_batch_size=2)
    assert unread_in(caplog.messages) == [f"Nothing here reads {named}; if the model needs that, its answers differ"]


async def test_what_nothing_reads_is_said_once_for_all_replicas(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_with_unread_fields(tmp_path)
    config = EngineConfig(
        model=str(tmp_path), dtype="float32", kv_cache_memory="16MiB", max_batch_size=2, data_parallel_size=2
    )
    with caplog.at_level(logging.WARNING):
        async with build_engine(config):
            pass
    assert len(unread_in(caplog.messages)) == 1


@pytest.mark.parametrize("absent", [None, "auto", "left out"])
def test_a_dtype_that_is_absent_is_that_of_the_weights(tmp_path: Path, absent: str | None) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        save_tiny("llama", tmp_path, dtype=dtype)
        edit(tmp_path, "torch_dtype", *(["dtype"] if absent == "left out" else []), dtype=absent)
        config = load_model(tmp_path, device=CPU, dtype=torch.float32).config
        assert config.dtype == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("torch.bfloat16", "bfloat16"), ("bf16", "bfloat16"), ("half", "float16"), ("float64", "float32")],
)
def test_a_dtype_may_have_another_name(tmp_path: Path, name: str, dtype: str) -> None:
    save_tiny("llama", tmp_path)
    edit(tmp_path, dtype=name)
    assert ModelConfig.from_folder(tmp_path).dtype == dtype


def test_gemma_takes_bf16_in_place_of_fp16(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny("gemma3", tmp_path, dtype=torch.float16)
    with caplog.at_level(logging.WARNING):
        llm = engine(tmp_path, dtype="auto")
    assert llm.info.dtype == "bfloat16"
    assert "in which gemma3_text overflows: bfloat16 is used" in caplog.text
    assert engine(tmp_path, dtype="float16").info.dtype == "float16"


def test_tables_of_angles_end_where_sequences_do(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path, max_position_embeddings=1_000_000)
    save_tiny_tokenizer(tmp_path)
    config = EngineConfig(model=str(tmp_path), dtype="float32", kv_cache_memory="16MiB", max_batch_size=2)
    loaded = load_rank(config, tmp_path, device=CPU)
    sizes = {each.shape[0] for name, each in loaded.rank_model.model.named_buffers() if name.endswith("cos_sin")}
    assert sizes == {loaded.longest_seq_len}
    assert 1_000 < loaded.longest_seq_len < 100_000
    assert loaded.size_cache(KVMemory(share=2**40, free=2**40)).max_seq_len == loaded.longest_seq_len


def test_what_is_not_used_is_not_checked(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    expected = ours(tmp_path)
    rubbish = {"pretraining_tp": "x", "attention_dropout": -1, "auto_map": 3, "initializer_range": None}
    edit(tmp_path, **rubbish, use_cache=None, sliding_window="no", num_experts_per_tok=0, architectures=None)
    assert torch.equal(ours(tmp_path), expected)
