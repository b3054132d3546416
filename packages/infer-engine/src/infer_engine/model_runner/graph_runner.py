"""`DeviceSteps`: what steps need besides model and KV pool, on a device that plans attention itself."""

from dataclasses import dataclass

import torch

from infer_cache import KVPool, StatePool
from infer_engine.model_runner.graphs.checks.graph_report import GraphReport
from infer_engine.model_runner.graphs.gpu_graphs import GRAPH_CAPTURES, GPUGraphs
from infer_engine.model_runner.graphs.padded_shapes import PaddedShapes
from infer_engine.model_runner.graphs.prompt_tokens import LayerWeights, most_captured_tokens
from infer_engine.model_runner.inputs.cache_views import DevicePlannedViews
from infer_engine.model_runner.inputs.input_buffers import InputBuffers
from infer_engine.model_runner.loading.rank_loading import LoadedRank
from infer_kernels import AttentionBuffers, AttentionHeads
from infer_kernels.gpu import describe_gpu
from infer_models import AttentionSpec

MAX_PARTIAL_BYTES = 256 << 20
"""Bytes of the partial results of long decodes: of 20,000 pieces of 256 tokens, for 24 heads of 128."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSteps:
    """The memory of steps, allocated once, and what captures them.

    Attributes:
        input_buffers: input buffers of all steps.
        attention: memory of attention's plans.
        batch_invariant: as the model was loaded.
        graphs: captures steps; None: they are not to be captured.
    """

    input_buffers: InputBuffers
    attention: AttentionBuffers
    batch_invariant: bool
    graphs: GPUGraphs | None

    def views(self, pool: KVPool, state_pool: StatePool | None = None) -> DevicePlannedViews:
        """Return the views of a KV pool, and of states if the model has some."""
        return DevicePlannedViews(
            pool,
            self.attention,
            device=self.attention.device,
            batch_invariant=self.batch_invariant,
            state_pool=state_pool,
        )

    def measure_captures(self, pool: KVPool, state_pool: StatePool | None = None) -> int:
        """Return about how many bytes the captures of all steps take; all ranks call this at the same time."""
        return 0 if self.graphs is None else self.graphs.measure_bytes(self.views(pool, state_pool))


def capture_steps(
    loaded: LoadedRank,
    steps: DeviceSteps,
    pool: KVPool,
    *,
    max_seq_len: int,
    vocab_size: int,
    state_pool: StatePool | None = None,
) -> GraphReport | None:
    """Capture and prove the steps of a model, or of a rank as all ranks do at the same time, and use them.

    Returns None if they are not to be captured.

    Raises:
        DeviceLostError: a captured step did not end.
    """
    if steps.graphs is None:
        return None
    views = steps.views(pool, state_pool)
    graphs, report = steps.graphs.capture(
        views,
        pool,
        windows=loaded.groups.windows,
        max_batch_size=loaded.limits.max_rows,
        max_seq_len=max_seq_len,
        vocab_size=vocab_size,
        state_pool=state_pool,
    )
    loaded.rank_model.use_cache(views, graph=graphs)
    if loaded.rank_model.device.type == "cuda":
        torch.cuda.empty_cache()  # the proof has taken more than a step does, which torch would keep
    return report


def allocate_device_steps(loaded: LoadedRank) -> DeviceSteps:
    """Allocate for the steps of a model that is on one device."""
    model, device, limits = loaded.rank_model.model, loaded.rank_model.device, loaded.limits
    shapes = None
    if loaded.config.use_cuda_graphs is not False and device.type in GRAPH_CAPTURES:
        shapes = PaddedShapes(
            max_seqs=limits.max_rows,
            max_tokens=loaded.max_step_tokens,
            max_prompt_tokens=most_captured_tokens(LayerWeights.of(model), describe_gpu(device)),
        )
    input_buffers = loaded.allocate_input_buffers(has_metadata=True, padded_shapes=shapes)
    return DeviceSteps(
        input_buffers=input_buffers,
        attention=_allocate_attention_buffers(
            model.attention_specs,
            max_seqs=limits.max_rows,
            max_tokens=loaded.max_step_tokens,
            max_seq_len=loaded.longest_seq_len,
            dtype=loaded.dtype,
            cache_dtype=loaded.kv_dtype,
            device=device,
        ),
        batch_invariant=loaded.config.batch_invariant,
        graphs=None
        if shapes is None
        else GPUGraphs(model, input_buffers, shapes, device=device, has_ranks=loaded.config.tensor_parallel_size > 1),
    )


def _allocate_attention_buffers(
    specs: tuple[AttentionSpec, ...],
    *,
    max_seqs: int,
    max_tokens: int,
    max_seq_len: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype,
    device: torch.device,
) -> AttentionBuffers:
    """Return buffers for steps of up to so many sequences, tokens, and tokens of a sequence.

    Partial results take up to `MAX_PARTIAL_BYTES`: room for all sequences at full length would take gigabytes. A step
    of longer sequences is planned on the host.
    """
    heads = {AttentionHeads(q_heads=each.q_heads, kv_heads=each.kv_heads, head_dim=each.head_dim) for each in specs}
    most_splits = MAX_PARTIAL_BYTES // max(4 * each.q_heads * (each.head_dim + 2) for each in heads)
    longest = AttentionBuffers.num_splits([max_seq_len])
    return AttentionBuffers(
        max_seqs=max_seqs,
        max_tokens=max_tokens,
        max_seq_len=max_seq_len,
        heads=heads,
        dtype=dtype,
        cache_dtype=cache_dtype,
        windows=list(dict.fromkeys(each.window for each in specs)),
        device=device,
        max_splits=max(2 * max_seqs, longest + max_seqs, min(max_seqs * longest, most_splits)),
    )
