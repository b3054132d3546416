"""A tiny Llama that gives an answer: the pieces of a script, one token each.

The layer adds nothing to the residual stream, so the last token alone decides the next one: the head is a table of
which token follows which. Whatever is no piece of the script, such as the end of a prompt, is followed by the first.
A template that ends prompts with other special tokens lets each of them have a script of its own.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

CHATML_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_ENDS = ("<s>", "</s>")
_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
_INTERMEDIATE_SIZE, _HEADS, _HEAD_DIM = 64, 2, 16


def save_scripted(
    folder: Path,
    script: Sequence[str],
    *,
    chat_template: str = CHATML_TEMPLATE,
    special_tokens: Sequence[str] = (),
    added_tokens: Sequence[str] = (),
    further: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ends: bool = True,
    length: int = 4096,
) -> None:
    """Save a model that answers each prompt with the pieces of `script` in greedy decoding, and then ends.

    Texts are encoded byte for byte; `script` makes each of its pieces a token that only the model writes.

    Args:
        folder: made if it is not there.
        script: pieces of text, each at most once; special and added tokens by their names.
        chat_template: written into `chat_template.jinja`.
        special_tokens: further special tokens; `<s>`, `</s>` and the two of ChatML are there.
        added_tokens: further tokens that are no special ones.
        further: scripts of the prompts that end with these special tokens.
        ends: `</s>` follows the last piece; without it the last piece is repeated for ever.
        length: tokens of the context.

    Raises:
        ValueError: a piece is there twice, so it has two successors.
    """
    written = [piece for each in (script, *further.values()) for piece in each]
    if len(set(written)) < len(written):
        raise ValueError("A piece of the script is there twice; split the text in another way.")
    controls = [*_ENDS, *_CHATML_TOKENS, *special_tokens, *further]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    named = {*controls, *added_tokens}
    spelled = {piece: piece if piece in named else level.pre_tokenize_str(piece)[0][0] for piece in written}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = list(dict.fromkeys([*controls, *added_tokens, *alphabet, *spelled.values()]))
    ids = {token: index for index, token in enumerate(tokens)}
    folder.mkdir(parents=True, exist_ok=True)
    _save_tokenizer(folder, ids, controls, added_tokens)
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    paths = []
    for key, pieces in (("", script), *further.items()):
        path = [ids[spelled[piece]] for piece in pieces]
        paths.append([*([ids[key]] if key else []), *path, ids["</s>"] if ends else path[-1]])
    _save_model(folder, len(tokens), paths, length=length, eos_token_id=ids["</s>"])


def _save_tokenizer(folder: Path, ids: dict[str, int], special: Sequence[str], added: Sequence[str]) -> None:
    tokenizer = Tokenizer(BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.add_tokens(list(added))
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields), encoding="utf-8")


def _save_model(
    folder: Path, vocab_size: int, paths: Sequence[Sequence[int]], *, length: int, eos_token_id: int
) -> None:
    hidden_size = -(-vocab_size // 64) * 64
    head = torch.zeros(vocab_size, hidden_size)
    head[paths[0][0], :vocab_size] = 1
    for token, following in (pair for path in paths for pair in pairwise(path)):
        head[:, token] = 0
        head[following, token] = 1
    attention_size = _HEADS * _HEAD_DIM
    shapes = {
        "self_attn.q_proj": (attention_size, hidden_size),
        "self_attn.k_proj": (attention_size, hidden_size),
        "self_attn.v_proj": (attention_size, hidden_size),
        "self_attn.o_proj": (hidden_size, attention_size),
        "mlp.gate_proj": (_INTERMEDIATE_SIZE, hidden_size),
        "mlp.up_proj": (_INTERMEDIATE_SIZE, hidden_size),
        "mlp.down_proj": (hidden_size, _INTERMEDIATE_SIZE),
    }
    tensors = {f"model.layers.0.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
    norms = ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm")
    tensors |= {f"{name}.weight": torch.ones(hidden_size) for name in norms}
    tensors |= {"model.embed_tokens.weight": torch.eye(vocab_size, hidden_size), "lm_head.weight": head}
    save_file(tensors, folder / "model.safetensors")
    fields = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": _INTERMEDIATE_SIZE,
        "num_hidden_layers": 1,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": length,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": eos_token_id,
    }
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
