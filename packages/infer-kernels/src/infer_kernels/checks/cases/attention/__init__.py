"""Attention over a paged cache.

lengths.py     lengths around the kernels' tiles and splits, and memory that must stay unread
long.py        many splits and large pools
runs.py        how the checks compute attention
calls.py       ragged batches of odd shapes
launches.py    every configuration that ships
"""

from infer_kernels.checks.cases.attention.calls import attention_calls
from infer_kernels.checks.cases.attention.launches import attention_launches
from infer_kernels.checks.cases.attention.lengths import attention_checks
from infer_kernels.checks.cases.attention.long import large_pool_check, long_sequence_check, repeated_join_check
from infer_kernels.checks.cases.op_cases import OpCases

__all__ = ["ATTENTION"]

ATTENTION = OpCases(
    ops=("paged_attention",),
    checks=attention_checks,
    repeated_checks=lambda ops, times: [repeated_join_check(ops, times=times)],
    large_checks=lambda ops: [long_sequence_check(ops), large_pool_check(ops)],
    launches=attention_launches,
    calls=attention_calls,
)
