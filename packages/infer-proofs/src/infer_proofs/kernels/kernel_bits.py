"""Prints a checksum of what each C++ kernel computes from exact inputs, to be compared between compilers and systems.

    python -m infer_proofs.kernels.kernel_bits [DTYPE...]      by default float32, bfloat16 and float16

A line is a case: its inputs' checksum, its results', the kernels that it has called, and what it is. The first line of
a dtype says what it was compiled for. Two machines agree if the lines of cases are the same:

    INFER_CPU_KERNELS_FLAGS=-march=x86-64-v3 CXX=g++ python -m infer_proofs.kernels.kernel_bits > g++.txt
    INFER_CPU_KERNELS_FLAGS=-march=x86-64-v3 CXX=clang++ python -m infer_proofs.kernels.kernel_bits | diff g++.txt -

Instruction sets are to be alike: AVX512 has its own exponentials, and its products of bf16 another order of sums.

Numbers are drawn by Python's own generator and are sums of whole numbers times a power of two, so that they are the
same everywhere, which those of `torch.randn` are not. Every NaN counts as the same.
"""

import ctypes
import hashlib
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import chain, product
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

import infer_kernels
from infer_kernels.attention import plan_attention
from infer_kernels.checks.cases.attention import ATTENTION
from infer_kernels.checks.cases.embedding import EMBEDDING
from infer_kernels.checks.cases.gated_activations import ACTIVATIONS
from infer_kernels.checks.cases.mamba2 import MAMBA2
from infer_kernels.checks.cases.moe import MOE
from infer_kernels.checks.cases.norm import NORMS
from infer_kernels.checks.cases.qkv import QKV
from infer_kernels.checks.cases.states import STATES
from infer_kernels.checks.inputs.batches import random_paged_batch
from infer_kernels.checks.inputs.experts import Experts, random_experts
from infer_kernels.checks.self_check import QuantizedOps
from infer_kernels.cpu.compilation import ELEMENTS
from infer_kernels.cpu.library import Library, library
from infer_kernels.qkv.kv_codes import encode_rows

T = TypeVar("T")
CPU = torch.device("cpu")
TABLES = (NORMS, ACTIVATIONS, QKV, ATTENTION, STATES, MAMBA2, EMBEDDING, MOE)
"""Tables of calls at odd shapes. Of the others no kernel in C++ computes a call alone."""
ROWS = (1, 2, 3, 4, 5, 7, 12, 26, 70)
"""Rows of a product: each number has tiles of its own; the last is shared by threads."""
LAYERS = ((37, 96), (64, 410))
"""Outputs and inputs of dense layers."""
FORMS = (
    QuantizedOps(encoding="int8"),
    QuantizedOps(encoding="int8", group_size=32, scale_dtype=torch.float16),
    QuantizedOps(encoding="int8", group_size=24, has_zeros=True),
    QuantizedOps(encoding="int8", group_size=64, has_minimums=True),
    QuantizedOps(encoding="int6", group_size=16, scale_dtype=torch.int8),
    QuantizedOps(encoding="int4"),
    QuantizedOps(encoding="int4", group_size=32, scale_dtype=torch.float16),
    QuantizedOps(encoding="int4", group_size=128, has_zeros=True),
    QuantizedOps(encoding="int4", group_size=32, has_minimums=True, scale_dtype=torch.int8),
    QuantizedOps(encoding="iq4", group_size=32, scale_dtype=torch.int8),
    QuantizedOps(encoding="e2m1", group_size=32),
    QuantizedOps(encoding="mxfp4", group_size=32),
    QuantizedOps(encoding="nvfp4", group_size=16),
)
"""Every encoding, what groups have beside their scales, and every type of scales."""
QUANTIZED_INPUTS = 512
SEQUENCES = [(1, 37), (7, 7), (0, 5), (1, 0), (23, 61), (1, 1), (1, 1100), (5, 1030)]
"""(rows, tokens): a decode of several chunks, and rows that see several, too."""
HEADS = ((9, 3, 64, None, None), (8, 1, 80, 20, 5.0), (2, 2, 128, None, None))
"""Query heads, key and value heads, elements of a head, window and soft cap."""


class Case(NamedTuple):
    """A computation: its name, its tensors, and the function."""

    label: str
    inputs: Any
    compute: Callable[[], Any]


