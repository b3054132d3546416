"""Drafts by the layer of a model that predicts a token further (MTP): what it says, and that no token changes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from infer_engine import LLM
from infer_engine.messages import TokenOutput
from infer_engine.model_runner.mtp_drafter import MTPDrafter
from infer_engine.protocol import CheckpointUnusableError, EngineConfig, SamplingParams, StructuredOutputs
from infer_engine.request import Request, StepRow
from infer_engine.speculation.draft_costs import ON_CPU
from infer_engine.structured.grammar_text import to_grammar_text
from infer_models import CausalView, load_model
from infer_proofs.engine.faults import Fault
from infer_proofs.engine.formula import collect, tokens_of
from infer_proofs.engine.models import ModelEngine, random_prompt, save_servable
from infer_proofs.kernels.pairwise import parametrize_each_value
from infer_proofs.models.checkpoints import save_mtp, save_mtp_of_pairs

MTP = '{"method": "mtp"}'
PROMPTS = {"a": random_prompt(21), "b": random_prompt(5), "c": random_prompt(21)[:13] + random_prompt(9)}
SCHEMA = {"type": "array", "items": {"enum": ["some long words", "others", 3]}, "minItems": 3}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"params": SamplingParams(temperature=0)},
    "drawn": {"params": SamplingParams(temperature=0.8, top_p=0.9, logprobs=2)},
    "penalties": {"params": SamplingParams(temperature=0.7, frequency_penalty=0.5, repetition_penalty=1.2)},
    "edits": {"params": SamplingParams(temperature=0.5, logit_bias={7: 3.0}, min_tokens=9, stop_token_ids=(7, 11))},
    "grammar": {
        "params": SamplingParams(temperature=1.0, logprobs=0),
        "grammar": to_grammar_text(StructuredOutputs(json=json.dumps(SCHEMA))),
    },
}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "chunks": {"block_size": 4, "prefill_chunk_size": 8},
    "bf16": {"dtype": "bfloat16"},
    "keys in eight bits": {"kv_cache_dtype": "int8"},
    "weights in eight bits": {"quantization": "int8", "dtype": "bfloat16"},
    "not captured": {"use_cpu_graphs": False},
    "preemption": {"block_size": 4, "num_kv_blocks": 20, "kv_reserve": 0.0, "max_seq_len": 60},
    "failing steps": {"faults": [Fault(stage="forward", step=step, times=1) for step in (4, 7, 8, 15)]},
    "contiguous": {"kv_cache_backend": "contiguous"},
    "prefill first": {"scheduler_policy": "prefill_first"},
    "scheduled ahead": {"use_async_scheduling": True, "block_size": 4},
}


@pytest.fixture(scope="module")
def folder_with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives a family's checkpoint with a random layer."""
    folders: dict[str, Path] = {}

    def folder_with_mtp(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            save_mtp(folders[family], save_servable(family, folders[family]))
        return folders[family]

    return folder_with_mtp


def answer(folder: Path, speculation: str, asked: dict[str, Any], **config: Any) -> tuple[Any, ModelEngine]:
    """Return all that clients see of the answers, and the engine."""
    if "faults" in config:
        config["faults"] = [Fault(stage=each.stage, step=each.step, times=1) for each in config["faults"]]
    served = ModelEngine(folder, speculative_config=speculation, **config)
    for seed, (name, prompt) in enumerate(PROMPTS.items()):
        served.submit(name, prompt, max_tokens=20 + 7 * seed, seed=seed, **asked)

    def seen(of_one: list[TokenOutput]) -> Any:
        logprobs = [each for output in of_one for each in output.logprobs or []]
        return tokens_of(of_one), logprobs, of_one[-1].finish_reason, of_one[-1].error

    return {name: seen(of_one) for name, of_one in served.run().items()}, served


@pytest.mark.covers("scheduling/no-draft-changes-a-token")
@parametrize_each_value(config=list(CONFIGS), asked=list(ASKED))
def test_no_token_changes(config: str, asked: str, folder_with_mtp: Callable[[str], Path]) -> None:
    folder = folder_with_mtp("qwen3_5")
    plain, _ = answer(folder, "none", ASKED[asked], **CONFIGS[config])
    drafted, served = answer(folder, MTP, ASKED[asked], **CONFIGS[config])
    assert drafted == plain
    assert served.core.stats.num_drafts > 0
    assert served.core.stats.num_leaked_blocks == 0


@pytest.mark.parametrize("family", ["qwen3_5_moe", "qwen3_next", "qwen3_5_wrapped"])
def test_families_with_experts_and_wrappers_draft_too(family: str, folder_with_mtp: Callable[[str], Path]) -> None:
    plain, _ = answer(folder_with_mtp(family), "none", ASKED["drawn"])
    drafted, served = answer(folder_with_mtp(family), MTP, ASKED["drawn"])
    assert drafted == plain
    assert served.core.stats.num_drafts > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_layer_that_is_right_takes_a_quarter_of_the_steps(temperature: float, tmp_path: Path) -> None:
    save_mtp(tmp_path, save_servable("qwen3_5", tmp_path))
    save_mtp_of_pairs(tmp_path)
    asked = {"params": SamplingParams(temperature=temperature)}
    plain, before = answer(tmp_path, "none", asked)
    drafted, served = answer(tmp_path, MTP, asked)
    assert drafted == plain
    assert served.core.stats.num_accepted_tokens > 0.9 * served.core.stats.num_draft_tokens
    assert served.core.stats.num_steps < 0.4 * before.core.stats.num_steps


@pytest.mark.parametrize("is_ahead", [False, True], ids=["in turn", "scheduled ahead"])
def test_where_many_requests_run_the_layer_computes_nothing(tmp_path: Path, *, is_ahead: bool) -> None:
    save_mtp(tmp_path, save_servable("qwen3_5", tmp_path))
    save_mtp_of_pairs(tmp_path)
    config: dict[str, Any] = {"use_async_scheduling": is_ahead, "block_size": 4}
    plain, drafting = ModelEngine(tmp_path, **config), ModelEngine(tmp_path, speculative_config=MTP, **config)
    layer = drafting.core._speculator._draft_layer  # type: ignore[union-attr]  # noqa: SLF001 - its work is on no wire
    assert isinstance(layer, MTPDrafter)
    computed: list[int] = []
    compute = layer._compute  # noqa: SLF001 - as above

    def counted(rows: Sequence[StepRow], *args: Any) -> torch.Tensor:
        computed.append(len(rows))
        return compute(rows, *args)

    layer._compute = counted  # type: ignore[method-assign, assignment]  # noqa: SLF001 - as above
    answers: list[dict[str, list[int]]] = []
    for engine in (plain, drafting):
        for seed in range(12):
            params = SamplingParams(temperature=0, ignore_eos=True)
            engine.submit(f"{seed}", random_prompt(9 + seed, seed=seed), max_tokens=12 + 3 * (seed == 5), params=params)
        outputs: list[TokenOutput] = []
        while engine.core.has_work:
            outputs += engine.step().outputs
            num_requests = engine.core.stats.num_running + engine.core.stats.num_waiting
            if engine is drafting and num_requests > ON_CPU.most_decodes:
                assert not computed
        answers.append(
            {f"{seed}": tokens_of([each for each in outputs if each.request_id == f"{seed}"]) for seed in range(12)}
        )
    assert answers[0] == answers[1]
    assert computed, "the last request ran alone"
    assert max(computed) <= ON_CPU.most_decodes
    before = drafting.core.stats.num_accepted_tokens
    drafting.complete(random_prompt(8), max_tokens=20, params=SamplingParams(temperature=0, ignore_eos=True))
    assert drafting.core.stats.num_accepted_tokens - before > 10


# vllm-project/vllm#53912: prefixes and drafts of hybrids together gave other tokens
@pytest.mark.parametrize("is_ahead", [False, True], ids=["in turn", "scheduled ahead"])
def test_prompts_whose_prefix_was_computed_in_a_burst_get_the_same_tokens(
    folder_with_mtp: Callable[[str], Path], *, is_ahead: bool
) -> None:
    folder = folder_with_mtp("qwen3_5")  # its layer has keys and values of no prompt of the burst
    config: dict[str, Any] = {"use_async_scheduling": is_ahead, "block_size": 4, "prefill_chunk_size": 8}
    params = SamplingParams(temperature=0, ignore_eos=True)
    answers: list[list[list[int]]] = []
    for speculation in ("none", MTP):
        engine = ModelEngine(folder, speculative_config=speculation, **config)
        for seed in range(12):
            engine.submit(f"{seed}", random_prompt(21, seed=seed), max_tokens=9, params=params)
        engine.run()
        prompts = [[*random_prompt(21, seed=seed), 5, 6] for seed in range(4)]
        turns = [engine.complete(prompt, max_tokens=16, params=params) for prompt in prompts]
        assert engine.core.stats.num_cached_tokens >= 4 * 16
        assert (engine.core.stats.num_drafts > 0) is (speculation == MTP)
        answers.append(turns)
    assert answers[0] == answers[1]


# vllm-project/vllm#49548: throughput collapsed where the number of requests crossed the one up to which drafts are made
def test_requests_around_the_most_that_get_drafts_take_no_more_steps_than_without(tmp_path: Path) -> None:
    save_mtp(tmp_path, save_servable("qwen3_5", tmp_path))
    save_mtp_of_pairs(tmp_path)
    steps: list[int] = []
    answers: list[dict[str, list[int]]] = []
    for speculation in ("none", MTP):
        engine = ModelEngine(tmp_path, speculative_config=speculation, use_async_scheduling=True, block_size=4)
        outputs: dict[str, list[TokenOutput]] = {}
        for wave in range(6):
            for number in range(ON_CPU.most_decodes - 1 + wave % 3):  # one fewer, as many, one more
                params = SamplingParams(temperature=0, ignore_eos=True)
                prompt = random_prompt(5 + number, seed=wave)
                engine.submit(f"{wave} {number}", prompt, max_tokens=6 + number, params=params)
            for _ in range(4):
                collect(engine.step(), outputs)
        while engine.core.has_work:
            collect(engine.step(), outputs)
        answers.append({name: tokens_of(each) for name, each in outputs.items()})
        steps.append(engine.core.stats.num_steps)
    assert answers[0] == answers[1]
    assert steps[1] <= steps[0] + 2


class Told:
    """Drafts the known answers in place of what the layer says, which it notes."""

    def __init__(self, drafter: MTPDrafter, answers: dict[str, list[int]]) -> None:
        self.said: list[tuple[list[int], list[int]]] = []
        self._draft = drafter.draft
        self._answers = answers
        drafter.draft = self.draft  # type: ignore[method-assign]

    def draft(self, request: Request, limit: int) -> list[int]:
        said = self._draft(request, limit)
        if said:
            self.said.append((list(request.token_ids), said))
        start = len(request.token_ids) - request.num_prompt_tokens
        return self._answers[request.request_id.split()[0]][start : start + len(said)]


@pytest.mark.parametrize("right", [False, True], ids=["as it says", "all drafts are right"])
@pytest.mark.parametrize("config", ["plain", "chunks", "preemption", "contiguous"])
@torch.inference_mode()
def test_it_says_what_it_would_say_of_the_whole_sequence(
    config: str, *, right: bool, folder_with_mtp: Callable[[str], Path]
) -> None:
    folder = folder_with_mtp("qwen3_5")
    plain, _ = answer(folder, "none", ASKED["greedy"])
    served = ModelEngine(folder, speculative_config=MTP, **CONFIGS[config])
    told = {name: tokens if right else [3] * 99 for name, (tokens, *_) in plain.items()}
    noted = Told(served.core._speculator._draft_layer, told)  # type: ignore[union-attr, arg-type]  # noqa: SLF001 - what it says is not on the wire
    for turn in range(2):  # the second time prefixes are found
        for seed, (name, prompt) in enumerate(PROMPTS.items()):
            served.submit(f"{name} {turn}", prompt, max_tokens=20 + 7 * seed, params=SamplingParams(temperature=0))
        served.run()
    model = load_model(folder, device=torch.device("cpu"), dtype=torch.float32, with_mtp=True)
    assert len(noted.said) > 10
    for tokens, said in noted.said:
        assert said == expected_drafts(model, tokens, len(said))


def expected_drafts(model: Any, tokens: list[int], count: int) -> list[int]:
    """Return the most probable tokens by the layer over a whole sequence, which goes on with its own drafts."""
    hidden = model.hidden_states(torch.tensor(tokens[:-1]), torch.arange(len(tokens) - 1), CausalView())
    following = tokens[1:]
    drafts: list[int] = []
    while len(drafts) < count:
        positions = torch.arange(len(following))
        predicted = model.predict_further(torch.tensor(following), hidden, positions, CausalView())
        drafts.append(int(model.logits(predicted[-1:]).argmax()))
        hidden, following = torch.cat([hidden, predicted[-1:]]), [*following, drafts[-1]]
    return drafts


def test_its_keys_and_values_are_in_the_sizes(folder_with_mtp: Callable[[str], Path]) -> None:
    folder = folder_with_mtp("qwen3_5")
    without, with_it = (
        ModelEngine(folder, speculative_config=each, kv_cache_memory=2**18, block_size=4).info.num_kv_blocks
        for each in ("none", MTP)
    )
    assert without < 8 * 128 // 4  # so that memory is what limits it
    layers = json.loads((folder / "config.json").read_text())["layer_types"].count("full_attention")
    assert with_it == pytest.approx(without * layers / (layers + 1), abs=1)


def test_over_the_library_a_request_says_how_many_drafts_it_took(tmp_path: Path) -> None:
    save_mtp(tmp_path, save_servable("qwen3_5", tmp_path))
    save_mtp_of_pairs(tmp_path)
    llm = LLM(str(tmp_path), max_seq_len=128, speculative_config=MTP)
    [done] = llm.generate("ab ab", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True), use_tqdm=False)
    assert done.drafts is not None
    assert done.drafts.num_accepted > 25


def test_what_has_no_such_layer_is_refused_by_name(tmp_path: Path) -> None:
    save_servable("qwen3_5", tmp_path / "without")
    with pytest.raises(CheckpointUnusableError, match=r"mtp\.fc\.weight"):
        ModelEngine(tmp_path / "without", speculative_config=MTP)
    save_servable("llama", tmp_path / "llama")
    with pytest.raises(ValueError, match="models of llama have no layer that predicts a token further"):
        ModelEngine(tmp_path / "llama", speculative_config=MTP)


@pytest.mark.parametrize("method", ["mtp", "qwen3_next_mtp", "qwen3_5_mtp"])
def test_vllms_names_are_taken(method: str) -> None:
    config = EngineConfig(speculative_config=json.dumps({"method": method, "num_speculative_tokens": 2}))
    assert config.speculation is not None
    assert (config.speculation.method, config.speculation.num_tokens) == ("mtp", 2)
