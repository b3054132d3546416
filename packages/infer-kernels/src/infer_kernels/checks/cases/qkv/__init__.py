"""Queries, keys and values before attention: norms of heads, rotations, stores.

stores.py      `qk_norm_rope_store` at a model's sizes
codes.py       a cache of eight bits: stores, and attention over it
calls.py       each op at odd shapes
launches.py    every configuration that ships
"""

from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.cases.qkv.calls import qkv_calls
from infer_kernels.checks.cases.qkv.codes import kv_code_checks
from infer_kernels.checks.cases.qkv.launches import qkv_launches
from infer_kernels.checks.cases.qkv.stores import cache_checks, misaligned_cache_checks

__all__ = ["QKV"]

QKV = OpCases(
    ops=("qk_norm_rope_store", "q_norm_rope", "apply_rope"),
    checks=lambda ops: (*cache_checks(ops), *kv_code_checks(ops)),
    misaligned_checks=misaligned_cache_checks,
    launches=qkv_launches,
    calls=qkv_calls,
)
