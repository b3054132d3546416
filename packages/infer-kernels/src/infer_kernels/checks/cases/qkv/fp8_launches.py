"""The kernels that write an fp8 cache, in the configurations that ship."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from infer_kernels.norm.rms_norm import NormVariant
from infer_kernels.qkv.kv_codes import KVScales
from infer_kernels.qkv.qk_norm_rope_store import qk_norm_rope_store
from infer_kernels.qkv.store_kv import store_kv
from infer_kernels.qkv.transforms import QKNorm, Rotary


@dataclass(frozen=True, slots=True, kw_only=True)
class FP8Store:
    """A model's heads, and what is done to them on the way into the cache.

    Attributes:
        q_heads: query heads; 0: keys and values are stored alone, by `store_kv`.
        kv_heads: key and value heads.
        head_dim: elements of a head.
        dtype: of the heads.
        variant: of the norm of queries and keys; None: they have none.
    """

    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.bfloat16
    variant: NormVariant | None = None

    @property
    def op(self) -> str:
        """The public function."""
        return "qk_norm_rope_store" if self.q_heads else "store_kv"

    @property
    def label(self) -> str:
        """Shape and mode."""
        if not self.q_heads:
            return f"heads {self.kv_heads} x {self.head_dim}, fp8 cache"
        norm = f"{self.variant} norm, " if self.variant else ""
        return f"heads {self.q_heads}/{self.kv_heads} x {self.head_dim}, {norm}RoPE, fp8 cache"

    def launch(self) -> None:
        """Store three tokens."""
        shape = (2, self.kv_heads, 64, self.head_dim)
        k_cache, v_cache = (torch.empty(shape, dtype=torch.float8_e4m3fn) for _ in range(2))
        index, scales = torch.zeros(3, dtype=torch.int32), KVScales(keys=0.5, values=2.0)
        if not self.q_heads:
            rows = torch.empty(3, self.kv_heads, self.head_dim, dtype=self.dtype)
            store_kv(rows, rows, k_cache, v_cache, index, scales=scales)
            return
        weight = torch.empty(self.head_dim, dtype=self.dtype)
        qk_norm_rope_store(
            torch.empty(3, self.q_heads + 2 * self.kv_heads, self.head_dim, dtype=self.dtype),
            k_cache,
            v_cache,
            index,
            rotary=Rotary(position_ids=index, cos_sin=torch.empty(9, self.head_dim)),
            norm=self.variant and QKNorm(q_weight=weight, k_weight=weight, eps=1e-6, variant=self.variant),
            scales=scales,
        )


def fp8_stores() -> Iterator[FP8Store]:
    """Yield all of them."""
    yield FP8Store(q_heads=0, kv_heads=8, head_dim=128)
    yield FP8Store(q_heads=0, kv_heads=8, head_dim=128, dtype=torch.float32)
    yield FP8Store(q_heads=9, kv_heads=3, head_dim=64)
    yield FP8Store(q_heads=16, kv_heads=8, head_dim=128, variant="llama")
    yield FP8Store(q_heads=4, kv_heads=1, head_dim=256, variant="gemma")
    yield FP8Store(q_heads=4, kv_heads=1, head_dim=256, dtype=torch.float16, variant="gemma")
