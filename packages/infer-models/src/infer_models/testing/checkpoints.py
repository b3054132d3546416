"""Tiny random checkpoints, as `transformers` saves them.

The weights are spread widely, so that attention matters and the two best logits of a position are no ties. Each
function takes what `config.json` may hold as keyword arguments, under its names there, and returns the saved model.
"""

import json
from pathlib import Path
from typing import Any

import torch

LLAMA3_SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

_SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save_tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Any:
    """Save a random Llama into `folder`; return the `transformers` model, in eval mode.

    Args:
        folder: made if it is not there.
        seed: of the weights.
        dtype: of the saved weights.
        max_shard_size: such as `100KB`; a smaller one than the model gives shards and an index.
        **overrides: fields of `config.json`, such as `rope_parameters=LLAMA3_SCALING`.
    """
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - only tests have transformers

    model = LlamaForCausalLM(LlamaConfig(**(_SHAPE | overrides)))
    return _save(model, folder, seed=seed, dtype=dtype, max_shard_size=max_shard_size)


def save_tiny_qwen3(
    folder: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Any:
    """Save a random Qwen 3 into `folder`; arguments as for `save_tiny_llama`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415 - only tests have transformers

    model = Qwen3ForCausalLM(Qwen3Config(**(_SHAPE | overrides)))
    return _save(model, folder, seed=seed, dtype=dtype, max_shard_size=max_shard_size)


def save_tiny_gemma3(
    folder: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    max_shard_size: str = "1GB",
    **overrides: Any,
) -> Any:
    """Save a random Gemma 3, with a sliding window of 8 tokens, into `folder`; arguments as for `save_tiny_llama`."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig  # noqa: PLC0415 - only tests have transformers

    defaults = _SHAPE | {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 8,
        "query_pre_attn_scalar": 24,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }
    model = Gemma3ForCausalLM(Gemma3TextConfig(**(defaults | overrides)))
    return _save(model, folder, seed=seed, dtype=dtype, max_shard_size=max_shard_size)


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


def _save(model: Any, folder: Path, *, seed: int, dtype: torch.dtype, max_shard_size: str) -> Any:
    _spread(model, seed)
    model = model.to(dtype).eval()
    model.config.dtype = dtype
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def _spread(model: torch.nn.Module, seed: int) -> None:
    """Make matrices that keep the scale of what they multiply, and vectors that differ from what they start as."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if parameter.dim() == 1:
                parameter.add_(noise, alpha=0.2)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
