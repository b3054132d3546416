"""Tiny checkpoints of three families, and the prompts that they get. Nothing here needs `transformers`.

A tiny model has what its family has: heads as wide as the real ones, grouped queries, Llama 3's scaled rotary
frequencies, a sliding window that most prompts exceed. Its weights are rounded to bf16, so that fp32 and bf16 load the
same numbers.
"""

from pathlib import Path
from random import Random
from typing import Any

from infer_bench.checkpoints import write_weights
from infer_bench.shapes import SHAPES, Shape
from infer_models.testing import LLAMA3_SCALING, save_tiny_tokenizer

VOCAB_SIZE = 512
MAX_SEQ_LEN = 192
WINDOW = 24
"""Tokens that Gemma's sliding layers attend to."""

_COMMON: Shape = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, Shape] = {
    "llama": _COMMON
    | {
        "model_type": "llama",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rope_parameters": LLAMA3_SCALING,
    },
    "qwen3": _COMMON
    | {
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
    "gemma3": _COMMON
    | {
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
    },
}
"""The `config.json` of each tiny model, by family.

Real Gemma models tie the head to the embedding. Tied random weights would answer each token with the token itself, with
certainty, so the tiny Gemma does not.
"""


def write_tiny_model(family: str, folder: Path, **overrides: Any) -> Path:
    """Save a checkpoint of `family`, a key of `FAMILIES`, with a tokenizer into `folder`, and return the folder.

    Weights are spread widely: attention matters, and the two best logits of a position do not tie. They depend on the
    shape alone; `overrides` are fields of `config.json`.
    """
    save_tiny_tokenizer(folder, vocab_size=VOCAB_SIZE)
    return write_weights(FAMILIES[family] | overrides, folder, norm_noise=0.2)


def tiny_shape(name: str) -> Shape:
    """Return the `config.json` of the tiny model whose family is that of the shape `name`."""
    (tiny,) = (config for config in FAMILIES.values() if config["model_type"] == SHAPES[name]["model_type"])
    return tiny


def random_prompt(length: int, *, seed: int = 0) -> list[int]:
    """Return `length` ordinary token ids, the same ones for the same arguments."""
    chosen = Random(1000 * length + seed)  # noqa: S311 - prompts, no secrets
    return [chosen.randrange(3, VOCAB_SIZE) for _ in range(length)]


def prompts_in_waves() -> list[dict[str, list[int]]]:
    """Return two waves of prompts by name; the second is sent when the first is answered.

    With prefix caching, the second wave finds keys and values of the first one: for a whole prompt, and for a part of
    one. Its lengths end before, at and behind the ends of blocks, chunks and the window.
    """
    long = random_prompt(130)
    others = {str(length): random_prompt(length) for length in (1, 17, 5, WINDOW, 64, 97, 30, 2, 40)}
    return [{"long": long}, {"long again": long, "shared prefix": [*long[:100], *random_prompt(17, seed=1)], **others}]
