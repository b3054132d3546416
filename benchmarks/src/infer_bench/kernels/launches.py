"""How many kernels a captured step launches, by family of models, counted without a GPU."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from infer_bench.results import table
from infer_bench.shapes import SHAPES, Shape, write_config
from infer_engine.model_runner.graph_runner import allocate_device_steps
from infer_engine.model_runner.graphs import cuda_graphs
from infer_engine.model_runner.graphs.gpu_graphs import GRAPH_CAPTURES
from infer_engine.model_runner.inputs.forward_batch import BatchShape
from infer_engine.model_runner.loading.rank_loading import load_rank
from infer_engine.protocol import EngineConfig
from infer_engine.testing.recorded_steps import RecordingCapture
from infer_kernels import sample
from infer_kernels.checks.compiled.ahead_of_time import compile_only

FAMILIES = {
    "Llama": "llama-3.2-3b",
    "Qwen 3": "qwen3-0.6b",
    "Qwen 3 with experts": "moe-3b",
    "Gemma 3": "gemma-3-1b",
    "gpt-oss": "gpt-oss-20b",
}
"""By name, a shape of each; its sizes but those of heads are made small, which launches do not depend on."""
SMALL: Shape = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128}
NUM_LAYERS = (6, 12)
"""Numbers of layers. Gemma 3 has two kinds of layers, five with a window to one without."""


class Launches(NamedTuple):
    """Launches of the captured steps of a model."""

    decodes: int
    choice: int
    draw: int
    mixed: int


def count_launches(shape: Shape, *, num_seqs: int = 4) -> Launches:
    """Return the launches of a model with random weights: Triton's kernels and PyTorch's operators.

    Args:
        shape: shape of the model.
        num_seqs: number of sequences of the steps; layers may take other kernels for few rows than for many.
    """
    decodes = BatchShape(num_seqs, num_seqs, is_decode_only=True)
    mixed = BatchShape(4 * num_seqs, num_seqs, is_decode_only=False)
    capture = RecordingCapture()
    with (
        tempfile.TemporaryDirectory() as folder,
        compile_only(90) as log,
        patch.dict(GRAPH_CAPTURES, {"cpu": RecordingCapture}),
        patch.object(cuda_graphs, "sample", sample_first_ids),
        torch.inference_mode(),
    ):
        write_config(shape, Path(folder))
        config = EngineConfig(
            load_format="dummy",
            max_seq_len=128,
            max_batch_size=num_seqs,
            max_num_batched_tokens=4 * num_seqs,
            prefill_chunk_size=16,
        )
        loaded = load_rank(config, Path(folder), device=torch.device("cpu"))
        pool = loaded.allocate_pool([8] * len(loaded.groups.windows))
        steps = allocate_device_steps(loaded)
        assert steps.graphs is not None
        graphs = steps.graphs.over(steps.views(pool), capture, vocab_size=loaded.model_config.vocab_size)

        def count(compute: Callable[[BatchShape], None], batch_shape: BatchShape) -> int:
            del log.launches[:]
            capture.capture(lambda: compute(batch_shape))
            return len(log.launches) + capture.num_launches[-1]  # of Triton and of PyTorch

        return Launches(
            decodes=count(graphs.compute, decodes),
            choice=count(graphs.choose, decodes),
            draw=count(graphs.draw, decodes),
            mixed=count(graphs.compute, mixed),
        )


def sample_first_ids(logits: Tensor, **columns: Tensor) -> Tensor:
    """Launch `sample`; as its kernels compute nothing here, let it draw id 0, which costs no launch."""
    drawn = sample(logits, **columns)
    with torch._C._DisableTorchDispatch():  # noqa: SLF001 - its only name
        return drawn.zero_()


def describe_launches() -> str:
    """Return a section of the report."""
    rows = []
    for family, name in FAMILIES.items():
        few, many = (count_launches(SHAPES[name] | SMALL | {"num_hidden_layers": layers}) for layers in NUM_LAYERS)
        added = NUM_LAYERS[1] - NUM_LAYERS[0]
        cells = []
        for kind in ("decodes", "mixed"):
            of_layer = (getattr(many, kind) - getattr(few, kind)) / added
            cells += [f"{of_layer:g}", f"{getattr(few, kind) - NUM_LAYERS[0] * of_layer:g}"]
        rows.append([family, *cells, str(few.choice), str(few.draw)])
    head = ["family", "decodes: a layer", "the rest", "mixed: a layer", "the rest", "greedy choice", "draw"]
    return INTRODUCTION + "\n" + table(head, rows)


INTRODUCTION = """## Launches

Kernels of Triton and operators of PyTorch in a captured step, matrix products included, counted by the mock driver. The
rest of a step is made of the embedding, the last norm, attention's work lists, and what resets semaphores and keeps the
result. The greedy choice and the draw of decodes are steps of their own, from hidden states to tokens.
"""
