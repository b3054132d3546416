"""gpt-oss: experts with biases and a clamped gate, attention with sinks.

OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025.

A checkpoint has all experts of a layer in one tensor, in one of two ways:

    bf16     gate_up_proj [experts, hidden, 2 * inner], down_proj [experts, inner, hidden]: the transpose of ours
    mxfp4    gate_up_proj_blocks [experts, 2 * inner, hidden / 32, 16] and _scales [experts, 2 * inner, hidden / 32];
             down_proj likewise, [experts, hidden, inner / 32, 16]

In both, gates and ups take turns: gate 0, up 0, gate 1, up 1, ... Ours has the gates first. GGUF files have the gates
and the ups of all experts in tensors of their own, and so are the names there (`ModelConfig.has_parts_apart`):

    0.gate_proj.weight [inner, hidden], 0.up_proj.weight, 0.down_proj.weight [hidden, inner], ..., an expert each
    gate_proj_bias [experts, inner], up_proj_bias, down_proj_bias [experts, hidden]
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from infer_kernels import ExpertActivation, QuantizedWeight
from infer_models.causal_lm import CausalLM
from infer_models.config import ModelConfig
from infer_models.layers import (
    Experts,
    LMHead,
    OwnWeight,
    ParameterFactory,
    RoutedMLP,
    Router,
    SinkAttention,
    detached,
    pre_norm_decoder,
)
from infer_models.quantization.mxfp4 import Mxfp4Weight
from infer_models.weights import ArrangedWeight, StoredWeight


class OssExperts(Experts):
    """Experts with biases, stored as one tensor for each kind of weight."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate weights and biases."""
        assert config.moe is not None
        gate = ExpertActivation(alpha=config.moe.swiglu_alpha, limit=config.moe.swiglu_limit, up_offset=1.0)
        super().__init__(config, factory, activation=gate, bias=True)
        self.has_parts_apart = config.has_parts_apart
        self.is_mxfp4 = config.quantization is not None and config.quantization.method == "mxfp4"

    def stored_weights(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield weights and biases, each a tensor or, in MXFP4, a pair of tensors; or stored apart."""
        if self.has_parts_apart:
            yield from super().stored_weights(path)
            yield from self._biases_apart(path)
            return
        gate_up, down = self.unpacked_weights()
        assert self.gate_up_bias is not None
        assert self.down_bias is not None
        experts, hidden, inner = self.num_experts, self.hidden_size, self.inner.total
        for name, weight, rows, columns, first_column, arrange, arrange_codes, restore in (
            ("gate_up_proj", gate_up, 2 * inner, hidden, 0, self._split, self._split_codes, _interleave),
            ("down_proj", down, hidden, inner, self.inner.start, self._columns, self._columns_of_codes, _as_it_is),
        ):
            if self.is_mxfp4:
                packed = Mxfp4Weight(
                    target=detached(weight),
                    blocks_shape=(experts, rows, columns // 32, 16),
                    arrange=arrange_codes,
                    first_column=first_column,
                    blocks_name=f"{path}.{name}_blocks",
                    scales_name=f"{path}.{name}_scales",
                )
                yield weight, packed.tensors()
            else:
                arranged = ArrangedWeight(
                    target=detached(weight),
                    shape=(experts, columns, rows),
                    arrange=partial(_after_transposing, arrange),
                    restore=partial(_transposing, restore),
                )
                yield weight, {f"{path}.{name}": arranged}
        for name, bias, size, split, join in (
            ("gate_up_proj_bias", self.gate_up_bias, 2 * inner, self._split, _interleave),
            ("down_proj_bias", self.down_bias, hidden, _as_it_is, _as_it_is),
        ):
            stored = ArrangedWeight(target=bias.detach(), shape=(experts, size), arrange=split, restore=join)
            yield bias, {f"{path}.{name}": stored}

    def _biases_apart(self, path: str) -> Iterator[tuple[OwnWeight, Mapping[str, StoredWeight]]]:
        """Yield the biases, of which gates and ups are two tensors."""
        assert self.gate_up_bias is not None
        assert self.down_bias is not None
        shape = (self.num_experts, self.inner.total)
        gates, ups = self.gate_up_bias.detach().chunk(2, dim=1)
        yield (
            self.gate_up_bias,
            {
                f"{path}.{name}": ArrangedWeight(target=half, shape=shape, arrange=self._own, restore=_as_it_is)
                for name, half in (("gate_proj_bias", gates), ("up_proj_bias", ups))
            },
        )
        shape = (self.num_experts, self.hidden_size)
        down = ArrangedWeight(target=self.down_bias.detach(), shape=shape, arrange=_as_it_is, restore=_as_it_is)
        yield self.down_bias, {f"{path}.down_proj_bias": down}

    def _own(self, item: Tensor) -> Tensor:
        """Return this rank's elements of an item [inner]."""
        return item[self.inner.start : self.inner.start + self.inner.size]

    def _split(self, rows: Tensor) -> Tensor:
        """Return this rank's gates, then its ups, of rows [2 * inner, ...] in which they take turns."""
        own = slice(self.inner.start, self.inner.start + self.inner.size)
        return torch.cat([rows[0::2][own], rows[1::2][own]])

    def _columns(self, weight: Tensor) -> Tensor:
        """Return this rank's columns of a weight [hidden, inner]."""
        return weight[:, self.inner.start : self.inner.start + self.inner.size]

    def _split_codes(self, weight: QuantizedWeight) -> QuantizedWeight:
        """Do as `_split` with a weight [2 * inner, hidden]."""
        return weight.map_rows(self._split)

    def _columns_of_codes(self, weight: QuantizedWeight) -> QuantizedWeight:
        """Do as `_columns`."""
        return weight.columns(self.inner.start, self.inner.size)


def _as_it_is(item: Tensor) -> Tensor:
    return item


def _after_transposing(arrange: Callable[[Tensor], Tensor], item: Tensor) -> Tensor:
    return arrange(item.T)


def _transposing(restore: Callable[[Tensor], Tensor], item: Tensor) -> Tensor:
    return restore(item).T


def _interleave(rows: Tensor) -> Tensor:
    """Return rows [2 * inner, ...], gates and then ups, so that they take turns."""
    return torch.stack(rows.chunk(2), dim=1).flatten(0, 1)


class OssMLP(RoutedMLP):
    """A router with a bias, called `router` in checkpoints, and its experts."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate both."""
        super().__init__()
        self.router = Router(config, factory, scoring="softmax_of_top_k", bias=True)
        self.experts = OssExperts(config, factory)

    def parts(self) -> tuple[Router, Experts]:
        """Return both."""
        return self.router, self.experts


class GptOss(CausalLM):
    """A gpt-oss model."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = pre_norm_decoder(
            config,
            factory,
            attention=lambda layer: SinkAttention(config, factory, layer, qkv_bias=True, output_bias=True),
            mlp=lambda _: OssMLP(config, factory),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))
