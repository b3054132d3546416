"""Blocks of families some of whose layers have states: delta nets, Mamba 2, convolutions, gated attention, MTP."""

from infer_models.layers.hybrid.convolution import CausalConvolution
from infer_models.layers.hybrid.gated_attention import GatedAttention
from infer_models.layers.hybrid.gated_delta_net import GatedDeltaNet
from infer_models.layers.hybrid.mamba2 import Mamba2
from infer_models.layers.hybrid.multi_token_predictor import MultiTokenPredictor

__all__ = ["CausalConvolution", "GatedAttention", "GatedDeltaNet", "Mamba2", "MultiTokenPredictor"]
