"""One request's text: the deltas are the decoded text up to the stop string, whatever the tokens and their grouping."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infer_engine.frontend.output_processor import OutputProcessor
from infer_engine.messages import TokenOutput
from infer_engine.protocol import FinishReason, RequestFailure, StepOutput, TokenLogprob
from infer_models.text import IncrementalDetokenizer, StopStringMatcher, Tokenizer
from infer_proofs.engine.cores import FailingTokenizer
from infer_proofs.text import byte_fallback, byte_level

KINDS = {"byte_level": Tokenizer(byte_level()), "byte_fallback": Tokenizer(byte_fallback())}
BYTE_LEVEL = KINDS["byte_level"]
TEXTS = st.lists(
    st.sampled_from(["the ", "fox", "é", "日本", "👩‍👩‍👧", "END", "E", "N", "\n", " ", "x"]), max_size=12
).map("".join)


def request_text(
    tokenizer: Tokenizer = BYTE_LEVEL,
    *,
    prompt: list[int] | None = None,
    stops: tuple[str, ...] = (),
    min_tokens: int = 0,
) -> OutputProcessor:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt or [])
    return OutputProcessor(detokenizer, StopStringMatcher(stops), min_tokens=min_tokens)


def run(
    text: OutputProcessor, steps: list[list[int]], *, reason: FinishReason = FinishReason.LENGTH
) -> list[StepOutput]:
    """Advance by the tokens of each step, the last of which ends the request, until the text ends it."""
    outputs: list[StepOutput] = []
    num_tokens = 0
    for number, token_ids in enumerate(steps, start=1):
        num_tokens += len(token_ids)
        produced = TokenOutput(
            request_id="r",
            token_ids=token_ids,
            logprobs=[TokenLogprob(token_id=i, logprob=-1.0, rank=1, top=[]) for i in token_ids],
            finish_reason=reason if number == len(steps) else None,
            num_prompt_tokens=3,
            num_completion_tokens=num_tokens,
            num_cached_tokens=2,
        )
        outputs.append(text.process(produced))
        if outputs[-1].finished:
            break
    return outputs


def joined(outputs: list[StepOutput]) -> str:
    return "".join(output.text for output in outputs)


def singly(token_ids: list[int]) -> list[list[int]]:
    return [[token_id] for token_id in token_ids]


@pytest.mark.covers("requests/stop", "requests/ends-with-stop-string")
@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@given(
    text=TEXTS,
    stop=st.sampled_from(["END", "NE", "本\U0001f469", "\u200d", " ", "é日"]),
    cut=st.integers(0, 9),
    data=st.data(),
)
def test_the_text_ends_before_the_stop_string_across_any_token_boundary(
    tokenizer: Tokenizer, text: str, stop: str, cut: int, data: st.DataObject
) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    prompt, generated = token_ids[:cut], token_ids[cut:]
    whole = joined(run(request_text(tokenizer, prompt=prompt), [*singly(generated), []]))
    size = data.draw(st.integers(1, 3))
    steps = [generated[i : i + size] for i in range(0, len(generated), size)]
    outputs = run(request_text(tokenizer, prompt=prompt, stops=(stop,)), [*steps, []])
    assert joined(outputs) == whole.split(stop)[0]
    assert outputs[-1].finish_reason is (FinishReason.STOP if stop in whole else FinishReason.LENGTH)


@pytest.mark.covers("requests/min-tokens")
@given(text=TEXTS, min_tokens=st.integers(0, 12))
@settings(max_examples=4 * settings().max_examples)
def test_no_stop_string_ends_within_the_first_min_tokens_tokens(text: str, min_tokens: int) -> None:
    token_ids = BYTE_LEVEL.encode(text)
    outputs = run(request_text(stops=("E", "x"), min_tokens=min_tokens), [*singly(token_ids), []])
    if outputs[-1].finish_reason is FinishReason.STOP:
        assert outputs[-1].num_completion_tokens > min_tokens
        assert text.startswith(joined(outputs))
    else:
        assert joined(outputs) == text


def test_a_stop_string_begun_within_min_tokens_and_ended_after_them_is_never_sent() -> None:
    token_ids = [BYTE_LEVEL.encode(character)[0] for character in "aENDb"]
    outputs = run(request_text(stops=("END",), min_tokens=2), singly(token_ids))
    assert (joined(outputs), outputs[-1].finish_reason) == ("a", FinishReason.STOP)
    assert joined(run(request_text(stops=("END",), min_tokens=4), singly(token_ids))) == "aENDb"


@pytest.mark.covers("requests/stop-string-counts")
def test_tokens_after_the_one_that_completes_a_stop_string_are_dropped_and_not_counted() -> None:
    token_ids = [BYTE_LEVEL.encode(character)[0] for character in "aENDbc"]
    [output] = run(request_text(stops=("END",)), [token_ids, []])
    assert output.token_ids == token_ids[:4]
    assert (output.num_completion_tokens, output.text, output.finish_reason) == (4, "a", FinishReason.STOP)
    assert output.logprobs is not None
    assert [logprob.token_id for logprob in output.logprobs] == token_ids[:4]


@pytest.mark.covers("requests/eos-counts")
def test_the_token_that_ends_a_request_by_its_id_has_no_text() -> None:
    token_ids = BYTE_LEVEL.encode("ab")
    for reason in (FinishReason.EOS, FinishReason.STOP):
        outputs = run(request_text(), singly(token_ids), reason=reason)
        assert (joined(outputs), outputs[-1].finish_reason) == ("a", reason)
        assert outputs[-1].token_ids == token_ids[-1:]


def test_held_back_text_comes_with_the_last_output() -> None:
    outputs = run(request_text(stops=("xyz",)), singly(BYTE_LEVEL.encode("axy")))
    assert [output.text for output in outputs] == ["a", "", "xy"]


def test_a_stop_string_in_text_that_was_held_back_to_the_end_is_found() -> None:
    broken = BYTE_LEVEL.encode("🙂")[:-1]
    outputs = run(request_text(stops=("\ufffd",)), singly([*BYTE_LEVEL.encode("a"), *broken]))
    assert (joined(outputs), outputs[-1].finish_reason) == ("a", FinishReason.STOP)


def test_a_prompt_that_ends_within_a_character_leaves_the_whole_character_to_the_answer() -> None:
    token_ids = BYTE_LEVEL.encode("the 🙂!")
    cut = len(token_ids) - 3
    assert joined(run(request_text(prompt=token_ids[:cut]), singly(token_ids[cut:]))) == "🙂!"


@pytest.mark.covers("requests/step-output-counts")
def test_counts_and_logprobs_are_passed_on() -> None:
    [output] = run(request_text(), singly(BYTE_LEVEL.encode("a")))
    assert (output.num_prompt_tokens, output.num_cached_tokens, output.num_completion_tokens) == (3, 2, 1)
    assert output.logprobs is not None
    assert output.logprobs[0].logprob == -1.0


def test_prompt_logprobs_are_passed_on_whatever_becomes_of_the_text() -> None:
    told = [None, TokenLogprob(token_id=7, logprob=-2.0, rank=3, top=[])]
    produced = TokenOutput(
        request_id="r",
        token_ids=BYTE_LEVEL.encode("x"),
        prompt_logprobs=told,
        num_prompt_tokens=2,
        num_completion_tokens=1,
    )
    assert request_text().process(produced).prompt_logprobs == told
    assert request_text(stops=("x",)).process(produced).prompt_logprobs == told


def test_a_failed_request_is_passed_on_without_text() -> None:
    failure = RequestFailure(message="no", code="not_finite")
    produced = TokenOutput(request_id="r", token_ids=[], error=failure, num_prompt_tokens=3, num_completion_tokens=5)
    output = request_text().process(produced)
    assert (output.finished, output.error, output.finish_reason, output.text) == (True, failure, None, "")
    assert output.num_completion_tokens == 5


def test_text_that_fails_is_an_output_with_an_error_and_none_of_its_tokens(caplog: pytest.LogCaptureFixture) -> None:
    [bad] = BYTE_LEVEL.encode("b")
    text = request_text(FailingTokenizer(byte_level(), token_id=bad))
    first, last = run(text, singly([*BYTE_LEVEL.encode("a"), bad, *BYTE_LEVEL.encode("c")]))
    assert (first.text, first.error) == ("a", None)
    assert last.error is not None
    assert (last.error.code, last.token_ids, last.num_completion_tokens) == ("text_failed", [], 1)
    assert "on purpose" not in last.error.message
    assert "decoding is broken on purpose" in caplog.text
    assert text.flush() == ("", None)


def test_text_cut_short_gives_what_was_held_back() -> None:
    text = request_text(stops=("never",))
    outputs = run(text, [BYTE_LEVEL.encode("a nev"), [], []])
    assert outputs[0].text == "a "
    assert request_text().flush() == ("", None)
