"""Writes GGUF files of checkpoints that `transformers` saved, with the `gguf` package, as llama.cpp's converter does.

Nothing here is shared with the code that reads them: what the converter does to names, rows of heads and norms is
written once more.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from infer_models.families.tiny_family import TinyGguf, num_experts
from infer_models.gguf.block_types import DEQUANTIZED, QUANTIZED
from infer_proofs.models.tiny_families import TINY_GGUF

KINDS = tuple(QUANTIZED)
"""The quantized types that are kept so."""
DEQUANTIZED_KINDS = tuple(DEQUANTIZED)
"""The quantized types that are dequantized."""
_FP16_FIELDS: Mapping[str, tuple[tuple[int, float], ...]] = {
    "Q4_0": ((0, 1.0),),
    "Q4_1": ((0, 1.0), (2, -8.0)),
    "Q5_0": ((0, 1.0),),
    "Q5_1": ((0, 1.0), (2, -16.0)),
    "Q8_0": ((0, 1.0),),
    "Q2_K": ((80, 1.0), (82, 1.5)),
    "Q3_K": ((108, 1.0),),
    "Q4_K": ((0, 1.0), (2, 7.5)),
    "Q5_K": ((0, 1.0), (2, 15.5)),
    "Q6_K": ((208, 1.0),),
    "IQ4_NL": ((0, 1.0),),
    "IQ4_XS": ((0, 1.0),),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), ((0, 1.0),)),
    "TQ1_0": ((52, 1.0),),
    "TQ2_0": ((64, 1.0),),
}
"""The places of a block's fp16 numbers, and about what they are, up to a factor."""
_NAMES: Mapping[str, str] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate_exps": "ffn_gate_exps",
    "mlp.up_exps": "ffn_up_exps",
    "mlp.down_exps": "ffn_down_exps",
    "self_attn.sinks": "attn_sinks",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def random_blocks(kind: str, rows: int, columns: int, *, seed: int) -> NDArray[np.uint8]:
    """Return random blocks of a quantized type, whose numbers keep the size of what they multiply.

    Args:
        kind: one of `KINDS` or `DEQUANTIZED_KINDS`.
        rows: rows of the weight.
        columns: numbers of a row, whole blocks.
        seed: seed of the bytes.
    """
    import gguf  # noqa: PLC0415 - only tests have it

    of = gguf.GGMLQuantizationType[kind]
    numbers, num_bytes = gguf.GGML_QUANT_SIZES[of]
    generator = np.random.default_rng(seed)
    blocks = generator.integers(0, 256, (rows * columns // numbers, num_bytes), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = 125 - round(math.log2(columns) / 2) + generator.integers(0, 3, len(blocks), dtype=np.uint8)
        return blocks.reshape(rows, -1)
    if kind == "NVFP4":
        exponent = max(1, 6 - round(math.log2(columns) / 2))
        blocks[:, :4] = exponent << 3 | blocks[:, :4] & 7
        return blocks.reshape(rows, -1)
    spread = 0.5 + generator.random((len(blocks), 1))
    factor = 1.0
    for _ in range(2):  # first to see how large the numbers become
        for at, size in _FP16_FIELDS.get(kind, ()):
            blocks[:, at : at + 2] = (factor * size * spread).astype(np.float16).view(np.uint8)
        if kind == "IQ1_M":
            _set_scattered(blocks[:, 48:56].view(np.uint16), (factor * spread).astype(np.float16).view(np.uint16))
        found = gguf.quants.dequantize(blocks, of)
        factor = 1.0 / (float(np.sqrt(np.square(found).mean())) * math.sqrt(columns))
    return blocks.reshape(rows, -1)


def _set_scattered(words: NDArray[np.uint16], halves: NDArray[np.uint16]) -> None:
    """Set the upper four bits of four words [blocks, 4] to those of a number [blocks, 1], the lowest ones first."""
    words &= 0x0FFF
    words |= (halves >> np.array([0, 4, 8, 12], dtype=np.uint16) & 15) << 12


def save_gguf(
    folder: Path,
    path: Path,
    *,
    kind_of: Callable[[str], str | None] = lambda _: None,
    metadata: Mapping[str, Any] | None = None,
    seed: int = 0,
    stacks_experts: bool = True,
) -> None:
    """Write the checkpoint in `folder`, of one file, with its tokenizer, if there is one, as a GGUF file.

    Args:
        folder: as `save_tiny` and `save_tiny_tokenizer` leave it.
        path: path of the file.
        kind_of: gets the file's name of a matrix, and returns the type of its blocks, quantized ones; they are random,
            and their numbers replace those of the checkpoint in `folder`. `F16` or `BF16`: it is rounded, also in
            `folder`. None: it is written as fp32.
        metadata: values of keys of the architecture, beside the common ones; of None, which are left out.
        seed: seed of random blocks.
        stacks_experts: experts are a tensor together; otherwise each has its own, as in files of early 2024.
    """
    import gguf  # noqa: PLC0415 - only tests have it

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tiny = TINY_GGUF[config["model_type"]]
    writer = gguf.GGUFWriter(path, tiny.architecture)
    for key, value in (_hyperparameters(config) | tiny.values(config) | dict(metadata or {})).items():
        _add(writer, f"{tiny.architecture}.{key}", value)
    if (folder / "tokenizer.json").exists():
        _add_tokenizer(writer, folder)
    original = load_file(folder / "model.safetensors")
    tensors = tiny.split(original, config)
    for index, (stored, members) in enumerate(_tensors(tensors, config, tiny, stacks_experts=stacks_experts).items()):
        whole = torch.stack([tensors[each] for each in members]) if len(members) > 1 else tensors[members[0]]
        kind = kind_of(stored) if whole.dim() > 1 and stored.endswith(".weight") else None
        heads = _heads_of(stored, config) if tiny.has_interleaved_heads else 0
        if kind is None:
            numbers = _interleaved(whole, heads).float() + (1.0 if tiny.shifts_norms and _is_shifted(stored) else 0.0)
            writer.add_tensor(stored, numbers.numpy())
            continue
        of = gguf.GGMLQuantizationType[kind]
        *_, columns = whole.shape
        if kind in (*KINDS, *DEQUANTIZED_KINDS):
            blocks = random_blocks(kind, whole.numel() // columns, columns, seed=seed + index)
        else:
            blocks = gguf.quants.quantize(_interleaved(whole, heads).float().numpy(), of)
        numbers = torch.from_numpy(gguf.quants.dequantize(blocks, of)).view(whole.shape)
        writer.add_tensor(stored, blocks.reshape(*whole.shape[:-1], -1), raw_dtype=of)
        numbers = _separated(numbers, heads)
        tensors |= dict(zip(members, numbers if len(members) > 1 else [numbers], strict=True))
    tensors = tiny.join(tensors, original, config)
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _hyperparameters(config: Mapping[str, Any]) -> dict[str, Any]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    return {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps") or config["norm_eps"]),
        "rope.freq_base": float(rope.get("full_attention", rope).get("rope_theta", 10000.0)),
        "rope.dimension_count": head_dim,
    }


def _add(writer: Any, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, list(value))


def _add_tokenizer(writer: Any, folder: Path) -> None:
    """Add a byte-level tokenizer that splits texts as GPT-2."""
    made = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocab = dict(made["model"]["vocab"]) | {each["content"]: each["id"] for each in made["added_tokens"]}
    special = {each["content"] for each in made["added_tokens"] if each["special"]}
    texts = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(texts)
    writer.add_token_types([3 if text in special else 1 for text in texts])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in made["model"]["merges"]])
    for name, add in {"bos": writer.add_bos_token_id, "eos": writer.add_eos_token_id}.items():
        if config.get(f"{name}_token") in vocab:
            add(vocab[config[f"{name}_token"]])
    writer.add_add_bos_token(made["post_processor"] is not None)
    template = folder / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text(encoding="utf-8"))
    elif config.get("chat_template"):
        writer.add_chat_template(config["chat_template"])


