"""The model of a request: its folder, its configuration, and the sizes that an engine would give it."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from infer_engine.doctor.reporter import Reporter
from infer_engine.model_runner.loading.kv_cache_dtype import choose_kv_cache_dtype
from infer_engine.model_runner.loading.rank_loading import LoadedRank, group_layers
from infer_engine.model_runner.loading.weight_dtype import choose_dtype
from infer_engine.model_runner.rank_model import RankModel
from infer_engine.protocol import EngineConfig
from infer_engine.sizing import choose_block_size, resolve_device, size_step
from infer_engine.speculation.draft_costs import ON_CPU
from infer_kernels import linear
from infer_models import CausalLM, CheckpointError, ModelConfig
from infer_models.checkpoint import read_checkpoint_config
from infer_models.families import build_model
from infer_models.hub import default_model_name, resolve_checkpoint
from infer_models.layers import ParameterFactory
from infer_models.weight_allocation import allocate_weights

META = torch.device("meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadModel:
    """A model whose configuration was read.

    Attributes:
        name: name that the user gave it.
        folder: the checkpoint.
        config: its architecture.
        engine_config: configuration of an engine with defaults, but for the fields of the request.
        dtype: dtype of weights and activations.
    """

    name: str
    folder: Path
    config: ModelConfig
    engine_config: EngineConfig
    dtype: torch.dtype


def read_model(reporter: Reporter) -> ReadModel:
    """Find and read the model of a request, without a network.

    Raises:
        CheckpointError: it is not on this machine, damaged or of an unknown kind.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the Hub's client is imported, which nothing has done yet
    request = reporter.request
    name = request.model or default_model_name()
    folder = resolve_checkpoint(request.model)
    reporter.show_as(folder, name)
    config = ModelConfig.from_folder(folder)
    with loading_warnings(), suppress(CheckpointError):  # the part `model` reports faults of the weights
        config = read_checkpoint_config(folder)
    return ReadModel(
        name=name,
        folder=folder,
        config=config,
        engine_config=EngineConfig(
            model=request.model,
            device=request.device,
            dtype=request.dtype,  # type: ignore[arg-type]  # checked by it
            quantization=request.quantization,  # type: ignore[arg-type]  # as above
            kv_cache_dtype=request.kv_cache_dtype,  # type: ignore[arg-type]  # as above
        ),
        dtype=choose_dtype(request.dtype, config),
    )


@contextmanager
def loading_warnings() -> Iterator[list[str]]:
    """Yield a list that gets the warnings of reading a checkpoint inside, in place of their log lines."""
    warnings: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                warnings.append(record.getMessage())

    logger, collector = logging.getLogger("infer_models"), Collector()
    propagates = logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        yield warnings
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagates


def without_weights(read: ReadModel) -> CausalLM:
    """Return the model with weights that have shapes and take no memory, for its names and sizes.

    Raises:
        CheckpointError: `quantization_config` has a value that is not supported.
        ValueError: there is no such device, or none of its kernels multiplies by the weights that the request asks for.
    """
    config = replace(read.config, ropes=(None,) * read.config.num_layers)  # tables of angles would be computed
    factory = ParameterFactory(device=META, dtype=read.dtype, linear=linear)
    model = build_model(config, factory)
    device, quantization = resolve_device(read.engine_config.device), read.engine_config.quantization
    if config.quantization is not None or quantization not in ("auto", "none"):
        allocate_weights(model, quantization=quantization, device=device, dtype=read.dtype, memory=META)
    return model


def sized_rank(read: ReadModel, model: CausalLM) -> LoadedRank:
    """Return a rank that sizes the KV cache of `model` as an engine with defaults would.

    Raises:
        ValueError: there is no such device, or it has no kernels for the cache's dtype.
    """
    device = resolve_device(read.engine_config.device)
    kv_dtype = choose_kv_cache_dtype(read.engine_config, device=device, dtype=read.dtype)
    return LoadedRank(
        rank_model=RankModel(model, device=device),
        model_config=read.config,
        config=read.engine_config,
        dtype=read.dtype,
        kv_dtype=kv_dtype,
        kv_scales=None,
        speculation=None,
        draft_costs=ON_CPU,
        limits=size_step(read.engine_config, device=device, model_max_seq_len=read.config.max_position_embeddings),
        groups=group_layers(read.engine_config, read.config),
        block_size=choose_block_size(read.engine_config, head_dim=read.config.head_dim),
        longest_seq_len=read.config.max_position_embeddings,
    )
