"""What a real step takes of a GPU's memory, against what an engine measures before it sizes its KV cache."""

import gc
from pathlib import Path

import torch

from infer_engine.assembly.runner import measure_loaded_step_bytes
from infer_engine.doctor.reporter import size
from infer_engine.doctor.small_model import SmallModel
from infer_engine.model_runner.loading.rank_loading import load_rank
from infer_engine.protocol import EngineConfig

SLACK_BYTES = 32 * 2**20
SLACK_SHARE = 0.1


def examine_step_memory(small: SmallModel) -> None:
    """Report whether steps over the KV cache take no more memory than was measured without one."""
    measured = _measure(small.engine_config, small.device)
    torch.cuda.reset_peak_memory_stats(small.device)
    before = torch.cuda.memory_allocated(small.device)
    small.answer_again()
    torch.cuda.synchronize(small.device)
    judge_step_memory(small, measured=measured, real=torch.cuda.max_memory_allocated(small.device) - before)


def judge_step_memory(small: SmallModel, *, measured: int, real: int) -> None:
    """Report whether `real` bytes are no surprise after `measured` ones."""
    found = f"the largest step takes {size(real)}, and {size(measured)} were measured at the start"
    if real > measured * (1 + SLACK_SHARE) + SLACK_BYTES:
        fix = "start with a lower `--gpu-memory-utilization`, and please report it"
        small.reporter.warn("step memory", found, fix=fix)
    else:
        small.reporter.ok("step memory", found)


def _measure(config: EngineConfig, device: torch.device) -> int:
    """Measure as an engine does when it starts."""
    assert config.model is not None
    loaded = load_rank(config, Path(config.model), device=device)
    measured = measure_loaded_step_bytes(loaded)
    del loaded
    gc.collect()
    torch.cuda.empty_cache()
    return measured