def exact(shape: Iterable[int], seed: object) -> Tensor:
    """Return about normally distributed fp32 numbers of 18 bits, the same ones for the same arguments everywhere."""
    size = torch.Size(shape)
    numbers = random.Random(f"{seed} {[*size]}").randbytes(8 * size.numel())  # noqa: S311 - no secrets
    halves = torch.frombuffer(bytearray(numbers or bytes(8)), dtype=torch.int16)[: 4 * size.numel()]
    return (halves.view(4, -1).float().sum(0) * 2.0**-15).view(size)


def make_exact(value: T, seed: object, scale: float = 1.0) -> T:
    """Replace the floats of tensors, in place, by exact ones times a power of two; NaN stays. Returns the value."""
    if isinstance(value, Tensor):
        if value.dtype in (torch.float32, torch.bfloat16, torch.float16):
            value.copy_(torch.where(value.isnan(), value.float(), exact(value.shape, seed) * scale))
    elif isinstance(value, (tuple, list)):
        for number, each in enumerate(value):
            make_exact(each, f"{seed} {number}", scale)
    elif is_dataclass(value):
        for field in fields(value):
            make_exact(getattr(value, field.name), f"{seed} {field.name}", scale)
    return value


def exact_experts(rows: int, dtype: torch.dtype) -> Experts:
    """Return experts and their rows, of which some experts have many."""
    layer = random_experts(tokens=rows, experts=5, experts_per_token=3, hidden=128, intermediate=64, dtype=dtype)
    tokens, numbers = torch.arange(rows)[:, None], torch.arange(3)
    layer.expert_ids.copy_((tokens * tokens + numbers) % 5)
    return make_exact(layer, rows, 0.25)


def table_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Yield the calls of the tables."""
    for table in TABLES:
        for call in table.calls(dtype):
            tensors = make_exact(call.tensors, call)

            def compute(call: Any = call) -> Any:
                return call.launch(), [call.tensors[index] for index in call.written]

            yield Case(str(call), tensors, compute)


def dense_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Yield dense layers, experts and gates with packed weights."""
    for (outputs, inputs), rows in product(LAYERS, ROWS):
        x, weight, bias = (exact(shape, "dense").to(dtype) for shape in ((rows, inputs), (outputs, inputs), (outputs,)))
        compute = partial(infer_kernels.linear, x, infer_kernels.prepack(weight), bias)
        yield Case(f"linear, {dtype}, {rows} rows, {inputs} to {outputs}", (x, weight, bias), compute)
    for rows, activation in product((1, 70), ("silu_and_mul", "gelu_tanh_and_mul", "clamped_swiglu")):
        layer = exact_experts(rows, dtype)
        x, gate_up, down, *routing = layer.arguments
        packed = [infer_kernels.prepack_experts(each) for each in (gate_up, down)]
        compute = partial(_call, infer_kernels.fused_moe, x, *packed, *routing, activation=activation, **layer.biases)
        yield Case(f"fused_moe, {dtype}, {rows} rows, {activation}", layer, compute)


