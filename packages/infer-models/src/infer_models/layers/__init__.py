"""The building blocks that the families share. Know shapes and weights; know no architecture."""

from infer_models.layers.embedding import Embedding, LMHead, ScaledEmbedding
from infer_models.layers.linear import Dense, Linear, PackedLinear
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.placement import Placement
from infer_models.layers.rotary import RotaryTable

__all__ = [
    "Dense",
    "Embedding",
    "LMHead",
    "LayerNorm",
    "Linear",
    "PackedLinear",
    "Placement",
    "RMSNorm",
    "RotaryTable",
    "ScaledEmbedding",
]
