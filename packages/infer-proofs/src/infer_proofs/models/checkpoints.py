"""Tiny random checkpoints, as `transformers` saves them.

The weights are spread widely, so that attention matters and the two best logits of a position are no ties. Layers that
predict a token further (MTP), which `transformers` leaves unread, can be added.
"""

import json
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from infer_models.families.tiny_family import SHAPE, VISION, TinyFamily
from infer_proofs.models.tiny_families import TINY_FAMILIES


def save_tiny(family: str, folder: Path, **how: Any) -> Any:
    """Save a random model of one of `TINY_FAMILIES` into `folder`; `how` is as for `save_tiny_twin`."""
    return save_tiny_twin(TINY_FAMILIES[family], folder, **how)


def save_tiny_twin(
    tiny: TinyFamily,
    folder: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Any:
    """Save a random model into `folder`; return the `transformers` model, in eval mode.

    Args:
        tiny: recipe for the model.
        folder: made if it is not there.
        seed: seed of the weights.
        dtype: dtype of the saved weights.
        max_shard_size: such as `100KB`; a smaller one than the model gives shards and an index.
        **overrides: fields of the text model's `config.json`, such as `rope_parameters=LLAMA3_SCALING`.
    """
    import transformers  # noqa: PLC0415 - only tests have it

    fields = deepcopy(
        SHAPE | tiny.fields | overrides
    )  # `transformers` writes into tables of rotations that it is given
    config = getattr(transformers, tiny.config)(**fields)
    if tiny.wrapper is not None:
        outer, vision = tiny.wrapper
        is_tied = {"tie_word_embeddings": fields["tie_word_embeddings"]} if "tie_word_embeddings" in fields else {}
        vision_config = getattr(transformers, vision)(**VISION)
        config = getattr(transformers, outer)(text_config=config, vision_config=vision_config, **is_tied)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)  # some vectors start as random ones
        model = getattr(transformers, tiny.model)(config)
    _spread(model, seed)
    model = model.to(dtype).eval()
    model.config.dtype = dtype
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


save_tiny_llama = partial(save_tiny, "llama")
save_tiny_qwen3 = partial(save_tiny, "qwen3")
save_tiny_gemma3 = partial(save_tiny, "gemma3")


def save_tiny_nanogpt(folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> Any:
    """Save a random NanoGPT into `folder`, by default the 209,729-parameter one; return our model, on the CPU."""
    from infer_models.checkpoint import save_model  # noqa: PLC0415 - checkpoints of the other families need none of it
    from infer_models.model_loader import load_model  # noqa: PLC0415 - as above

    fields = {
        "model_type": "nanogpt",
        "vocab_size": 65,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": 32,
        "dtype": str(dtype).removeprefix("torch."),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields | overrides, indent=2), encoding="utf-8")
    model = load_model(folder, device=torch.device("cpu"), dtype=dtype, load_format="dummy")
    _spread(model, seed)
    save_model(model, folder)
    return model


class MTPTwin(nn.Module):
    """The layer of a twin: norms and a product before a `transformers` model of one layer."""

    def __init__(self, model: Any) -> None:
        """Make the layer of `model`, a `transformers` model that may be wrapped."""
        super().__init__()
        text = getattr(model.model, "language_model", model.model)
        config = deepcopy(text.config)
        config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        size, norm = config.hidden_size, type(text.norm)
        self.pre_fc_norm_embedding = norm(size, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(size, eps=config.rms_norm_eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.text = type(text)(config)
        self.text.embed_tokens = None

    def forward(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """Map embeddings of the next tokens and hidden states, [tokens, hidden], to hidden states."""
        joined = torch.cat([self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden)], dim=-1)
        predicted: Tensor = self.text(inputs_embeds=self.fc(joined)[None]).last_hidden_state[0]
        return predicted

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors as checkpoints name them."""
        return {f"mtp.{name.removeprefix('text.')}": each.contiguous() for name, each in self.state_dict().items()}


def save_mtp(folder: Path, model: Any, *, seed: int = 1) -> MTPTwin:
    """Add a random layer to the checkpoint in `folder`, which has one file and was saved of `model`; return it."""
    twin = MTPTwin(model)
    _spread(twin, seed)
    twin = twin.to(model.dtype).eval()
    add_tensors(folder, twin.tensors())
    return twin


def save_mtp_of_pairs(folder: Path) -> None:
    """Make a checkpoint's next token depend on the last one alone, as its MTP layer's does: they predict the same."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, each in tensors.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            each.zero_()
        elif name == "mtp.fc.weight":
            each.copy_(torch.eye(*each.shape))
        elif (name.endswith("norm.weight") and ".layers." not in name) or ".pre_fc_norm" in name:
            each.zero_()  # norms of these families multiply by 1 + weight
    save_file(tensors, path)


def add_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Add tensors to a checkpoint that has one file."""
    path = folder / "model.safetensors"
    save_file(load_file(path) | tensors, path)


def _spread(model: torch.nn.Module, seed: int) -> None:
    """Make matrices that keep the scale of their inputs, and vectors that differ from their first values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        stored = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
        for name, parameter in (*model.named_parameters(), *stored):
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if name.endswith("A_log"):  # slow decay, so that states remember
                parameter.copy_(noise - 2.0)
            elif parameter.dim() == 1:
                parameter.add_(noise, alpha=0.2)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