def quantized_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Yield dense layers, experts and rows of embeddings with weights of each encoding."""
    for form in FORMS:
        weight = make_exact(form.draw(45, QUANTIZED_INPUTS, device=CPU), form, 2.0**-6)
        packed = infer_kernels.prepack(weight)
        for rows in ROWS:
            x = exact((rows, QUANTIZED_INPUTS), form).to(dtype)
            x[::2, ::173] *= 300  # outliers
            compute = partial(infer_kernels.linear, x, packed)
            yield Case(f"linear, {dtype}, {form}, {rows} rows", (x, weight), compute)
        ids = torch.tensor([0, 44, 17], dtype=torch.int32)
        compute = partial(_call, infer_kernels.embedding_quantized, ids, packed, dtype=dtype, scale=3.0)
        yield Case(f"embedding_quantized, {dtype}, {form}", (ids, weight), compute)
        layer = exact_experts(20, dtype)
        experts = [
            make_exact(form.draw(*each.shape, device=CPU), each.shape, 2.0**-6) for each in (layer.gate_up, layer.down)
        ]
        packed_experts = [infer_kernels.prepack_experts(each) for each in experts]
        routing = layer.expert_ids, layer.expert_weights
        compute = partial(_call, infer_kernels.fused_moe, layer.x, *packed_experts, *routing, activation="silu_and_mul")
        yield Case(f"fused_moe, {dtype}, {form}", (layer, experts), compute)


def cache_cases(dtype: torch.dtype) -> Iterator[Case]:
    """Yield attention over long sequences, with caches of the dtype and of eight bits, and stores into such a cache."""
    for q_heads, kv_heads, head_dim, window, soft_cap in HEADS:
        batch = random_paged_batch(
            SEQUENCES, q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim, block_size=16, dtype=dtype
        )
        make_exact(batch, head_dim)
        sinks = exact((q_heads,), "sinks").to(dtype)
        plan = plan_attention(**batch.layout, block_size=16, device=CPU)
        for name, encode in (
            ("", lambda cache: cache),
            (", int8 cache", partial(encode_rows, dtype=torch.int8, scale=1.0)),
        ):
            caches = [encode(cache) for cache in (batch.k_cache, batch.v_cache)]
            compute = partial(
                _call,
                infer_kernels.paged_attention,
                batch.q,
                *caches,
                plan,
                scale=0.125,
                window=window,
                soft_cap=soft_cap,
                sinks=sinks,
            )
            label = f"paged_attention, {dtype}, {q_heads} over {kv_heads} heads of {head_dim}{name}"
            yield Case(label, (batch, sinks, caches), compute)
    heads, kv_heads, head_dim, tokens = 6, 2, 64, 21
    qkv = exact((tokens, heads + 2 * kv_heads, head_dim), "qkv").to(dtype)
    slots = torch.arange(tokens, dtype=torch.int32)
    coded = torch.zeros(2, 8, kv_heads, 5, head_dim + 4, dtype=torch.int8)
    cos_sin = exact((tokens, head_dim), "angles")
    rotary = infer_kernels.Rotary(position_ids=torch.arange(tokens), cos_sin=cos_sin)

    def store() -> Any:
        return _call(infer_kernels.qk_norm_rope_store, qkv, *coded, slots, rotary=rotary), coded

    yield Case(f"qk_norm_rope_store, {dtype}, int8 cache", (qkv, cos_sin), store)


def _call(op: Callable[..., Any], *operands: Any, **options: Any) -> Any:
    return op(*operands, **options)


def checksum(value: Any) -> str:
    """Return a checksum of all tensors in `value`."""
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()[:16]


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            value = torch.where(value.isnan(), torch.full((), float("nan"), dtype=value.dtype), value)
        digest.update(str([value.dtype, *value.shape]).encode())
        value = value.contiguous()
        digest.update(ctypes.string_at(value.data_ptr(), value.nbytes))
    elif isinstance(value, (tuple, list)):
        for each in value:
            _add(digest, each)
    elif is_dataclass(value):
        for field in fields(value):
            _add(digest, getattr(value, field.name))


@contextmanager
def called_kernels() -> Iterator[set[str]]:
    """The names of the kernels that are called in the block."""
    names: set[str] = set()
    address = Library.address

    def noted(self: Library, kernel: str) -> int:
        names.add(kernel)
        return address(self, kernel)

    Library.address = noted  # type: ignore[method-assign]
    try:
        yield names
    finally:
        Library.address = address  # type: ignore[method-assign]


def run(dtype: torch.dtype) -> Iterator[tuple[Case, str, str, frozenset[str]]]:
    """Compute the cases of `dtype`; yield each, the checksums of its inputs and results, and the kernels called."""
    cases = chain(table_cases(dtype), dense_cases(dtype), quantized_cases(dtype), cache_cases(dtype))
    for case in cases:
        inputs = checksum(case.inputs)
        with called_kernels() as kernels:
            results = case.compute()
        if kernels:
            yield case, inputs, checksum(results), frozenset(kernels)


def main(dtypes: list[str]) -> int:
    """Print the lines of each dtype, computed by one thread; return 1 if there are no C++ kernels."""
    torch.set_num_threads(1)  # results are the same with more, and other programs may keep the processors busy
    for name in dtypes:
        loaded = library(name)
        if loaded is None:
            return 1
        print(f"# {name} on {loaded.instruction_set}, compiled by {os.environ.get('CXX', 'the default')}")
        for case, inputs, results, kernels in run(getattr(torch, name)):
            print(inputs, results, ",".join(sorted(kernels)), case.label)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(ELEMENTS)))
