"""A whole engine starts and answers on a made-up GPU: it measures, sizes, warms up, captures and proves its steps."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine.assembly import runner
from infer_engine.model_runner import graph_runner
from infer_engine.model_runner.graphs import gpu_graphs
from infer_engine.model_runner.graphs.checks import graph_check
from infer_engine.model_runner.graphs.checks.graph_report import GraphReport
from infer_engine.model_runner.graphs.graph_capture import CUDAGraphCapture, Replay
from infer_engine.model_runner.graphs.padded_shapes import LARGER_SIZES
from infer_engine.model_runner.graphs.prompt_tokens import DECODES_BESIDE_PROMPTS
from infer_engine.model_runner.inputs.forward_batch import BatchShape
from infer_engine.model_runner.loading.rank_loading import load_rank
from infer_engine.protocol import EngineConfig, SamplingParams
from infer_models import CausalLM
from infer_proofs.engine.models import ModelEngine, random_prompt, save_servable, sound_tokens
from infer_proofs.kernels.simulated_gpu import Machine, simulated_gpus
from infer_proofs.kernels.simulated_gpu.memory import SEGMENT_BYTES
from infer_proofs.models.checkpoints import save_mtp, save_mtp_of_pairs

CONFIG: dict[str, Any] = {
    "dtype": "float32",
    "max_seq_len": 48,
    "max_batch_size": 2,
    "max_num_batched_tokens": 8,
    "block_size": 16,
}
GREEDY = SamplingParams(temperature=0, ignore_eos=True, logprobs=1, prompt_logprobs=1)
DRAWN = SamplingParams(temperature=0.9, top_p=0.9, ignore_eos=True)
PLAIN = SamplingParams(temperature=0, ignore_eos=True)


def answers(engine: ModelEngine) -> dict[str, list[int]]:
    """Return the tokens of requests with and without log-probabilities, greedy and drawn, alone and together."""
    engine.submit("one", random_prompt(21), max_tokens=4, params=GREEDY)
    engine.submit("two", random_prompt(3), max_tokens=6, params=PLAIN)
    outputs = engine.run()
    engine.submit("three", random_prompt(5), max_tokens=5, params=DRAWN, seed=3)
    return sound_tokens(outputs | engine.run())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint."""
    folder = tmp_path_factory.mktemp("tiny")
    save_servable("llama", folder, num_hidden_layers=1)
    return folder


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[tuple[ModelEngine, Machine]]:
    """An engine on a GPU."""
    with simulated_gpus() as machine:
        yield ModelEngine(folder, device="cuda", **CONFIG), machine


def test_all_steps_are_captured_as_cuda_graphs_and_proved(started: tuple[ModelEngine, Machine]) -> None:
    engine, _ = started
    assert engine.info.device == "cuda:0"
    assert engine.info.cuda_graphs == "3 steps are captured as CUDA graphs: 3 gave equal bits"


@pytest.mark.usefixtures("started")
def test_an_engine_is_warmed_up_over_its_own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warmed: list[dict[str, Any]] = []
    monkeypatch.setattr(runner, "warm_up_gpu", lambda _runner, limits, **rest: warmed.append(rest | {"limits": limits}))
    engine = ModelEngine(folder, device="cuda", **CONFIG)
    [arguments] = warmed
    assert arguments["limits"].max_batch_size == CONFIG["max_batch_size"]
    assert (arguments["max_seq_len"], arguments["vocab_size"]) == (CONFIG["max_seq_len"], engine.info.vocab_size)
    assert arguments["device"] == torch.device("cuda:0")


