"""Kernels on a GPU: the doctor's checks at the sizes of real models, the ops that no model calls, and equal bits.

What needs no GPU runs on a CPU too, over its own paths: so the checks are known to be sound. The doctor's checks at
other sizes run on a CPU in `checks/test_model_checks.py`, and interpreted in `checks/test_interpreted_checks.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import infer_kernels
from infer_kernels import fused_moe, linear_invariant, paged_attention, plan_attention, reference, sample
from infer_kernels.checks import (
    CheckImpossibleError,
    ConvolutionOps,
    DeltaRuleOps,
    HeadOps,
    ModelOps,
    MoeOps,
    QuantizedOps,
    ScanOps,
    model_checks,
)
from infer_kernels.checks.closeness import assert_within_roundings
from infer_kernels.checks.inputs.batches import PagedBatch, random_paged_batch
from infer_kernels.checks.inputs.draws import random_draws
from infer_kernels.checks.inputs.experts import random_experts
from infer_proofs.kernels.devices import DEVICES, ON_GPU

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NUM_JOINS = 1000
LLAMA = ModelOps(
    dtype=torch.bfloat16,
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14336,
    q_heads=32,
    kv_heads=8,
    head_dim=128,
    block_size=64,
    scale=128**-0.5,
)
GEMMA = replace(
    LLAMA,
    hidden_size=1152,
    intermediate_size=6912,
    q_heads=4,
    kv_heads=1,
    head_dim=256,
    block_size=32,
    scale=256**-0.5,
    norm="gemma",
    qk_norm="gemma",
    has_sandwich_norms=True,
    activation="gelu_tanh_and_mul",
    windows=(100, None),
    soft_cap=20.0,
    embedding_scale=1152**0.5,
)
QWEN3_MOE = replace(
    LLAMA,
    hidden_size=2048,
    intermediate_size=768,
    kv_heads=4,
    qk_norm="llama",
    activation=None,
    moe=MoeOps(
        experts=128,
        experts_per_token=8,
        intermediate_size=768,
        scoring="softmax",
        normalize=True,
        activation="silu_and_mul",
    ),
)
GPT_OSS = replace(
    QWEN3_MOE,
    hidden_size=2880,
    q_heads=64,
    kv_heads=8,
    head_dim=64,
    scale=64**-0.5,
    qk_norm=None,
    windows=(128, None),
    has_sinks=True,
    moe=MoeOps(
        experts=32,
        experts_per_token=4,
        intermediate_size=2880,
        scoring="softmax_of_top_k",
        normalize=True,
        activation="clamped_swiglu",
        has_biases=True,
    ),
    quantized=(QuantizedOps(encoding="e2m1", group_size=32),),
)
QWEN3_5 = replace(
    LLAMA,
    vocab_size=248_320,
    hidden_size=2560,
    intermediate_size=9216,
    q_heads=16,
    kv_heads=4,
    head_dim=256,
    scale=256**-0.5,
    norm="gemma",
    qk_norm="gemma",
    rotary_dim=64,
    convolution=ConvolutionOps(channels=8192, width=4, has_silu=True),
    delta_rule=DeltaRuleOps(key_heads=16, value_heads=32, key_dim=128, value_dim=128),
    has_output_gate=True,
)
LFM2 = replace(
    LLAMA,
    vocab_size=65_536,
    hidden_size=2048,
    intermediate_size=8192,
    head_dim=64,
    scale=64**-0.5,
    qk_norm="llama",
    convolution=ConvolutionOps(channels=2048, width=3, is_gated=True),
)
GRANITE_HYBRID = replace(
    LLAMA,
    vocab_size=100_352,
    hidden_size=1536,
    intermediate_size=4096,
    q_heads=12,
    kv_heads=4,
    scale=0.0078125,
    has_rotary=False,
    convolution=ConvolutionOps(channels=3328, width=4, has_bias=True, has_silu=True),
    scan=ScanOps(heads=48, head_dim=64, groups=1, state_size=128),
)
MODELS = {
    "llama": LLAMA,
    "smollm": replace(
        LLAMA, hidden_size=576, intermediate_size=1536, q_heads=9, kv_heads=3, head_dim=64, scale=64**-0.5
    ),
    "qwen3": replace(LLAMA, hidden_size=1024, intermediate_size=3072, q_heads=16, qk_norm="llama"),
    "phi3": replace(LLAMA, hidden_size=3072, intermediate_size=8192, q_heads=24, rotary_dim=96),
    "heads of 96": replace(LLAMA, hidden_size=1000, q_heads=4, kv_heads=4, head_dim=96, scale=96**-0.5),
    "small blocks": replace(LLAMA, hidden_size=1024, intermediate_size=3072, q_heads=16, kv_heads=1, block_size=5),
    "olmo2": replace(LLAMA, has_post_norms=True, norms_all_heads=True),
    "gemma3": GEMMA,
    "gemma4": replace(
        GEMMA,
        kv_heads=2,
        windows=(100,),
        soft_cap=None,
        other_heads=(HeadOps(kv_heads=1, head_dim=512, windows=(None,), scale=1.0, rotary_dim=None),),
    ),
    "qwen3.5": QWEN3_5,
    "lfm2": LFM2,
    "granite hybrid": GRANITE_HYBRID,
    "qwen3_moe": QWEN3_MOE,
    "gpt_oss": GPT_OSS,
    "int8": replace(LLAMA, quantized=(QuantizedOps(encoding="int8"),)),
    "int4": replace(QWEN3_MOE, quantized=(QuantizedOps(encoding="int4", group_size=128, has_zeros=True),)),
    "int4 with minimums": replace(
        QWEN3_MOE,
        quantized=tuple(QuantizedOps(encoding="int4", group_size=size, has_minimums=True) for size in (16, 32)),
    ),
    "int8 with minimums": replace(LLAMA, quantized=(QuantizedOps(encoding="int8", group_size=32, has_minimums=True),)),
    "fp8": replace(LLAMA, quantized=(QuantizedOps(encoding="fp8_e4m3"),), kv_dtype=torch.float8_e4m3fn),
}
RAGGED = [(1, 1), (1, 255), (1, 257), (1, 1000), (1, 64), (5, 5), (70, 300), (0, 3), (1, 0), (33, 129)]
"""(rows, tokens) of decodes, chunks, an idle sequence and an empty one."""


@pytest.mark.parametrize("dtype", [pytest.param(dtype, marks=ON_GPU) for dtype in DTYPES])
@pytest.mark.parametrize("name", MODELS)
def test_ops_of_real_models_agree_with_their_references(name: str, dtype: torch.dtype) -> None:
    if name == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 caches need sm_89")
    wrong = {}
    with torch.inference_mode():
        for check in model_checks(replace(MODELS[name], dtype=dtype), num_joins=NUM_JOINS):
            try:
                check.run(torch.device("cuda"))
            except CheckImpossibleError as error:
                print(f"{check}: {error}")
            except (AssertionError, RuntimeError) as error:
                wrong[str(check)] = str(error)
    assert wrong == {}


def agree(name: str, device: str, *inputs: Tensor, roundings: float = 2.0, **options: Any) -> None:
    """Compare the op called `name` on `device` with its reference on the CPU; results that are written to count too."""
    moved = [each.to(device, copy=True) for each in inputs]
    found = getattr(infer_kernels, name)(*moved, **options)
    right = getattr(reference, f"{name}_reference")(*inputs, **options)
    if found is None:  # written into the caches, which a reference returns
        found = moved[2:4]
    pairs = [(found, right)] if isinstance(found, Tensor) else list(zip(found, right, strict=True))
    for own, expected in pairs:
        assert_within_roundings(own.cpu(), expected, roundings=roundings)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "head_dim"), [(9, 3, 64), (4, 4, 96), (32, 8, 128), (4, 1, 256), (8, 1, 512)]
)
def test_rotations_by_themselves_agree(
    q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: str
) -> None:
    q, k = (torch.randn(7, heads, head_dim).to(dtype) for heads in (q_heads, kv_heads))
    for rotary_dim in (head_dim, head_dim // 4 + 4):
        angles = torch.randn(11, rotary_dim // 2)
        agree("apply_rope", device, q, k, torch.randint(0, 11, (7,)), torch.cat((angles.cos(), angles.sin()), dim=1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 576, 200), (65, 4096, 130), (130, 1000, 64)])
def test_products_that_do_not_depend_on_the_batch_agree(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: str
) -> None:
    weight = (torch.randn(outputs, inputs) * inputs**-0.5).to(dtype)
    x, bias = torch.randn(rows, inputs).to(dtype), torch.randn(outputs).to(dtype)
    agree("linear_invariant", device, x, weight, bias, roundings=8.0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_draws_the_same_token_alone_as_among_others(dtype: torch.dtype, device: str) -> None:
    logits = (3 * torch.randn(36, 5000)).to(device, dtype)
    draws = {name: column.to(device) for name, column in random_draws(36, vocab=5000).arguments.items()}
    alone = [
        sample(logits[row : row + 1], **{name: column[row : row + 1] for name, column in draws.items()})
        for row in range(len(logits))
    ]
    assert torch.equal(sample(logits, **draws), torch.cat(alone))
    largest = infer_kernels.greedy(logits)
    assert torch.equal(largest.token_ids.cpu(), reference.greedy_reference(logits.cpu()).token_ids)


def attend(batch: PagedBatch, device: str, *, rows: slice = slice(None), is_prefill: Tensor | None = None) -> Tensor:
    """Return the attention of a batch, of some of its rows."""
    plan = plan_attention(**batch.layout, block_size=batch.block_size, device=device, is_prefill=is_prefill)
    q, k_cache, v_cache = (each.to(device) for each in (batch.q, batch.k_cache, batch.v_cache))
    return paged_attention(q, k_cache, v_cache, plan, scale=batch.q.shape[2] ** -0.5)[rows]


def chunks_of(batch: PagedBatch, device: str) -> Tensor:
    """Return the attention of a prompt of 150 tokens, a chunk at a time."""
    outs = []
    for start, stop in ((0, 37), (37, 38), (38, 100), (100, 150)):
        query_start = torch.tensor([0, stop - start], dtype=torch.int32)
        seq_lens = torch.tensor([stop], dtype=torch.int32)
        chunk = replace(batch, q=batch.q[start:stop], query_start=query_start, seq_lens=seq_lens)
        outs.append(attend(chunk, device, is_prefill=torch.tensor([True])))
    return torch.cat(outs)


def first_of(batch: PagedBatch) -> PagedBatch:
    """Return the first sequence, a decode, by itself."""
    alone = {"q": batch.q[:1], "query_start": batch.query_start[:2], "seq_lens": batch.seq_lens[:1]}
    return replace(batch, **alone, block_table=batch.block_table[:1])  # type: ignore[arg-type]  # all are tensors


def make(sequences: list[tuple[int, int]], block_size: int = 64) -> PagedBatch:
    return random_paged_batch(
        sequences, q_heads=8, kv_heads=2, head_dim=128, block_size=block_size, dtype=torch.bfloat16
    )


SAME_BITS: dict[str, Callable[[str], tuple[Tensor, Tensor]]] = {
    "chunks and the whole prompt": lambda on: (chunks_of(make([(150, 150)]), on), attend(make([(150, 150)]), on)),
    "blocks of 64 and of 16": lambda on: (attend(make(RAGGED), on), attend(make(RAGGED, 16), on)),
    "a decode alone and among others": lambda on: (
        attend(first_of(make([(1, 1000), (1, 700), (1, 256)])), on),
        attend(make([(1, 1000), (1, 700), (1, 256)]), on, rows=slice(1)),
    ),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=ON_GPU) for name in SAME_BITS])
def test_attention_has_the_same_bits_in_other_company(name: str) -> None:
    one, other = SAME_BITS[name]("cuda")
    torch.testing.assert_close(one, other, rtol=0.0, atol=0.0, equal_nan=True)


@pytest.mark.parametrize("rows", [slice(0, 1), slice(5, 22), slice(63, 65), slice(100, 200)], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_a_product_have_the_same_bits_alone(rows: slice, device: str) -> None:
    x, weight = torch.randn(200, 1024).to(device, torch.bfloat16), torch.randn(300, 1024).to(device, torch.bfloat16)
    assert torch.equal(linear_invariant(x[rows], weight), linear_invariant(x, weight)[rows])


@pytest.mark.parametrize("rows", [slice(0, 1), slice(63, 65), slice(100, 400)], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_rows_have_the_same_bits_alone_as_among_those_that_take_larger_tiles(rows: slice, device: str) -> None:
    x, weight = torch.randn(600, 512).to(device, torch.bfloat16), torch.randn(4300, 512).to(device, torch.bfloat16)
    assert torch.equal(linear_invariant(x[rows], weight), linear_invariant(x, weight)[rows])


@pytest.mark.parametrize("rows", [slice(0, 1), slice(63, 65), slice(100, 400)], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_tokens_have_the_same_bits_alone_as_among_those_that_fill_larger_tiles(rows: slice, device: str) -> None:
    layer = random_experts(
        tokens=600, experts=8, experts_per_token=2, hidden=256, intermediate=192, dtype=torch.bfloat16
    )
    x, gate_up, down, ids, weights = (each.to(device) for each in layer.arguments)
    mix = partial(fused_moe, activation="silu_and_mul")
    assert torch.equal(mix(x[rows], gate_up, down, ids[rows], weights[rows]), mix(x, gate_up, down, ids, weights)[rows])
