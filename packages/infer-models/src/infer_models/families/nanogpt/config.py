"""NanoGPT: the fields of its `config.json`."""

from infer_models.config.decoder_fields import read_dtype, read_heads
from infer_models.config.json_fields import JsonFields
from infer_models.config.model_config import ModelConfig
from infer_models.config.registry import Family


def read_nanogpt(fields: JsonFields) -> ModelConfig:
    """NanoGPT: learned positions, layer norms, an MLP without a gate."""
    heads = read_heads(fields, default_head_dim=None)
    if heads.held_head_dim != heads.head_dim:
        raise fields.invalid("num_attention_heads", "one that makes heads of a multiple of 16 elements")
    hidden_size = fields.count("hidden_size")
    num_layers = fields.count("num_hidden_layers")
    return ModelConfig(
        model_type=fields.text("model_type"),
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        q_heads=heads.q_heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        intermediate_size=fields.count("intermediate_size", 4 * hidden_size),
        max_position_embeddings=fields.count("max_position_embeddings"),
        norm_eps=fields.number("layer_norm_eps", 1e-5),
        dtype=read_dtype(fields),
        tie_word_embeddings=False,
        attention_scale=heads.head_dim**-0.5,
        windows=(None,) * num_layers,
        ropes=(None,) * num_layers,
    )


FAMILIES = {
    "nanogpt": Family(read=read_nanogpt, build="infer_models.families.nanogpt.model:NanoGPT"),
}
