"""The memory of an engine on a GPU: as much as it was allowed, never more, and none after it."""

import gc
from pathlib import Path

import pytest
import torch

from infer_bench.shapes import write_config
from infer_engine.assembly.core import build_core
from infer_engine.messages import Submit
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_engine.protocol.sampling import MAX_LOGPROBS
from infer_proofs.kernels.devices import ON_GPU

TOLERANCE = 0.02
"""Share of the device's memory that an engine may leave unused."""
MOST_KEPT_BYTES = 2**29
"""What may stay in use after an engine: kernels' code and libraries' workspaces. The weights of any engine are more."""
NUM_SEQS, NUM_BATCHED_TOKENS = 256, 8192
COSTLIEST = SamplingParams(
    top_p=0.9, frequency_penalty=0.1, logprobs=MAX_LOGPROBS, prompt_logprobs=MAX_LOGPROBS, ignore_eos=True
)


def used_bytes() -> int:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


@pytest.mark.parametrize(
    ("shape", "share", "least"),
    [
        pytest.param("llama-3.2-3b", 0.9, 0.9 - TOLERANCE, marks=ON_GPU),
        pytest.param("qwen3-0.6b", 0.5, 0.5 - TOLERANCE, marks=ON_GPU),
        pytest.param("gemma-3-1b", 0.9, 0.0, marks=ON_GPU),  # it has all blocks that its windows can fill
    ],
)
def test_an_engine_takes_its_share_never_more_and_leaves_little_behind(
    shape: str, share: float, least: float, tmp_path: Path
) -> None:
    before = used_bytes()
    config = EngineConfig(
        model=str(write_config(shape, tmp_path)),
        load_format="dummy",
        device="cuda",
        max_batch_size=NUM_SEQS,
        max_num_batched_tokens=NUM_BATCHED_TOKENS,
        gpu_memory_utilization=share,
        use_prefix_caching=False,
    )
    core = build_core(config).core
    for number in range(NUM_SEQS):  # the largest step, with all the sampling that takes memory
        prompt = [3 + (number + position) % 500 for position in range(NUM_BATCHED_TOKENS // NUM_SEQS)]
        core.handle(Submit(request_id=f"{number}", prompt_token_ids=prompt, max_tokens=2, seed=0, params=COSTLIEST))
    while core.has_work:
        assert not [output.error for output in core.step().outputs if output.error]
    total = torch.cuda.get_device_properties(0).total_memory
    own = used_bytes() / total
    peak = own + (torch.cuda.max_memory_reserved() - torch.cuda.memory_reserved()) / total
    assert least <= own <= peak <= share
    del core
    gc.collect()
    torch.cuda.empty_cache()
    assert used_bytes() - before <= MOST_KEPT_BYTES
