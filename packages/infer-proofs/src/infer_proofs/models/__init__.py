"""Tiny random checkpoints for tests, complete enough to be served; families need `transformers`."""

from infer_models.families.tiny_family import LLAMA3_SCALING, LONGROPE_SCALING, YARN_SCALING, TinyFamily
from infer_proofs.models.chat_styles import CHAT_STYLES, save_chat_style
from infer_proofs.models.checkpoints import (
    save_tiny,
    save_tiny_gemma3,
    save_tiny_llama,
    save_tiny_nanogpt,
    save_tiny_qwen3,
    save_tiny_twin,
)
from infer_proofs.models.quantized import PLAIN_LAYERS, QUANTIZED_CHECKPOINTS, QuantizedTwin, save_quantized
from infer_proofs.models.scripted import CHATML_TEMPLATE, save_scripted
from infer_proofs.models.tiny_families import TINY_FAMILIES
from infer_proofs.models.tokenizer import save_tiny_tokenizer

__all__ = [
    "CHATML_TEMPLATE",
    "CHAT_STYLES",
    "LLAMA3_SCALING",
    "LONGROPE_SCALING",
    "PLAIN_LAYERS",
    "QUANTIZED_CHECKPOINTS",
    "TINY_FAMILIES",
    "YARN_SCALING",
    "QuantizedTwin",
    "TinyFamily",
    "save_chat_style",
    "save_quantized",
    "save_scripted",
    "save_tiny",
    "save_tiny_gemma3",
    "save_tiny_llama",
    "save_tiny_nanogpt",
    "save_tiny_qwen3",
    "save_tiny_tokenizer",
    "save_tiny_twin",
]
