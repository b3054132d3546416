"""The one point that checks a request: what it becomes for the core, and which are refused in which words."""

from typing import Any

import pytest
from msgspec import structs

from infer_engine.frontend.input_processor import MAX_PRIORITY, MAX_SALT_CHARACTERS, InputLimits, InputProcessor
from infer_engine.messages import Submit
from infer_engine.protocol import (
    ChatMessage,
    ChatPrompt,
    ChatTemplateUnusableError,
    ContextLengthExceededError,
    EmptyPromptError,
    GenerateRequest,
    InvalidRequestError,
)
from infer_engine.protocol import SamplingParams as Params
from infer_models.text import Tokenizer, dummy_tokenizer
from infer_proofs.engine.cores import FailingTokenizer
from infer_proofs.text import byte_level, chat_tokenizer

VOCAB_SIZE = 300
MAX_SEQ_LEN = 32
TENANTS_AND_SALTS = [(None, None), ("a", None), ("a", "x"), ("b", None), ("b", "x"), (None, "x")]


def input_processor(*, seed: int | None = 0, tokenizer: Tokenizer | None = None) -> InputProcessor:
    limits = InputLimits(vocab_size=VOCAB_SIZE, max_seq_len=MAX_SEQ_LEN)
    return InputProcessor(tokenizer or dummy_tokenizer(VOCAB_SIZE), limits, seed=seed)


def submissions(made_by: InputProcessor, request: GenerateRequest) -> list[Submit]:
    prepared = made_by.process(request, ids=made_by.reserve_ids(request))
    return [sequence.submission for sequence in prepared]


def request(
    prompt: str | list[int] = "ab", *, priority: int = 0, salt: str | None = None, **params: Any
) -> GenerateRequest:
    params = {"max_tokens": 4} | params
    return GenerateRequest(prompt=prompt, params=Params(**params), priority=priority, cache_salt=salt)


def test_a_request_becomes_one_submission_with_everything_that_the_core_needs() -> None:
    asked = request("ab", priority=-3, salt="tenant", seed=7)
    [submit] = submissions(input_processor(), asked)
    assert submit == Submit(
        request_id="r0",
        prompt_token_ids=dummy_tokenizer(VOCAB_SIZE).encode("ab"),
        max_tokens=4,
        seed=7,
        params=asked.params,
        priority=-3,
        cache_salt="tenant",
        sibling_group=None,
    )


@pytest.mark.covers("requests/n")
def test_n_makes_siblings_with_a_seed_each_of_which_the_first_is_that_of_n_1() -> None:
    siblings = submissions(input_processor(), request(n=3, seed=7))
    assert [submit.seed for submit in siblings] == [7, 8, 9]
    assert len({submit.request_id for submit in siblings}) == 3
    assert {submit.sibling_group for submit in siblings} == {"r0"}
    assert submissions(input_processor(), request(n=1, seed=7))[0].seed == 7


def test_sibling_groups_of_two_requests_differ() -> None:
    made_by = input_processor()
    groups = [submissions(made_by, request(n=2))[0].sibling_group for _ in range(2)]
    assert groups[0] != groups[1]


@pytest.mark.covers("configuration/seed")
def test_sequences_without_a_seed_of_their_own_have_different_ones_which_the_base_seed_reproduces() -> None:
    def seeds(base_seed: int) -> list[int]:
        made_by = input_processor(seed=base_seed)
        return [submit.seed for n in (1, 3, 2) for submit in submissions(made_by, request(n=n))]

    assert len(set(seeds(5))) == 6
    assert seeds(5) == seeds(5) != seeds(6)


def test_the_largest_seed_wraps_around_in_64_bits() -> None:
    seeds = [submit.seed for submit in submissions(input_processor(), request(n=2, seed=2**63 - 1))]
    assert seeds == [2**63 - 1, -(2**63)]


@pytest.mark.covers("requests/max-tokens-of-chats")
def test_left_out_max_tokens_are_what_the_context_leaves() -> None:
    [submit] = submissions(input_processor(), request([1] * 10, max_tokens=None, min_tokens=22))
    assert submit.max_tokens == MAX_SEQ_LEN - 10


@pytest.mark.covers("http/one-validation-point")
@pytest.mark.parametrize(
    ("asked", "param", "message"),
    [
        (request([1, VOCAB_SIZE]), "prompt", f"token id {VOCAB_SIZE}, outside the vocabulary of {VOCAB_SIZE}"),
        (request([-1]), "prompt", "token id -1"),
        (request(stop_token_ids=(VOCAB_SIZE,)), "stop_token_ids", f"token id {VOCAB_SIZE}"),
        (request(logit_bias={1: 1.0, VOCAB_SIZE: 1.0}), "logit_bias", f"token id {VOCAB_SIZE}"),
        (request([1] * 30, max_tokens=None, min_tokens=3), "min_tokens", "`min_tokens` is 3 .* generate 2 tokens"),
        (request(priority=MAX_PRIORITY + 1), "priority", f"`priority` is {MAX_PRIORITY + 1}"),
        (request(salt="x" * (MAX_SALT_CHARACTERS + 1)), "cache_salt", "`cache_salt` has 257 characters; at most 256"),
    ],
)
def test_a_value_that_this_engine_cannot_take_is_refused_by_name(
    asked: GenerateRequest, param: str, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message) as refusal:
        submissions(input_processor(), asked)
    assert refusal.value.param == param


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(prompt: str | list[int]) -> None:
    with pytest.raises(EmptyPromptError, match="`prompt` is empty"):
        submissions(input_processor(), request(prompt))


