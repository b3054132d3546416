"""`model_checks`: all checks of a model's ops, the most important first."""

from infer_kernels.checks.cases.attention.lengths import attention_checks
from infer_kernels.checks.cases.attention.long import large_pool_check, long_sequence_check, repeated_join_check
from infer_kernels.checks.cases.moe.experts import moe_checks
from infer_kernels.checks.cases.moe.routed import routed_checks
from infer_kernels.checks.cases.products import product_checks, repeated_product_check
from infer_kernels.checks.cases.qkv.codes import kv_code_checks
from infer_kernels.checks.cases.qkv.stores import cache_checks, misaligned_cache_checks
from infer_kernels.checks.cases.quantized.checks import quantized_checks
from infer_kernels.checks.cases.rows import misaligned_row_checks, row_checks
from infer_kernels.checks.cases.sampling import misaligned_sampling_checks, sampling_checks
from infer_kernels.checks.self_check import ModelOps, SelfCheck


def model_checks(ops: ModelOps, *, num_joins: int) -> list[SelfCheck]:
    """Return the checks of a model's ops.

    Args:
        ops: what the model uses.
        num_joins: how often attention over several splits and products over several programs are repeated, whose bits
            must stay equal.
    """
    return [
        *attention_checks(ops),
        *cache_checks(ops),
        *kv_code_checks(ops),
        *row_checks(ops),
        *product_checks(ops),
        *moe_checks(ops),
        *routed_checks(ops),
        *quantized_checks(ops),
        *sampling_checks(ops),
        repeated_join_check(ops, times=num_joins),
        repeated_product_check(ops, times=num_joins),
        long_sequence_check(ops),
        large_pool_check(ops),
        *misaligned_cache_checks(ops),
        *misaligned_row_checks(ops),
        *misaligned_sampling_checks(ops),
    ]
