"""Quantized folders as people bring them: what is quantized says the file, how says a configuration, wherever it is."""

import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from infer_models import CausalView, CheckpointError, load_model
from infer_proofs.models import save_quantized, save_tiny
from infer_proofs.models.compressed_layers import quantize_compressed
from infer_proofs.models.quantized_layers import quantize_awq, quantize_fp8_tensor, quantize_gptq

IDS = torch.tensor([5, 9, 200, 17, 3, 3, 42, 311, 8, 77, 1, 60])
WEIGHTS = "model.safetensors"
PROJECTIONS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
Quantize = Callable[[Tensor], tuple[Any, Tensor]]


@torch.no_grad()
def logits_of(folder: Path, quantization: str = "none") -> Tensor:
    how: Any = {"dtype": torch.float32, "quantization": quantization}
    model = load_model(folder, device=torch.device("cpu"), **how)
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


@torch.no_grad()
def require_equal(folder: Path, twin: Any) -> None:
    expected = twin(IDS[None]).logits[0]
    torch.testing.assert_close(logits_of(folder), expected, rtol=0, atol=1e-4)
    # As kernels multiply it, which round inputs.
    assert (logits_of(folder, "auto") - expected).abs().max() < 0.1 * expected.abs().max()


def refusal_of(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        logits_of(folder)
    return str(caught.value)


def edit_config(folder: Path, *drop: str, **fields: Any) -> None:
    path = folder / "config.json"
    config = {name: value for name, value in json.loads(path.read_text()).items() if name not in drop} | fields
    path.write_text(json.dumps(config))


def quantize_layers(folder: Path, twin: Any, layers: Iterable[str], quantize: Quantize) -> None:
    """Store some layers of a plain checkpoint quantized, and give the twin what they are worth."""
    stored = load_file(folder / WEIGHTS)
    for layer in layers:
        parts, worth = quantize(stored.pop(f"{layer}.weight"))
        stored |= {f"{layer}.{end}": part.contiguous() for end, part in parts.items()}
        twin.get_parameter(f"{layer}.weight").data = worth
    save_file(stored, folder / WEIGHTS, metadata={"format": "pt"})


def projections(twin: Any) -> list[str]:
    return [f"model.layers.{i}.{name}" for i in range(twin.config.num_hidden_layers) for name in PROJECTIONS]


# Configurations that are stale


STALE = [
    {"quant_method": "gptq", "bits": 4, "group_size": 128},
    {"quant_method": "gptq", "bits": 3, "group_size": 128},
    {"quant_method": "awq", "bits": 4, "version": "gemv"},
    {"quant_method": "fp8", "weight_block_size": [128, 128]},
    {"quant_method": "bitsandbytes", "load_in_4bit": True},
    {"quant_method": "hqq"},
    {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
    {"bits": 4, "group_size": 64},
]


@pytest.mark.covers("quantization/which-layers")
@pytest.mark.parametrize("config", STALE)
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_plain_weights_are_read_as_they_are(tmp_path: Path, family: str, config: dict[str, Any], caplog: Any) -> None:
    # unslothai/unsloth#1601, vllm-project/vllm#22380: fine-tunes that were merged keep the configuration.
    twin = save_tiny(family, tmp_path)
    edit_config(tmp_path, quantization_config=config)
    require_equal(tmp_path, twin)
    assert "config.json says that weights are quantized" in caplog.text


@pytest.mark.parametrize("groups", [{}, {"group_0": {"targets": ["Linear"], "weights": None}}])
def test_a_scheme_of_the_cache_alone_leaves_weights_plain(tmp_path: Path, groups: Any, caplog: Any) -> None:
    twin = save_tiny("llama", tmp_path)
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    config = {"quant_method": "compressed-tensors", "config_groups": groups, "kv_cache_scheme": cache}
    edit_config(tmp_path, quantization_config=config)
    require_equal(tmp_path, twin)
    assert bool(groups) == ("says that weights are quantized" in caplog.text)


# Configurations elsewhere


@pytest.mark.covers("quantization/which-layers")
@pytest.mark.parametrize(
    ("kind", "file", "fields"),
    [
        ("gptq", "quantize_config.json", {"bits": 4, "group_size": 32, "sym": True, "desc_act": False}),
        ("awq", "quant_config.json", {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}),
        ("awq", "quantize_config.json", {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}),
        (
            "fp8_tensor",
            "hf_quant_config.json",
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
        ),
        (
            "gptq",
            "quantization_config.json",
            {"bits": 4, "group_size": 32, "sym": True, "packing_format": "auto_round"},
        ),
    ],
)
def test_how_weights_are_quantized_may_be_said_beside_the_configuration(
    tmp_path: Path, kind: str, file: str, fields: dict[str, Any]
) -> None:
    twin = save_quantized(tmp_path, kind)
    edit_config(tmp_path, "quantization_config")
    (tmp_path / file).write_text(json.dumps(fields))
    require_equal(tmp_path, twin.model)


@pytest.mark.parametrize("kind", ["gptq", "awq", "compressed_w4a16", "fp8_block"])
def test_where_nothing_says_how_the_files_that_could_are_named(tmp_path: Path, kind: str) -> None:
    save_quantized(tmp_path, kind)
    edit_config(tmp_path, "quantization_config")
    refusal = refusal_of(tmp_path)
    assert "are quantized, and neither `quantization_config` in config.json nor a file such as" in refusal
    assert "model.layers." in refusal


def test_a_method_that_is_not_read_is_named(tmp_path: Path) -> None:
    save_quantized(tmp_path, "gptq")
    edit_config(tmp_path, quantization_config={"quant_method": "hqq"})
    assert "`quantization_config.quant_method` is 'hqq'; it must be one of" in refusal_of(tmp_path)


@pytest.mark.covers("quantization/bitsandbytes-and-others")
@pytest.mark.parametrize(
    ("packing", "quantize"),
    [
        ("auto_round:auto_gptq", partial(quantize_gptq, is_symmetric=False)),
        ("auto_round", partial(quantize_gptq, is_symmetric=False, version=2)),
        ("auto_round:auto_awq", quantize_awq),
    ],
)
def test_auto_round_is_read_in_the_layouts_of_others(tmp_path: Path, packing: str, quantize: Quantize) -> None:
    # vllm-project/vllm#17850
    twin = save_tiny("llama", tmp_path)
    quantize_layers(tmp_path, twin, projections(twin), quantize)
    config = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": False, "packing_format": packing}
    edit_config(tmp_path, quantization_config=config)
    require_equal(tmp_path, twin)


# Layers of their own


def test_layers_of_gptq_have_bits_of_their_own(tmp_path: Path) -> None:
    # ModelCloud/GPTQModel#1485, vllm-project/vllm#15665
    twin = save_tiny("llama", tmp_path)
    layers = projections(twin)
    own = [name for name in layers if name.endswith("down_proj")]
    quantize_layers(tmp_path, twin, [name for name in layers if name not in own], quantize_gptq)
    quantize_layers(tmp_path, twin, own[1:], partial(quantize_gptq, bits=8, group_size=16))
    dynamic = {r"-:model\.layers\.0\.mlp\.down_proj": {}, r"+:.*down_proj": {"bits": 8, "group_size": 16}}
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": dynamic}
    edit_config(tmp_path, quantization_config=config)
    require_equal(tmp_path, twin)


@pytest.mark.parametrize("quantize", [quantize_gptq, partial(quantize_gptq, bits=8)])
def test_routers_may_be_quantized(tmp_path: Path, quantize: Quantize) -> None:
    # vllm-project/vllm#25029: `mlp.gate.g_idx` has no place.
    twin = save_tiny("qwen3_moe", tmp_path, num_experts=8)
    layers = projections(twin)[:1] + [f"model.layers.{i}.mlp.gate" for i in range(twin.config.num_hidden_layers)]
    quantize_layers(tmp_path, twin, layers, quantize)
    bits = 8 if isinstance(quantize, partial) else 4
    edit_config(tmp_path, quantization_config={"quant_method": "gptq", "bits": bits, "group_size": 32})
    require_equal(tmp_path, twin)


@pytest.mark.parametrize(
    ("config", "quantize"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "lm_head": False}, quantize_gptq),
        ({"quant_method": "awq", "bits": 4, "group_size": 32}, quantize_awq),
        ({"quant_method": "fp8"}, quantize_fp8_tensor),
    ],
)
def test_heads_may_be_quantized_whatever_lists_say(tmp_path: Path, config: dict[str, Any], quantize: Quantize) -> None:
    # vllm-project/vllm#22959, #45132
    twin = save_tiny("llama", tmp_path)
    quantize_layers(tmp_path, twin, ["lm_head", *projections(twin)], quantize)
    edit_config(tmp_path, quantization_config=config | {"modules_to_not_convert": ["lm_head"]})
    require_equal(tmp_path, twin)


