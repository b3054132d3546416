"""Speculative decoding over HTTP: predictions by the `openai` client, and every family with drafts and without."""

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from infer_engine import build_engine
from infer_engine.protocol import EngineConfig
from infer_proofs.engine.models import ALL_FAMILIES, save_servable
from infer_proofs.server import metric_samples
from infer_proofs.server.client import client_of

MODEL = "infer-demo"
SCHEMA = {
    "type": "object",
    "properties": {"the_name_of_it": {"enum": ["one", "two"]}, "is_it_so": {"type": "boolean"}},
    "required": ["the_name_of_it", "is_it_so"],
    "additionalProperties": False,
}
BODIES: tuple[dict[str, Any], ...] = (
    {"prompt": "ab ab ab ab ab", "temperature": 0, "logprobs": 2},
    {"prompt": "To be, or not to be", "temperature": 0.8, "seed": 3, "n": 2, "frequency_penalty": 0.5},
    {"prompt": "JSON:", "temperature": 0.7, "seed": 4, "json_schema": {"type": "array", "items": SCHEMA}},
    {"prompt": "ab ab ab", "temperature": 0.1, "seed": 5, "stop": ["a", "e"], "min_tokens": 9, "logit_bias": {"9": 2}},
)


# vllm-project/vllm#40875, #47616 and #42533, over HTTP
@pytest.mark.parametrize(
    "family",
    [each if each in ("llama", "gemma3") else pytest.param(each, marks=pytest.mark.full) for each in ALL_FAMILIES],
)
async def test_replies_of_every_family_are_those_without_drafts(family: str, tmp_path: Path) -> None:
    save_servable(family, tmp_path)
    replies = []
    for speculation in ("none", None):
        config = EngineConfig(model=str(tmp_path), max_seq_len=128, block_size=16, speculative_config=speculation)
        async with build_engine(config) as engine, client_of(engine) as client:
            for body in BODIES * 2:  # the second time earlier answers are found
                reply = await client.post("/v1/completions", json={"max_tokens": 40, "ignore_eos": True, **body})
                assert reply.status_code == 200, reply.text
                replies.append(reply.json())
            counted = metric_samples((await client.get("/metrics")).text)
    without, drafted = replies[: len(replies) // 2], replies[len(replies) // 2 :]
    assert [each["choices"] for each in drafted] == [each["choices"] for each in without]
    assert [each["usage"] for each in drafted] == [each["usage"] for each in without]
    assert sum(value for name, value in counted.items() if "spec_decode_num_accepted_tokens_total" in str(name)) > 40


# Helicone/helicone#5817: accepted tokens are among those of the answer; vllm-project/vllm#50895: in streams too
def test_a_prediction_of_the_answer_is_accepted_and_counted(demo_server: Any) -> None:
    client = openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="none")
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Who goes there?"}],
        "max_tokens": 50,
        "seed": 8,
        "extra_body": {"ignore_eos": True, "cache_salt": "predictions"},
    }
    plain = client.chat.completions.create(**asked)
    text = plain.choices[0].message.content or ""
    parts = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    for number, content in enumerate((text, parts, "Something else that nobody says.")):
        asked["extra_body"] = {"ignore_eos": True, "cache_salt": f"predictions {number}"}
        predicted: Any = {"type": "content", "content": content}
        found = client.chat.completions.create(**asked, prediction=predicted)
        assert found.choices[0].message.content == text
        details = found.usage and found.usage.completion_tokens_details
        accepted = (details and details.accepted_prediction_tokens) or 0
        assert (accepted > 25) is (number < 2)
        assert found.usage
        assert found.usage.completion_tokens == 50 >= accepted
        assert (details is None) or (details.rejected_prediction_tokens or 0) <= 20
        streamed: Any = {"stream": True, "stream_options": {"include_usage": True}}
        chunks = list(client.chat.completions.create(**asked, prediction=predicted, **streamed))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
        assert chunks[-1].usage
        assert (chunks[-1].usage.completion_tokens_details is not None) is (number < 2)


@pytest.mark.parametrize(
    ("prediction", "status"),
    [
        ({"type": "content", "content": None}, 200),
        ({"content": "x"}, 200),
        ({"type": "content", "content": "x " * 9_000}, 200),  # more than any answer has
        ({"type": "content", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, 400),
        ("x", 400),
    ],
)
async def test_odd_predictions_are_taken_or_refused_by_name(prediction: Any, status: int, demo_server: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 3, "prediction": prediction}
    async with httpx.AsyncClient(base_url=demo_server.url, timeout=60) as client:
        reply = await client.post("/v1/chat/completions", content=json.dumps(body))
    assert reply.status_code == status, reply.text
    assert status == 200 or reply.json()["error"]["param"].startswith("prediction")
