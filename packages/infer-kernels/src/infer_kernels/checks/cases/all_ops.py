"""All ops, by the tables of their cases. `tests/checks/test_op_cases.py` fails if an op is in none of them."""

from infer_kernels.checks.cases.attention import ATTENTION
from infer_kernels.checks.cases.embedding import EMBEDDING
from infer_kernels.checks.cases.gated_activations import ACTIVATIONS
from infer_kernels.checks.cases.linear import LINEAR
from infer_kernels.checks.cases.mamba2 import MAMBA2
from infer_kernels.checks.cases.moe import MOE
from infer_kernels.checks.cases.norm import NORMS
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.cases.products import PRODUCTS
from infer_kernels.checks.cases.qkv import QKV
from infer_kernels.checks.cases.quantized import QUANTIZED
from infer_kernels.checks.cases.sampling import SAMPLING
from infer_kernels.checks.cases.states import STATES
from infer_kernels.checks.cases.token_ids import TOKEN_IDS

ALL_OPS: tuple[OpCases, ...] = (
    ATTENTION,
    QKV,
    EMBEDDING,
    TOKEN_IDS,
    NORMS,
    ACTIVATIONS,
    STATES,
    LINEAR,
    PRODUCTS,
    MOE,
    QUANTIZED,
    MAMBA2,
    SAMPLING,
)
"""All of them, the most important first: the doctor checks them in this order while it has time."""
IN_A_LAYER: tuple[OpCases, ...] = (
    NORMS,
    ACTIVATIONS,
    QKV,
    ATTENTION,
    STATES,
    PRODUCTS,
    MOE,
    QUANTIZED,
    MAMBA2,
    TOKEN_IDS,
    EMBEDDING,
    LINEAR,
    SAMPLING,
)
"""The same in the order of the kernel report: a layer's, then what comes before and after the layers."""
