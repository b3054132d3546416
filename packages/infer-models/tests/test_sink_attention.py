"""Attention with sinks: it is that of GPT-OSS in `transformers`; how sinks are named, divided and trained."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from infer_kernels import linear, silu_and_mul
from infer_models import AttentionSpec, CausalLM, CausalView, ModelConfig
from infer_models.checkpoint import draw_weights
from infer_models.layers import GatedMLP, LMHead, ParameterFactory, SinkAttention, pre_norm_decoder
from infer_models.tensor_parallel import Shard
from infer_proofs.models import save_tiny_llama
from infer_proofs.models.ranks import run_ranks

IDS = torch.randint(3, 60, (24,), generator=torch.Generator().manual_seed(1))


class SinkLlama(CausalLM):
    """A Llama whose attention has sinks."""

    def __init__(self, config: ModelConfig, factory: ParameterFactory) -> None:
        """Allocate the weights."""
        decoder = pre_norm_decoder(
            config,
            factory,
            attention=lambda layer: SinkAttention(config, factory, layer),
            mlp=lambda _: GatedMLP(config, factory, silu_and_mul),
        )
        super().__init__(config, decoder, LMHead(config, factory, decoder.embed_tokens))


class HeadsOfTransformers(nn.Module):
    """What `eager_attention_forward` reads of its module."""

    def __init__(self, sinks: Tensor, num_key_value_groups: int) -> None:
        """Keep both."""
        super().__init__()
        self.sinks = sinks
        self.num_key_value_groups = num_key_value_groups


def sink_llama(folder: Path, shard: Shard | None = None) -> SinkLlama:
    """A model whose random weights are those of the whole one, whatever its shard."""
    save_tiny_llama(folder)
    factory = ParameterFactory(
        device=torch.device("cpu"), dtype=torch.float32, linear=linear, shard=Shard() if shard is None else shard
    )
    model = SinkLlama(ModelConfig.from_folder(folder), factory)
    draw_weights(model)
    for name, each in model.stored_weights().items():
        if name.endswith(".sinks"):
            sinks = torch.randn(each.shape, generator=torch.Generator().manual_seed(len(name)))
            each.fill(sinks)
    return model


@torch.inference_mode()
def logits_of(model: CausalLM) -> Tensor:
    logits: Tensor = model(IDS, torch.arange(len(IDS)), CausalView())
    return logits


@pytest.mark.covers("models/gpt-oss")
@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("shift", [-20.0, 0.0, 20.0])
def test_attention_without_a_cache_is_that_of_transformers(window: int | None, shift: float) -> None:
    generator = torch.Generator().manual_seed(2)
    spec = AttentionSpec(q_heads=6, kv_heads=2, head_dim=16, scale=0.3, window=window)
    qkv, sinks = torch.randn(11, 10, 16, generator=generator), torch.randn(6, generator=generator) + shift
    distance = torch.arange(11)[:, None] - torch.arange(11)
    hidden = (distance < 0) | (distance >= (window or 11))
    q, k, v = (x.transpose(0, 1)[None] for x in torch.split(qkv, [6, 2, 2], dim=1))
    mask = torch.zeros(11, 11).masked_fill(hidden, -torch.inf)
    expected, _ = eager_attention_forward(HeadsOfTransformers(sinks, 3), q, k, v, mask, scaling=0.3)
    attended = CausalView().attend(0, qkv, spec, sinks=sinks)
    torch.testing.assert_close(attended, expected[0], rtol=1e-5, atol=1e-6)


def test_sequences_end_to_end_share_the_sinks() -> None:
    spec = AttentionSpec(q_heads=2, kv_heads=1, head_dim=16, scale=0.3)
    qkv, sinks = torch.randn(9, 4, 16, generator=torch.Generator().manual_seed(3)), torch.tensor([0.5, -1.0])
    together = CausalView([4, 5]).attend(0, qkv, spec, sinks=sinks)
    alone = [CausalView().attend(0, part, spec, sinks=sinks) for part in torch.split(qkv, [4, 5])]
    torch.testing.assert_close(together, torch.cat(alone))


def test_sinks_are_tensors_of_the_attention_in_a_checkpoint(tmp_path: Path) -> None:
    slices = sink_llama(tmp_path).stored_weights()
    shapes = {name: each.shape for name, each in slices.items() if "sinks" in name}
    assert shapes == {f"model.layers.{layer}.self_attn.sinks": (4,) for layer in range(len(shapes))}
    assert shapes


def test_sinks_change_what_a_model_computes(tmp_path: Path) -> None:
    model = sink_llama(tmp_path)
    before = logits_of(model)
    for each in model.modules():
        if isinstance(each, SinkAttention):
            each.sinks.data.fill_(-torch.inf)
    assert (logits_of(model) - before).abs().max() > 1e-4


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_hold_the_sinks_of_their_heads_and_compute_what_the_whole_does(tmp_path: Path, size: int) -> None:
    whole = sink_llama(tmp_path)
    models = run_ranks(size, lambda shard: sink_llama(tmp_path / str(shard.rank), shard))
    name = "model.layers.0.self_attn.sinks"
    of_ranks = [model.stored_weights()[name].stored() for model in models]
    assert torch.equal(torch.cat(of_ranks), whole.stored_weights()[name].stored())
    logits = run_ranks(size, lambda shard: logits_of(sink_llama(tmp_path / str(shard.rank), shard)))[0]
    torch.testing.assert_close(logits, logits_of(whole), rtol=0, atol=1e-4)


def test_sinks_learn(tmp_path: Path) -> None:
    model = sink_llama(tmp_path).requires_grad_()
    loss = functional.cross_entropy(model(IDS, torch.arange(len(IDS)), CausalView()), IDS.roll(-1))
    sinks = {name: parameter for name, parameter in model.named_parameters() if name.endswith(".sinks")}
    for name, gradient in zip(sinks, torch.autograd.grad(loss, list(sinks.values())), strict=True):
        assert gradient.abs().min() > 0, name
