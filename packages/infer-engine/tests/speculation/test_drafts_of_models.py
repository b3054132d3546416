"""Speculative decoding by models: whatever a request asks for, its answer is the one without drafts, to the bit."""

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from infer_cache import StatePool
from infer_engine import LLM
from infer_engine.assembly.core import load_tokenizer
from infer_engine.messages import TokenOutput
from infer_engine.protocol import EngineConfig, SamplingParams, StructuredOutputs, Tool
from infer_engine.speculation.proposals import Proposal
from infer_engine.structured.grammar_text import to_grammar_text
from infer_models.config import ModelConfig
from infer_proofs.engine.faults import Fault
from infer_proofs.engine.formula import tokens_of
from infer_proofs.engine.models import ALL_FAMILIES, FAMILIES, STATE_FAMILIES, ModelEngine, Twin, random_prompt
from infer_proofs.kernels.pairwise import parametrize_each_value
from infer_proofs.models import save_scripted

PROMPTS = {"a": random_prompt(9), "b": random_prompt(3) * 4, "c": random_prompt(17)}
SCHEMA = {
    "type": "object",
    "properties": {"first_long_key": {"type": "boolean"}, "second": {"enum": ["some words", "others"]}},
    "required": ["first_long_key", "second"],
    "additionalProperties": False,
}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"params": SamplingParams(temperature=0)},
    "drawn": {"params": SamplingParams(temperature=0.8, top_k=5)},
    "nearly greedy": {"params": SamplingParams(temperature=0.05)},
    "log-probabilities": {"params": SamplingParams(temperature=0.8, logprobs=3)},
    "penalties": {
        "params": SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.25)
    },
    "drawn with penalties": {"params": SamplingParams(temperature=0.7, frequency_penalty=1.5, logprobs=0)},
    "edits": {
        "params": SamplingParams(temperature=0.5, logit_bias={7: 3.0, 9: -2.0}, min_tokens=9, stop_token_ids=(7, 11)),
        "banned_sequences": [[7, 7], [9, 11, 7], [30]],
    },
    "allowed tokens": {"params": SamplingParams(temperature=0.8, allowed_token_ids=(7, 9, 11, 30, 31))},
    "grammar": {
        "params": SamplingParams(temperature=1.0),
        "grammar": to_grammar_text(StructuredOutputs(json=json.dumps({"type": "array", "items": SCHEMA}))),
    },
    "grammar with penalties": {
        "params": SamplingParams(temperature=0, repetition_penalty=1.2, min_tokens=20, logprobs=1),
        "grammar": to_grammar_text(StructuredOutputs(json=json.dumps(SCHEMA))),
    },
}
"""What requests ask for: fields of `Submit`."""


class Told:
    """Drafts what the answer is known to be, of which a share is right."""

    def __init__(self, answers: dict[str, list[int]], right: float) -> None:
        self._answers = answers
        self._right = right
        self._draw = Random(5)  # noqa: S311 - a test's choices

    def propose(self, token_ids: Sequence[int], limit: int) -> Proposal:
        name = next(each for each, prompt in PROMPTS.items() if list(token_ids[: len(prompt)]) == prompt)
        start = len(token_ids) - len(PROMPTS[name])
        rest = self._answers[name][start : start + limit]
        return Proposal([token_id if self._draw.random() < self._right else 5 for token_id in rest])


def said(outputs: dict[str, list[TokenOutput]]) -> dict[str, Any]:
    """Return all that clients see of answers."""
    return {
        name: (
            tokens_of(each),
            [logprob for output in each for logprob in output.logprobs or []],
            [output.finish_reason for output in each],
            each[-1].error,
        )
        for name, each in outputs.items()
    }


def answer(served: ModelEngine, asked: dict[str, Any]) -> dict[str, list[TokenOutput]]:
    for seed, (name, prompt) in enumerate(PROMPTS.items()):
        served.submit(name, prompt, max_tokens=20 + 9 * seed, seed=seed, **asked)
    return served.run()


