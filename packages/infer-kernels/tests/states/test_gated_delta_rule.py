"""Facts of the gated delta rule alone, on every path. `test_state_ops.py` has values, slots and bits."""

from typing import Any

import pytest
import torch
from torch.nn import functional

from infer_kernels import StateRows, gated_delta_rule
from infer_kernels.reference import gated_delta_rule_reference
from infer_kernels.states.gated_delta_rule import NORM_EPS as NORM_EPS_OF_REFERENCE
from infer_kernels.states.gated_delta_rule_triton import NORM_EPS
from infer_proofs.kernels.pairwise import parametrize_pairwise
from infer_proofs.kernels.paths import DTYPES

pytestmark = pytest.mark.usefixtures("every_path")


def whole(tokens: int, *, read: int = 0, write: int = 1) -> StateRows:
    """Return the rows of one sequence."""
    starts, reads, writes = (torch.tensor(each, dtype=torch.int32) for each in ([0, tokens], [read], [write]))
    return StateRows(query_start=starts, read=reads, write=writes)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # numpy's, of what is asked for
@parametrize_pairwise(dtype=DTYPES, a_log=[-20.0, 0.0, 12.0], gate=[-100.0, 100.0])
def test_large_numbers_stay_finite(dtype: torch.dtype, a_log: float, gate: float) -> None:
    qkv, state = 100 * torch.randn(9, 2 * 64 + 2 * 32).to(dtype), torch.randn(2, 2, 64, 32)
    a, b = torch.full((9, 2), gate, dtype=dtype), torch.full((9, 2), -gate, dtype=dtype)
    numbers: dict[str, Any] = {"a_log": torch.full((2,), a_log), "dt_bias": torch.randn(2)}
    expected, states = gated_delta_rule_reference(qkv, a, b, state, whole(9), **numbers, key_heads=1)
    out = gated_delta_rule(qkv, a, b, state, whole(9), **numbers, key_heads=1)
    assert out.isfinite().all()
    assert state.isfinite().all()
    torch.testing.assert_close(out, expected, rtol=max(1e-4, 2 * torch.finfo(dtype).eps), atol=1e-3)
    torch.testing.assert_close(state, states, rtol=1e-4, atol=1e-3)


def test_queries_and_keys_of_zeros_read_and_write_nothing() -> None:
    qkv, state = torch.randn(4, 48), torch.zeros(2, 1, 16, 16)
    qkv[:, :32] = 0.0
    a, b, number = torch.randn(4, 1), torch.randn(4, 1), torch.randn(1)
    assert not gated_delta_rule(qkv, a, b, state, whole(4, read=-1), a_log=number, dt_bias=number, key_heads=1).any()
    assert not state.any()


@pytest.mark.parametrize("a", [-30.0, -15.0, -5.0, -0.1, 0.0, 0.7, 6.0, 19.0, 25.0])
def test_decay_is_exact_where_little_or_much_is_forgotten(a: float) -> None:
    # A rate that makes the exponent about -1; keys of zeros leave the decay alone.
    softplus = float(functional.softplus(torch.tensor(a, dtype=torch.float64)))
    a_log = -torch.tensor([softplus]).log()
    state, zero = torch.ones(2, 1, 16, 1), torch.zeros(1, 1)
    given = (torch.zeros(1, 33), torch.full((1, 1), a), zero, state, whole(1))
    gated_delta_rule(*given, a_log=a_log, dt_bias=zero[0], key_heads=1)
    expected = torch.exp(-a_log.double().exp() * softplus).float()
    torch.testing.assert_close(state[1], expected.expand(1, 16, 1), rtol=1e-6, atol=0.0)


def test_constant_of_the_norm_is_that_of_the_reference() -> None:
    assert NORM_EPS == NORM_EPS_OF_REFERENCE