@pytest.mark.covers("requests/too-long-is-refused", "http/one-validation-point")
@pytest.mark.parametrize(("num_tokens", "max_tokens"), [(31, 2), (32, 1), (32, None), (40, None)])
def test_prompt_and_answer_must_fit_the_context(num_tokens: int, max_tokens: int | None) -> None:
    with pytest.raises(ContextLengthExceededError, match="maximum context length is 32 tokens"):
        submissions(input_processor(), request([1] * num_tokens, max_tokens=max_tokens))


@pytest.mark.covers("structured-tools-agents/clipped-tokens")
@pytest.mark.parametrize(("max_tokens", "expected"), [(2, 2), (5, 5), (6, 5), (32000, 5), (None, 5)])
def test_more_tokens_than_the_context_has_room_for_are_clipped_where_the_client_says_so(
    max_tokens: int | None, expected: int
) -> None:
    asked = structs.replace(request([1] * 27, max_tokens=max_tokens), clip_max_tokens=True)
    assert submissions(input_processor(), asked)[0].max_tokens == expected


@pytest.mark.parametrize("num_tokens", [32, 40])
def test_a_prompt_that_fills_the_context_is_refused_though_tokens_are_clipped(num_tokens: int) -> None:
    asked = structs.replace(request([1] * num_tokens, max_tokens=9), clip_max_tokens=True)
    with pytest.raises(ContextLengthExceededError) as refusal:
        submissions(input_processor(), asked)
    assert refusal.value.param == "prompt"


def test_the_longest_prompt_and_the_last_ids_are_taken() -> None:
    last = VOCAB_SIZE - 1
    asked = request([last] * 31, max_tokens=1, stop_token_ids=(last,), logit_bias={last: 1.0}, salt="x" * 256)
    assert submissions(input_processor(), asked)[0].max_tokens == 1


def test_a_prompt_is_tokenized_once_whatever_n() -> None:
    texts: list[str] = []

    class Counting(FailingTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
            texts.append(text)
            return super().encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)

    assert len(submissions(input_processor(tokenizer=Counting(byte_level())), request("ab", n=5))) == 5
    assert texts == ["ab"]


def test_a_tokenizer_that_fails_is_a_refusal_in_our_own_words(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = FailingTokenizer(byte_level(), text="!", token_id=5)
    for prompt in ("a!", [5]):
        with pytest.raises(InvalidRequestError, match=r"^`prompt` cannot be tokenized") as refusal:
            submissions(input_processor(tokenizer=tokenizer), request(prompt))
        assert "on purpose" not in refusal.value.message
    assert "encoding is broken on purpose" in caplog.text


def test_a_panic_of_the_tokenizer_is_a_refusal_too() -> None:
    class Panic(BaseException):
        """Like pyo3's `PanicException`, no `Exception`."""

    class Panicking(FailingTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool = True, max_tokens: int | None = None) -> list[int]:
            raise Panic(text, add_special_tokens, max_tokens)

    with pytest.raises(InvalidRequestError, match="`prompt` cannot be tokenized"):
        submissions(input_processor(tokenizer=Panicking(byte_level())), request("ab"))


def test_a_chat_is_rendered_by_the_template_and_refused_without_one() -> None:
    chat = ChatPrompt(messages=(ChatMessage(role="user", content="hi"),))
    messages = [{"role": "user", "content": "hi"}]
    assert input_processor(tokenizer=chat_tokenizer()).tokenize(chat) == chat_tokenizer().encode_chat(messages)
    with pytest.raises(ChatTemplateUnusableError, match="no chat template") as refusal:
        input_processor().tokenize(chat)
    assert refusal.value.param == "messages"


def test_a_tenants_salt_differs_from_every_other_tenants_and_from_none() -> None:
    params = Params(max_tokens=1)
    asked = [GenerateRequest(prompt="ab", params=params, tenant=t, cache_salt=s) for t, s in TENANTS_AND_SALTS]
    salts = [submission.cache_salt for each in asked for submission in submissions(input_processor(), each)]
    assert len(set(salts)) == len(TENANTS_AND_SALTS)
    assert submissions(input_processor(), asked[1])[0].cache_salt == salts[1]
