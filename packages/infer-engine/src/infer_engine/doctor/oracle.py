"""A small model with the user's heads and dtype, and its right answers: plain PyTorch in fp32, without a cache.

The oracle computes whole texts by the gradients' path of every op, which has no kernel, and gives the logits of each
token. An engine's logits of the same text must be close, and its greedy token the oracle's wherever the two best
logits are further apart than rounding explains.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infer_engine.protocol.config.model import Quantization
from infer_kernels import linear
from infer_models import CausalLM, CausalView, ModelConfig, load_model, save_model
from infer_models.families import build_model
from infer_models.layers import ParameterFactory
from infer_models.text import save_dummy_tokenizer

NUM_LAYERS = 2
MAX_VOCAB, MAX_HIDDEN, MAX_INTERMEDIATE = 4096, 1024, 2048
MAX_EXPERTS, MAX_EXPERT_INTERMEDIATE = 8, 512
MARGINS = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.1}
"""Margins between the two best logits, in standard deviations of all, below which rounding may decide."""
LOGIT_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.35, torch.float16: 0.1}
"""Differences of logits, in standard deviations, that rounding explains; on a CPU it makes up to 3e-5, 0.27, 0.066."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Comparison of an engine's tokens and logits with the oracle's.

    Attributes:
        num_tokens: tokens that were compared.
        num_decided: tokens whose margin exceeds rounding.
        num_decided_same: the same tokens among `num_decided`.
        logit_error: the largest difference of a logit, in standard deviations; NaN if one is.
    """

    num_tokens: int
    num_decided: int
    num_decided_same: int
    logit_error: float

    def is_right(self, dtype: torch.dtype) -> bool:
        """Return whether rounding in `dtype` explains every difference, and something was compared."""
        return self.num_decided_same == self.num_decided > 0 and self.logit_error <= LOGIT_TOLERANCES[dtype]


def small_config(fields: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """Return a `config.json` with the heads, norms and windows of `fields`, but with few layers and small matrices.

    The head is not tied: a tied one with random weights answers each token with the token itself.

    Args:
        fields: a `config.json`.
        config: the architecture that it describes.
    """
    text = fields if config.wrapper is None else fields["text_config"]
    num_layers = min(NUM_LAYERS, config.num_layers)
    small = {
        **text,
        "model_type": config.model_type,
        "dtype": config.dtype,
        "tie_word_embeddings": False,
        "num_hidden_layers": num_layers,
        "num_attention_heads": config.q_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "vocab_size": min(config.vocab_size, MAX_VOCAB),
        "hidden_size": min(config.hidden_size, MAX_HIDDEN),
        "intermediate_size": min(config.intermediate_size, MAX_INTERMEDIATE),
    }
    small.pop("quantization_config", None)  # weights are drawn as they are computed with
    # Of layers that differ, one of each kind.
    if "layer_types" in text:
        kinds = list(dict.fromkeys(text["layer_types"]))
        small["layer_types"] = (kinds * num_layers)[:num_layers]
        if "per_layer_config" in text:  # Gemma 4's heads; layers that share keys need more layers than these
            first = {kind: str(text["layer_types"].index(kind)) for kind in kinds}
            own = {
                str(layer): text["per_layer_config"].get(first[kind]) for layer, kind in enumerate(small["layer_types"])
            }
            small["per_layer_config"] = {layer: each for layer, each in own.items() if each is not None}
            small["num_kv_shared_layers"] = 0
    elif config.model_type == "gemma3_text":
        small["sliding_window_pattern"] = num_layers
    if config.model_type == "smollm3":
        small["no_rope_layers"] = [int(rope is not None) for rope in dict.fromkeys(config.ropes)] * num_layers
    if config.moe is not None:  # all experts compute every token: among near ties rounding would choose
        num_experts = min(config.moe.num_experts, MAX_EXPERTS)
        names = ("num_experts", "num_local_experts", "num_experts_per_tok", "top_k_experts")
        small |= dict.fromkeys(names, num_experts)
        small["mlp_only_layers"] = []
        small["moe_intermediate_size"] = min(config.moe.intermediate_size, MAX_EXPERT_INTERMEDIATE)
        if config.moe.intermediate_size == config.intermediate_size:
            small["intermediate_size"] = small["moe_intermediate_size"]
    return small


@torch.no_grad()
def save_small_model(
    fields: Mapping[str, Any], folder: Path, *, dtype: torch.dtype, with_mtp: bool = False
) -> ModelConfig:
    """Save a checkpoint of `fields` with random weights that `dtype` holds exactly; return its configuration.

    With `with_mtp` it has the layer of its family that drafts.

    The weights are spread widely, so that attention matters and the best logits of a position rarely tie. Norms of
    queries make scores of about 1, also where the model's scale is far from `head_dim**-0.5`, as Gemma 4's: between
    scores of 20 and more, rounding would choose.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(fields)), encoding="utf-8")
    config = replace(ModelConfig.from_folder(folder), has_mtp=with_mtp)
    factory = ParameterFactory(device=torch.device("cpu"), dtype=torch.float32, linear=linear)
    model = build_model(config, factory)
    generator = torch.Generator().manual_seed(0)
    query_size = min(1.0, config.head_dim**-0.5 / config.attention_scale)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
        else:
            parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5, generator=generator)
        if name.endswith("q_norm.weight"):
            parameter.mul_(query_size)
        parameter.copy_(parameter.to(dtype))
    save_model(model, folder, dtype=dtype)
    save_dummy_tokenizer(folder, config.vocab_size)
    return config


class Oracle:
    """The small model in fp32 on the host."""

    def __init__(self, folder: Path, *, max_seq_len: int, quantization: Quantization = "auto") -> None:
        """Load the checkpoint in `folder`, for sequences as long as the engine's; quantized weights are dequantized."""
        device = torch.device("cpu")
        self._model: CausalLM = load_model(
            folder, device=device, dtype=torch.float32, max_seq_len=max_seq_len, quantization=quantization
        )
        self._model.requires_grad_(True)  # noqa: FBT003 - torch's own signature; a wanted gradient keeps kernels out

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Return the logits [tokens, vocab] of the token after each of `token_ids`."""
        ids = torch.tensor(token_ids, dtype=torch.int32)
        return self._model(ids, torch.arange(len(ids), dtype=torch.int32), CausalView()).detach()  # type: ignore[no-any-return]  # a module's call


def compare(answers: Sequence[tuple[Tensor, Tensor]], *, dtype: torch.dtype, margin: float | None = None) -> Agreement:
    """Compare logits; each of `answers` is (an engine's, the oracle's), both [tokens, vocab], of one text.

    Tokens are decided beyond `margin`, by default that of `dtype`.
    """
    own = torch.cat([mine.float().cpu() for mine, _ in answers])
    right = torch.cat([oracle for _, oracle in answers])
    deviation = right.std(dim=-1)
    best = right.topk(2, dim=-1).values
    is_decided = (best[:, 0] - best[:, 1]) / deviation > (MARGINS[dtype] if margin is None else margin)
    is_same = own.argmax(dim=-1) == right.argmax(dim=-1)
    return Agreement(
        num_tokens=len(right),
        num_decided=int(is_decided.sum()),
        num_decided_same=int((is_decided & is_same).sum()),
        logit_error=float(((own - right).abs().amax(dim=-1) / deviation).max()),
    )
