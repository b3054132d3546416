"""The ops that a model computes with, and their sizes: those that one step of it calls.

The step has no tokens, and all rows of a weight are one row in memory, so it takes neither time nor memory at any size
of the model. Layers import ops by name, those of families in other packages too; so Python's profile function looks at
every call.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from inspect import isfunction
from types import CodeType, FrameType, MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

import infer_kernels
from infer_kernels import QKNorm, QuantizedWeight, Rotary, StateRows, linear
from infer_kernels.checks import ConvolutionOps, DeltaRuleOps, HeadOps, ModelOps, MoeOps, QuantizedOps, ScanOps
from infer_models import AttentionSpec, CausalLM, ModelConfig
from infer_models.attention import SequenceNumbers
from infer_models.families import build_model
from infer_models.layer_states import LayerState, StateSpec
from infer_models.layers import ParameterFactory

_OPS: Mapping[CodeType, str] = MappingProxyType(
    {op.__code__: name for name in infer_kernels.__all__ if isfunction(op := getattr(infer_kernels, name))}
)
"""Names of the public ops, by their code."""
_ATTEND = "attend"
"""Name of a call of the cache, which is no op."""
_NORMS = ("rms_norm", "add_rms_norm", "norm_add", "norm_add_norm")
_GATES = ("silu_and_mul", "gelu_tanh_and_mul")


@dataclass(frozen=True, slots=True, eq=False)
class OpCall:
    """One call of an op.

    Attributes:
        op: name of the op in `infer_kernels`, or of the cache's method.
        arguments: its arguments by name, defaults included.
    """

    op: str
    arguments: Mapping[str, Any]


def ops_of(
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    block_size: int,
    quantized: tuple[QuantizedOps, ...] = (),
    kv_dtype: torch.dtype | None = None,
) -> ModelOps:
    """Return the ops that a step of a model calls.

    Args:
        config: architecture of the model.
        dtype: dtype of weights and activations.
        block_size: tokens of a KV block.
        quantized: formats of the model's weights.
        kv_dtype: dtype of a cache of eight bits; None: `dtype`.

    Raises:
        RuntimeError: the model cannot compute a step without tokens.
    """
    calls = record_step(config, dtype=dtype)
    attends = [index for index, call in enumerate(calls) if call.op == _ATTEND]
    gates = [index for index, call in enumerate(calls) if call.op in _GATES]
    attentions = [calls[index].arguments for index in attends]
    specs = [each["spec"] for each in attentions] or config.attention_specs
    before_attention = [_since_product(calls[:index]) for index in attends]
    of_heads = [
        call
        for section in before_attention
        for call in section[1:]
        if call.op in _NORMS and call.arguments["x"].dim() == 2  # not of each head, as values are in Gemma 4
    ]
    norms = [call for call in calls if call.op in _NORMS and call not in of_heads]
    qk_norms = [each["norm"] for each in attentions if each["norm"] is not None]
    heads, *other_heads = _heads_of(attentions) or [_head_ops(specs, attentions)]
    gate = calls[gates[0]] if gates else None
    scales = [call.arguments["scale"] for call in calls if call.op == "embedding"]
    called = {call.op for call in calls}
    sigmoid_gates = [call for call in calls if call.op == "sigmoid_gate"]
    return ModelOps(
        dtype=dtype,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size if gate is None else gate.arguments["gate_up"].shape[1] // 2,
        q_heads=specs[0].q_heads,
        block_size=block_size,
        **asdict(heads),
        other_heads=tuple(other_heads),
        soft_cap=specs[0].soft_cap,
        has_sinks=any(each["sinks"] is not None for each in attentions),
        norm=norms[0].arguments["variant"] if norms else None,
        has_sandwich_norms="norm_add_norm" in called,
        has_post_norms="norm_add" in called,
        qk_norm=qk_norms[0].variant if qk_norms else None,
        norms_all_heads=bool(of_heads),
        has_rotary=any(each["rotary"] is not None for each in attentions),
        qkv_bias=any(_has_bias(section[:1]) for section in before_attention),
        output_bias=any(_has_bias(_products(calls[index:])[:1]) for index in attends),
        mlp_bias=any(_has_bias(_since_product(calls[:index])[:1]) for index in gates),
        activation=None if gate is None else gate.op,  # type: ignore[arg-type]  # one of `_GATES`
        embedding_scale=scales[0] if scales else 1.0,
        moe=_moe_ops(calls),
        quantized=quantized,
        kv_dtype=kv_dtype,
        convolution=_convolution_ops(calls),
        delta_rule=_delta_rule_ops(calls),
        scan=_scan_ops(calls),
        has_output_gate=any(call.arguments["addend"] is None for call in sigmoid_gates),
        has_shared_expert_gate=any(call.arguments["addend"] is not None for call in sigmoid_gates),
    )


def _heads_of(attentions: Sequence[Mapping[str, Any]]) -> list[HeadOps]:
    """Return the heads of layers by their sizes, those of the first layer first."""
    kinds: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for each in attentions:
        kinds.setdefault((each["spec"].kv_heads, each["spec"].head_dim), []).append(each)
    return [_head_ops([each["spec"] for each in alike], alike) for alike in kinds.values()]


def _head_ops(specs: Sequence[AttentionSpec], attentions: Sequence[Mapping[str, Any]]) -> HeadOps:
    """Return the heads of layers that have them alike; arguments of their attention, if any attends."""
    spec = specs[0]
    rotary_dims = [each["rotary"].cos_sin.shape[1] for each in attentions if each["rotary"] is not None]
    return HeadOps(
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        windows=tuple(dict.fromkeys(each.window for each in specs)),
        scale=spec.scale,
        rotary_dim=rotary_dims[0] if rotary_dims and rotary_dims[0] != spec.head_dim else None,
    )


def _convolution_ops(calls: Sequence[OpCall]) -> ConvolutionOps | None:
    """Return the convolutions of layers with states; None: there are none."""
    call = next((call for call in calls if call.op in ("causal_convolution", "gated_convolution")), None)
    if call is None:
        return None
    channels, width = call.arguments["weight"].shape
    return ConvolutionOps(
        channels=channels,
        width=width,
        is_gated=call.op == "gated_convolution",
        has_bias=call.arguments["bias"] is not None,
        has_silu=call.arguments.get("activation") == "silu",
    )


def _delta_rule_ops(calls: Sequence[OpCall]) -> DeltaRuleOps | None:
    """Return the delta rule of layers with states; None: there is none."""
    arguments = next((call.arguments for call in calls if call.op == "gated_delta_rule"), None)
    if arguments is None:
        return None
    _, value_heads, key_dim, value_dim = arguments["state"].shape
    return DeltaRuleOps(key_heads=arguments["key_heads"], value_heads=value_heads, key_dim=key_dim, value_dim=value_dim)


def _scan_ops(calls: Sequence[OpCall]) -> ScanOps | None:
    """Return the selective scan of layers with states; None: there is none."""
    arguments = next((call.arguments for call in calls if call.op == "mamba2_scan"), None)
    if arguments is None:
        return None
    _, heads, head_dim, state_size = arguments["state"].shape
    return ScanOps(
        heads=heads,
        head_dim=head_dim,
        groups=arguments["num_groups"],
        state_size=state_size,
        time_step_limit=arguments["time_step_limit"],
    )


def _moe_ops(calls: Sequence[OpCall]) -> MoeOps | None:
    """Return the mixtures of experts that are called; None: there are none."""
    experts = next((call.arguments for call in calls if call.op == "fused_moe"), None)
    if experts is None:
        return None
    router = next((call.arguments for call in calls if call.op == "moe_router"), None)
    return MoeOps(
        experts=experts["down"].shape[0],
        experts_per_token=experts["expert_ids"].shape[1],
        intermediate_size=experts["down"].shape[2],
        scoring="softmax" if router is None else router["scoring"],
        normalize=router is not None and router["normalize"],
        activation=experts["activation"],
        has_biases=experts["down_bias"] is not None,
        has_expert_scales=router is not None and router["expert_scales"] is not None,
    )


def _products(calls: Sequence[OpCall]) -> Sequence[OpCall]:
    """Return the dense layers among `calls`."""
    return [call for call in calls if call.op == "linear"]


def _since_product(calls: Sequence[OpCall]) -> Sequence[OpCall]:
    """Return the last dense layer of `calls`, and the calls after it."""
    last = max((index for index, call in enumerate(calls) if call.op == "linear"), default=0)
    return calls[last:]


def _has_bias(calls: Sequence[OpCall]) -> bool:
    """Return whether one of `calls` has a bias."""
    return any(call.arguments.get("bias") is not None for call in calls)


def quantized_ops_of(model: CausalLM) -> tuple[QuantizedOps, ...]:
    """Return the formats of a model's quantized weights."""
    found = [
        QuantizedOps(
            encoding=weight.encoding,
            group_size=None if weight.scales.shape[-1] == 1 else weight.group_size,
            has_zeros=weight.zeros is not None,
            has_minimums=weight.minimums is not None,
            scale_dtype=weight.scales.dtype,
        )
        for weight, _ in model.stored_by_parameter()
        if isinstance(weight, QuantizedWeight)
    ]
    return tuple(dict.fromkeys(found))


