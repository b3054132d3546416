"""`model_checks`: all checks of a model's ops, the most important first."""

from infer_kernels.checks.cases.all_ops import ALL_OPS
from infer_kernels.checks.self_check import ModelOps, SelfCheck


def model_checks(ops: ModelOps, *, num_joins: int) -> list[SelfCheck]:
    """Return the checks of a model's ops.

    Args:
        ops: what the model uses.
        num_joins: how often attention over several splits and products over several programs are repeated, whose bits
            must stay equal.
    """
    return [
        *(check for cases in ALL_OPS for check in cases.checks(ops)),
        *(check for cases in ALL_OPS for check in cases.repeated_checks(ops, num_joins)),
        *(check for cases in ALL_OPS for check in cases.large_checks(ops)),
        *(check for cases in ALL_OPS for check in cases.misaligned_checks(ops)),
    ]
