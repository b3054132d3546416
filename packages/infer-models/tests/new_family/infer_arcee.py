"""Arcee's AFM: Llama with an MLP that has no gate and squares what a ReLU leaves."""

from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional

from infer_models import CausalLM, ModelConfig, register_family
from infer_models.config.decoder_fields import read_decoder, refuse, require
from infer_models.config.json_fields import JsonFields
from infer_models.layers import (
    Attention,
    ColumnParallelLinear,
    LMHead,
    ParameterFactory,
    RowParallelLinear,
    pre_norm_decoder,
)


def read_arcee(fields: JsonFields) -> ModelConfig:
    """Read the configuration of a model without biases."""
    refuse(fields, "attention_bias", "mlp_bias")
    require(fields, "hidden_act", "relu2")
    return replace(read_decoder(fields), norm_eps=fields.number("rms_norm_eps", 1e-5))


class SquaredReluMLP(nn.Module):
    """`down(relu(up)**2)`. So et al., "Primer: Searching for Efficient Transformers", 2021."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Widen to `intermediate_size` and back."""
        super().__init__()
        self.up_proj = ColumnParallelLinear(factory, config.hidden_size, config.intermediate_size)
        self.down_proj = RowParallelLinear(factory, config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """Map x [tokens, hidden] to [tokens, hidden]."""
        out: Tensor = self.down_proj(functional.relu(self.up_proj(x)).square())
        return out


class Arcee(CausalLM):
    """An Arcee model; its LM head may be tied to the embedding."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights; the matrices are still to be loaded or drawn."""
        decoder = pre_norm_decoder(
            config,
            factory,
            attention=lambda layer: Attention(config, factory, layer),
            mlp=lambda _: SquaredReluMLP(config, factory),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))


register_family("arcee", read=read_arcee, build=Arcee)
