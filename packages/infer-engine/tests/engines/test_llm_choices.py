"""The library's answers beyond plain text: several choices, log-probabilities, cached tokens, salts; streams."""

from pathlib import Path

import pytest

from infer_engine import LLM, SamplingParams
from infer_engine.protocol import ContextLengthExceededError, FinishReason, StepOutput
from infer_proofs.models import save_tiny_llama, save_tiny_tokenizer

VOCAB_SIZE = 320
PROMPT = list(range(10, 50))
SAMPLED = SamplingParams(max_tokens=8, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A tiny Llama, whose engine the tests share: none may leave anything behind."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    save_tiny_tokenizer(folder, vocab_size=VOCAB_SIZE)
    return LLM(str(folder), dtype="float32", block_size=4, max_seq_len=128, use_prefix_caching=True)


def params(*, n: int = 1, seed: int | None = 5, max_tokens: int = 8, stop: tuple[str, ...] = ()) -> SamplingParams:
    return SamplingParams(n=n, seed=seed, max_tokens=max_tokens, stop=stop, ignore_eos=True)


def is_idle(llm: LLM) -> bool:
    return llm.stats.num_running == llm.stats.num_waiting == 0 and llm.stats.num_free_blocks == llm.stats.num_blocks


def tokens(outputs: list[StepOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]


@pytest.mark.covers("requests/n")
def test_n_choices_come_one_after_another_each_with_its_index(llm: LLM) -> None:
    completions = llm.generate([PROMPT, [7]], [params(n=3), params()], use_tqdm=False)
    assert [(c.prompt, c.index) for c in completions] == [(PROMPT, 0), (PROMPT, 1), (PROMPT, 2), ([7], 0)]
    assert len({tuple(c.token_ids) for c in completions[:3]}) == 3


def test_choices_are_what_their_seeds_give_alone(llm: LLM) -> None:
    together = llm.generate([PROMPT], params(n=3), use_tqdm=False)
    alone = [llm.generate([PROMPT], params(seed=5 + i), use_tqdm=False)[0] for i in range(3)]
    assert [c.token_ids for c in together] == [c.token_ids for c in alone]


def test_logprobs_are_one_for_each_token_where_asked_for(llm: LLM) -> None:
    asked = SamplingParams(max_tokens=8, seed=5, ignore_eos=True, logprobs=2)
    with_them, without = llm.generate([PROMPT, PROMPT], [asked, SAMPLED], use_tqdm=False)
    assert with_them.logprobs is not None
    assert [logprob.token_id for logprob in with_them.logprobs] == with_them.token_ids == without.token_ids
    assert all(len(logprob.top) == 2 and logprob.logprob <= 0 for logprob in with_them.logprobs)
    assert without.logprobs is None


def test_a_salt_separates_what_is_cached(llm: LLM) -> None:
    first, again, other = [
        llm.generate([PROMPT], params(), cache_salt=salt, use_tqdm=False)[0] for salt in ("mine", "mine", "yours")
    ]
    assert first.token_ids == again.token_ids == other.token_ids
    assert (first.num_cached_tokens, other.num_cached_tokens) == (0, 0)
    assert again.num_cached_tokens >= 36


def test_priorities_are_taken_by_every_policy(llm: LLM) -> None:
    [urgent] = llm.generate([PROMPT], params(), priority=-1, use_tqdm=False)
    assert urgent.token_ids == llm.generate([PROMPT], params(), use_tqdm=False)[0].token_ids


def test_a_stream_gives_what_generate_gives_output_by_output(llm: LLM) -> None:
    [whole] = llm.generate([PROMPT], SAMPLED, use_tqdm=False)
    outputs = list(llm.stream(PROMPT, SAMPLED))
    assert tokens(outputs) == whole.token_ids
    assert "".join(output.text for output in outputs) == whole.text
    assert [output.num_completion_tokens for output in outputs] == list(range(1, 9))
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_a_stream_that_is_closed_early_aborts_its_request(llm: LLM) -> None:
    stream = llm.stream(PROMPT, params(max_tokens=60))
    assert next(stream).num_completion_tokens == 1
    assert llm.stats.num_running == 1
    stream.close()
    assert is_idle(llm)


def test_a_stream_that_is_never_read_holds_nothing(llm: LLM) -> None:
    llm.stream(PROMPT, SAMPLED)
    assert is_idle(llm)


def test_streams_may_be_read_in_turns_and_calls_made_meanwhile(llm: LLM) -> None:
    [expected] = llm.generate([PROMPT], SAMPLED, use_tqdm=False)
    first, second = llm.stream(PROMPT, SAMPLED), llm.stream(PROMPT, SAMPLED)
    outputs = [output for pair in zip(first, second, strict=True) for output in pair]
    assert tokens(outputs[::2]) == tokens(outputs[1::2]) == expected.token_ids
    third = llm.stream(PROMPT, SAMPLED)
    begun = [next(third)]
    assert llm.generate([PROMPT], SAMPLED, use_tqdm=False)[0].token_ids == expected.token_ids
    assert tokens([*begun, *third]) == expected.token_ids


def test_a_streams_request_is_refused_at_once(llm: LLM) -> None:
    with pytest.raises(ContextLengthExceededError):
        llm.stream([1] * 128, SAMPLED)
    with pytest.raises(ValueError, match="`n` is 2; a stream is one answer"):
        llm.stream(PROMPT, params(n=2))


def test_a_stop_string_across_tokens_cuts_a_stream_and_frees_its_memory(llm: LLM) -> None:
    text = "".join(output.text for output in llm.stream(PROMPT, SAMPLED))
    stop = text[2:5]
    outputs = list(llm.stream(PROMPT, params(stop=(stop,))))
    assert "".join(output.text for output in outputs) == text[: text.index(stop)]
    assert outputs[-1].finish_reason is FinishReason.STOP
    assert is_idle(llm)


def test_a_static_engine_gives_the_same_choices(llm: LLM, tmp_path: Path) -> None:
    save_tiny_llama(tmp_path)
    save_tiny_tokenizer(tmp_path, vocab_size=VOCAB_SIZE)
    static = LLM(str(tmp_path), dtype="float32", batching_mode="static", max_seq_len=128, batch_wait_timeout_s=0.01)
    expected = [c.token_ids for c in llm.generate([PROMPT, [7, 8]], params(n=2), use_tqdm=False)]
    assert [c.token_ids for c in static.generate([PROMPT, [7, 8]], params(n=2), use_tqdm=False)] == expected
    assert len(list(static.stream(PROMPT, SAMPLED))) == 8
