"""The checks of a model's ops over Triton's kernels, interpreted: what `infer-server doctor` runs on a GPU.

`test_op_cases.py` compares the same kernels in every dtype; here each check runs once.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch

import infer_kernels
from infer_kernels import AttentionBuffers, FusedProducts, FusedRouter, PendingNorm, Routing
from infer_kernels.attention.triton.plan import TritonAttentionPlan
from infer_kernels.checks import ModelOps, MoeOps, QuantizedOps, SelfCheck
from infer_kernels.checks.cases.all_ops import ALL_OPS
from infer_kernels.checks.cases.attention.lengths import attention_checks
from infer_kernels.checks.cases.attention.long import large_pool_check, long_sequence_check, repeated_join_check
from infer_kernels.checks.cases.embedding import EMBEDDING
from infer_kernels.checks.cases.gated_activations import ACTIVATIONS
from infer_kernels.checks.cases.linear import LINEAR
from infer_kernels.checks.cases.moe.routed import routed_checks
from infer_kernels.checks.cases.norm import NORMS
from infer_kernels.checks.cases.op_cases import OpCases
from infer_kernels.checks.cases.products import product_checks, repeated_product_check
from infer_kernels.checks.cases.qkv import QKV
from infer_kernels.checks.cases.quantized.checks import quantized_checks
from infer_proofs.kernels.pairwise import parametrize_each_value

pytestmark = pytest.mark.usefixtures("triton_only")

CPU = torch.device("cpu")
SMALL = ModelOps(
    dtype=torch.float16,
    vocab_size=300,
    hidden_size=48,
    intermediate_size=40,
    q_heads=2,
    kv_heads=1,
    head_dim=16,
    block_size=64,
    scale=0.25,
    norm="gemma",
    qk_norm="gemma",
    has_sandwich_norms=True,
    windows=(100,),
    moe=MoeOps(
        experts=6,
        experts_per_token=2,
        intermediate_size=24,
        scoring="softmax",
        normalize=False,
        activation="clamped_swiglu",
        has_biases=True,
    ),
)

POST_NORM = replace(
    SMALL,
    norm="llama",
    qk_norm=None,
    has_sandwich_norms=False,
    has_post_norms=True,
    norms_all_heads=True,
    rotary_dim=10,
)


@pytest.mark.covers("command-line-and-library/doctor-on-gpu")
@parametrize_each_value(cases=ALL_OPS, dtype=[torch.float16, torch.bfloat16])
def test_interpreted_kernels_agree_with_their_references(cases: OpCases, dtype: torch.dtype) -> None:
    ops = replace(SMALL, dtype=dtype)
    for check in (*cases.checks(ops), *cases.misaligned_checks(ops)):
        check.run(CPU)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_interpreted_attention_with_sinks_agrees_with_its_reference(dtype: torch.dtype) -> None:
    for check in attention_checks(replace(SMALL, dtype=dtype, windows=(None,), has_sinks=True)):
        check.run(CPU)


@pytest.mark.parametrize("cases", [QKV, EMBEDDING, NORMS, ACTIVATIONS, LINEAR], ids=str)
def test_interpreted_kernels_of_post_norms_and_partial_rotary_agree_too(cases: OpCases) -> None:
    for check in (*cases.checks(POST_NORM), *cases.misaligned_checks(POST_NORM)):
        check.run(CPU)


@pytest.mark.parametrize(
    "form",
    [
        QuantizedOps(encoding="int8"),
        QuantizedOps(encoding="int4", group_size=16, has_zeros=True),
        QuantizedOps(encoding="int4", group_size=32, has_minimums=True),
        QuantizedOps(encoding="int8", group_size=16, has_minimums=True),
        QuantizedOps(encoding="e2m1", group_size=32),
        QuantizedOps(encoding="fp8_e4m3", group_size=32),
    ],
    ids=str,
)
def test_interpreted_kernels_of_quantized_weights_agree_with_their_references(
    form: QuantizedOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infer_kernels.checks.cases.quantized.checks.ROWS", (1, 17))
    monkeypatch.setattr("infer_kernels.checks.cases.quantized.checks.MAX_OUTPUTS", 70)  # a tile and an edge
    for check in quantized_checks(replace(SMALL, quantized=(form,))):
        check.run(CPU)


def test_interpreted_joins_have_equal_bits_and_the_last_blocks_are_reached() -> None:
    repeated_join_check(SMALL, times=1).run(CPU)
    repeated_product_check(replace(SMALL, intermediate_size=768), times=1).run(CPU)
    large_pool_check(SMALL, num_elements=2**31).run(CPU)
    long_sequence_check(SMALL, num_tokens=20 * 256 + 1).run(CPU)


@pytest.mark.parametrize("make", [attention_checks, lambda ops: [repeated_join_check(ops, times=1)]])
def test_programs_of_captured_steps_that_leave_items_out_fail(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[ModelOps], Iterable[SelfCheck]]
) -> None:
    monkeypatch.setattr(AttentionBuffers, "num_programs", lambda *_: 0)
    with pytest.raises(AssertionError, match="captured"):
        next(iter(make(SMALL))).run(CPU)


@pytest.mark.parametrize("activation", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_products_of_layers_agree_and_one_whose_norm_is_wrong_fails(
    monkeypatch: pytest.MonkeyPatch, activation: Literal["silu_and_mul", "gelu_tanh_and_mul"]
) -> None:
    ops = replace(SMALL, has_sandwich_norms=False, hidden_size=48, intermediate_size=160, activation=activation)
    for check in product_checks(ops):
        check.run(CPU)
    right = FusedProducts.linear_add_norm

    def doubled(self: FusedProducts, *args: Any, **how: Any) -> tuple[Any, torch.Tensor]:
        pending, total = right(self, *args, **how)
        assert isinstance(pending, PendingNorm)
        return replace(pending, squares=2 * pending.squares), total

    monkeypatch.setattr(FusedProducts, "linear_add_norm", doubled)
    with pytest.raises(AssertionError):
        next(iter(product_checks(ops))).run(CPU)


@pytest.mark.parametrize("quantized", [(), (QuantizedOps(encoding="int8"),)])
def test_routed_rows_agree_and_a_router_that_groups_wrongly_fails(
    monkeypatch: pytest.MonkeyPatch, quantized: tuple[QuantizedOps, ...]
) -> None:
    ops = replace(SMALL, has_sandwich_norms=False, hidden_size=160, quantized=quantized)
    checks = list(routed_checks(ops))
    assert {check.op for check in checks} == {"fused_router", "fused_moe_add_norm"}
    for check in checks:
        check.run(CPU)
    right = FusedRouter.route

    def turned(self: FusedRouter, *args: Any, **how: Any) -> Routing:
        routing = right(self, *args, **how)
        assert routing.grouping is not None
        return routing._replace(grouping=routing.grouping._replace(tiles=routing.grouping.tiles.flip(1)))

    monkeypatch.setattr(FusedRouter, "route", turned)
    with pytest.raises(AssertionError, match="other tiles"):
        checks[1].run(CPU)


def test_it_is_the_kernels_that_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = set()
    right = infer_kernels.paged_attention

    def look(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: object, **rest: object) -> torch.Tensor:
        kinds.add(type(plan))
        return right(q, k, v, plan, **rest)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr(infer_kernels, "paged_attention", look)
    next(iter(attention_checks(SMALL))).run(CPU)
    assert kinds == {TritonAttentionPlan}
