"""How many tokens a second decodes can reach on a card, from bytes, launches and counted main loops. No measurement.

A step is its kernels one after another. A kernel takes the longest of what its bytes, its instructions and a launch
take; `ASSUMPTIONS` holds whatever is not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

import torch

from infer_bench.kernels.launches import FAMILIES, SMALL, Launches, count_launches
from infer_bench.results import table
from infer_bench.shapes import SHAPES, Shape
from infer_kernels import FusedProducts, prepack
from infer_kernels.checks.cases.attention.launches import AttentionCase
from infer_kernels.checks.cases.launch_case import LaunchCase
from infer_kernels.checks.compiled.ahead_of_time import compile_afresh
from infer_kernels.checks.compiled.gpu_cards import CARDS
from infer_kernels.checks.compiled.instruction_counts import LoopCount, count_main_loop
from infer_kernels.checks.compiled.shipped import SHIPPED_CASES, compile_launch
from infer_kernels.moe.activation import ExpertActivation
from infer_kernels.moe.fused_moe_quantized import choose_expert_tiles, quantized_expert_products_triton
from infer_kernels.quantization import QuantizedWeight

CAPABILITY = 90
BATCHES = (1, 64, 256)
CONTEXT = 1000
FEW_ROWS = 16
"""Rows up to which layers may take other kernels than for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What no count says.

    Attributes:
        library_share: share of memory's bandwidth that the library's products reach with large weights.
        library_share_of_small: likewise with weights up to `small_bytes`, which a card reads in a few microseconds.
        small_bytes: bytes of a weight.
        library_operations: multiplications and additions a second that they reach with many rows.
        attention_share: share of the bandwidth that decode attention reaches; its programs load nothing between two
            splits.
        launch_s: that a kernel takes at least.
        last_program_s: that the last program of a router takes after the others, to add, choose and group alone.
        gap_s: between two kernels of a captured step.
    """

    library_share: float = 0.865
    library_share_of_small: float = 0.5
    small_bytes: float = 12e6
    library_operations: float = 650e12
    attention_share: float = 0.775
    launch_s: float = 2.5e-6
    last_program_s: float = 2.5e-6
    gap_s: float = 1e-6


ASSUMPTIONS = Assumptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Kernels of one kind in a step.

    Attributes:
        name: what they compute.
        count: how many there are.
        num_bytes: that one reads from memory.
        seconds: that one takes, without the gap behind it.
    """

    name: str
    count: int
    num_bytes: float
    seconds: float

    @property
    def total_s(self) -> float:
        """Seconds of all of them."""
        return self.count * (self.seconds + ASSUMPTIONS.gap_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeModel:
    """A model as its decodes see it.

    Attributes:
        name: model and weights.
        family: member of `FAMILIES`, for its launches.
        shape: fields of `config.json`.
        linear_format: encoding and group size of the dense layers' weights; None: bf16.
        has_mxfp4_experts: experts in MXFP4 instead of an MLP.
    """

    name: str
    family: str
    shape: Shape
    linear_format: tuple[str, int] | None = None
    has_mxfp4_experts: bool = False


LLAMA_8B: Shape = SHAPES["llama-3.2-3b"] | {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
MODELS = (
    DecodeModel(name="Qwen3-0.6B, bf16", family="Qwen 3", shape=SHAPES["qwen3-0.6b"]),
    DecodeModel(name="Llama-3.1-8B, bf16", family="Llama", shape=LLAMA_8B),
    DecodeModel(name="Llama-3.1-8B, int4 g128", family="Llama", shape=LLAMA_8B, linear_format=("int4", 128)),
    DecodeModel(
        name="gpt-oss-20b, MXFP4 experts", family="gpt-oss", shape=SHAPES["gpt-oss-20b"], has_mxfp4_experts=True
    ),
)


@dataclass(frozen=True, slots=True)
class Step:
    """A decode step of a batch."""

    batch: int
    pieces: tuple[Piece, ...]

    @property
    def bound(self) -> float:
        """Tokens a second if each byte came at the card's bandwidth and nothing else took time."""
        return self.batch / (sum(piece.count * piece.num_bytes for piece in self.pieces) / CARDS[CAPABILITY].bandwidth)

    @property
    def expected(self) -> float:
        """Tokens a second of all pieces in turn."""
        return self.batch / sum(piece.total_s for piece in self.pieces)

    @property
    def holders(self) -> str:
        """The pieces that take the most time, with their shares of it."""
        seconds: dict[str, float] = {}
        for piece in self.pieces:
            seconds[piece.name] = seconds.get(piece.name, 0.0) + piece.total_s
        whole, most = sum(seconds.values()), sorted(seconds, key=seconds.__getitem__, reverse=True)[:3]
        return ", ".join(f"{name} {seconds[name] / whole:.0%}" for name in most)


def describe_step(model: DecodeModel, batch: int) -> Step:
    """Return the kernels of a step that decodes `batch` sequences of `CONTEXT` tokens."""
    return Step(batch, tuple(_pieces(model, batch)))


def _pieces(model: DecodeModel, batch: int) -> Iterator[Piece]:
    shape = model.shape
    layers, hidden = shape["num_hidden_layers"], shape["hidden_size"]
    of_layer = list(_of_layer(model, batch))
    yield from of_layer
    few, many = (_launches(model.family, num_layers, batch).decodes for num_layers in (6, 12))
    launches = (many - few) / 6
    others = round(launches * layers) - sum(piece.count for piece in of_layer if "join" not in piece.name)
    if others > 0:
        yield Piece(name="small kernels", count=others, num_bytes=0, seconds=ASSUMPTIONS.launch_s)
    rest = few - round(6 * launches) + _launches(model.family, 6, batch).choice - 1
    yield Piece(name="once a step", count=rest, num_bytes=0, seconds=ASSUMPTIONS.launch_s)
    rows = next((each for each in (16, 32, 64, 128, 256) if each >= batch), 256)
    head = _case("linear_argmax", f"bf16, {rows} rows of 4096")
    yield _product("LM head", 1, shape["vocab_size"] * hidden, batch, _count(head), 16.0)


def _of_layer(model: DecodeModel, batch: int) -> Iterator[Piece]:
    shape = model.shape
    layers, hidden, kv_heads = shape["num_hidden_layers"], shape["hidden_size"], shape["num_key_value_heads"]
    q_heads, head_dim = shape["num_attention_heads"], shape.get("head_dim", 0) or hidden // shape["num_attention_heads"]
    products = [(hidden, (q_heads + 2 * kv_heads) * head_dim), (q_heads * head_dim, hidden)]
    if not model.has_mxfp4_experts:
        products += [(hidden, 2 * shape["intermediate_size"]), (shape["intermediate_size"], hidden)]
    else:
        yield _router(layers, hidden * shape["num_local_experts"], batch)
        yield from _experts(model, batch)
    for inputs, outputs in products:
        yield from _dense(model, layers, inputs, outputs, batch)
    window = shape.get("sliding_window")
    for count, reach in ((layers, None),) if window is None else ((layers // 2, None), (layers // 2, window)):
        case = AttentionCase(
            prefill=False,
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=reach,
            has_sinks=model.family == "gpt-oss",
        )
        numbers = batch * min(CONTEXT, reach or CONTEXT) * 2 * kv_heads * head_dim
        loop = _count_attention(case)
        seconds = max(_seconds_of_bytes(numbers * 2, ASSUMPTIONS.attention_share), _seconds_of_loop(loop, numbers))
        yield Piece(name="attention", count=count, num_bytes=numbers * 2, seconds=max(seconds, ASSUMPTIONS.launch_s))


def _dense(model: DecodeModel, layers: int, inputs: int, outputs: int, batch: int) -> Iterator[Piece]:
    numbers = inputs * outputs
    if model.linear_format is not None:
        loop, launches, bits = _count_quantized(inputs, outputs, batch, *model.linear_format)
        yield _product("quantized products", layers, numbers, batch, loop, bits)
        if launches > 1:
            yield Piece(name="joins of splits", count=layers, num_bytes=0, seconds=ASSUMPTIONS.launch_s)
        return
    own = next((case for case in SHIPPED_CASES if case.op == "fused_products" and case.dtype == torch.bfloat16), None)
    if own is not None and batch <= FEW_ROWS:
        yield _product("own products", layers, numbers, batch, _count(own), 16.0)
    else:
        yield _library_product(layers, numbers, batch)


def _library_product(layers: int, numbers: int, batch: int) -> Piece:
    num_bytes, small = 2 * numbers, ASSUMPTIONS.small_bytes
    share = ASSUMPTIONS.library_share_of_small if num_bytes <= small else ASSUMPTIONS.library_share
    seconds = max(_seconds_of_bytes(num_bytes, share), 2 * numbers * batch / ASSUMPTIONS.library_operations)
    seconds = max(seconds, ASSUMPTIONS.launch_s)
    return Piece(name="library's products", count=layers, num_bytes=num_bytes, seconds=seconds)


def _router(layers: int, numbers: int, batch: int) -> Piece:
    """Routers: of few rows a launch of ours, which reads its weight at once, without a loop, and then one program more.

    Of more rows the library's product; the norm before and the choice after are among the small kernels.
    """
    if batch > FEW_ROWS:
        return _library_product(layers, numbers, batch)
    seconds = max(_seconds_of_bytes(2 * numbers), ASSUMPTIONS.launch_s) + ASSUMPTIONS.last_program_s
    return Piece(name="routers", count=layers, num_bytes=2 * numbers, seconds=seconds)


def _experts(model: DecodeModel, batch: int) -> Iterator[Piece]:
    shape = model.shape
    experts, chosen, layers = shape["num_local_experts"], shape["num_experts_per_tok"], shape["num_hidden_layers"]
    active = experts * (1 - (1 - chosen / experts) ** batch)  # chosen at random
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    for inputs, outputs, is_gated in ((hidden, inner, True), (inner, hidden, False)):
        loop, bits = _count_experts(inputs, outputs, experts, batch * chosen, is_gated=is_gated)
        numbers = active * inputs * outputs * (2 if is_gated else 1)
        yield _product("experts", layers, numbers, batch * chosen / active, loop, bits)


@cache
def _count_experts(inputs: int, outputs: int, experts: int, pairs: int, *, is_gated: bool) -> tuple[LoopCount, float]:
    """The main loop of experts' products in MXFP4 for so many pairs of tokens and experts, and bits of a number."""
    width = 2 * outputs if is_gated else outputs
    encoding = {"encoding": "mxfp4_tiled", "group_size": 32, "device": torch.device("cpu")}
    one = QuantizedWeight.empty(1, width, inputs, **encoding)  # type: ignore[arg-type]  # each of its own type
    weight = one.map_rows(lambda tensor: tensor.expand(experts, -1, -1))  # compiled, not computed
    with compile_afresh(CAPABILITY) as log:
        tile, _ = choose_expert_tiles(weight, weight, torch.bfloat16, pairs=pairs)
        quantized_expert_products_triton(
            torch.empty(pairs, inputs, dtype=torch.bfloat16),
            weight,
            torch.empty(experts, width, dtype=torch.bfloat16),
            torch.empty(1, pairs, outputs, dtype=torch.bfloat16),
            torch.zeros(pairs, dtype=torch.int32),
            torch.zeros(3, 2, dtype=torch.int32),
            tile=tile,
            activation=ExpertActivation() if is_gated else None,
        )
    count = count_main_loop(log.compiled[-1], CAPABILITY)
    assert count is not None
    return count, one.num_bytes * 8 / (width * inputs)


def _product(name: str, count: int, numbers: float, rows: float, loop: LoopCount, bits: float) -> Piece:
    """A product with a weight of so many numbers, by a kernel of ours, in as many tiles of rows as it takes."""
    num_bytes = numbers * bits / 8
    tiles = ceil(rows / loop.rows) if loop.rows else 1
    seconds = max(_seconds_of_bytes(num_bytes), _seconds_of_loop(loop, numbers * tiles), ASSUMPTIONS.launch_s)
    return Piece(name=name, count=count, num_bytes=num_bytes, seconds=seconds)


def _seconds_of_bytes(num_bytes: float, share: float = 1.0) -> float:
    return num_bytes / (share * CARDS[CAPABILITY].bandwidth)


def _seconds_of_loop(loop: LoopCount, numbers: float) -> float:
    assert loop.elements
    card = CARDS[CAPABILITY]
    return numbers / loop.elements * loop.least_cycles() / card.sms / card.clock_hz


@cache
def _launches(family: str, num_layers: int, batch: int) -> Launches:
    shape = SHAPES[FAMILIES[family]] | SMALL | {"num_hidden_layers": num_layers}
    return count_launches(shape, num_seqs=4 if batch <= FEW_ROWS else 32)


def _case(op: str, label: str) -> LaunchCase:
    return next(case for case in SHIPPED_CASES if case.op == op and case.label.startswith(label))


@cache
def _count(case: LaunchCase) -> LoopCount:
    count = count_main_loop(compile_launch(case.launch, CAPABILITY, kernel=case.kernel), CAPABILITY)
    assert count is not None
    return count


@cache
def _count_attention(case: AttentionCase) -> LoopCount:
    count = count_main_loop(compile_launch(case.launch, CAPABILITY), CAPABILITY)
    assert count is not None
    return count


@cache
def _count_quantized(
    inputs: int, outputs: int, rows: int, encoding: Any, group_size: int
) -> tuple[LoopCount, int, float]:
    """The main loop of a product with a quantized weight, how many launches it takes, and bits of a number."""
    weight = QuantizedWeight.empty(
        outputs, inputs, encoding=encoding, group_size=group_size, device=torch.device("cpu")
    )
    weight.values.zero_()
    with compile_afresh(CAPABILITY) as log:
        FusedProducts("cpu").linear(torch.empty(rows, inputs, dtype=torch.bfloat16), prepack(weight))
    counts = [count for kernel in log.compiled if (count := count_main_loop(kernel, CAPABILITY)) is not None]
    bits = weight.num_bytes * 8 / (inputs * outputs)
    return max(counts, key=lambda count: count.products), len(log.launches), bits


INTRODUCTION = f"""## What this implies

Decodes of sequences of {CONTEXT:,} tokens on one {CARDS[CAPABILITY].name}, in tokens a second: greedy, with keys and values in bf16.
The bound is all bytes of weights, keys and values at {CARDS[CAPABILITY].bandwidth / 1e12:.1f} TB/s. What is expected is computed from the
counts above, kernel after kernel, and **was not measured**. A kernel takes the longest of its bytes at that rate, its
main loop at 75% of issue slots, and {ASSUMPTIONS.launch_s * 1e6:.1f} us; {ASSUMPTIONS.gap_s * 1e6:.0f} us lies between two kernels. A router of few rows has no
loop; its last program, which works alone, is taken for {ASSUMPTIONS.last_program_s * 1e6:.1f} us more. Assumed, not counted:

- the library's products reach {ASSUMPTIONS.library_share:.1%} of bandwidth, {ASSUMPTIONS.library_share_of_small:.0%} with weights
  up to {ASSUMPTIONS.small_bytes / 1e6:.0f} MB, and with many rows {ASSUMPTIONS.library_operations / 1e12:.0f} TFLOP/s;
- decode attention reaches {ASSUMPTIONS.attention_share:.1%} of bandwidth;
- tokens choose their experts at random;
- prologues of kernels, programs that begin late, and weights that stay in the second-level cache are left out.
"""  # noqa: E501 - lines of Markdown, shorter when filled in


def describe_expectations() -> str:
    """Return a section of the report."""
    rows = []
    for model in MODELS:
        for batch in BATCHES:
            step = describe_step(model, batch)
            rows.append(
                [
                    model.name,
                    batch,
                    f"{step.bound:,.0f}",
                    f"{step.expected:,.0f}",
                    f"{step.expected / step.bound:.0%}",
                    sum(piece.count for piece in step.pieces),
                    step.holders,
                ]
            )
    head = ["model", "sequences", "bound", "expected", "share", "launches", "what takes the time"]
    return INTRODUCTION + "\n" + table(head, rows)