def check(folder: Any, asked: dict[str, Any], *, right: float, **config: Any) -> ModelEngine:
    config = {"block_size": 16, "prefill_chunk_size": 8, "max_batch_size": 8} | config
    plain = answer(ModelEngine(folder, speculative_config="none", **deepcopy(config)), asked)
    drafting = ModelEngine(folder, speculative_config='{"num_speculative_tokens": 5}', **deepcopy(config))
    speculator = drafting.core._speculator  # noqa: SLF001 - drafts that a test knows to be right or wrong
    assert speculator is not None
    told = Told({name: tokens_of(each) for name, each in plain.items()}, right)
    speculator._make_proposer = lambda _: told  # noqa: SLF001 - as above
    assert said(answer(drafting, asked)) == said(plain)
    assert said(answer(ModelEngine(folder, **deepcopy(config)), asked)) == said(plain)
    return drafting


# vllm-project/vllm#41758, #6285: greedy answers were others
@pytest.mark.covers("scheduling/no-draft-changes-a-token")
@parametrize_each_value(
    family=ALL_FAMILIES, asked=["greedy", "drawn", "nearly greedy"], graphs=[None, False], right=[0.0, 0.6, 1.0]
)
def test_tokens_of_models_are_those_without_drafts(
    family: str, asked: str, *, graphs: bool | None, right: float, twin_of: Callable[[str], Twin]
) -> None:
    drafting = check(twin_of(family).folder, ASKED[asked], right=right, use_cpu_graphs=graphs)
    stats = drafting.core.stats
    assert stats.num_drafts > 0
    assert right < 1 or stats.num_accepted_tokens > 20


ODDITIES: dict[str, dict[str, Any]] = {
    "no slot to spare": {"state_cache_memory": 2},
    "one draft to spare": {"state_cache_memory": 3},
    "preemption": {"block_size": 4, "num_kv_blocks": 21, "kv_reserve": 0.0, "max_seq_len": 60},
    "failing steps": {"faults": [Fault(stage="forward", step=step, times=1) for step in (5, 6, 9, 14, 22)]},
    "contiguous": {"kv_cache_backend": "contiguous"},
    "no prefixes": {"use_prefix_caching": False},
    "scheduled ahead": {"use_async_scheduling": True, "block_size": 4},
    "scheduled ahead, failing steps": {
        "use_async_scheduling": True,
        "faults": [Fault(stage="forward", step=step, times=1) for step in (3, 6, 9, 14, 22)],
    },
}


# vllm-project/vllm#39273, #52942: a step without drafts after one with some read a state that lacked them
# ggml-org/llama.cpp#20075, ml-explore/mlx-lm#846: loops, and tokens that were left out, behind rejected drafts
@pytest.mark.covers("scheduling/no-draft-changes-a-token")
@pytest.mark.parametrize("oddity", ODDITIES)
@pytest.mark.parametrize("family", STATE_FAMILIES)
def test_states_are_those_behind_the_last_token_that_was_right(
    family: str, oddity: str, twin_of: Callable[[str], Twin]
) -> None:
    folder, config = twin_of(family).folder, deepcopy(ODDITIES[oddity])
    if "state_cache_memory" in config:
        states = ModelConfig.from_folder(folder).states
        config["state_cache_memory"] *= StatePool.bytes_per_slot(states, dtype=torch.float32)
    drafting = check(folder, ASKED["drawn"], right=0.7, **config)
    stats = drafting.core.stats
    assert (stats.num_drafts > 0) is (oddity != "no slot to spare")
    assert (stats.num_preemptions > 0) is (oddity == "preemption")
    assert (stats.num_failed_passes > 0) is ("faults" in config)
    assert stats.num_leaked_blocks == 0
    assert stats.num_free_state_slots == stats.num_state_slots


