"""Weights in and out of safetensors files. Knows files and names; knows no architecture."""

from infer_models.checkpoint.dummy import draw_weights
from infer_models.checkpoint.kv_scales import load_kv_scales
from infer_models.checkpoint.loader import check_weights, load_weights
from infer_models.checkpoint.stored_config import read_checkpoint_config
from infer_models.checkpoint.writer import save_model

__all__ = [
    "check_weights",
    "draw_weights",
    "load_kv_scales",
    "load_weights",
    "read_checkpoint_config",
    "save_model",
]
