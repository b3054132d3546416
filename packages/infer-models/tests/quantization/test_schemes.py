"""What a `quantization_config` says: which layers are quantized, how, and what is refused by name."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infer_models import CheckpointError
from infer_models.config.json_fields import JsonFields
from infer_models.config.quantization import read_quantization_config
from infer_models.quantization import read_quantization
from infer_models.quantization.awq import AwqFormat
from infer_models.quantization.compressed_tensors import PackedFormat
from infer_models.quantization.gptq import GptqFormat
from infer_models.quantization.scaled_format import ScaledFormat, ScaleGrid
from infer_proofs.models import QUANTIZED_CHECKPOINTS
from infer_proofs.models.quantized import read_scheme

Q_PROJ, DOWN, GATE = (f"model.layers.3.{end}" for end in ("self_attn.q_proj", "mlp.down_proj", "mlp.gate"))
W4: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
FP8: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}


def compressed(
    weights: dict[str, Any] | None = None, *, group: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    own = {"targets": ["Linear"], "weights": W4 | (weights or {})} | (group or {})
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": own},
    } | fields


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
AUTO_ROUND = {"quant_method": "auto-round", "bits": 4}
FINE_FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def test_names_and_expressions_come_before_classes() -> None:
    fields = compressed(
        format="mixed-precision",
        config_groups={
            "group_0": {"targets": ["Linear"], "format": "pack-quantized", "weights": W4},
            "group_1": {"targets": [r"re:.*down_proj"], "format": "float-quantized", "weights": FP8},
        },
    )
    scheme = read_scheme(fields)
    assert scheme.format_of(Q_PROJ) == PackedFormat(bits=4, group_size=32)
    assert scheme.format_of(DOWN) == ScaledFormat(encoding="fp8_e4m3", grid=ScaleGrid())


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, PackedFormat(bits=4, group_size=32)),
        ({"num_bits": 8, "strategy": "channel", "group_size": None}, PackedFormat(bits=8)),
        ({"strategy": "tensor", "group_size": None}, PackedFormat(bits=4, is_one_scale=True)),
        ({"strategy": "group", "group_size": -1}, PackedFormat(bits=4)),
        ({"strategy": None}, PackedFormat(bits=4, group_size=32)),
        ({"symmetric": False, "actorder": "weight"}, PackedFormat(bits=4, group_size=32, has_zeros=True)),
        ({"actorder": "static"}, PackedFormat(bits=4, group_size=32)),
        ({"actorder": False}, PackedFormat(bits=4, group_size=32)),
        *(({"actorder": each}, PackedFormat(bits=4, group_size=32, is_reordered=True)) for each in ("group", True)),
    ],
)
def test_packed_weights_of_compressed_tensors(weights: dict[str, Any], expected: PackedFormat) -> None:
    assert read_scheme(compressed(weights)).format_of(Q_PROJ) == expected


@pytest.mark.parametrize(
    ("layout", "weights", "expected"),
    [
        ("float-quantized", FP8, ScaleGrid()),
        ("float-quantized", FP8 | {"strategy": "tensor"}, ScaleGrid(rows=None)),
        ("float-quantized", FP8 | {"strategy": "block", "block_structure": [128, 64]}, ScaleGrid(rows=128, columns=64)),
        ("float-quantized", FP8 | {"strategy": "block", "block_structure": "64x32"}, ScaleGrid(rows=64, columns=32)),
        ("naive-quantized", FP8, ScaleGrid()),
        ("int-quantized", {"num_bits": 8, "strategy": "channel"}, ScaleGrid()),
        ("int-quantized", {"num_bits": 4}, ScaleGrid(columns=32)),
        ("naive-quantized", {"num_bits": 8, "strategy": "tensor"}, ScaleGrid(rows=None)),
    ],
)
def test_bytes_of_compressed_tensors(layout: str, weights: dict[str, Any], expected: ScaleGrid) -> None:
    found = read_scheme(compressed(weights, format=layout)).format_of(Q_PROJ)
    assert isinstance(found, ScaledFormat)
    assert found.grid == expected
    assert found.encoding == ("fp8_e4m3" if weights.get("type") == "float" else "int8")


def test_the_configuration_may_be_inside_that_of_compression() -> None:
    inner = compressed()
    del inner["quant_method"]
    for compression in (inner, {"quantization_config": inner, "sparsity_config": {"format": "dense"}}):
        whole = JsonFields(Path("config.json"), {"model_type": "llama", "compression_config": compression})
        scheme = read_quantization(read_quantization_config(whole))
        assert scheme is not None
        assert scheme.format_of(Q_PROJ) == PackedFormat(bits=4, group_size=32)


@pytest.mark.parametrize(
    ("targets", "layer", "bits"),
    [
        (["Linear"], Q_PROJ, 4),
        (["Linear"], GATE, 4),
        (["Linear"], "lm_head", 4),
        (["Embedding"], "model.embed_tokens", 8),
        ([r"re:.*embed_tokens$"], "model.embed_tokens", 8),
        (["model.language_model.layers.3.mlp.down_proj"], DOWN, 8),
        (["re:language_model.model.layers.3.mlp.*"], DOWN, 8),
        (["re:.*down_proj"], Q_PROJ, 4),
    ],
)
def test_each_layer_has_the_format_of_its_group(targets: list[str], layer: str, bits: int) -> None:
    groups = {
        "group_0": {"targets": ["Linear"], "weights": W4},
        "group_1": {"targets": targets, "weights": W4 | {"num_bits": 8}},
    }
    assert read_scheme(compressed(config_groups=groups)).format_of(layer) == PackedFormat(bits=bits, group_size=32)


def test_one_group_is_that_of_every_layer_that_is_quantized() -> None:
    scheme = read_scheme(compressed(group={"targets": ["other.names"]}))
    assert scheme.format_of(Q_PROJ) == PackedFormat(bits=4, group_size=32)


def test_groups_without_weights_are_of_the_cache_alone() -> None:
    fields = compressed(group={"weights": None}, format="dense", kv_cache_scheme={"num_bits": 8, "type": "float"})
    assert read_scheme(fields).format_of(Q_PROJ) is None


def test_layers_of_gptq_may_have_bits_of_their_own() -> None:
    dynamic = {
        r"-:.*\.3\.mlp\.gate": {},
        r"+:.*\.3\.mlp\.down": {"bits": 8, "group_size": 64},
        ".*k_proj": {"sym": False},
    }
    scheme = read_scheme(GPTQ | {"dynamic": dynamic})
    usual = GptqFormat(bits=4, group_size=128, is_symmetric=True, is_reordered=False, zero_offset=1)
    assert scheme.format_of(Q_PROJ) == usual
    assert scheme.format_of(DOWN) == replace(usual, bits=8, group_size=64)
    assert scheme.format_of("model.layers.0.self_attn.k_proj") == replace(usual, is_symmetric=False)


def test_auto_round_is_the_layout_that_it_names() -> None:
    fields = AUTO_ROUND | {"group_size": 64, "sym": False, "data_type": "int"}
    first = GptqFormat(bits=4, group_size=64, is_symmetric=False, is_reordered=False, zero_offset=1)
    packings: dict[str, Any] = {
        "auto_round:auto_gptq": first,
        "auto_round:gptqmodel": replace(first, zero_offset=0),
        "auto_round": replace(first, zero_offset=0),
        "auto_round:auto_awq": AwqFormat(group_size=64, has_zeros=True),
    }
    for packing, expected in packings.items():
        assert read_scheme(fields | {"packing_format": packing}).format_of(Q_PROJ) == expected
    extra = {DOWN: {"bits": 8}, r".*\.q_proj": {"group_size": 32}, "lm_head": {"bits": 16, "data_type": "float"}}
    scheme = read_scheme(fields | {"packing_format": "auto_round:auto_gptq", "extra_config": extra})
    assert scheme.format_of(DOWN) == replace(first, bits=8)
    assert scheme.format_of(Q_PROJ) == replace(first, group_size=32)
    assert scheme.format_of("lm_head") == first


@pytest.mark.parametrize(
    ("fields", "grid"),
    [
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ScaleGrid(rows=None)),
        ({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}, ScaleGrid(rows=None)),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, ScaleGrid()),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, ScaleGrid(rows=None)),
        ({"weight_block_size": [64, 32]}, ScaleGrid(rows=64, columns=32)),
    ],
)
def test_fp8_of_other_makers_is_read(fields: dict[str, Any], grid: ScaleGrid) -> None:
    found = read_scheme(fields).format_of(Q_PROJ)
    assert isinstance(found, ScaledFormat)
    assert found.grid == grid


@pytest.mark.parametrize(
    ("fields", "method"),
    [
        ({"load_in_4bit": True}, "bitsandbytes"),
        ({"w_bit": 4, "q_group_size": 128, "version": "GEMM"}, "awq"),
        ({"bits": 4, "group_size": 128, "desc_act": False}, "gptq"),
        ({"quant_method": "auto_round", "bits": 4, "group_size": 32}, "auto-round"),
    ],
)
def test_methods_are_known_by_their_fields_and_other_spellings(fields: dict[str, Any], method: str) -> None:
    assert read_scheme(fields).method == method


@pytest.mark.parametrize("kind", QUANTIZED_CHECKPOINTS)
def test_schemes_are_values(kind: str) -> None:
    first, second = (read_scheme(QUANTIZED_CHECKPOINTS[kind].config()) for _ in range(2))
    assert first == second
    assert len({first, second, first.format_of(Q_PROJ), second.format_of(Q_PROJ)}) == 2
    assert first.method == QUANTIZED_CHECKPOINTS[kind].config()["quant_method"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo` is 'NVFP4'; it must be one of `FP8`"),
        ({"bits": 4}, "quant_method` is None; it must be one of `compressed-tensors`"),
        (
            {"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:llm_compressor"},
            "packing_format` is",
        ),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, "data_type` is 'mx_fp'"),
        (
            {"quant_method": "auto-round", "bits": 8, "packing_format": "auto_round:auto_awq"},
            "bits` is 8; it must be 4",
        ),
        *(({"quant_method": each}, f"quant_method` is '{each}'") for each in ("hqq", "torchao", "quark", "eetq")),
        (compressed(format="nvfp4-pack-quantized"), "format` is 'nvfp4-pack-quantized'; it must be one of"),
        (compressed(format="marlin-24"), "format` is 'marlin-24'"),
        (compressed(format="mixed-precision"), "group_0.format` is None; it must be one of"),
        (compressed(quantization_status="initialized"), "quantization_status` is 'initialized'"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config.format` is 'sparse-24-bitmask'"),
        (compressed(transform_config={"config_groups": {}}), "transform_config` is {'config_groups': {}}"),
        (compressed(kv_cache_scheme={"num_bits": 8, "type": "int"}), "kv_cache_scheme` is"),
        (compressed(kv_cache_scheme={"num_bits": 8, "type": "float", "strategy": "channel"}), "strategy` is 'channel'"),
        (compressed(config_groups={"W4A16": ["Linear"]}), "config_groups.W4A16` is"),
        (compressed(group={"targets": []}), "targets` is"),
        (compressed(group={"output_activations": FP8}), "output_activations` is"),
        (compressed(group={"input_activations": {"num_bits": 4}}), "input_activations.num_bits` is 4"),
        (compressed({"num_bits": 3}), "weights.num_bits` is 3; it must be 4 or 8"),
        (
            compressed({"type": "float"}),
            "weights.type` is 'float'; it must be `int` where `format` is `pack-quantized`",
        ),
        (compressed({"strategy": "tensor_group"}), "weights.strategy` is 'tensor_group'"),
        (compressed({"strategy": "block", "block_structure": [8, 8]}), "weights.strategy` is 'block'"),
        (compressed({"group_size": 0, "strategy": "group"}), "weights.group_size` is 0"),
        (compressed({"dynamic": True}), "weights.dynamic` is True"),
        (compressed({"actorder": "random"}), "weights.actorder` is 'random'"),
        (compressed({"actorder": "group"}, format="int-quantized"), "weights.actorder` is 'group'"),
        (compressed({"num_bits": 16}, format="int-quantized"), "weights.num_bits` is 16"),
        (compressed(FP8 | {"num_bits": 4}, format="float-quantized"), "weights.num_bits` is 4; it must be 8"),
        (compressed(FP8 | {"symmetric": False}, format="float-quantized"), "weights.symmetric` is False"),
        (compressed(FP8 | {"strategy": "block"}, format="float-quantized"), "block_structure` is None"),
        (compressed(FP8 | {"strategy": "block", "block_structure": [8]}, format="float-quantized"), "is [8]"),
        (compressed(FP8 | {"strategy": "block", "block_structure": "8xa"}, format="float-quantized"), "is '8xa'"),
        (FINE_FP8 | {"fmt": "e5m2"}, "fmt` is 'e5m2'"),
        (FINE_FP8 | {"activation_scheme": "none"}, "activation_scheme` is 'none'"),
        (FINE_FP8 | {"expert_dtype": "fp4"}, "expert_dtype` is 'fp4'"),
        (FINE_FP8 | {"weight_block_size": [128, 0]}, "weight_block_size` is [128, 0]"),
        (GPTQ | {"bits": 3}, "bits` is 3; it must be 4 or 8"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format` is 'marlin'"),
        (GPTQ | {"group_size": 0}, "group_size` is 0"),
        (GPTQ | {"dynamic": {"+:.*down.*": {"bits": 3}}}, "dynamic.+:.*down.*.bits` is 3"),
        (GPTQ | {"dynamic": {"-:(": {}}}, "dynamic` is"),
        (GPTQ | {"sym": "yes"}, "sym` is 'yes'"),
        (AWQ | {"bits": 8}, "bits` is 8; it must be 4"),
        (AWQ | {"version": "gemv"}, "version` is 'gemv'; it must be `gemm`"),
        (AWQ | {"version": "exllama"}, "version` is 'exllama'"),
        (AWQ | {"backend": "llm-awq"}, "backend` is 'llm-awq'"),
    ],
)
def test_what_is_not_read_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_scheme(fields)
