"""What clients of other servers write for "none", "all" and "nothing", scoring of prompts, and lists of tokens.

From ggml-org/llama.cpp#25538 and sgl-project/sglang#23401 (a null is refused, or ends the server),
sgl-project/sglang#22144 (`stop_token_ids` with a null ends the scheduler), sgl-project/sglang#28858 (`n` of 0 makes an
empty batch) and PrefectHQ/fastmcp#3284 (a null limit is no limit of 0).
"""

import itertools
import json
from typing import Any

import httpx
import pytest

from infer_engine import LLM, EngineConfig, SamplingParams
from infer_engine.assembly.core import load_tokenizer
from infer_engine.protocol import FinishReason, InvalidRequestError, StructuredOutputs
from infer_engine.protocol.sampling import SAMPLING_FIELDS
from infer_server.http.bodies import decode_body
from infer_server.openai.completions.request import CompletionBody, completion_requests

PROMPT = "ROMEO:\n"
BODY = {"prompt": PROMPT, "max_tokens": 12, "seed": 5}


def text(client: httpx.Client, **fields: Any) -> str:
    reply = client.post("/v1/completions", json=BODY | fields)
    assert reply.status_code == 200, reply.text
    found = reply.json()["choices"][0]["text"]
    assert isinstance(found, str)
    return found


def test_none_and_all_in_the_words_of_other_servers(demo: httpx.Client) -> None:
    plain = text(demo)
    neutral: list[dict[str, Any]] = [
        {"top_k": 0},  # huggingface/text-generation-inference#811
        {"top_k": -1},  # vllm-project/vllm#17691
        {"max_tokens": 12.0, "seed": 5.0},
        {"model": ""},
        {"stop": ""},
        {"stop": []},
        {"stop": None},
    ]
    for fields in neutral:
        assert text(demo, **fields) == plain, fields
    assert text(demo, top_p=0, temperature=1.5) == text(demo, temperature=0)
    assert len({text(demo, seed=-1) for _ in range(4)}) > 1  # abetlen/llama-cpp-python#1809
    assert text(demo, seed=-2) == text(demo, seed=-2)


def test_the_least_of_several_limits_counts(demo: httpx.Client) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "ignore_eos": True}
    limits: list[dict[str, Any]] = [
        {"max_tokens": 7, "max_completion_tokens": 5},
        {"max_tokens": 5, "max_completion_tokens": 7},
        {"max_tokens": -1, "n_predict": 5},
        {"n_predict": 5},
    ]
    for path, body in (("completions", {"prompt": "a", "ignore_eos": True}), ("chat/completions", chat)):
        for fields in limits:
            reply = demo.post(f"/v1/{path}", json=body | fields)
            assert reply.json()["usage"]["completion_tokens"] == 5, (path, fields, reply.text)


def test_no_limit_is_what_the_context_leaves() -> None:
    bodies: list[dict[str, Any]] = [{"max_tokens": -1}, {"n_predict": -1}]  # the words of llama.cpp and LM Studio
    for fields in bodies:
        body = decode_body(json.dumps({"prompt": "a"} | fields).encode(), CompletionBody)
        [request] = completion_requests(body, served_model="m")
        assert request.params.max_tokens is None


SCORED = "ROMEO:\nO she doth teach"


@pytest.mark.parametrize("num_top", [0, 1, 5, 10, True])
def test_a_prompt_is_scored_without_a_new_token(demo: httpx.Client, num_top: int) -> None:
    # EleutherAI/lm-evaluation-harness#1411, BerriAI/litellm#699
    body = {"prompt": SCORED, "echo": True, "temperature": 0, "logprobs": num_top}
    one = demo.post("/v1/completions", json=body | {"max_tokens": 1}).json()
    none = demo.post("/v1/completions", json=body | {"max_tokens": 0}).json()
    num_tokens = none["usage"]["prompt_tokens"]
    assert none["usage"] == {"prompt_tokens": num_tokens, "completion_tokens": 0, "total_tokens": num_tokens}
    [choice], found = none["choices"], none["choices"][0]["logprobs"]
    assert (choice["text"], choice["finish_reason"]) == (SCORED, "length")
    assert {len(each) for each in found.values()} == {num_tokens}
    longer = one["choices"][0]["logprobs"]
    assert all(found[name] == longer[name][:num_tokens] for name in found)
    assert (found["token_logprobs"][0], found["top_logprobs"][0], found["text_offset"][0]) == (None, None, 0)
    at = found["text_offset"]
    assert [SCORED[start:end] for start, end in itertools.pairwise([*at, len(SCORED)])] == found["tokens"]


def test_many_prompts_are_scored_at_once_and_as_a_stream(demo: httpx.Client) -> None:
    ids = demo.post("/tokenize", json={"prompt": SCORED}).json()["tokens"]
    body: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 0}
    for prompts in ([SCORED, SCORED[:9]], [ids, ids[:3]]):
        choices = demo.post("/v1/completions", json=body | {"prompt": prompts}).json()["choices"]
        assert [choice["text"] for choice in choices] == [SCORED, choices[1]["text"]]
        assert len(choices[0]["logprobs"]["tokens"]) == len(ids)
    streamed = demo.post("/v1/completions", json=body | {"prompt": SCORED, "stream": True})
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert [event["choices"][0]["text"] for event in events] == [SCORED, ""]
    assert len(events[0]["choices"][0]["logprobs"]["tokens"]) == len(ids)
    assert events[1]["usage"]["completion_tokens"] == 0


