"""Times what a pass prepares before the model: the flat batch, and attention's inputs.

Both happen inside the runner, out of reach from outside. They are repeated on the same requests, straight after the
pass that has swept the caches, where they take as long.
"""

import time
from typing import Any

import torch

from infer_cache import LayerGroups
from infer_engine.core.request import Request
from infer_engine.core.step_executor import ComputedPass, StepRunner
from infer_engine.model_runner.input_buffers import ForwardBatch, InputBuffers
from infer_engine.protocol import EngineConfig
from infer_engine.sampling.sampler_output import SamplerOutput
from infer_engine.scheduling import Schedule
from infer_engine.sizing import choose_block_size, size_step
from infer_kernels import plan_attention
from infer_kernels.cpu import EmbeddingBagBuilder, EmbeddingBagSpec, kv_cache_dtype
from infer_models import ModelConfig

CPU = torch.device("cpu")
_MOST_BLOCKS = 2**14
"""Of a layer's cache; it decides whether rows are numbered by 32 bits or 64, nothing else."""


class PreparationTimer:
    """Computes as `inner` does, and times its preparation. Implements `infer_engine.core.step_executor.StepRunner`."""

    def __init__(self, inner: StepRunner, *, model_config: ModelConfig, config: EngineConfig) -> None:
        """Time `inner`, which was built for `config` and the model of `model_config`."""
        self._inner = inner
        self._seconds = [0.0, 0.0]
        self._block_size = choose_block_size(config, head_dim=model_config.head_dim)
        self._records = config.captures_cpu_graphs
        groups = LayerGroups.by_window(model_config.windows)
        max_seq_len = model_config.max_position_embeddings
        limits = size_step(config, device=CPU, model_max_seq_len=max_seq_len)
        self._input_buffers = InputBuffers(
            max_tokens=limits.max_step_tokens(max_seq_len),
            max_seqs=limits.max_batch_size,
            max_seq_len=max_seq_len,
            block_size=self._block_size,
            num_groups=len(groups.windows),
            device=CPU,
        )
        self._fillers = [
            EmbeddingBagBuilder(
                EmbeddingBagSpec(
                    q_heads=model_config.q_heads,
                    kv_heads=model_config.kv_heads,
                    head_dim=model_config.head_dim,
                    block_size=self._block_size,
                    num_blocks=_MOST_BLOCKS,
                    window=window,
                    dtype=kv_cache_dtype(getattr(torch, model_config.dtype), CPU),
                )
            )
            for window in groups.windows
        ]

    def take_seconds(self) -> tuple[float, float]:
        """Return the seconds of staging and of attention's inputs since the last call."""
        staging_s, inputs_s = self._seconds
        self._seconds = [0.0, 0.0]
        return staging_s, inputs_s

    @torch.inference_mode()
    def forward(self, schedule: Schedule) -> ComputedPass:
        """Compute the pass, then prepare it again."""
        computed = self._inner.forward(schedule)
        started = time.perf_counter()
        inputs = self._input_buffers.build(schedule.items, schedule.table_edits)
        staged = time.perf_counter()
        self._prepare(inputs)
        self._seconds[0] += staged - started
        self._seconds[1] += time.perf_counter() - staged
        return computed

    def sample(self, logits: Any, requests: list[Request]) -> SamplerOutput:
        """Choose as `inner` does."""
        return self._inner.sample(logits, requests)

    def probe(self) -> None:
        """Probe `inner`."""
        self._inner.probe()

    def _prepare(self, inputs: ForwardBatch) -> None:
        if self._records and inputs.is_decode_only:
            for filler, block_table in zip(self._fillers, inputs.block_tables, strict=True):
                filler.build_layout(inputs.seq_lens, block_table)
            return
        for block_table in inputs.block_tables:
            plan_attention(
                query_start=inputs.query_start,
                seq_lens=inputs.seq_lens,
                is_prefill=inputs.is_prefill,
                block_table=block_table,
                block_size=self._block_size,
                device=CPU,
            )
