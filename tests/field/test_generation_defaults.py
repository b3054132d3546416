"""The sampling values that a checkpoint recommends are those of requests that leave them out.

Sources: Blaizzy/mlx-vlm#1331, ml-explore/mlx-lm#1031, vllm-project/vllm#11861, #15241, NVIDIA/TensorRT-LLM#17213.
"""

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from infer_engine import LLM, EngineConfig, SamplingParams
from infer_engine.frontend.generation_config import sampling_defaults
from infer_engine.protocol import SamplingDefaults
from infer_engine.protocol.sampling import SAMPLING_FIELDS
from infer_models.config.generation_config import TAKEN
from infer_proofs.models import save_tiny, save_tiny_tokenizer
from infer_proofs.server import FAKE_INFO, FakeEngine
from infer_proofs.server.client import client_of

PROMPT = [3 + 37 * i % 300 for i in range(40)]
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 4},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "x"},
    "/v1/messages": CHAT,
}
RECOMMENDED = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.05, max_tokens=99)


def write(folder: Path, **fields: object) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return folder


def defaults(folder: Path, **fields: object) -> dict[str, Any]:
    """Return the defaults that a file with `fields` makes."""
    return sampling_defaults(EngineConfig(), write(folder, **fields)).given


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
            {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05},
        ),
        ({"temperature": 1, "top_k": 64.0, "min_p": 0}, {"temperature": 1.0, "top_k": 64, "min_p": 0.0}),
        ({"max_new_tokens": 2048, "max_length": 20}, {"max_tokens": 2048}),
        ({"temperature": None, "top_p": None, "do_sample": None}, {}),
        ({"top_k": 0}, {}),
        ({"top_k": -1, "temperature": 0.5}, {"temperature": 0.5}),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.0, "top_p": 0.9}),
        ({"eos_token_id": 2, "transformers_version": "5.0.0", "cache_implementation": "hybrid"}, {}),
    ],
)
def test_fields_are_read_as_they_are_meant(tmp_path: Path, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert defaults(tmp_path, **fields) == expected


@pytest.mark.parametrize("value", ["0.7", True, -1, float("nan"), [0.7], 1e9])
def test_a_value_that_no_request_may_have_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: object
) -> None:
    assert defaults(tmp_path, temperature=value, top_p=0.5) == {"top_p": 0.5}
    assert "generation_config.json is not taken: `temperature` is" in caplog.text


def test_what_is_read_of_a_checkpoint_is_what_is_declared_to_be_its_recommendation() -> None:
    assert {field.key for field in SAMPLING_FIELDS.values() if field.key} | {"do_sample"} == set(TAKEN)


def test_what_would_change_answers_and_is_not_taken_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    defaults(tmp_path, no_repeat_ngram_size=3, num_beams=1, typical_p=1.0, stop_strings=["###"], suppress_tokens=None)
    warned = [record.getMessage() for record in caplog.records]
    assert [message.split("`")[1] for message in warned] == ["no_repeat_ngram_size", "stop_strings"]


@pytest.fixture(scope="module")
def recommending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that recommends the most probable of all tokens, in a way of its own."""
    folder = tmp_path_factory.mktemp("recommending")
    save_tiny("llama", folder)
    save_tiny_tokenizer(folder)
    return write(folder, do_sample=True, temperature=0.6, top_k=1, max_new_tokens=6)


def test_a_call_without_params_takes_them_and_params_are_taken_as_they_are(
    recommending: Path, caplog: pytest.LogCaptureFixture
) -> None:
    llm = LLM(str(recommending), kv_cache_memory="32MiB", max_batch_size=4)
    [said] = [record for record in caplog.records if "generation_config.json" in record.getMessage()]
    assert (said.levelno, "temperature 0.6, top_k 1, max_tokens 6" in said.getMessage()) == (logging.WARNING, True)
    assert llm.default_params == SamplingParams(temperature=0.6, top_k=1, max_tokens=6)
    answers = [tuple(done.token_ids) for done in llm.generate([PROMPT] * 4, use_tqdm=False)]
    greedy = llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=6), use_tqdm=False)
    assert set(answers) == {tuple(greedy[0].token_ids)}
    streamed = [token for output in llm.stream(PROMPT) for token in output.token_ids]
    assert tuple(streamed) == answers[0]
    own = [SamplingParams(max_tokens=6, seed=seed) for seed in range(4)]
    assert len({tuple(done.token_ids) for done in llm.generate([PROMPT] * 4, own, use_tqdm=False)}) > 1
    long = PROMPT * (llm.info.max_seq_len // len(PROMPT)) + [5] * (llm.info.max_seq_len % len(PROMPT) - 2)
    assert llm.generate([long], use_tqdm=False)[0].token_ids, "the recommended length is cut to what the context leaves"


@pytest.mark.covers("configuration/generation-config")
@pytest.mark.parametrize("word", ["none", "vllm"])
def test_a_switch_leaves_them_out(recommending: Path, caplog: pytest.LogCaptureFixture, word: Any) -> None:
    assert sampling_defaults(EngineConfig(generation_config=word), recommending) == SamplingDefaults()
    assert not caplog.records


async def sampled(path: str, body: dict[str, Any], recommended: SamplingDefaults = RECOMMENDED) -> SamplingParams:
    """Return how the engine is asked to sample for a body."""
    engine = FakeEngine(info=msgspec.structs.replace(FAKE_INFO, sampling_defaults=recommended))
    async with client_of(engine) as client:
        reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return engine.requests[-1].params


@pytest.mark.covers("configuration/generation-config")
@pytest.mark.parametrize("path", ROUTES)
async def test_a_request_that_leaves_them_out_takes_them(path: str) -> None:
    for unset in ({}, {"temperature": None, "top_p": None}):
        params = await sampled(path, ROUTES[path] | unset)
        assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.95, 20)
        assert (params.min_p, params.repetition_penalty) == (0.1, 1.05)
        assert params.max_tokens == (99 if path == "/v1/responses" else 4)


@pytest.mark.parametrize("path", ROUTES)
async def test_a_requests_own_values_win_even_where_they_are_the_usual_ones(path: str) -> None:
    params = await sampled(path, ROUTES[path] | {"temperature": 1, "top_p": 1})
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 20)


@pytest.mark.parametrize("path", ROUTES)
async def test_without_recommendations_nothing_changes(path: str) -> None:
    params = await sampled(path, ROUTES[path], SamplingDefaults())
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (1.0, 1.0, None, 1.0)


async def test_they_are_shown_with_the_model_and_in_responses() -> None:
    engine = FakeEngine(info=msgspec.structs.replace(FAKE_INFO, sampling_defaults=SamplingDefaults(temperature=0.6)))
    async with client_of(engine) as client:
        [model] = (await client.get("/v1/models")).json()["data"]
        answer = await client.post("/v1/responses", json={"input": "x"})
    assert (model["sampling_defaults"], answer.json()["temperature"]) == ({"temperature": 0.6}, 0.6)
