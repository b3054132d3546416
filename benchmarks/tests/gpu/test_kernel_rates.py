"""Bytes and rates of a step's kernels: known ones get them, others do not, and products are taken together."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_bench.ceilings import Ceilings, ModelCosts
from infer_bench.gpu.kernel_rates import PRODUCTS_TOGETHER, StepBytes, describe_kernel, step_bytes, with_bytes
from infer_bench.gpu.parts import Place
from infer_bench.shapes import write_config
from infer_models import ModelConfig

KNOWN = StepBytes(keys_and_values=30e6, head=200e6, layers=1000e6)
PLACE = Place(
    device=torch.device("cpu"),
    ceilings=Ceilings(read_bytes_per_s=1e12, copy_bytes_per_s=1e12, operations_per_s=1e12),
    deadline_s=time.monotonic(),
)


def kernel(name: str, us: float, calls: int = 28) -> dict[str, Any]:
    return {"name": name, "calls": calls, "us": us}


def test_kernels_whose_bytes_are_known_have_a_rate() -> None:
    names = ["nvjet_tst_64x8_splitK", "void cublasLt::splitKreduce_kernel", "_add_rms_norm_kernel"]
    rows = with_bytes(
        [
            kernel(names[0], 1500.0),
            kernel(names[1], 500.0),
            kernel("paged_decode_kernel", 60.0),
            kernel("_linear_argmax_kernel", 250.0, calls=1),
            kernel(names[2], 80.0),
        ],
        KNOWN,
    )
    by_name = {row["name"]: row for row in rows}
    assert rows[0] == {"name": PRODUCTS_TOGETHER, "calls": 56, "us": 2000.0, "bytes": 1000e6}
    assert by_name["paged_decode_kernel"]["bytes"] == 30e6
    assert by_name["_linear_argmax_kernel"]["bytes"] == 200e6
    assert not [name for name in names if "bytes" in by_name[name]]
    assert describe_kernel(PLACE, rows[0]) == "56 calls, 2000 us, 1000 MB, 500 GB/s, 50% of the ceiling"
    assert describe_kernel(PLACE, by_name["_add_rms_norm_kernel"]) == "28 calls, 80 us"


def test_a_head_that_is_one_of_the_products_adds_its_bytes() -> None:
    (together, _) = with_bytes([kernel("ampere_bf16_s16816gemm", 900.0)], KNOWN)
    assert together["bytes"] == 1200e6


@pytest.mark.parametrize("shape", ["llama-3.2-3b", "gemma-3-1b"])
def test_a_steps_bytes_are_weights_keys_and_values(tmp_path: Path, shape: str) -> None:
    config = ModelConfig.from_folder(write_config(shape, tmp_path))
    costs = ModelCosts(config=config, num_parameters=10**9, element_bytes=2)
    known = step_bytes(costs, 8, 1000)
    read = sum(1000 if window is None else min(window, 1000) for window in config.windows)
    assert known.keys_and_values == 8 * read * 2 * config.kv_heads * config.head_dim * 2
    assert known.head + known.layers == 2 * 10**9
