"""What `infer_engine` exports, and the ways to configure, start and end an engine."""

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import infer_engine
from infer_engine import LLM, EngineConfig, SamplingParams, build_engine
from infer_engine.protocol import EngineStatus, GenerateRequest
from infer_proofs.engine.cores import read
from infer_proofs.engine.faults import Fault, FaultPlan

EXPORTS = [
    "LLM",
    "ChatMessage",
    "CheckpointUnusableError",
    "Completion",
    "EngineConfig",
    "EngineStartError",
    "EngineUnavailableError",
    "QueueFullError",
    "RequestRefusedError",
    "SamplingParams",
    "StructuredOutputs",
    "Tool",
    "ToolCall",
    "build_engine",
]


@pytest.fixture
def folder(folder_of: Callable[[str], Path]) -> Path:
    """The checkpoint of one family, where any will do."""
    return folder_of("llama")


def config_of(folder: Path) -> EngineConfig:
    return EngineConfig(model=str(folder), dtype="float32", max_seq_len=64, max_batch_size=3)


def test_a_frontend_imports_no_torch_no_numpy_and_no_grammar_library() -> None:
    script = (
        "import sys, infer_engine.assembly.engine; print(sorted({'torch', 'numpy', 'llguidance'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert run.stdout == "[]\n"


def test_the_package_exports_what_its_users_need() -> None:
    assert infer_engine.__all__ == EXPORTS


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_can_be_imported(name: str) -> None:
    assert getattr(importlib.import_module("infer_engine"), name).__name__ == name


def test_a_name_that_is_not_exported_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Scheduler'"):
        _ = infer_engine.Scheduler


def test_an_llm_takes_a_configuration(folder: Path) -> None:
    info = LLM(config=config_of(folder)).info
    assert (info.model, info.max_seq_len, info.max_batch_size) == (str(folder), 64, 3)


def test_fields_of_an_llm_replace_those_of_its_configuration(folder: Path) -> None:
    info = LLM(config=config_of(folder), max_seq_len=32).info
    assert (info.max_seq_len, info.max_batch_size) == (32, 3)


def test_the_model_of_an_llm_replaces_the_one_of_its_configuration(folder: Path, tmp_path: Path) -> None:
    info = LLM(str(folder), config=config_of(tmp_path / "missing")).info
    assert (info.model, info.max_seq_len) == (str(folder), 64)


def test_a_field_that_no_configuration_has_is_refused(folder: Path) -> None:
    with pytest.raises(TypeError, match="num_gpu"):
        LLM(str(folder), num_gpu=1)


async def test_the_end_of_an_engines_block_closes_it(folder: Path) -> None:
    async with build_engine(config_of(folder), engine_process=False) as engine:
        inside = engine.status
        [stream] = await engine.submit([GenerateRequest(prompt=[5], params=SamplingParams(max_tokens=60))])
    assert (inside, engine.status) == (EngineStatus.READY, EngineStatus.STOPPED)
    assert (await read(stream))[-1].finished


async def test_an_error_in_an_engines_block_closes_it_and_goes_on(folder: Path) -> None:
    with pytest.raises(KeyError):
        async with build_engine(config_of(folder), engine_process=False) as engine:
            raise KeyError
    assert engine.status is EngineStatus.STOPPED


async def test_a_core_with_wrapped_parts_runs_in_this_process(folder: Path) -> None:
    plan = FaultPlan([Fault(stage="forward", request_id="r0", step=1)])
    before = psutil.Process().children()
    async with build_engine(config_of(folder), wrap_parts=plan.wrap_parts) as engine:
        assert psutil.Process().children() == before
        [stream] = await engine.submit([GenerateRequest(prompt=[5], params=SamplingParams(max_tokens=9))])
        last = (await read(stream))[-1]
    assert last.error is not None
    assert last.error.code == "step_failed"
    assert set(plan.triggered) == {"forward"}
