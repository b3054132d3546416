"""Measures the memory of captured steps as an engine's start does, where Triton's kernels are interpreted.

    TRITON_INTERPRET=1 python -m infer_proofs.engine.interpreted.measuring [CHECKPOINT BATCH_SIZE NUM_TOKENS ...]

For each checkpoint the inputs of a step of so many sequences and tokens are staged first, and left in the buffers, as a
start does that has computed its largest step. Prints a line of JSON for each: the bytes, and what came of the KV pool.
"""

import json
import sys
from pathlib import Path

import torch

from infer_engine.model_runner.graph_runner import allocate_device_steps
from infer_engine.model_runner.loading.dummy_requests import dummy_request
from infer_engine.model_runner.loading.rank_loading import load_rank
from infer_engine.protocol import EngineConfig
from infer_proofs.engine.interpreted.engine import compute_as_a_gpu

TOKEN_ID = 5
"""What lies in the buffers where a smaller step has its slots: a slot of the KV pool."""


def measure(folder: Path, *, max_batch_size: int, max_tokens: int) -> dict[str, object]:
    """Return what measuring gives, over a KV pool of one block for each group of layers."""
    config = EngineConfig(dtype="float32", max_batch_size=max_batch_size, max_num_batched_tokens=max_tokens)
    loaded = load_rank(config, folder, device=torch.device("cpu"))
    steps = allocate_device_steps(loaded)
    assert steps.graphs is not None
    pool = loaded.allocate_pool([1] * len(loaded.groups.windows))
    length = max_tokens // max_batch_size
    prompts = [(dummy_request([TOKEN_ID] * length, row=row), length) for row in range(max_batch_size)]
    steps.input_buffers.build(prompts, [])
    caches = [cache(layer) for layer in pool.layers for cache in (pool.key_cache, pool.value_cache)]
    num_bytes = steps.graphs.measure_bytes(steps.views(pool))
    return {
        "bytes": num_bytes,
        "num_groups": len(pool.num_blocks),
        "pool_is_zero": not any(bool(cache.any()) for cache in caches),
    }


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    compute_as_a_gpu()
    for folder, batch_size, num_tokens in zip(sys.argv[1::3], sys.argv[2::3], sys.argv[3::3], strict=True):
        found = measure(Path(folder), max_batch_size=int(batch_size), max_tokens=int(num_tokens))
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