def _tensors(
    tensors: Mapping[str, Any], config: Mapping[str, Any], tiny: TinyGguf, *, stacks_experts: bool
) -> dict[str, list[str]]:
    """Return the tensors of the checkpoint that each tensor of the file has: one, or all experts."""
    found: dict[str, list[str]] = {}
    experts = range(num_experts(config))
    for name in tensors:
        parts = name.split(".")
        leaf, layer = parts[-1], f"blk.{parts[2]}." if parts[1] == "layers" else ""
        within = ".".join(parts[3:-1]) if layer else ".".join(parts[:-1])
        within = within.replace("block_sparse_moe", "mlp")
        if within.startswith("mlp.experts."):
            part = {"w1": "gate", "w2": "down", "w3": "up"}.get(parts[-2], parts[-2].removesuffix("_proj"))
            members = [name.replace(f".experts.{parts[5]}.", f".experts.{each}.") for each in experts]
            if stacks_experts:
                found[f"{layer}ffn_{part}_exps.weight"] = members
            else:
                found[f"{layer}ffn_{part}.{parts[5]}.weight"] = [name]
            continue
        own = {"post_attention_layernorm": "post_attention_norm" if tiny.has_norms_after else "ffn_norm"}
        stored = {**_NAMES, **own}.get(within, within)
        found[f"{layer}{stored}.{leaf}" if stored else layer + leaf] = [name]
    return found


def _heads_of(stored: str, config: Mapping[str, Any]) -> int:
    """Return the heads whose rows llama.cpp interleaves; 0: none."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    return int(heads.get(stored.split(".")[-2], 0))


def _is_shifted(stored: str) -> bool:
    return stored.split(".")[-2].endswith("norm") and "ssm_norm" not in stored


def _interleaved(whole: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows of heads in the order of rotated pairs: the first of one half, the first of the other one, ..."""
    if not heads:
        return whole
    size = len(whole) // heads
    order = [head * size + half * (size // 2) + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return whole[order].contiguous()


def _separated(whole: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo `_interleaved`."""
    order = _interleaved(torch.arange(len(whole)), heads)
    return whole[torch.argsort(order)]
