"""Attention over a paged KV cache, and over whole sequences without one. Knows flat batches; knows no model.

`plan.py` is what a step's plan promises, `paged.py` the two public functions, `reference.py` the formula, `causal.py`
attention without a cache. `cpu.py` is the plan of the PyTorch path, over `bags.py` for decodes and `cpu_prompts.py` for
prompts; `cpu_invariant.py` is the one whose bits do not depend on the batch, cut up by `cpu_panels.py`; both read
through `cpu_cache.py`. `triton_plan.py` is that of the kernels,
which are `paged_decode.py` and `paged_prefill.py`, both around `walk.py`; `work.py` says what each program takes,
`memory.py` where that lies on the device, `configs.py` how the kernels are launched.
"""

from infer_kernels.attention.bags import BagFiller, BagLayout, Bags, BagShape, kv_cache_dtype, wants_transposed_keys
from infer_kernels.attention.causal import causal_attention
from infer_kernels.attention.cpu import DecodePlan
from infer_kernels.attention.memory import AttentionBuffers
from infer_kernels.attention.paged import paged_attention, plan_attention
from infer_kernels.attention.plan import AttentionPlan
from infer_kernels.attention.reference import paged_attention_reference

__all__ = [
    "AttentionBuffers",
    "AttentionPlan",
    "BagFiller",
    "BagLayout",
    "BagShape",
    "Bags",
    "DecodePlan",
    "causal_attention",
    "kv_cache_dtype",
    "paged_attention",
    "paged_attention_reference",
    "plan_attention",
    "wants_transposed_keys",
]