@pytest.mark.parametrize("family", STATE_FAMILIES)
def test_the_next_turn_finds_the_states_that_drafts_have_left(family: str, twin_of: Callable[[str], Twin]) -> None:
    folder = twin_of(family).folder
    told = Told({"c": []}, 0.8)
    turns = []
    for speculation in ("none", '{"num_speculative_tokens": 5}'):
        engine = ModelEngine(folder, block_size=4, prefill_chunk_size=16, speculative_config=speculation)
        if speculation != "none":
            engine.core._speculator._make_proposer = lambda _, told=told: told  # type: ignore[union-attr]  # noqa: SLF001 - as above
        prompt, cached = PROMPTS["c"], [0]
        for turn in range(3):
            prompt = [*prompt, *engine.complete(prompt, max_tokens=21), *random_prompt(5, seed=turn)]
            cached.append(engine.core.stats.num_cached_tokens)
        told = Told({"c": prompt[len(PROMPTS["c"]) :]}, 0.8)
        turns.append((prompt, cached))
    assert turns[0] == turns[1]
    assert turns[0][1][1] == 0 < turns[0][1][2] < turns[0][1][3]
    assert engine.core.stats.num_accepted_tokens > 20


@pytest.mark.parametrize(
    ("family", "asked"),
    [
        pytest.param("llama", "log-probabilities", marks=pytest.mark.full),
        ("llama", "grammar with penalties"),
        pytest.param("qwen3_5", "grammar with penalties", marks=pytest.mark.full),
        pytest.param("granitemoehybrid", "log-probabilities", marks=pytest.mark.full),
    ],
)
def test_two_ranks_verify_drafts_and_answer_to_the_bit_as_without(
    family: str, asked: str, twin_of: Callable[[str], Twin]
) -> None:
    answers: list[dict[str, Any]] = []
    for speculation in ("none", '{"num_speculative_tokens": 5}'):
        served = ModelEngine(
            twin_of(family).folder, tensor_parallel_size=2, block_size=16, speculative_config=speculation
        )
        try:
            if served.core._speculator is not None:  # noqa: SLF001 - as above
                told = Told({name: tokens for name, (tokens, *_) in answers[0].items()}, 0.8)
                served.core._speculator._make_proposer = lambda _, told=told: told  # type: ignore[misc]  # noqa: SLF001 - as above
            answers.append(said(answer(served, ASKED[asked])))
            num_accepted = served.core.stats.num_accepted_tokens
        finally:
            served.close()
    assert answers[0] == answers[1]
    assert num_accepted > 10


# vllm-project/vllm#40875, #36138, #10442: drafts were not held to grammars, nor to the arguments of calls
# vllm-project/vllm#47616, #17876: log-probabilities behind a stop string, or none
@parametrize_each_value(
    family=FAMILIES, asked=list(ASKED), right=[0.0, 0.6, 1.0], size=[4, 16], use_async_scheduling=[None, True]
)
def test_whatever_a_request_asks_for_it_gets_drafts_and_the_same_answer(
    family: str,
    asked: str,
    *,
    right: float,
    size: int,
    use_async_scheduling: bool | None,
    twin_of: Callable[[str], Twin],
) -> None:
    config = {"block_size": size, "use_async_scheduling": use_async_scheduling}
    drafting = check(twin_of(family).folder, ASKED[asked], right=right, **config)
    stats = drafting.core.stats
    assert (stats.num_draft_tokens > 0) is (asked != "allowed tokens" or right > 0)  # none of the wrong ones is allowed
    assert stats.num_accepted_tokens > 10 or right < 1


# sgl-project/sglang#2025, #2045: forced texts changed what came behind them
@pytest.mark.covers("structured-tools-agents/forced-text")
@pytest.mark.parametrize("config", [{}, {"speculative_config": "none"}])
def test_the_only_text_that_a_grammar_allows_comes_in_the_tokenizers_own_tokens(config: dict[str, Any]) -> None:
    text = '{"the_first_of_the_keys":"and nothing else"}'
    engine_config = EngineConfig(model="infer-demo", kv_cache_memory=2**26, use_cpu_graphs=False, **config)
    expected = load_tokenizer(engine_config).encode(text, add_special_tokens=False)
    llm = LLM(config=engine_config)
    held = StructuredOutputs(choice=(text,))
    params = SamplingParams(temperature=1.5, seed=1, max_tokens=60, structured_outputs=held)
    [completion] = llm.generate("Abc", params, use_tqdm=False)
    assert completion.text == text
    assert completion.token_ids[: len(expected) - 1] == expected[:-1]
    stats = llm.stats
    assert stats.num_accepted_tokens == stats.num_draft_tokens
    assert (stats.num_steps < 8) is not bool(config)


