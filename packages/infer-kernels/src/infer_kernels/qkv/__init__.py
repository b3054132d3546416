"""Queries, keys and values between a projection and attention: QK-norm, rotation, the KV write. Knows no sequence."""

from infer_kernels.qkv.kv_codes import KVScales, row_width
from infer_kernels.qkv.q_norm_rope import q_norm_rope
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store
from infer_kernels.qkv.rope import apply_rope
from infer_kernels.qkv.store_kv import KVSlots
from infer_kernels.qkv.transforms import QKNorm, Rotary

__all__ = [
    "KVScales",
    "KVSlots",
    "QKNorm",
    "Rotary",
    "apply_rope",
    "q_norm_rope",
    "qk_norm_rope_store",
    "row_width",
]
