"""The common part of recipes of tiny models of all families; each family's own are in `tiny` of its folder, as `TINY`.

What a family has beside Llama is there and small: windows of 8 tokens, positions of a first training that end at 32,
layers of each kind. Those of which GGUF files are written say how in `TINY_GGUF`, by `model_type`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

LLAMA3_SCALING: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_SCALING: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 32,
}
LONGROPE_SCALING: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + 0.05 * i for i in range(12)],
    "long_factor": [1.0 + 0.5 * i for i in range(12)],
    "original_max_position_embeddings": 32,
}
SHAPE: dict[str, Any] = {
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
"""Common fields of the tiny models."""
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
"""The vision model inside a tiny multimodal one."""
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"
EXPERTS: dict[str, Any] = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStyle:
    """The style in which a family writes conversations.

    Attributes:
        template: chat template with the family's control tokens and words of our own.
        control_tokens: control tokens that it writes, beside `<bos>` and `<eos>`.
        file: file that has it: `chat_template.jinja`, `tokenizer_config.json` or, for a processor's,
            `chat_template.json`.
    """

    template: str
    control_tokens: tuple[str, ...] = ()
    file: str = "tokenizer_config.json"


CHATML = ChatStyle(
    template=(
        "{% if messages[0].role != 'system' %}<|im_start|>system\nAnswer well.<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    control_tokens=("<|im_start|>", "<|im_end|>"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyFamily:
    """A recipe for a tiny model of a family with `transformers`.

    Attributes:
        config: the class of its configuration.
        model: the class of the model.
        fields: fields of `config.json`, beside those of `SHAPE` or instead of them.
        wrapper: the classes of the configurations of the multimodal model around it and of its vision model.
        chat: the style of its conversations.
        has_states: some layers have a state in place of keys and values.
    """

    config: str
    model: str
    fields: dict[str, Any] = field(default_factory=dict)
    wrapper: tuple[str, str] | None = None
    chat: ChatStyle = CHATML
    has_states: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyGguf:
    """The changes that llama.cpp's converter makes to a family's checkpoints, written once more, and how to undo them.

    Attributes:
        architecture: name of the architecture.
        values: gets a `config.json`, and returns the metadata of the architecture beside the common ones.
        split: gets the tensors of a checkpoint and its `config.json`, and returns them with the rows, columns and
            values of the file; names within a layer are the file's where the family has its own.
        join: gets such tensors, those of the checkpoint and its `config.json`, and undoes `split`, at least for
            matrices.
        has_interleaved_heads: rows of queries and keys are stored in the order of rotated pairs.
        shifts_norms: 1 is added to the weights of norms, but for those of states.
        has_norms_after: `post_attention_layernorm` is after attention, not before the MLP.
    """

    architecture: str
    values: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda _: {}
    split: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Tensor]] = lambda tensors, _: dict(tensors)
    join: Callable[[Mapping[str, Tensor], Mapping[str, Tensor], Mapping[str, Any]], dict[str, Tensor]] = (
        lambda parts, *_: dict(parts)
    )
    has_interleaved_heads: bool = False
    shifts_norms: bool = False
    has_norms_after: bool = False


def num_experts(config: Mapping[str, Any]) -> int:
    """Return how many experts the layers of a model have."""
    return int(config.get("num_experts") or config.get("num_local_experts") or 0)


def place_of(name: str) -> tuple[str, str]:
    """Return a name's beginning, up to its layer, and its end; of tensors outside nothing and all."""
    parts = name.split(".")
    return (".".join(parts[:3]) + ".", ".".join(parts[3:])) if parts[1] == "layers" else ("", name)


def renamed(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return tensors under other names: within a layer those of `names`, and outside of layers too."""
    places = {name: place_of(name) for name in tensors}
    return {place + names.get(within, within): tensors[name] for name, (place, within) in places.items()}


def restored(
    parts: Mapping[str, Tensor], original: Mapping[str, Tensor], names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Undo `renamed` for matrices; vectors are those of the original checkpoint."""
    stored = dict(zip(original, renamed(original, names), strict=True))
    return {
        name: whole if whole.dim() == 1 or stored[name] not in parts else parts[stored[name]].view(whole.shape)
        for name, whole in original.items()
    }
