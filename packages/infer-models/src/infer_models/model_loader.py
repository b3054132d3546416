"""`load_model`: from a checkpoint folder or a GGUF file to a model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from infer_kernels import FusedProducts, linear, linear_invariant
from infer_models.causal_lm import CausalLM
from infer_models.checkpoint import draw_weights, load_weights, read_checkpoint_config
from infer_models.config import ModelConfig
from infer_models.families import build_model
from infer_models.layers import ParameterFactory
from infer_models.tensor_parallel import Shard, check_tensor_parallel_size
from infer_models.weight_allocation import Quantization, allocate_weights, weight_bytes


def load_model(
    folder: Path,
    *,
    device: torch.device,
    dtype: torch.dtype,
    load_format: Literal["auto", "dummy"] = "auto",
    batch_invariant: bool = False,
    fuse_products: bool = True,
    shard: Shard | None = None,
    max_seq_len: int | None = None,
    quantization: Quantization = "auto",
    with_mtp: bool = False,
    check_size: Callable[[int], None] | None = None,
) -> CausalLM:
    """Build the model that `config.json` describes and fill it.

    Args:
        folder: holds `config.json`, and `model.safetensors` or shards, with an index or numbers in their names; or a
            GGUF file, whose other parts, if it is split, are beside it.
        device: device of the weights, which go there straight from the file.
        dtype: dtype of weights and activations; the file's may be another one.
        load_format: `auto` reads weights; `dummy` draws random weights from `config.json` alone.
        batch_invariant: a token's logits have the same bits in every batch, if its cache attends so too
            (see `infer_kernels.plan_attention`); slower.
        fuse_products: dense layers of at most 16 tokens are one launch with the norm, gate or addition beside them,
            where `infer_kernels.FusedProducts` can. Not with `batch_invariant`: their bits differ from other steps'.
        shard: the part of the model that this process is to hold, of those that compute it together; None: the whole.
        max_seq_len: the longest sequence that will be computed, in tokens; None: as long as `config.json` allows.
            Tables of angles end here.
        quantization: format of matrices. `auto`: as the checkpoint has them, dequantized where no kernel multiplies
            by such weights; `none`: in `dtype`; `int8`, `int4`, `fp8`: quantized while they are read. With
            `int4`, embeddings, LM head and the products whose errors cost most have eight bits; with `fp8`, embeddings
            and LM head have `dtype`, and routers of experts always have it.
        with_mtp: load the layer that predicts one token further, which drafts.
        check_size: called with the bytes of all weights before they are read, to refuse them.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, of no known kind or contradicts its `config.json`.
        ValueError: `load_format` is none of the two, the model cannot be divided so, no kernel of `device`
            multiplies by weights that `quantization` asks for, or the family has no layer for `with_mtp`.
    """
    if load_format == "dummy":  # random numbers are drawn as they are computed with
        config = replace(ModelConfig.from_folder(folder), quantization=None)
    else:
        config = read_checkpoint_config(folder)
    config = replace(config, has_mtp=with_mtp)
    shard = shard or Shard()
    if with_mtp and shard.size > 1:
        raise ValueError("the layer that predicts a token further (MTP) is not divided among ranks; draft otherwise")
    check_tensor_parallel_size(config, shard.size)
    factory = ParameterFactory(
        device=device,
        dtype=dtype,
        linear=linear_invariant if batch_invariant else linear,
        fused_products=FusedProducts(device) if fuse_products and not batch_invariant else None,
        shard=shard,
        max_seq_len=max_seq_len,
        defers_matrices=config.quantization is not None or quantization in ("int8", "int4", "fp8"),
    )
    model = build_model(config, factory)
    if with_mtp and model.mtp is None:
        raise ValueError(
            f"models of {config.model_type} have no layer that predicts a token further (MTP) here; draft otherwise"
        )
    if factory.defers_matrices:
        allocate_weights(model, quantization=quantization, device=device, dtype=dtype)
    if check_size is not None:
        check_size(weight_bytes(model, device=torch.device(device)))
    match load_format:
        case "auto":
            load_weights(model, folder)
        case "dummy":
            draw_weights(model)
        case _:
            raise ValueError(f"`load_format` is {load_format!r}; it must be `auto` or `dummy`.")
    return model
