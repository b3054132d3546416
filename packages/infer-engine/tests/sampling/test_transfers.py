"""How a step's parameters reach the device."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from infer_engine import sampling
from infer_engine.sampling.transfers import to_device

ARRAYS: dict[str, npt.NDArray[Any]] = {
    "small": np.array([1, 2, 3], np.int32),
    "wide": np.array([2**40, -1], np.int64),
    "real": np.array([0.5], np.float32),
}


def test_arrays_of_any_types_arrive_in_one_copy() -> None:
    on_device = to_device(ARRAYS, torch.device("cpu"))
    assert {name: tensor.tolist() for name, tensor in on_device.items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }
    assert len({tensor.untyped_storage().data_ptr() for tensor in on_device.values()}) == 1


def test_a_gpu_gets_one_copy_for_which_the_host_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []

    def pin_memory(self: Tensor) -> Tensor:
        calls.append(("pinned",))
        return self

    def to(self: Tensor, device: torch.device, **how: Any) -> Tensor:
        calls.append((device.type, how))
        return self

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(Tensor, "to", to)
    on_device = to_device(ARRAYS, torch.device("cuda"))
    assert calls == [("pinned",), ("cuda", {"non_blocking": True})]
    assert on_device["wide"].tolist() == [2**40, -1]


def test_sampling_copies_to_the_device_by_nothing_else() -> None:
    """`torch.tensor(..., device=...)` and `.to(device)` read pageable memory, and the host waits for all kernels."""
    folder = Path(sampling.__file__).parent
    calls = [
        (path.name, node)
        for path in folder.glob("*.py")
        if path.name != "transfers.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    waiting = [
        f"{name}:{node.lineno}"
        for name, node in calls
        if isinstance(node.func, ast.Attribute)
        and (
            (node.func.attr in ("tensor", "as_tensor") and any(each.arg == "device" for each in node.keywords))
            or node.func.attr == "cuda"
            or (node.func.attr == "to" and any("device" in ast.dump(each) for each in node.args))
        )
    ]
    assert len(calls) > 100
    assert waiting == []