W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
W8 = {"num_bits": 8, "type": "int", "strategy": "channel"}


@pytest.mark.parametrize("target", ["Embedding", "re:.*embed_tokens$", "model.embed_tokens"])
@pytest.mark.parametrize("is_tied", [True, False])
def test_embeddings_may_be_quantized(tmp_path: Path, target: str, is_tied: bool) -> None:  # noqa: FBT001 - a parameter
    # sgl-project/sglang#38143, vllm-project/vllm#54304
    twin = save_tiny("llama", tmp_path, tie_word_embeddings=is_tied)
    quantize_layers(
        tmp_path, twin, projections(twin), partial(quantize_compressed, weights=W4, layout="pack-quantized")
    )
    own = partial(quantize_compressed, weights=W8, layout="pack-quantized")
    quantize_layers(tmp_path, twin, ["model.embed_tokens"], own)
    twin.tie_weights()
    groups = {"g0": {"targets": ["Linear"], "weights": W4}, "g1": {"targets": [target], "weights": W8}}
    edit_config(
        tmp_path,
        quantization_config={
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": groups,
            "ignore": ["lm_head"],
        },
    )
    require_equal(tmp_path, twin)


def test_zero_points_of_symmetric_weights_are_passed_over_if_they_are_zero(tmp_path: Path) -> None:
    # vllm-project/compressed-tensors#59
    twin = save_quantized(tmp_path, "compressed_w4a16")
    stored = load_file(tmp_path / WEIGHTS)
    names = [f"{layer}.weight_zero_point" for layer in twin.quantized]
    zeros = {name: torch.zeros(3, 5, dtype=torch.int8) for name in names}
    save_file(stored | zeros, tmp_path / WEIGHTS)
    require_equal(tmp_path, twin.model)
    save_file(stored | zeros | {names[0]: torch.ones(3, 5, dtype=torch.int8)}, tmp_path / WEIGHTS)
    assert f"tensor `{names[0]}` holds other numbers than 0" in refusal_of(tmp_path)


