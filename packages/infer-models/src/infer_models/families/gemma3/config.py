"""Gemma 3 (text): the fields of its `config.json`."""

from dataclasses import replace

from infer_models.config.decoder_fields import (
    FULL,
    SLIDING,
    read_decoder,
    read_window,
    read_windows,
    require,
    with_biases,
)
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family, default_sizes
from infer_models.config.rope_fields import read_full_and_sliding_rope


def read_gemma3(fields: JsonFields) -> ModelConfig:
    """Gemma 3: five sliding layers to one full one, each kind with its own frequencies."""
    require(fields, "hidden_activation", "gelu_pytorch_tanh")
    config = with_biases(read_decoder(fields, default_head_dim=256, tied_by_default=True), fields)
    # Its files say the length that its scaling, of full layers alone, makes possible.
    config = replace(config, max_position_embeddings=fields.count("max_position_embeddings"))
    name = "sliding_window_pattern" if "sliding_window_pattern" in fields else "_sliding_window_pattern"
    every = fields.count(name, 6)
    types = [FULL if (layer + 1) % every == 0 else SLIDING for layer in range(config.num_layers)]
    kinds = fields.texts("layer_types") if "layer_types" in fields else types
    full, sliding = read_full_and_sliding_rope(
        fields,
        head_dim=config.head_dim,
        full_theta=fields.number("rope_theta", 1_000_000.0),
        sliding_theta=fields.number("rope_local_base_freq", 10_000.0),
    )
    return replace(
        config,
        attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_soft_cap=fields.optional_number("attn_logit_softcapping"),
        logit_soft_cap=fields.optional_number("final_logit_softcapping"),
        embedding_scale=config.hidden_size**0.5,
        windows=read_windows(fields, config, window=read_window(fields, default=4096), default_types=types),
        ropes=tuple(full if kind == FULL else sliding for kind in kinds),
    )


FAMILIES = {
    "gemma3_text": Family(
        read=read_gemma3,
        build="infer_models.families.gemma3.model:Gemma3",
        defaults=default_sizes(262208, 2304, 9216, 26, 8, 4, 131072),
        wrappers=("gemma3",),
    ),
}
