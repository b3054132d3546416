"""`ModelConfig`: the architecture that a `config.json` describes, with one reader for each family."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from infer_models.attention import AttentionSpec
from infer_models.config.json_fields import JsonFields
from infer_models.config.rope import RopeParameters, read_full_and_sliding_rope, read_rope
from infer_models.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model's architecture.

    Attributes:
        model_type: names the family, such as `llama`.
        vocab_size: rows of the embedding; checkpoints may pad it beyond the tokenizer's vocabulary.
        hidden_size: elements of a token's hidden state.
        num_layers: decoder layers.
        q_heads: query heads of a layer.
        kv_heads: key and value heads of a layer; `q_heads` is a multiple of it.
        head_dim: elements of a head, whatever `hidden_size / q_heads` is.
        intermediate_size: elements inside a layer's MLP.
        max_position_embeddings: the longest sequence, in tokens.
        norm_eps: added to the mean square, or the variance, inside the norms.
        dtype: of the checkpoint's weights: `float32`, `bfloat16` or `float16`.
        tie_word_embeddings: the LM head is the embedding.
        attention_scale: multiplies the dot products.
        attention_soft_cap: caps the scores; None leaves them.
        logit_soft_cap: logits become `cap * tanh(logits / cap)`; None leaves them.
        windows: each layer's sliding window in tokens, None where it attends to all before.
        ropes: each layer's rotary frequencies, None where it leaves queries and keys unrotated.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    norm_eps: float
    dtype: str
    tie_word_embeddings: bool
    attention_scale: float
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    windows: tuple[int | None, ...]
    ropes: tuple[RopeParameters | None, ...]

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read `config.json`, as `transformers` 4 or 5 writes it.

        Raises:
            CheckpointError: the file is missing or damaged, the `model_type` is unknown, a field is missing or has a
                value that is not supported.
        """
        fields = JsonFields.from_file(folder / "config.json")
        model_type = fields.text("model_type")
        read = _READERS.get(model_type)
        if read is None:
            raise fields.invalid("model_type", "one of " + ", ".join(f"`{known}`" for known in _READERS))
        if "quantization_config" in fields:
            raise CheckpointError(
                f"{fields.path}: `quantization_config` is set; quantized checkpoints are not supported."
            )
        return read(fields)

    @property
    def attention_specs(self) -> tuple[AttentionSpec, ...]:
        """What differs between the layers' attention, one for each layer."""
        return tuple(
            AttentionSpec(
                q_heads=self.q_heads,
                kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                scale=self.attention_scale,
                window=window,
                soft_cap=self.attention_soft_cap,
            )
            for window in self.windows
        )


def _read_llama(fields: JsonFields) -> ModelConfig:
    _refuse(fields, "attention_bias", "mlp_bias")
    _require(fields, "hidden_act", "silu")
    return _read_decoder(fields, _read_heads(fields, default_head_dim=None), read_rope(fields), tied_by_default=False)


def _read_qwen3(fields: JsonFields) -> ModelConfig:
    _refuse(fields, "attention_bias", "use_sliding_window")
    _require(fields, "hidden_act", "silu")
    return _read_decoder(fields, _read_heads(fields, default_head_dim=128), read_rope(fields), tied_by_default=False)


def _read_gemma3(fields: JsonFields) -> ModelConfig:
    _refuse(fields, "attention_bias", "use_bidirectional_attention")
    _require(fields, "hidden_activation", "gelu_pytorch_tanh")
    rope, sliding_rope = read_full_and_sliding_rope(fields)
    decoder = _read_decoder(fields, _read_heads(fields, default_head_dim=256), rope, tied_by_default=True)
    windows = _read_windows(fields, decoder.num_layers)
    return replace(
        decoder,
        attention_scale=fields.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_soft_cap=fields.optional_number("attn_logit_softcapping"),
        logit_soft_cap=fields.optional_number("final_logit_softcapping"),
        windows=windows,
        ropes=tuple(rope if window is None else sliding_rope for window in windows),
    )