@pytest.mark.parametrize("kind", ["gptq", "awq", "gptq_act_order"])
def test_biases_of_zeros_beside_quantized_layers_are_passed_over(tmp_path: Path, kind: str) -> None:
    # AutoGPTQ/AutoGPTQ#555
    twin = save_quantized(tmp_path, kind)
    stored = load_file(tmp_path / WEIGHTS)
    biases = {f"{layer}.bias": torch.zeros(stored[f"{layer}.scales"].shape[1]).half() for layer in twin.quantized}
    save_file(stored | biases, tmp_path / WEIGHTS)
    require_equal(tmp_path, twin.model)


# FP8


def fp8_by_row(weight: Tensor, *, name: str = "weight_scale", shape: tuple[int, ...] = (-1, 1)) -> tuple[Any, Tensor]:
    scales = weight.abs().amax(1, keepdim=True) / 448
    codes = (weight / scales).to(torch.float8_e4m3fn)
    parts = {"weight": codes, name: scales.reshape(shape), "input_scale": torch.tensor(0.1)}
    return parts, codes.float() * scales


def fp8_by_tensor(weight: Tensor) -> tuple[Any, Tensor]:
    parts, worth = quantize_fp8_tensor(weight)
    return dict(parts) | {"weight_scale": parts["weight_scale"].reshape(1, 1)}, worth


