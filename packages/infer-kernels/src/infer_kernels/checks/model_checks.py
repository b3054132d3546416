"""`model_checks`: all checks of a model's ops, the most important first."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

from infer_kernels.checks.cases.all_ops import ALL_OPS
from infer_kernels.checks.cases.attention import ATTENTION
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.cases.qkv import QKV
from infer_kernels.checks.self_check import HeadOps, ModelOps, SelfCheck


def model_checks(ops: ModelOps, *, num_joins: int) -> list[SelfCheck]:
    """Return the checks of a model's ops.

    Args:
        ops: what the model uses.
        num_joins: how often attention over several splits and products over several programs are repeated, whose bits
            must stay equal.
    """
    of_other_heads = [check for heads in ops.other_heads for check in _checks_of_heads(ops, heads, num_joins)]
    return [*_checks(ALL_OPS, ops, num_joins), *of_other_heads]


def _checks(tables: Sequence[OpCases], ops: ModelOps, num_joins: int) -> Iterator[SelfCheck]:
    for cases in tables:
        yield from cases.checks(ops)
    for cases in tables:
        yield from cases.repeated_checks(ops, num_joins)
    for cases in tables:
        yield from cases.large_checks(ops)
    for cases in tables:
        yield from cases.misaligned_checks(ops)


def _checks_of_heads(ops: ModelOps, heads: HeadOps, num_joins: int) -> Iterator[SelfCheck]:
    """Yield those of the ops that heads go through, from the projections to attention."""
    for check in _checks((QKV, ATTENTION), replace(ops, other_heads=(), **asdict(heads)), num_joins):
        yield replace(check, label=f"{check.label}, heads {ops.q_heads}/{heads.kv_heads} x {heads.head_dim}")
