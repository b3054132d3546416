"""What attention on a CPU asks of a cache, and decode plans for a captured step. Knows memory; knows no model."""

from infer_kernels.attention.cpu.embedding_bags import (
    EmbeddingBagBuilder,
    EmbeddingBagLayout,
    EmbeddingBags,
    EmbeddingBagSpec,
    kv_cache_dtype,
    wants_transposed_keys,
)
from infer_kernels.attention.cpu.plan import DecodePlan

__all__ = [
    "DecodePlan",
    "EmbeddingBagBuilder",
    "EmbeddingBagLayout",
    "EmbeddingBagSpec",
    "EmbeddingBags",
    "kv_cache_dtype",
    "wants_transposed_keys",
]
