"""Tiny checkpoints of the three families and the prompts that they are asked, without `transformers`. Runs no engine.

A twin is what a family has and tests need, at a size that a CPU computes in no time: heads as wide as the real ones,
grouped queries, Llama 3's scaled rotary frequencies, a sliding window that most prompts exceed. Its weights are rounded
to bf16, so that the same numbers are loaded in fp32 and in bf16.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

import torch

from infer_models import load_model
from infer_models.checkpoint import save_model
from infer_models.testing import LLAMA3_SCALING, save_tiny_tokenizer

VOCAB_SIZE = 512
MAX_SEQ_LEN = 192
WINDOW = 24
"""Tokens that Gemma's sliding layers attend to."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        **_COMMON,
        "model_type": "llama",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "rope_parameters": LLAMA3_SCALING,
        "tie_word_embeddings": False,
    },
    "qwen3": {
        **_COMMON,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_act": "silu",
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        **_COMMON,
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": WINDOW,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": False,
    },
}
"""By name, what `config.json` says of each twin.

Gemma's head is not tied to its embedding, as the real ones' are: tied random weights would answer each token with
itself, for ever and with certainty.
"""

LONG_PROMPT_TOKENS = 130
SHARED_TOKENS = 100
"""Leading tokens of the long prompt that another one begins with: more than a block of the default size."""


def write_twin(family: str, folder: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Save the twin of `family`, a key of `FAMILIES`, with a tokenizer into `folder`, and return the folder.

    The weights are spread as widely as those of `infer_models.testing`: attention matters, and the two best logits of a
    position are no ties. They depend on the shape and on `seed` alone; `overrides` are fields of `config.json`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(FAMILIES[family] | overrides, indent=2), encoding="utf-8")
    save_tiny_tokenizer(folder, vocab_size=VOCAB_SIZE)
    model = load_model(folder, device=torch.device("cpu"), dtype=torch.float32, load_format="dummy")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.add_(noise, alpha=0.2)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    save_model(model, folder, dtype=torch.bfloat16)
    return folder


def random_prompt(length: int, *, seed: int = 0) -> list[int]:
    """Return `length` ordinary token ids, always the same ones."""
    chosen = Random(1000 * length + seed)  # noqa: S311 - prompts, no secrets
    return [chosen.randrange(3, VOCAB_SIZE) for _ in range(length)]


def prompts_in_waves() -> list[dict[str, list[int]]]:
    """Return the prompts by name, in waves of which each is answered before the next one comes.

    The second wave finds the first one's keys and values where prefixes are kept: all of a prompt's, or a part. Its
    lengths end before, at and behind the ends of blocks, chunks and the window.
    """
    long = random_prompt(LONG_PROMPT_TOKENS)
    return [
        {"long": long},
        {
            "long again": long,
            "shared prefix": [*long[:SHARED_TOKENS], *random_prompt(17, seed=1)],
            "one token": random_prompt(1),
            "a window": random_prompt(WINDOW),
            "a block": random_prompt(64),
            "three chunks": random_prompt(97),
        },
    ]
