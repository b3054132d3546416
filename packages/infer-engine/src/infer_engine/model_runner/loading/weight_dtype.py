"""Chooses the dtype of weights and activations."""

import logging

import torch

from infer_models import ModelConfig

logger = logging.getLogger(__name__)

OVERFLOWING_IN_FP16 = frozenset({"gemma3_text"})
"""Families whose activations exceed 65,504, the largest number of fp16 (`transformers` issue 36822)."""


def choose_dtype(configured: str, model_config: ModelConfig) -> torch.dtype:
    """Return the dtype as configured; `auto` is that of the weights, but bf16 in place of fp16 where that overflows."""
    name = model_config.dtype if configured == "auto" else configured
    if name == "float16" and model_config.model_type in OVERFLOWING_IN_FP16:
        if configured == "auto":
            logger.warning("The weights are float16, in which %s overflows: bfloat16 is used", model_config.model_type)
            name = "bfloat16"
        else:
            logger.warning("`dtype` is float16, in which %s overflows; use bfloat16", model_config.model_type)
    dtype: torch.dtype = getattr(torch, name)
    return dtype
