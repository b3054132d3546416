"""Which device computes: a GPU has an index, and one that is there and not used is named with the reason."""

from pathlib import Path

import pytest
import torch

from infer_engine import sizing
from infer_engine.gpu_visibility import explain_hidden, find_gpu_node
from infer_engine.model_runner.runner import use_device
from infer_engine.sizing import resolve_device

CPU = torch.device("cpu")


@pytest.mark.covers("configuration/device")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="`device` is 'cuda:99'"):
        resolve_device("cuda:99")


@pytest.mark.covers("configuration/device")
@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0", "cuda:1"])
def test_a_gpu_has_an_index_that_torch_makes_current(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """`vllm-project/vllm#14500`: `torch.cuda.set_device` refuses `cuda`."""
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("torch._C._cuda_setDevice", current.append)
    device = resolve_device(name)
    use_device(device)
    assert current == [device.index] == [int(name == "cuda:1")]


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_a_gpu_without_triton_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """`SystemPanic/vllm-windows#11`: CUDA was found, kernels were placeholders, and the first request failed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sizing, "HAS_TRITON", False)
    with pytest.raises(ValueError, match=rf"^`device` is '{name}', but Triton, .*`infer-kernels\[triton\]`.*`cpu`\.$"):
        resolve_device(name)
    assert resolve_device("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if name == "auto":
        assert resolve_device(name) == CPU


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (["nvidia0"], "an NVIDIA GPU"),
        (["nvidia10", "nvidia3", "nvidiactl", "nvidia-uvm"], "an NVIDIA GPU, {}/nvidia3,"),
        (["dxg"], "a GPU in WSL2, {}/dxg,"),
        (["nvidiactl", "nvidia-caps", "null"], None),
    ],
)
def test_a_gpu_that_torch_cannot_use_is_said_aloud(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    nodes: list[str],
    said: str | None,
) -> None:
    """A container may have been given the second GPU alone; WSL2 has no node of NVIDIA's (`microsoft/WSL#9254`)."""
    for node in nodes:
        (tmp_path / node).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sizing, "find_gpu_node", lambda: find_gpu_node(tmp_path))
    assert resolve_device("auto") == CPU
    assert (said is None) == (not caplog.text)
    assert said is None or said.format(tmp_path) in caplog.text
    caplog.clear()
    assert resolve_device("cpu") == CPU
    assert not caplog.text


def test_gpus_that_the_environment_hides_are_said_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """`vllm-project/vllm#7890`: the variable was empty, and nothing said so."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sizing, "find_gpu_node", lambda: tmp_path / "nvidia0")
    assert resolve_device("auto") == CPU
    assert "`CUDA_VISIBLE_DEVICES` is '', which hides every GPU" in caplog.text
    with pytest.raises(ValueError, match="hides every GPU"):
        resolve_device("cuda")


def test_a_gpu_named_as_the_environment_names_it_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """`unslothai/unsloth-zoo#46`: where the variable is `1`, that GPU is `cuda:0`."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="what it names is numbered from 0"):
        resolve_device("cuda:1")


@pytest.mark.parametrize(
    ("variable", "num_usable", "said"),
    [
        (None, 0, ""),
        ("0", 1, ""),
        ("GPU-8932f937,GPU-1a2b3c4d", 2, ""),
        ("", 0, "hides every GPU"),
        ("-1", 0, "hides every GPU"),
        ("7", 0, "names 1, and none of them can be used"),
        ("0,7,1", 1, "names 3, and 1 of them can be used: a name that the driver does not know hides itself"),
        ("MIG-1a2b,MIG-3c4d", 1, "names 2, and 1 of them can be used: a process sees one MIG slice at most"),
    ],
)
def test_what_the_environment_hides(variable: str | None, num_usable: int, said: str) -> None:
    """Names need not be numbers (`vllm-project/vllm#41848`); of MIG slices one counts (`pytorch/pytorch#102715`)."""
    found = explain_hidden(variable, num_usable=num_usable)
    assert said in found
    assert bool(said) == bool(found)