@pytest.mark.usefixtures("started")
def test_the_proof_computes_the_logits_of_few_rows_at_once_and_keeps_no_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    compute = CausalLM.logits

    def recorded(model: CausalLM, hidden: torch.Tensor, indices: torch.Tensor | None = None) -> torch.Tensor:
        rows.append(len(hidden if indices is None else indices))
        return compute(model, hidden, indices)

    kept: list[int] = []
    capture = graph_runner.capture_steps

    def captured(*args: Any, **named: Any) -> GraphReport | None:
        monkeypatch.setattr(CausalLM, "logits", recorded)
        report = capture(*args, **named)
        kept.append(torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
        return report

    class Checker(graph_check.GraphChecker):
        def capture_all(self, shapes: Iterable[BatchShape]) -> GraphReport:
            report = super().capture_all(shapes)
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda")  # as large models need for their checks
            return report

    monkeypatch.setattr(gpu_graphs, "GraphChecker", Checker)
    monkeypatch.setattr(graph_check, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(runner, "capture_steps", captured)
    engine = ModelEngine(folder, device="cuda", **CONFIG)
    assert engine.info.cuda_graphs == "3 steps are captured as CUDA graphs: 3 gave equal bits"
    assert max(rows) == 3  # of steps of up to ten
    assert kept[0] < SEGMENT_BYTES


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("is_measured", [True, False])
def test_a_capture_that_takes_the_device_with_it_ends_the_start_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_measured: bool
) -> None:
    """From vllm#37242, WSL#14452 and realizar#197: every later call of the process fails."""
    captured: list[object] = []

    class LostCapture(CUDAGraphCapture):
        def capture(self, compute: Callable[[], None]) -> Replay:
            captured.append(compute)
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        def free_bytes(self) -> int:
            if captured:
                raise RuntimeError("CUDA error: unspecified launch failure")
            return super().free_bytes()

    monkeypatch.setitem(gpu_graphs.GRAPH_CAPTURES, "cuda", LostCapture)
    if not is_measured:  # then the proof is the first to capture
        monkeypatch.setattr(gpu_graphs.GPUGraphs, "measure_bytes", lambda *_: 0)
    with pytest.raises(ValueError, match=r"unusable for this process \(.*illegal memory.*`use_cuda_graphs=False`"):
        ModelEngine(folder, device="cuda", **CONFIG)


@pytest.mark.usefixtures("started")
def test_prompt_tokens_beside_decodes_fill_the_largest_step_that_is_worth_capturing(folder: Path) -> None:
    def most(**config: Any) -> int | None:
        loaded = load_rank(EngineConfig(**CONFIG | config), folder, device=torch.device("cuda:0"))
        return loaded.limits.max_prefill_tokens_beside_decodes

    assert most() == LARGER_SIZES[-1] - DECODES_BESIDE_PROMPTS  # of so small a model
    assert most(max_prefill_tokens_beside_decodes=7) == 7


def test_answers_are_those_of_a_cpu(started: tuple[ModelEngine, Machine], folder: Path) -> None:
    engine, machine = started
    found = answers(engine)
    before = machine.synchronizations
    engine.submit("four", random_prompt(4), max_tokens=8, params=PLAIN)
    engine.run()
    num_steps = 8
    assert machine.synchronizations - before <= 3 * num_steps  # of pinned memory: never for the whole device
    assert found == answers(ModelEngine(folder, device="cpu", **CONFIG))


def test_kv_cache_takes_what_utilization_leaves(started: tuple[ModelEngine, Machine]) -> None:
    engine, machine = started
    free, total = torch.cuda.mem_get_info()
    assert engine.info.num_kv_blocks == 2 * 3  # as much as the largest batch can use
    assert total - free == machine.gpus[0].spec.used_bytes + machine.gpus[0].memory.reserved


def test_step_without_memory_fails_alone_and_holds_none(started: tuple[ModelEngine, Machine]) -> None:
    engine, machine = started
    memory = machine.gpus[0].memory
    capacity = memory.capacity
    torch.cuda.empty_cache()
    memory.capacity = memory.reserved
    hog = torch.zeros(memory.reserved - memory.allocated - (8 << 10), dtype=torch.uint8, device="cuda")
    engine.submit("large", random_prompt(30), max_tokens=1, params=GREEDY)
    error = engine.run()["large"][-1].error
    assert error is not None
    assert error.code == "out_of_memory"
    del hog
    memory.capacity = capacity
    engine.submit("after", random_prompt(30), max_tokens=1, params=PLAIN)
    assert len(sound_tokens(engine.run())["after"]) == 1


@pytest.mark.usefixtures("started")
def test_steps_of_a_model_with_states_are_captured_and_compute_what_a_cpu_does(tmp_path: Path) -> None:
    save_servable("lfm2", tmp_path, num_hidden_layers=2, layer_types=["conv", "full_attention"])
    engine = ModelEngine(tmp_path, device="cuda", **CONFIG)
    assert engine.info.num_state_slots == 2 * (1 + 4)
    assert engine.info.cuda_graphs == "3 steps are captured as CUDA graphs: 3 gave equal bits"
    found = answers(engine)
    assert found == answers(ModelEngine(tmp_path, device="cpu", **CONFIG))


@pytest.mark.covers("configuration/state-cache-dtype")
@pytest.mark.usefixtures("started")
def test_states_in_bf16_take_half_of_the_memory(tmp_path: Path) -> None:
    heads = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_value_heads": 2}
    save_servable("qwen3_5", tmp_path, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], **heads)
    config: dict[str, Any] = {"device": "cuda", "use_cuda_graphs": False, "state_cache_memory": 2**16, **CONFIG}
    exact, rounded = (ModelEngine(tmp_path, state_cache_dtype=each, **config) for each in ("float32", "bfloat16"))
    assert rounded.info.num_state_slots > 1.4 * exact.info.num_state_slots  # convolutions' inputs are not halved
    prompt = random_prompt(9)
    found = [engine.complete(prompt, max_tokens=3, params=PLAIN) for engine in (exact, rounded)]
    assert found[0][0] == found[1][0]  # of the prompt's only step, after which states are rounded
    assert len(found[1]) == 3


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    ("family", "kind", "speculation"),
    [
        ("lfm2", "conv", '{"num_speculative_tokens": 3}'),
        ("qwen3_5", "linear_attention", '{"method": "mtp", "num_speculative_tokens": 2}'),
    ],
)
def test_drafts_of_models_with_states_are_verified(family: str, kind: str, speculation: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": [kind, "full_attention"]}
    if family == "qwen3_5":
        small |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_value_heads": 2}
    model = save_servable(family, tmp_path, **small)
    if family == "qwen3_5":
        save_mtp(tmp_path, model)
        save_mtp_of_pairs(tmp_path)
    prompt = random_prompt(5) * 2
    asked: dict[str, Any] = {"max_tokens": 8, "params": PLAIN}
    expected = ModelEngine(tmp_path, device="cpu", **CONFIG).complete(prompt, **asked)
    graphs = None if family == "lfm2" else False  # to prove captured steps of so many rows takes a minute
    engine = ModelEngine(tmp_path, device="cuda", speculative_config=speculation, use_cuda_graphs=graphs, **CONFIG)
    for _ in range(2):  # the second time by the first answer
        assert engine.complete(prompt, **asked) == expected
    stats = engine.core.stats
    assert stats.num_accepted_tokens > 4
    assert stats.num_free_state_slots == stats.num_state_slots


@pytest.mark.covers("models/gemma4-on-a-gpu")
@pytest.mark.usefixtures("started")
def test_steps_of_layers_with_heads_of_several_sizes_are_captured(tmp_path: Path) -> None:
    small: dict[str, Any] = {"num_hidden_layers": 2, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
    small |= {"layer_types": ["sliding_attention", "full_attention"], "num_key_value_heads": 2}
    small |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 512}
    save_servable("gemma4", tmp_path, **small)
    engine = ModelEngine(tmp_path, device="cuda", **CONFIG)
    assert engine.info.cuda_graphs == "3 steps are captured as CUDA graphs: 3 gave equal bits"
    assert answers(engine) == answers(ModelEngine(tmp_path, device="cpu", **CONFIG))
