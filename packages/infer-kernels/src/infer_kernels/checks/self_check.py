"""`ModelOps`: what a model asks of the kernels. `SelfCheck`: one comparison of an op with its reference."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from infer_kernels.checks.inputs.quantized_weights import random_quantized
from infer_kernels.moe.activation import ActivationName, ExpertActivation
from infer_kernels.moe.router import Scoring
from infer_kernels.norm import NormVariant
from infer_kernels.quantization import Encoding, QuantizedWeight

EPS = 1e-6


class CheckImpossibleError(Exception):
    """A check cannot be performed on this machine, for example for lack of memory; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeOps:
    """The mixtures of experts of a model's layers.

    Attributes:
        experts: number of experts of a layer.
        experts_per_token: that a token takes.
        intermediate_size: elements inside an expert's MLP.
        scoring: how the router's logits become weights.
        normalize: the weights are divided by their sum.
        activation: activation of the experts' MLPs.
        has_biases: the experts' layers have biases.
        has_expert_scales: weights are multiplied by a number of their expert.
    """

    experts: int
    experts_per_token: int
    intermediate_size: int
    scoring: Scoring
    normalize: bool
    activation: ActivationName | ExpertActivation
    has_biases: bool = False
    has_expert_scales: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedOps:
    """The quantization of a model's weights.

    Attributes:
        encoding: encoding of the numbers.
        group_size: inputs that share a scale; None: all of a row.
        has_zeros: each group has a code of zero of its own.
        has_minimums: each group has a minimum.
        scale_dtype: dtype of scales and minimums, but of encodings that have another.
    """

    encoding: Encoding
    group_size: int | None = None
    has_zeros: bool = False
    has_minimums: bool = False
    scale_dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        """The encoding and its groups."""
        groups = "rows" if self.group_size is None else f"groups of {self.group_size}"
        beside = " with zeros" if self.has_zeros else " with minimums" if self.has_minimums else ""
        scales = {torch.float16: ", scales in fp16", torch.int8: ", scales in int8"}.get(self.scale_dtype, "")
        return f"{self.encoding} in {groups}{beside}{scales}"

    def draw(self, *shape: int, device: torch.device) -> QuantizedWeight:
        """Return a random weight of the format."""
        return random_quantized(
            *shape,
            encoding=self.encoding,
            group_size=self.group_size,
            has_zeros=self.has_zeros,
            has_minimums=self.has_minimums,
            scale_dtype=self.scale_dtype,
            device=device,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionOps:
    """The causal convolutions of a model's layers with states.

    Attributes:
        channels: channels of a layer.
        width: inputs of a channel that are summed.
        is_gated: `gated_convolution`; otherwise `causal_convolution`.
        has_bias: each channel has a bias.
        has_silu: SiLU follows.
    """

    channels: int
    width: int
    is_gated: bool = False
    has_bias: bool = False
    has_silu: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRuleOps:
    """The gated delta rule of a model's layers with states.

    Attributes:
        key_heads: heads of queries and keys.
        value_heads: heads of values, and of the norm that follows.
        key_dim: elements of a query or a key.
        value_dim: elements of a value.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOps:
    """The selective scan of a model's layers with states, and the norm after it.

    Attributes:
        heads: heads of a layer.
        head_dim: elements of a head.
        groups: groups of heads, which share projections; the norm's too.
        state_size: elements of the state of each element of a head.
        time_step_limit: bounds of time steps.
    """

    heads: int
    head_dim: int
    groups: int
    state_size: int
    time_step_limit: tuple[float, float] = (0.0, math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOps:
    """Heads of some layers of a model, and how these attend.

    Attributes:
        kv_heads: key and value heads of a layer.
        head_dim: elements of a head.
        windows: as in `ModelOps`, of these layers.
        scale: likewise.
        rotary_dim: likewise.
    """

    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    scale: float
    rotary_dim: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOps:
    """The ops that a model uses, and their sizes.

    Attributes:
        dtype: dtype of weights and activations.
        vocab_size: columns of the logits.
        hidden_size: elements of a token's hidden state.
        intermediate_size: elements inside an MLP.
        q_heads: query heads of a layer.
        kv_heads: key and value heads of a layer.
        head_dim: elements of a head.
        block_size: tokens of a KV block.
        scale: multiplies the dot products of attention.
        windows: the different sliding windows of the layers; None: attention to all tokens before.
        soft_cap: caps the scores; None leaves them.
        has_sinks: each head has one more score, which has no value.
        norm: the variant of the layers' RMS norms; None: the model has others.
        has_sandwich_norms: a norm before and one after each addition to the residual stream.
        has_post_norms: a norm of each sublayer's output before its addition to the residual stream, and no other.
        qk_norm: the variant of the norms of each head of queries and keys; None: there are none.
        norms_all_heads: one norm over all query heads together and one over all key heads, of the variant `norm`.
        has_rotary: queries and keys are rotated.
        rotary_dim: elements of a head that are rotated, the first ones; None: all.
        qkv_bias: the projections to queries, keys and values have biases.
        output_bias: the projection of attention's output has one.
        mlp_bias: the layers of MLPs have biases.
        activation: the gated activation of the MLPs; None: they have another.
        embedding_scale: multiplies the rows of the embedding.
        moe: the mixtures of experts; None: there are none.
        quantized: the formats of its quantized weights; layers, experts and embedding are checked in each.
        kv_dtype: dtype of an 8-bit cache; None: keys and values have `dtype`.
        convolution: convolutions of its layers with states; None: there are none.
        delta_rule: their gated delta rule; None: there is none.
        scan: their selective scan; None: there is none.
        has_output_gate: attention's output is multiplied by the sigmoid of a gate of its width.
        other_heads: those of layers with heads of other sizes.
        has_shared_expert_gate: the shared experts' output is multiplied by the sigmoid of one gate a row, and added.
    """

    dtype: torch.dtype
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    q_heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    scale: float
    windows: tuple[int | None, ...] = (None,)
    soft_cap: float | None = None
    has_sinks: bool = False
    norm: NormVariant | None = "llama"
    has_sandwich_norms: bool = False
    has_post_norms: bool = False
    qk_norm: NormVariant | None = None
    norms_all_heads: bool = False
    has_rotary: bool = True
    rotary_dim: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    activation: Literal["silu_and_mul", "gelu_tanh_and_mul"] | None = "silu_and_mul"
    embedding_scale: float = 1.0
    moe: MoeOps | None = None
    quantized: tuple[QuantizedOps, ...] = ()
    kv_dtype: torch.dtype | None = None
    convolution: ConvolutionOps | None = None
    delta_rule: DeltaRuleOps | None = None
    scan: ScanOps | None = None
    has_output_gate: bool = False
    other_heads: tuple[HeadOps, ...] = ()
    has_shared_expert_gate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfCheck:
    """One comparison.

    Attributes:
        op: the public function that is checked.
        label: the case.
        run: compares on a device; raises `AssertionError` if the results differ, `CheckImpossibleError` if the device
            cannot do it.
    """

    op: str
    label: str
    run: Callable[[torch.device], None]

    def __str__(self) -> str:
        """The op and its case."""
        return f"{self.op}, {self.label}"


def product_roundings(dtype: torch.dtype, in_features: int) -> float:
    """Return how many roundings a product of so many terms may differ by.

    In fp32 every addition rounds: errors grow as the root of their number. In half precision sums are fp32, too.
    """
    return 8.0 * max(1.0, (in_features / 1024) ** 0.5) if dtype == torch.float32 else 8.0


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return normally distributed numbers on the host, the same ones for the same arguments."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def misaligned(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of `tensor` [rows, ...] on `device` whose rows start at odd addresses, as slices do.

    memory   .|row 0 . . . . |. .|row 1 . . . . |. .
    """
    num_rows, width = len(tensor), tensor[0].numel()
    memory = torch.full((num_rows, width + 3), float("nan"), dtype=tensor.dtype, device=device)
    strides = (memory.stride(0), *tensor[0].stride())
    return memory.as_strided(tensor.shape, strides, storage_offset=1).copy_(tensor)
