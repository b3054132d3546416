"""What a `config.json` leaves out, by `model_type`: the defaults of `transformers`' classes.

Only of fields that have no default of their own where they are read. A field that is null is not absent.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _sizes(
    vocab: int, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int | None, positions: int
) -> Mapping[str, Any]:
    """Return the fields that say how large a model is; without `kv_heads` there are as many as heads."""
    fields = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
    }
    return MappingProxyType({name: value for name, value in fields.items() if value is not None})


FAMILY_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": _sizes(32000, 4096, 11008, 32, 32, None, 2048),
        "mistral": _sizes(32000, 4096, 14336, 32, 32, 8, 131072),
        "ministral": _sizes(32000, 4096, 14336, 32, 32, 8, 131072),
        "ministral3": _sizes(131072, 4096, 14336, 34, 32, 8, 262144),
        "qwen2": _sizes(151936, 4096, 22016, 32, 32, 32, 32768),
        "qwen3": _sizes(151936, 4096, 22016, 32, 32, 32, 32768),
        "qwen3_moe": _sizes(151936, 2048, 6144, 24, 32, 4, 32768),
        "smollm3": _sizes(128256, 2048, 11008, 36, 16, 4, 32768),
        "granite": _sizes(32000, 4096, 11008, 32, 32, None, 2048),
        "phi3": _sizes(32064, 3072, 8192, 32, 32, None, 4096),
        "olmo2": _sizes(50304, 4096, 11008, 32, 32, None, 2048),
        "olmo3": _sizes(50304, 4096, 11008, 32, 32, None, 2048),
        "gemma3_text": _sizes(262208, 2304, 9216, 26, 8, 4, 131072),
        "gpt_oss": _sizes(201088, 2880, 2880, 36, 64, 8, 131072),
    }
)
