"""The selective scan: its closed form, and wrong arguments. `test_state_ops.py` has values, slots and bits."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels import StateRows, mamba2_scan, rms_norm_of_gated
from infer_kernels.reference import mamba2_scan_reference

HEADS, HEAD_DIM, GROUPS, STATE_SIZE = 6, 20, 2, 24
TOKENS = 37


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def one_sequence(tokens: int) -> StateRows:
    return StateRows(query_start=ints(0, tokens), read=ints(-1), write=ints(-1))


def inputs(tokens: int) -> tuple[Tensor, Tensor]:
    """Rows of xbc and dt, strided as parts of one product are."""
    width = HEADS * HEAD_DIM + 2 * GROUPS * STATE_SIZE
    product = torch.randn(tokens, 3 + width + HEADS)
    return product[:, 3 : 3 + width], product[:, 3 + width :]


def parameters() -> dict[str, Any]:
    of_heads = {name: torch.randn(HEADS) for name in ("a_log", "d", "dt_bias")}
    return {**of_heads, "num_groups": GROUPS, "time_step_limit": (0.01, 2.0)}


def states(slots: int) -> Tensor:
    return torch.randn(slots, HEADS, HEAD_DIM, STATE_SIZE)


def test_the_reference_is_attention_with_decaying_scores() -> None:
    xbc, dt = inputs(TOKENS)
    given = parameters()
    rows = one_sequence(TOKENS)
    y, _ = mamba2_scan_reference(xbc, dt, states(1), rows, **given)
    x, b, c = torch.split(xbc, [HEADS * HEAD_DIM, GROUPS * STATE_SIZE, GROUPS * STATE_SIZE], dim=1)
    x = x.reshape(TOKENS, HEADS, HEAD_DIM)
    b, c = (each.reshape(TOKENS, GROUPS, -1).repeat_interleave(HEADS // GROUPS, dim=1) for each in (b, c))
    step = functional.softplus(dt + given["dt_bias"]).clamp(0.01, 2.0)
    total = (-given["a_log"].exp() * step).cumsum(0)
    decay = (total[:, None] - total[None]).exp()
    scores = torch.einsum("thn,shn->tsh", c, b) * decay * torch.ones(TOKENS, TOKENS).tril()[:, :, None]
    expected = torch.einsum("tsh,shp->thp", scores, step[:, :, None] * x) + given["d"][:, None] * x
    torch.testing.assert_close(y, expected.flatten(1), rtol=1e-4, atol=1e-4)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"num_groups": 4}, "`num_groups` is 4 but `state` has 6 heads"),
    ({"num_groups": 3}, "`xbc` has 216 columns; pass 264"),
    ({"time_step_limit": (1.0, 0.5)}, "`time_step_limit` is"),
    ({"d": torch.zeros(5)}, "`d` has shape"),
    ({"dt": torch.zeros(4, HEADS)}, "`dt` has shape"),
    ({"a_log": torch.zeros(HEADS, dtype=torch.float16)}, "`a_log` has dtype"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_arguments_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    xbc, dt = inputs(5)
    right = {"xbc": xbc, "dt": dt, "state": states(1), "rows": one_sequence(5), **parameters()}
    mamba2_scan(**right)
    with pytest.raises((ValueError, TypeError), match=message):
        mamba2_scan(**right | changes)


def test_groups_of_a_norm_divide_its_rows() -> None:
    x = torch.randn(2, 6)
    with pytest.raises(ValueError, match="`num_groups` is 4 but rows have 6 elements"):
        rms_norm_of_gated(x, x, x[0], 1e-6, num_groups=4)
