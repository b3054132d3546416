"""In which order prompts take the tokens of a step, and by when each has had all of its own."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_engine.scheduling.prefill_turns import Claim, PrefillTurns


@dataclass
class Prompt:
    """A prompt of a play: what it has left, and what of the line was left when it came."""

    num_tokens: int
    began: int
    ahead: int
    next_block: bytes | None = None


class Play:
    """Steps of `most` tokens for prompts in line; each step takes at most `chunks` of at most `chunk` tokens."""

    def __init__(self, most: int, *, chunk: int = 512, chunks: int = 1000) -> None:
        self.most, self.chunk, self.chunks = most, chunk, chunks
        self.turns = PrefillTurns()
        self.line: list[Prompt] = []
        self.ended: list[tuple[Prompt, int]] = []
        self.num_steps = 0

    def come(self, num_tokens: int, next_block: bytes | None = None) -> Prompt:
        ahead = sum(prompt.num_tokens for prompt in self.line)
        prompt = Prompt(num_tokens, self.num_steps, ahead + num_tokens, next_block)
        self.line.append(prompt)
        return prompt

    def step(self) -> list[int]:
        """Compute a step; return the tokens of each prompt, in order of the line."""
        order = self.turns.order([Claim(0, prompt.num_tokens, prompt.next_block) for prompt in self.line])
        assert sorted(order) == list(range(len(self.line)))
        left, given = self.most, [0] * len(self.line)
        for index in order[: self.chunks]:
            given[index] = min(left, self.chunk, self.line[index].num_tokens)
            left -= given[index]
        self.turns.settle(first=given[0] if given else 0, total=sum(given))
        self.num_steps += 1
        for prompt, count in zip(self.line, given, strict=True):
            prompt.num_tokens -= count
        self.ended += [(prompt, self.num_steps) for prompt in self.line if not prompt.num_tokens]
        self.line = [prompt for prompt in self.line if prompt.num_tokens]
        return given


def test_a_short_prompt_behind_a_long_one_takes_its_tokens_first_and_leaves_it_the_rest() -> None:
    play = Play(48)
    play.come(2000)
    play.come(20)
    assert play.step() == [28, 20]


def test_a_prompt_alone_gets_every_token() -> None:
    play = Play(48)
    play.come(100)
    assert [play.step() for _ in range(3)] == [[48], [48], [4]]


def test_prompts_of_equal_length_go_one_after_another_in_order_of_the_line() -> None:
    play = Play(10)
    for _ in range(3):
        play.come(10)
    assert [play.step() for _ in range(3)] == [[10, 0, 0], [10, 0], [10]]


def test_the_line_has_every_other_step_while_shorter_ones_keep_coming() -> None:
    play = Play(48)
    play.come(960)
    given = []
    for _ in range(4):
        play.come(48)
        given.append(play.step()[0])
    assert given == [0, 48, 0, 48]


def test_the_line_waits_for_no_step_in_which_it_got_half_anyway() -> None:
    play = Play(48)
    play.come(1000)
    for _ in range(10):
        play.come(24)
        assert play.step() == [24, 24]


def test_the_line_never_has_two_steps_in_a_row_however_small_its_chunks() -> None:
    play = Play(48, chunk=16)
    for _ in range(4):
        play.come(500)
    play.step()
    play.come(10)
    assert [play.step()[-1] for _ in range(2)] == [0, 10]


def test_a_better_level_goes_before_a_shorter_prompt() -> None:
    assert PrefillTurns().order([Claim(1, 5), Claim(0, 900), Claim(0, 800)]) == [2, 1, 0]


def test_a_prompt_in_the_midst_of_its_answer_goes_before_the_shortest() -> None:
    assert PrefillTurns().order([Claim(0, 3), Claim(0, 0), Claim(0, 1)]) == [1, 2, 0]


def test_one_prompt_computes_a_block_and_goes_as_early_as_the_shortest_that_needs_it() -> None:
    claims = [Claim(0, 300), Claim(0, 900, b"a"), Claim(0, 500), Claim(0, 40, b"a"), Claim(0, 70, b"a")]
    assert PrefillTurns().order(claims) == [1, 0, 2, 3, 4]


def test_a_step_without_tokens_changes_no_turn() -> None:
    play = Play(48)
    play.come(96)
    play.come(48)
    assert play.step() == [0, 48]
    play.turns.settle(first=0, total=0)
    play.come(48)
    assert play.step() == [48, 0]


PROMPTS = st.lists(st.lists(st.integers(1, 400), max_size=3), min_size=1, max_size=30)


@given(PROMPTS, st.integers(1, 64), st.integers(1, 64), st.integers(1, 4))
def test_a_step_gives_all_its_tokens_or_all_that_its_chunks_may_take(
    arrivals: list[list[int]], most: int, chunk: int, chunks: int
) -> None:
    play = Play(most, chunk=chunk, chunks=chunks)
    for lengths in arrivals:
        for length in lengths:
            play.come(length)
        wanted = [min(chunk, prompt.num_tokens) for prompt in play.line]
        given = play.step()
        assert sum(given) <= most
        assert all(count <= most_of_one for count, most_of_one in zip(given, wanted, strict=True))
        num_chunks = sum(count > 0 for count in given)
        assert sum(given) == most or num_chunks == min(chunks, len(wanted))


def played_out(play: Play, arrivals: list[list[int]]) -> Play:
    """Let prompts of these lengths come, those of a list before each step, and step until all have ended."""
    for lengths in arrivals:
        for length in lengths:
            play.come(length)
        play.step()
    while play.line:
        play.step()
    return play


@pytest.mark.covers("scheduling/prompts-take-turns")
@given(PROMPTS, st.integers(1, 64))
def test_a_prompt_ends_by_twice_the_steps_that_it_takes_in_order_of_the_line(
    arrivals: list[list[int]], most: int
) -> None:
    play = played_out(Play(most), arrivals)
    for prompt, ended in play.ended:
        assert ended - prompt.began <= 2 * -(-prompt.ahead // most) + 2


@given(PROMPTS, st.integers(1, 64), st.integers(1, 3))
def test_a_prompt_ends_by_a_bound_of_its_line_where_chunks_are_few(
    arrivals: list[list[int]], most: int, chunks: int
) -> None:
    play = played_out(Play(most, chunks=chunks), arrivals)
    for index, (prompt, ended) in enumerate(sorted(play.ended, key=lambda each: each[0].began)):
        assert ended - prompt.began <= 2 * (-(-prompt.ahead // most) + index + 1) + 2


@given(st.lists(st.integers(1, 400), max_size=30), st.integers(0, 30), st.integers(1, 100), st.integers(1, 64))
def test_a_prompt_ends_by_twice_the_steps_that_it_and_those_no_longer_than_it_take(
    lengths: list[int], num_steps: int, length: int, spare: int
) -> None:
    play = Play(length + spare)
    for each in lengths:
        play.come(each)
    for _ in range(num_steps):
        play.step()
    last = play.come(length)
    num_tokens = sum(prompt.num_tokens for prompt in play.line if prompt.num_tokens <= length)
    # Each step of the line may leave one prompt of more tokens with no more than `length`, which then goes before.
    for _ in range(2 * -(-num_tokens // spare)):
        play.step()
    assert last.num_tokens == 0