def record_step(config: ModelConfig, *, dtype: torch.dtype) -> list[OpCall]:
    """Return the calls of ops in one step of a model, in their order.

    Weights are not quantized, and nothing is fused. Gradients are wanted, so that no kernel is compiled or loaded.

    Args:
        config: architecture of the model.
        dtype: dtype of weights and activations.

    Raises:
        RuntimeError: the model cannot compute a step without tokens.
    """
    factory = _OneRowFactory(device=torch.device("cpu"), dtype=dtype, linear=linear, max_seq_len=1)
    model = build_model(replace(config, quantization=None), factory)
    model.requires_grad_(True)  # noqa: FBT003 - torch's own signature
    no_tokens = torch.empty(0, dtype=torch.int32)
    calls: list[OpCall] = []
    with torch.enable_grad(), _recorded_calls(calls):
        model(no_tokens, no_tokens, _RecordingView(calls))
    return calls


class _OneRowFactory(ParameterFactory):
    """Allocates one row of zeros for all rows of a matrix."""

    __slots__ = ()

    def matrix(self, rows: int, columns: int) -> nn.Parameter:
        """Return a parameter [rows, columns]."""
        return nn.Parameter(torch.zeros(columns, dtype=self.dtype).expand(rows, columns), requires_grad=False)

    def stack(self, count: int, rows: int, columns: int) -> nn.Parameter:
        """Return a parameter [count, rows, columns]."""
        return nn.Parameter(torch.zeros(columns, dtype=self.dtype).expand(count, rows, columns), requires_grad=False)


