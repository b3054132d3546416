"""The building blocks that the families share. Know shapes and weights; know no family and no cache."""

from infer_models.layers.attention import Attention, QKNormAttention, SinkAttention
from infer_models.layers.decoder import Decoder, DecoderLayer, pre_norm_decoder
from infer_models.layers.embedding import Embedding, LMHead, VocabParallelEmbedding
from infer_models.layers.hybrid import CausalConvolution, GatedAttention, GatedDeltaNet, MultiTokenPredictor
from infer_models.layers.linear import ColumnParallelLinear, LinearBase, PackedLinear, RowParallelLinear
from infer_models.layers.mlp import GatedMLP
from infer_models.layers.moe import Experts, RoutedMLP, Router, SparseMLP
from infer_models.layers.norm import LayerNorm, RMSNorm
from infer_models.layers.parameters import (
    LayerInput,
    OwnWeight,
    ParameterFactory,
    ShardedLayer,
    detached,
    own_weights,
    whole_weights,
)
from infer_models.layers.rotary import RotaryTable, RotaryTables
from infer_models.layers.shared_expert import SharedExpertMLP
from infer_models.layers.shared_kv_attention import SharedKVAttention
from infer_models.layers.sublayer import Sublayer

__all__ = [
    "Attention",
    "CausalConvolution",
    "ColumnParallelLinear",
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "Experts",
    "GatedAttention",
    "GatedDeltaNet",
    "GatedMLP",
    "LMHead",
    "LayerInput",
    "LayerNorm",
    "LinearBase",
    "MultiTokenPredictor",
    "OwnWeight",
    "PackedLinear",
    "ParameterFactory",
    "QKNormAttention",
    "RMSNorm",
    "RotaryTable",
    "RotaryTables",
    "RoutedMLP",
    "Router",
    "RowParallelLinear",
    "ShardedLayer",
    "SharedExpertMLP",
    "SharedKVAttention",
    "SinkAttention",
    "SparseMLP",
    "Sublayer",
    "VocabParallelEmbedding",
    "detached",
    "own_weights",
    "pre_norm_decoder",
    "whole_weights",
]
