"""The public surface, and that the README tells the truth."""

import re
import subprocess
import sys
from pathlib import Path

import infer_kernels

README = Path(__file__).parents[1] / "README.md"
OPS = [
    "add_rms_norm",
    "advance_decode",
    "apply_penalties",
    "apply_rope",
    "apply_rope_batched",
    "copy_blocks",
    "count_tokens",
    "gather_rows",
    "gelu_tanh_and_mul",
    "linear_invariant",
    "norm_add_norm",
    "paged_attention",
    "qk_norm_rope_store",
    "rms_norm",
    "sample",
    "silu_and_mul",
    "store_kv",
    "topk_logprobs",
]
OTHERS = [
    "AttentionBuffers",
    "AttentionPlan",
    "BagFiller",
    "BagLayout",
    "BagShape",
    "Bags",
    "DecodePlan",
    "KVSlots",
    "NormVariant",
    "QKNorm",
    "Rotary",
    "TopLogprobs",
    "causal_attention",
    "kv_cache_dtype",
    "linear",
    "plan_attention",
    "prepack",
    "sample_scratch",
    "wants_transposed_keys",
]


def test_public_surface_is_pinned() -> None:
    assert sorted(infer_kernels.__all__) == sorted([*OPS, *(f"{op}_reference" for op in OPS), *OTHERS])


def test_public_names_exist_and_say_what_they_do() -> None:
    for name in set(infer_kernels.__all__) - {"NormVariant"}:
        assert getattr(infer_kernels, name).__doc__, name


def test_readme_snippet_runs() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    subprocess.run([sys.executable, "-W", "error", "-c", snippet], check=True)


def test_import_needs_neither_numpy_nor_a_gpu() -> None:
    check = "import sys; sys.modules['numpy'] = None; import infer_kernels"
    subprocess.run([sys.executable, "-c", check], check=True)