def _read_nanogpt(fields: JsonFields) -> ModelConfig:
    heads = _read_heads(fields, default_head_dim=None)
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
        dtype=_read_dtype(fields),
        tie_word_embeddings=False,
        attention_scale=heads.head_dim**-0.5,
        windows=(None,) * num_layers,
        ropes=(None,) * num_layers,
    )


def _read_decoder(fields: JsonFields, heads: "_Heads", rope: RopeParameters, *, tied_by_default: bool) -> ModelConfig:
    """Read what the families with RMSNorm and RoPE have in common, as of a model without windows and caps."""
    num_layers = fields.count("num_hidden_layers")
    return ModelConfig(
        model_type=fields.text("model_type"),
        vocab_size=fields.count("vocab_size"),
        hidden_size=fields.count("hidden_size"),
        num_layers=num_layers,
        q_heads=heads.q_heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        intermediate_size=fields.count("intermediate_size"),
        max_position_embeddings=fields.count("max_position_embeddings"),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        dtype=_read_dtype(fields),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=tied_by_default),
        attention_scale=heads.head_dim**-0.5,
        windows=(None,) * num_layers,
        ropes=(rope,) * num_layers,
    )


_READERS: dict[str, Callable[[JsonFields], ModelConfig]] = {
    "llama": _read_llama,
    "qwen3": _read_qwen3,
    "gemma3_text": _read_gemma3,
    "nanogpt": _read_nanogpt,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heads:
    q_heads: int
    kv_heads: int
    head_dim: int


def _read_heads(fields: JsonFields, *, default_head_dim: int | None) -> _Heads:
    """Read the heads; a family without a default for `head_dim` shares `hidden_size` out among them."""
    q_heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", q_heads)
    if q_heads % kv_heads:
        raise fields.invalid("num_key_value_heads", f"a divisor of `num_attention_heads` = {q_heads}")
    hidden_size = fields.count("hidden_size")
    if "head_dim" not in fields and default_head_dim is None and hidden_size % q_heads:
        allowed = f"a divisor of `hidden_size` = {hidden_size} where `head_dim` is not set"
        raise fields.invalid("num_attention_heads", allowed)
    head_dim = fields.count("head_dim", default_head_dim or hidden_size // q_heads)
    if head_dim % 16 or head_dim > 256:
        raise CheckpointError(
            f"{fields.path}: `head_dim` is {head_dim}; supported are the multiples of 16 from 16 to 256."
        )
    return _Heads(q_heads=q_heads, kv_heads=kv_heads, head_dim=head_dim)


def _read_windows(fields: JsonFields, num_layers: int) -> tuple[int | None, ...]:
    """Read each layer's window: `layer_types`, or else every `sliding_window_pattern`-th layer attends to all."""
    window = fields.count("sliding_window", 4096)
    if "layer_types" not in fields:
        name = "sliding_window_pattern" if "sliding_window_pattern" in fields else "_sliding_window_pattern"
        pattern = fields.count(name, 6)
        return tuple(window if (layer + 1) % pattern else None for layer in range(num_layers))
    kinds = {"sliding_attention": window, "full_attention": None}
    layer_types = fields.texts("layer_types")
    if len(layer_types) != num_layers or not kinds.keys() >= set(layer_types):
        raise fields.invalid(
            "layer_types", f"{num_layers} times `sliding_attention` or `full_attention`, one for each layer"
        )
    return tuple(kinds[layer_type] for layer_type in layer_types)


def _read_dtype(fields: JsonFields) -> str:
    """Read the weights' type under its name in `transformers` 5 or 4; absent, it is fp32 there."""
    name = "dtype" if "dtype" in fields else "torch_dtype"
    dtype = fields.text(name, "float32").removeprefix("torch.")
    if dtype not in ("float32", "bfloat16", "float16"):
        raise fields.invalid(name, "`float32`, `bfloat16` or `float16`")
    return dtype


def _refuse(fields: JsonFields, *names: str) -> None:
    for name in names:
        if fields.flag(name, default=False):
            raise fields.invalid(name, "false: this variant of the family is not supported")


def _require(fields: JsonFields, name: str, only: str) -> None:
    if fields.text(name, only) != only:
        raise fields.invalid(name, f"`{only}`: other variants of the family are not supported")