class _RecordingView:
    """Writes down what each layer asks of the cache. Implements `infer_models.KVCacheView`."""

    def __init__(self, calls: list[OpCall]) -> None:
        self._calls = calls

    def attend(
        self,
        layer: int,
        qkv: Tensor,
        spec: AttentionSpec,
        *,
        rotary: Rotary | None = None,
        norm: QKNorm | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return the queries in place of the attended values, [tokens, q_heads, head_dim]."""
        arguments = {"layer": layer, "spec": spec, "rotary": rotary, "norm": norm, "sinks": sinks}
        self._calls.append(OpCall(_ATTEND, arguments))
        return qkv[:, : spec.q_heads]

    def state(self, layer: int, spec: StateSpec, x: Tensor) -> LayerState:
        """Return states of no sequence."""
        del layer
        none = torch.empty(0, dtype=torch.int32)
        matrices = None if spec.matrices is None else torch.empty(0, *spec.matrices, dtype=torch.float32)
        return LayerState(
            x.new_empty(0, *spec.convolution),
            matrices,
            StateRows(query_start=torch.zeros(1, dtype=torch.int32), read=none, write=none),
        )

    def numbers(self, part: str) -> SequenceNumbers:
        """Know no part of a batch."""
        raise KeyError(part)

    def attend_shared(
        self, layer: int, q: Tensor, spec: AttentionSpec, *, rotary: Rotary | None = None, norm: QKNorm | None = None
    ) -> Tensor:
        """Return the queries; the checks of the layer that stores the keys are those of this one too."""
        del layer, spec, rotary, norm
        return q


@contextmanager
def _recorded_calls(calls: list[OpCall]) -> Iterator[None]:
    """Append to `calls` each call of an op that is made inside."""

    def look_at(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in _OPS:
            calls.append(OpCall(_OPS[frame.f_code], dict(frame.f_locals)))

    before = sys.getprofile()
    sys.setprofile(look_at)
    try:
        yield
    finally:
        sys.setprofile(before)