@pytest.mark.covers("quantization/bitsandbytes-and-others")
@pytest.mark.parametrize(
    ("config", "quantize"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, partial(quantize_fp8_tensor, name="weight_scale_inv")),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, fp8_by_row),
        ({"quant_method": "fp8"}, partial(fp8_by_row, shape=(-1,), name="weight_scale_inv")),
        ({"quant_method": "fp8"}, fp8_by_tensor),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, partial(fp8_by_row, shape=(-1,))),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]}, quantize_fp8_tensor),
    ],
)
def test_scales_of_fp8_have_several_names_and_shapes(tmp_path: Path, config: Any, quantize: Quantize) -> None:
    twin = save_tiny("llama", tmp_path)
    quantize_layers(tmp_path, twin, projections(twin), quantize)
    edit_config(tmp_path, quantization_config=config)
    require_equal(tmp_path, twin)


def test_a_scale_of_no_shape_is_named(tmp_path: Path) -> None:
    twin = save_tiny("llama", tmp_path)
    quantize_layers(
        tmp_path,
        twin,
        projections(twin)[:1],
        lambda weight: ({"weight": weight.to(torch.float8_e4m3fn), "weight_scale": torch.ones(3)}, weight),
    )
    edit_config(tmp_path, quantization_config={"quant_method": "fp8"})
    assert "weight_scale` has shape [3] but `config.json` makes it [] or [" in refusal_of(tmp_path)


# bitsandbytes, whose formulas are written out here as they are published

NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
FP4 = [0.0, 0.0052, 0.6667, 1.0, 0.3333, 0.5, 0.1667, 0.25, -0.0, -0.0052, -0.6667, -1.0, -0.3333, -0.5, -0.1667, -0.25]


