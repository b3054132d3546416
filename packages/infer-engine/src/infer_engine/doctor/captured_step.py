"""On a CPU the captured step must give the bits of the same kernels called one by one."""

from dataclasses import replace

import torch

from infer_engine.doctor.recorded_engine import RecordedEngine
from infer_engine.doctor.small_model import NUM_TOKENS, Answers, SmallModel
from infer_kernels.cpu import library
from infer_kernels.cpu.calls import DTYPES


def examine_captured_step(small: SmallModel, answers: Answers) -> None:
    """Report whether `answers`, of an engine with defaults, have the bits of one that captures nothing."""
    if library(DTYPES[small.dtype]) is None:
        small.reporter.skip("captured step", "without C++ kernels no step is captured")
        return
    plain = RecordedEngine(replace(small.engine_config, use_cpu_graphs=False))
    expected = plain.answer(small.prompts, num_tokens=NUM_TOKENS)
    differing = [name for name, (_, logits) in answers.items() if not torch.equal(logits, expected[name][1])]
    if differing:
        found = f"logits of the prompts of {', '.join(differing)} differ from those of kernels called one by one"
        fix = "start with `--no-use-cpu-graphs`, and please report it"
        small.reporter.fail("captured step", found, fix=fix)
    else:
        small.reporter.ok("captured step", "the bits of kernels called one by one")