# vllm-project/vllm#47616: token ids behind a stop string that ended within accepted drafts
def test_over_the_library_texts_and_stops_are_the_same() -> None:
    params = [
        SamplingParams(temperature=0, max_tokens=60),
        SamplingParams(temperature=1, seed=4, max_tokens=60, n=2),
        *(
            SamplingParams(temperature=0, max_tokens=60, stop=(stop,))
            for stop in ("e ", "EO", "O: R", "o be", "t", ":")
        ),
    ]
    make = partial(LLM, "infer-demo", kv_cache_memory=2**26, max_batch_size=16, use_cpu_graphs=False)
    prompts = ["ROMEO: ROMEO: ROMEO:", "To be, or not", "First Citizen:\nWe are"]
    plain = make(speculative_config="none")
    drafting = [make(), make(speculative_config='{"method": "ngram"}')]
    for each in params:
        expected = [(c.text, c.token_ids, c.finish_reason) for c in plain.generate(prompts, each, use_tqdm=False)]
        for llm in drafting:
            found = [(c.text, c.token_ids, c.finish_reason) for c in llm.generate(prompts, each, use_tqdm=False)]
            assert found == expected
    assert all(llm.stats.num_accepted_tokens > 0 for llm in drafting)


# vllm-project/vllm#56077: calls whose arguments were lost or mangled where drafts came from the conversation
def test_calls_of_tools_that_were_made_before_are_drafted_and_are_the_same(tmp_path: Path) -> None:
    pieces = ["I look.", "\n<tool_call>", '\n{"name": "look"', ', "arguments"', ': {"city"', ': "Oslo"', ', "days"']
    template = (
        "{% if tools %}Tools: {{ tools | tojson }}, as <tool_call>{...}</tool_call>{% endif %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    )
    save_scripted(tmp_path, [*pieces, ": 3", "}}", "\n</tool_call>", "Done."], chat_template=template)
    parameters = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    tool = Tool(name="look", parameters=parameters)
    answers = []
    for config in ("none", '{"num_speculative_tokens": 8}'):
        llm = LLM(str(tmp_path), max_seq_len=512, speculative_config=config)
        for question in ("Where?", "Where is it?", "Where?"):
            messages = [{"role": "user", "content": question}]
            [done] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=40), tools=[tool], use_tqdm=False)
            answers.append((done.token_ids, done.text, done.tool_calls, done.finish_reason))
    assert answers[:3] == answers[3:]
    assert [call.arguments for _, _, calls, _ in answers for call in calls] == ['{"city": "Oslo", "days": 3}'] * 6
    assert llm.stats.num_accepted_tokens > 10


def test_a_prediction_is_drafted_and_changes_no_token() -> None:
    llm = LLM("infer-demo", kv_cache_memory=2**26, max_batch_size=4, use_cpu_graphs=False)
    params = SamplingParams(temperature=0.9, seed=5, max_tokens=60)
    [plain] = llm.generate("ROMEO:", params, cache_salt="a", use_tqdm=False)
    changed = plain.text.replace(plain.text.split()[4], "Verona", 1)
    for number, prediction in enumerate((plain.text, changed, "", "Something else.", plain.text * 90)):
        found = llm.generate("ROMEO:", params, prediction=prediction, cache_salt=f"b{number}", use_tqdm=False)[0]
        assert (found.text, found.token_ids) == (plain.text, plain.token_ids)
        drafts = found.drafts
        assert drafts.num_predicted_accepted <= drafts.num_predicted <= drafts.num_drafted
        assert (drafts.num_predicted_accepted > 30) is (number < 2)
