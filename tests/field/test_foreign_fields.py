"""Fields that clients of other servers send: taken where they change nothing, else refused by name with a way out."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from infer_engine.protocol import ChatPrompt
from infer_proofs.server import FakeEngine
from infer_server.api.foreign_fields import ForeignFields
from infer_server.app import create_app
from infer_server.openapi import other_names
from infer_server.settings import ServerSettings

HI = [{"role": "user", "content": "x"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": HI},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": HI, "max_tokens": 5},
}
OPENAI = ["/v1/completions", "/v1/chat/completions"]

# By client: what it sends though nobody asked it to.
PAYLOADS: dict[str, dict[str, Any]] = {
    "vllm": {  # vllm-project/vllm#3773, QwenLM/Qwen3#46
        "best_of": 1,
        "use_beam_search": False,
        "length_penalty": 1.0,
        "early_stopping": False,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
        "truncate_prompt_tokens": None,
        "detokenize": True,
        "bad_words": [],
        "allowed_token_ids": None,
        "prompt_logprobs": None,
        "return_tokens_as_token_ids": False,
        "kv_transfer_params": None,
        "vllm_xargs": {},
        "mm_processor_kwargs": None,
        "logits_processors": [],
        "request_id": "mine",
        "guided_decoding_backend": "xgrammar",
        "include_reasoning": True,
    },
    "sglang": {  # sgl-project/sglang
        "regex": None,
        "ebnf": None,
        "lora_path": None,
        "no_stop_trim": False,
        "separate_reasoning": True,
        "stream_reasoning": True,
        "return_hidden_states": False,
        "session_params": None,
        "custom_logit_processor": None,
        "rid": "mine",
    },
    "llama.cpp": {  # what its web interface sends with each message
        "samplers": "edkypmxt",
        "dynatemp_range": 0,
        "dynatemp_exponent": 1,
        "typ_p": 1,
        "typical_p": 1.0,
        "tfs_z": 1,
        "xtc_probability": 0,
        "xtc_threshold": 0.1,
        "repeat_last_n": 64,
        "repeat_penalty": 1,
        "dry_multiplier": 0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": -1,
        "mirostat": 0,
        "cache_prompt": True,
        "id_slot": -1,
        "n_keep": 0,
        "n_probs": 0,
        "n_predict": -1,
        "timings_per_token": True,
        "reasoning_format": "auto",
        "speculative.n_max": 16,
    },
    "text-generation-webui": {  # oobabooga/textgen#5954
        "use_samplers": ...,
        "dynamic_temperature": False,
        "dynatemp_low": 1,
        "dynatemp_high": 1,
        "smoothing_factor": 0,
        "smoothing_curve": 1,
        "repetition_penalty_range": 1024,
        "tfs": 1,
        "top_a": 0,
        "epsilon_cutoff": 0,
        "eta_cutoff": 0,
        "guidance_scale": 1,
        "negative_prompt": "",
        "penalty_alpha": 0,
        "mirostat_mode": 0,
        "mirostat_tau": 5,
        "mirostat_eta": 0.1,
        "temperature_last": False,
        "do_sample": True,
        "seed": -1,
        "top_k": 0,
        "encoder_repetition_penalty": 1,
        "no_repeat_ngram_size": 0,
        "truncation_length": 0,
        "max_tokens_second": 0,
        "prompt_lookup_num_tokens": 0,
        "custom_token_bans": "",
        "ban_eos_token": False,
        "add_bos_token": True,
        "grammar_string": "",
    },
    "tgi": {"watermark": False, "details": False, "adapter_id": None, "return_full_text": False, "truncate": None},
    "ollama": {"keep_alive": "5m", "options": {}, "format": "", "raw": False},
    "gateways": {
        "provider": {"order": ["a"]},
        "models": ["a", "b"],
        "transforms": [],
        "usage": {"include": True},
        "metadata": {"trace": {"deep": 1}},
        "user": 7,
        "extra_body": {},
        "drop_params": True,
        "timeout": 600,
        "service_tier": "flex",
        "safety_identifier": "me",
        "prompt_cache_key": "key",
        "prompt_cache_retention": "24h",
        "prediction": {"type": "content", "content": "x"},
        "litellm_metadata": {"a": 1},
        "headers": {},
        "tags": ["a"],
        "cache_control": {"type": "ephemeral"},
    },
    "providers": {  # mistralai/client-python, decolua/9router#3492, vellum-ai/vellum-assistant#34556
        "safe_prompt": False,
        "prompt_mode": "reasoning",
        "reasoning_split": True,
        "enable_search": False,
        "vl_high_resolution_images": True,
        "verbosity": "low",
        "web_search_options": {},
        "reasoning_format": "parsed",
        "tool_stream": True,
    },
    "chat programs": {  # anomalyco/opencode#43089, Copilot
        "promptCacheKey": "abc",
        "textVerbosity": "low",
        "chat_id": "abc",
        "thread_id": "abc",
        "response_language": "en",
        "snippy": {"enabled": False},
        "intent": False,
    },
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(engine, settings=ServerSettings())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as client:  # type: ignore[arg-type]  # litestar's own ASGI types
        yield client


@pytest.mark.parametrize("sender", PAYLOADS)
async def test_what_a_client_sends_at_its_neutral_values_changes_nothing(
    client: httpx.AsyncClient, engine: FakeEngine, sender: str
) -> None:
    fields = {name: value for name, value in PAYLOADS[sender].items() if value is not ...}
    for path in OPENAI:
        for body in (BODIES[path], BODIES[path] | fields):
            reply = await client.post(path, json=body)
            assert reply.status_code == 200, reply.text
        plain, foreign = engine.requests[-2:]
        assert foreign.params.top_k == plain.params.top_k is None
        assert foreign.params.seed == plain.params.seed is None
        limits = {"max_tokens"} if "n_predict" in fields else set()
        same = [name for name in msgspec.structs.asdict(plain.params) if name not in limits]
        assert [getattr(foreign.params, name) for name in same] == [getattr(plain.params, name) for name in same]


@pytest.mark.parametrize("path", BODIES)
async def test_every_row_of_the_table_is_taken_as_null_and_at_its_neutral_values(
    client: httpx.AsyncClient, path: str
) -> None:
    properties = await properties_of(client, path)
    others = other_names(ForeignFields)
    foreign = [field.encode_name for field in msgspec.structs.fields(ForeignFields) if field.name not in others]
    assert len(foreign) > 150
    neutral = {
        name: [*properties[name].get("enum", ["anything"])] for name in foreign if "type" not in properties[name]
    }
    assert len(neutral) > 140
    most = max(map(len, neutral.values()))
    for number in range(most):
        fields = {name: values[number] for name, values in neutral.items() if number < len(values)}
        fields = {name: value for name, value in fields.items() if not _has_a_shape(properties[name])}
        for window in ("repeat_last_n", "penalty_last_n", "repetition_penalty_range", "rep_pen_range"):
            fields[window] = 64
        reply = await client.post(path, json=BODIES[path] | fields)
        assert reply.status_code == 200, reply.text


def _has_a_shape(schema: dict[str, Any]) -> bool:
    return "$ref" in schema or "anyOf" in schema


async def properties_of(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    document = (await client.get("/schema/openapi.json")).json()
    found = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert isinstance(found, dict)
    return found


OTHERS: list[tuple[str, Any, str]] = [
    ("use_beam_search", True, "false"),
    ("mirostat", 2, "0"),
    ("typical_p", 0.9, "1"),
    ("dry_multiplier", 0.8, "0"),
    ("repeat_penalty", 1.1, "`repetition_penalty`"),
    ("safe_prompt", True, "false"),
    ("enable_search", True, "false"),
    ("truncate_prompt_tokens", 5, "null"),
    ("samplers", ["temperature", "top_k"], "null"),
    ("options", {"num_ctx": 5}, "its fields beside the others"),
    ("reasoning_split", False, "true"),
    ("modalities", ["text", "audio"], '["text"]'),
]


@pytest.mark.parametrize(("name", "value", "send"), OTHERS)
async def test_what_would_change_an_answer_is_refused_by_name_with_what_to_send(
    client: httpx.AsyncClient, name: str, value: object, send: str
) -> None:
    for path, body in BODIES.items():
        reply = await client.post(path, json=body | {name: value})
        error = reply.json()["error"]
        assert reply.status_code == (422 if path == "/v1/completions" else 400), (path, reply.text)
        assert f"`{name}` is " in error["message"]
        assert f"send {send}" in error["message"]


async def test_a_window_of_penalties_matters_only_beside_a_penalty(client: httpx.AsyncClient) -> None:
    body = BODIES["/v1/chat/completions"] | {"repeat_last_n": 64}
    for more, status in (({}, 200), ({"presence_penalty": 0}, 200), ({"presence_penalty": 1}, 400)):
        assert (await client.post("/v1/chat/completions", json=body | more)).status_code == status
    all_tokens = body | {"repeat_last_n": -1, "presence_penalty": 1}
    assert (await client.post("/v1/chat/completions", json=all_tokens)).status_code == 200


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_token", "max_tokens"), ("tempature", "temperature"), ("stop_words", None), ("completely_unknown", None)],
)
async def test_an_unknown_field_is_refused_with_the_one_that_is_meant(
    client: httpx.AsyncClient, name: str, meant: str | None
) -> None:
    for path in OPENAI:
        reply = await client.post(path, json=BODIES[path] | {name: 1})
        assert reply.json()["error"]["param"] == name
        assert (f"Did you mean `{meant}`?" in reply.text) == (meant is not None)
    for path in BODIES.keys() - set(OPENAI):  # their clients send new fields before servers know them
        assert (await client.post(path, json=BODIES[path] | {name: 1})).status_code == 200


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, {"enable_thinking": True}),
        ({"reasoning": {"effort": "low"}}, {"enable_thinking": True, "reasoning_effort": "low"}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ],
)
async def test_thinking_is_switched_in_the_words_of_other_apis(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], variables: dict[str, Any]
) -> None:
    reply = await client.post("/v1/chat/completions", json={"messages": HI} | fields)
    assert reply.status_code == 200, reply.text
    prompt = engine.requests[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.template_kwargs == variables


async def test_fields_that_are_done_reach_the_engine(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields = {
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "bad_words": ["a"],
        "allowed_token_ids": [1, 2],
    }
    for path in OPENAI:
        assert (await client.post(path, json=BODIES[path] | fields)).status_code == 200
        params = engine.requests[-1].params
        assert (params.include_stop_str_in_output, params.skip_special_tokens) == (True, False)
        assert (params.bad_words, params.allowed_token_ids) == (("a",), (1, 2))
    await client.post("/v1/completions", json={"prompt": "x", "add_special_tokens": False})
    assert not engine.requests[-1].add_special_tokens


@pytest.mark.parametrize("path", OPENAI)
async def test_continuous_usage_is_in_every_chunk(client: httpx.AsyncClient, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = await client.post(path, json=BODIES[path] | {"stream": True, "stream_options": options})
    chunks = [msgspec.json.decode(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert set(counts) >= {1, 2, 3}
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {1}


@pytest.mark.parametrize("path", OPENAI)
async def test_stream_options_without_a_stream_are_passed_over(client: httpx.AsyncClient, path: str) -> None:
    body = BODIES[path] | {"stream": False, "stream_options": {"include_usage": True}}
    assert (await client.post(path, json=body)).json()["usage"]["completion_tokens"] == 3
