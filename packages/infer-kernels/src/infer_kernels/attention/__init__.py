"""Attention over a paged KV cache, and over whole sequences without one. Knows flat batches; knows no model.

`plan.py` is what a step's plan promises, `paged.py` the two public functions, `cpu.py` and `tiles.py` the two kinds of
plan with the path each takes, `reference.py` the formula, `causal.py` attention without a cache.
"""

from infer_kernels.attention.causal import causal_attention
from infer_kernels.attention.paged import paged_attention, plan_attention
from infer_kernels.attention.plan import AttentionPlan
from infer_kernels.attention.reference import paged_attention_reference

__all__ = ["AttentionPlan", "causal_attention", "paged_attention", "paged_attention_reference", "plan_attention"]