def four_bits(
    weight: Tensor, *, kind: str = "nf4", is_nested: bool = False, storage: torch.dtype = torch.uint8, block: int = 64
) -> tuple[Any, Tensor]:
    """Return a weight as bitsandbytes stores it, and its numbers, one by one."""
    numbers = NF4 if kind == "nf4" else FP4
    flat = weight.flatten().tolist()
    scales = [max(map(abs, flat[start : start + block])) for start in range(0, len(flat), block)]
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": list(weight.shape)}
    parts: dict[str, Tensor] = {"weight.quant_map": torch.tensor(numbers)}
    if is_nested:
        offset = sum(scales) / len(scales)
        levels = [(i - 127) / 128 for i in range(256)]
        largest = [max(abs(s - offset) for s in scales[i : i + 256]) for i in range(0, len(scales), 256)]
        codes = [
            min(range(256), key=lambda c, s=s, i=i: abs(levels[c] * largest[i // 256] + offset - s))  # type: ignore[misc]  # bound at once
            for i, s in enumerate(scales)
        ]
        scales = [levels[code] * largest[i // 256] + offset for i, code in enumerate(codes)]
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        parts["weight.absmax"] = torch.tensor(codes, dtype=torch.uint8)
        parts["weight.nested_absmax"] = torch.tensor(largest)
        parts["weight.nested_quant_map"] = torch.tensor(levels)
    else:
        parts["weight.absmax"] = torch.tensor(scales)
    chosen = [
        min(range(16), key=lambda c, x=x, i=i: abs(numbers[c] * scales[i // block] - x))  # type: ignore[misc]  # bound at once
        for i, x in enumerate(flat)
    ]
    data = torch.tensor([16 * first + second for first, second in zip(chosen[::2], chosen[1::2], strict=True)])
    parts["weight"] = data.to(torch.uint8).view(storage)[:, None]
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(
        list(json.dumps(state).encode()), dtype=torch.uint8
    )
    worth = torch.tensor([numbers[code] * scales[i // block] for i, code in enumerate(chosen)]).view(weight.shape)
    return parts, worth


def int8_rows(weight: Tensor) -> tuple[Any, Tensor]:
    largest = weight.abs().amax(1)
    codes = (weight * 127 / largest[:, None]).round().to(torch.int8)
    return {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}, codes * largest[
        :, None
    ] / 127


@pytest.mark.covers("quantization/bitsandbytes-and-others")
@pytest.mark.parametrize(
    ("config", "quantize"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, four_bits),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, partial(four_bits, is_nested=True)),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, partial(four_bits, kind="fp4")),
        ({"_load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}, partial(four_bits, storage=torch.bfloat16)),
        ({"load_in_4bit": True, "bnb_4bit_blocksize": 128}, partial(four_bits, block=128)),
        ({"_load_in_8bit": True, "load_in_8bit": True, "llm_int8_threshold": 6.0}, int8_rows),
        (None, partial(four_bits, is_nested=True)),
        (None, int8_rows),
    ],
)
def test_bitsandbytes_is_read(tmp_path: Path, config: dict[str, Any] | None, quantize: Quantize) -> None:
    # vllm-project/vllm#10710, #11010, #5569
    twin = save_tiny("llama", tmp_path, num_hidden_layers=1)
    quantize_layers(tmp_path, twin, projections(twin), quantize)
    if config is not None:
        edit_config(tmp_path, quantization_config={"quant_method": "bitsandbytes", **config})
    require_equal(tmp_path, twin)


def test_fused_layers_of_bitsandbytes_are_read(tmp_path: Path) -> None:
    twin = save_tiny("phi3", tmp_path, num_hidden_layers=1)
    layers = [f"model.layers.0.{name}" for name in ("self_attn.qkv_proj", "mlp.gate_up_proj")]
    quantize_layers(tmp_path, twin, layers, four_bits)
    edit_config(tmp_path, quantization_config={"load_in_4bit": True})
    require_equal(tmp_path, twin)


def damaged(weight: Tensor, *, end: str, change: Callable[[Tensor], Tensor | None]) -> tuple[Any, Tensor]:
    parts, worth = four_bits(weight, is_nested=True)
    parts[end] = change(parts[end])
    return {name: part for name, part in parts.items() if part is not None}, worth


@pytest.mark.parametrize(
    ("end", "change", "message"),
    [
        ("weight", lambda data: data[:-1], "bytes and"),
        ("weight.absmax", lambda scales: scales[:-1], "scales"),
        ("weight.nested_absmax", lambda _: None, "weight.nested_absmax` is missing"),
        ("weight.quant_map", lambda codes: codes[:15], "weight.quant_map` has shape [15]"),
        ("weight.quant_state.bitsandbytes__nf4", lambda _: None, "quant_state.bitsandbytes__nf4` is missing"),
        ("weight.quant_state.bitsandbytes__nf4", lambda state: state[:-3], "holds no JSON"),
        ("weight.nested_absmax", lambda scales: scales * math.nan, "NaN or infinite"),
    ],
)
def test_damaged_weights_of_bitsandbytes_are_named(tmp_path: Path, end: str, change: Any, message: str) -> None:
    twin = save_tiny("llama", tmp_path, num_hidden_layers=1)
    quantize_layers(tmp_path, twin, projections(twin)[:1], partial(damaged, end=end, change=change))
    edit_config(tmp_path, quantization_config={"load_in_4bit": True})
    refusal = refusal_of(tmp_path)
    assert message in refusal
    assert "model.layers.0.self_attn.q_proj.weight" in refusal
