"""The selective scan: its closed form, steps of any length, gradients and wrong arguments."""

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from infer_kernels import StateRows, mamba2_scan, rms_norm_of_gated
from infer_kernels.reference import mamba2_scan_reference

HEADS, HEAD_DIM, GROUPS, STATE_SIZE = 6, 20, 2, 24
TOKENS = 37
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def rows_of(*lens: int, read: tuple[int, ...], write: tuple[int, ...]) -> StateRows:
    return StateRows(query_start=ints(0, *accumulate(lens)), read=ints(*read), write=ints(*write))


def inputs(tokens: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Rows of xbc and dt, strided as parts of one product are."""
    width = HEADS * HEAD_DIM + 2 * GROUPS * STATE_SIZE
    product = torch.randn(tokens, 3 + width + HEADS).to(dtype)
    return product[:, 3 : 3 + width], product[:, 3 + width :]


def parameters() -> dict[str, Any]:
    of_heads = {name: torch.randn(HEADS) for name in ("a_log", "d", "dt_bias")}
    return {**of_heads, "num_groups": GROUPS, "time_step_limit": (0.01, 2.0)}


def states(slots: int) -> Tensor:
    return torch.randn(slots, HEADS, HEAD_DIM, STATE_SIZE)


def test_the_reference_is_attention_with_decaying_scores() -> None:
    xbc, dt = inputs(TOKENS)
    given = parameters()
    rows = rows_of(TOKENS, read=(-1,), write=(-1,))
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


@pytest.mark.usefixtures("cpu_path")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lens", [[1] * TOKENS, [20, 17], [3, 0, 33, 1]])
def test_bits_do_not_depend_on_how_a_sequence_is_divided(lens: list[int], dtype: torch.dtype) -> None:
    xbc, dt = inputs(TOKENS, dtype)
    given, pool = parameters(), states(3)
    whole = mamba2_scan(xbc, dt, pool, rows_of(TOKENS, read=(0,), write=(1,)), **given)
    expected = pool[1].clone()
    parts, slot = [], 0
    for part, part_dt in zip(torch.split(xbc, lens), torch.split(dt, lens), strict=True):
        rows = rows_of(len(part), read=(slot,), write=(1 if slot == 2 else 2,))
        parts.append(mamba2_scan(part, part_dt, pool, rows, **given))
        slot = 1 if slot == 2 else 2
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(pool[slot], expected)


@pytest.mark.usefixtures("cpu_path")
def test_a_sequence_reads_its_own_state_and_others_stay() -> None:
    xbc, dt = inputs(9)
    given, pool = parameters(), states(6)
    before = pool.clone()
    rows = rows_of(4, 0, 5, read=(2, 3, -1), write=(5, 4, -1))
    out = mamba2_scan(xbc, dt, pool, rows, **given)
    alone = before.clone()
    first = mamba2_scan(xbc[:4], dt[:4], alone, rows_of(4, read=(2,), write=(0,)), **given)
    zeros = torch.zeros_like(before)
    last = mamba2_scan(xbc[4:], dt[4:], zeros, rows_of(5, read=(1,), write=(0,)), **given)
    assert torch.equal(out, torch.cat([first, last]))
    assert torch.equal(pool[5], alone[0])
    assert torch.equal(pool[4], before[3])
    assert torch.equal(pool[:4], before[:4])


def test_gradients_reach_inputs_and_parameters() -> None:
    xbc, dt = (each.clone().requires_grad_() for each in inputs(5))
    given = parameters()
    of_heads = [given[name].requires_grad_() for name in ("a_log", "d", "dt_bias")]
    y = mamba2_scan(xbc, dt, states(1), rows_of(5, read=(-1,), write=(0,)), **given)
    gradients = torch.autograd.grad(y.square().sum(), [xbc, dt, *of_heads])
    assert all(each.abs().sum() > 0 for each in gradients)


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
    right = {"xbc": xbc, "dt": dt, "state": states(1), "rows": rows_of(5, read=(-1,), write=(0,)), **parameters()}
    mamba2_scan(**right)
    with pytest.raises((ValueError, TypeError), match=message):
        mamba2_scan(**right | changes)


def test_groups_of_a_norm_divide_its_rows() -> None:
    x = torch.randn(2, 6)
    with pytest.raises(ValueError, match="`num_groups` is 4 but rows have 6 elements"):
        rms_norm_of_gated(x, x, x[0], 1e-6, num_groups=4)
