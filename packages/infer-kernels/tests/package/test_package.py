"""The public surface, and that the README tells the truth."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import infer_kernels
import infer_kernels.cpu
import infer_kernels.reference

README = Path(__file__).parents[2] / "README.md"
OPS = [
    "add_rms_norm",
    "apply_bitmask",
    "apply_penalties",
    "apply_rope",
    "causal_convolution",
    "count_tokens",
    "embedding",
    "embedding_quantized",
    "fused_moe",
    "fused_moe_add_norm",
    "gated_convolution",
    "gated_delta_rule",
    "gated_rms_norm",
    "gelu_tanh_and_mul",
    "gelu_tanh_gate",
    "greedy",
    "linear_argmax",
    "linear_invariant",
    "mamba2_scan",
    "moe_router",
    "norm_add",
    "norm_add_norm",
    "paged_attention",
    "q_norm_rope",
    "qk_norm_rope_store",
    "resolve_token_ids",
    "rms_norm",
    "rms_norm_of_gated",
    "sample",
    "sharded_rms_norm",
    "sigmoid_gate",
    "silu_and_mul",
    "sum_of_squares",
    "topk_logprobs",
]
OTHERS = [
    "AttentionBuffers",
    "AttentionHeads",
    "AttentionPlan",
    "ConvolutionActivation",
    "DeviceMetadata",
    "ExpertActivation",
    "ExpertChoice",
    "FusedProducts",
    "FusedRouter",
    "KVScales",
    "KVSlots",
    "Largest",
    "NormVariant",
    "PendingNorm",
    "QKNorm",
    "QuantizedWeight",
    "Rotary",
    "Routing",
    "SeparateProducts",
    "SeparateRouter",
    "StateRows",
    "TopLogprobs",
    "apply_pending_norm",
    "causal_attention",
    "has_quantized_kernel",
    "linear",
    "plan_attention",
    "plan_attention_on_device",
    "prepack",
    "prepack_experts",
    "quantize_fp8",
    "quantize_int4",
    "quantize_int8",
    "row_width",
]
CPU = [
    "CapturedStep",
    "NotCapturableError",
    "PackedExperts",
    "PackedQuantizedExperts",
    "PackedQuantizedWeight",
    "PackedWeight",
    "library",
]


def test_public_surface_is_pinned() -> None:
    assert sorted(infer_kernels.__all__) == sorted([*OPS, *OTHERS])
    assert sorted(infer_kernels.cpu.__all__) == sorted(CPU)


def test_every_op_has_a_reference() -> None:
    parts_of_sample = ["kept_tokens", "uniform"]
    # What ops run where a weight is quantized.
    quantized = ["fused_moe_quantized", "linear_fp8", "linear_quantized", "quantize_rows_fp8"]
    products = ["fused_router", "gated_linear", "linear", "linear_add_norm"]
    expected = [*OPS, *parts_of_sample, *quantized, *products]
    assert sorted(infer_kernels.reference.__all__) == sorted(f"{op}_reference" for op in expected)


@pytest.mark.parametrize("face", [infer_kernels, infer_kernels.cpu, infer_kernels.reference])
def test_public_names_exist_and_say_what_they_do(face: ModuleType) -> None:
    for name in set(face.__all__) - {"ConvolutionActivation", "NormVariant"}:
        assert getattr(face, name).__doc__, name


def test_readme_snippet_runs() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    subprocess.run([sys.executable, "-W", "error", "-c", snippet], check=True)


@pytest.mark.covers("command-line-and-library/kernels-alone")
def test_import_needs_neither_numpy_nor_a_gpu() -> None:
    check = "import sys; sys.modules['numpy'] = None; import infer_kernels"
    subprocess.run([sys.executable, "-c", check], check=True)
