"""Model shapes at real sizes, as `config.json` files for `load_format="dummy"`. Knows numbers; has no weights."""

import json
from pathlib import Path
from typing import Any

SMOLLM_135M: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

SHAPES = {"smollm-135m": SMOLLM_135M}


def write_shape(name: str, folder: Path) -> Path:
    """Write the `config.json` of shape `name` into `folder` and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[name], indent=2))
    return folder