def test_nothing_may_be_asked_for_without_an_echo_but_not_in_chats(demo: httpx.Client) -> None:
    [choice] = demo.post("/v1/completions", json={"prompt": "a", "max_tokens": 0}).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    hi = [{"role": "user", "content": "hi"}]
    message = demo.post("/v1/messages", json={"messages": hi, "max_tokens": 0}).json()
    assert (message["content"], message["stop_reason"], message["usage"]["output_tokens"]) == ([], "max_tokens", 0)
    refused = demo.post("/v1/chat/completions", json={"messages": hi, "max_tokens": 0})  # no limit, for some clients
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


def test_2048_prompts_and_128_choices_are_taken(demo: httpx.Client) -> None:
    many = demo.post("/v1/completions", json={"prompt": [[5, 6]] * 2048, "max_tokens": 1})
    assert [choice["index"] for choice in many.json()["choices"]] == list(range(2048))
    choices = demo.post("/v1/completions", json={"prompt": "a", "n": 128, "max_tokens": 1})
    assert len(choices.json()["choices"]) == 128


@pytest.mark.parametrize(
    "fields", [{"temperature": 2.5}, {"temperature": 100}, {"logprobs": False}, {"logprobs": None}, {"top_p": 1e-9}]
)
def test_values_beyond_openais_that_mean_one_thing_are_taken(demo: httpx.Client, fields: dict[str, Any]) -> None:
    reply = demo.post("/v1/completions", json=BODY | fields)
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": -5}, "top_k"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"max_tokens": 5.5}, "max_tokens"),
        ({"n": 129}, "n"),
    ],
)
def test_values_that_mean_nothing_are_refused(demo: httpx.Client, fields: dict[str, Any], name: str) -> None:
    error = demo.post("/v1/completions", json=BODY | fields).json()["error"]
    assert error["param"] == name


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("infer-demo", kv_cache_memory="32MiB", max_batch_size=4)


def generate(llm: LLM, **params: Any) -> Any:
    [done] = llm.generate(PROMPT, SamplingParams(**{"max_tokens": 24, "seed": 3} | params), use_tqdm=False)
    return done


def test_only_allowed_tokens_are_generated_beside_requests_that_allow_all(llm: LLM) -> None:
    alone = generate(llm)
    grammar = SamplingParams(max_tokens=24, seed=3, structured_outputs=StructuredOutputs(regex="[ab]{9}"))
    many = [
        SamplingParams(max_tokens=24, seed=3, allowed_token_ids=(70, 71)),
        SamplingParams(max_tokens=24, seed=3),
        grammar,
    ]
    allowed, free, matched = llm.generate([PROMPT] * 3, many, use_tqdm=False)
    assert set(allowed.token_ids) == {70, 71}
    assert (len(allowed.token_ids), allowed.finish_reason) == (24, FinishReason.LENGTH)
    assert free.token_ids == alone.token_ids
    assert set(matched.text) == {"a", "b"}


def test_bad_words_are_not_generated_and_the_rest_is_as_before(llm: LLM) -> None:
    tokenizer = load_tokenizer(EngineConfig(model="infer-demo"))
    plain = generate(llm, temperature=0)
    numbers = set()
    for word in ["thee", "I", "tell", "bawd", "Nurse"]:
        for written in (word, f" {word}"):
            tokens = tokenizer.encode(written, add_special_tokens=False)
            if has(plain.token_ids, tokens):
                numbers.add(min(len(tokens), 2))
                assert not has(generate(llm, temperature=0, bad_words=[word]).token_ids, tokens)
    assert numbers == {1, 2}, "a word of one token and one of several were there"
    assert generate(llm, temperature=0, bad_words=["zzzzzz", "qqqqq"]).token_ids == plain.token_ids
    assert generate(llm, bad_words=[]).token_ids == generate(llm).token_ids


def has(token_ids: list[int], sequence: list[int]) -> bool:
    return any(token_ids[start : start + len(sequence)] == sequence for start in range(len(token_ids)))


def test_lists_that_leave_nothing_are_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="`bad_words` forbids all of `allowed_token_ids`"):
        generate(llm, allowed_token_ids=[69], bad_words=["e"])


TURNS = [{"role": "user", "content": "ROMEO:"}]
APIS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "ROMEO:", "max_tokens": 2},
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 2},
    "/v1/responses": {"input": "ROMEO:", "max_output_tokens": 2},
}
NAMES = sorted({each for name, field in SAMPLING_FIELDS.items() for each in (name, *field.aliases, *field.elsewhere)})


@pytest.mark.parametrize("api", APIS)
def test_null_is_the_same_as_left_out(demo: httpx.Client, api: str) -> None:
    refused = {}
    for name in NAMES:
        if name not in APIS[api]:
            reply = demo.post(api, json=APIS[api] | {name: None})
            if reply.status_code != 200:
                refused[name] = reply.text
    assert refused == {}


@pytest.mark.parametrize(
    "fields",
    [{"stop_token_ids": [None]}, {"allowed_token_ids": [None]}, {"bad_words": [None]}, {"stop": [None]}, {"n": 0}],
)
@pytest.mark.parametrize("api", ["/v1/completions", "/v1/chat/completions"])
def test_a_null_in_a_list_and_no_choice_are_refused_by_name(
    demo: httpx.Client, api: str, fields: dict[str, Any]
) -> None:
    reply = demo.post(api, json=APIS[api] | fields)
    [name] = fields
    assert (reply.status_code in (400, 422), reply.json()["error"]["param"].split("[")[0]) == (True, name), reply.text
    assert demo.post(api, json=APIS[api]).status_code == 200
