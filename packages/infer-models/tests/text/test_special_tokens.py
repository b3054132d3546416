"""Where special tokens are in a text: at each place the longest, however many share a beginning."""

from hypothesis import given
from hypothesis import strategies as st

from infer_models.text.chat.special_tokens import SpecialToken, SpecialTokenScanner
from infer_models.text.slicing import SLICE_LENGTH

LETTERS = st.text("ab|.", min_size=1, max_size=5)


def special_tokens(contents: list[str]) -> list[SpecialToken]:
    return [
        SpecialToken(token_id=i, content=content, strips_left=False, strips_right=False)
        for i, content in enumerate(contents)
    ]


def split(contents: list[str], text: str) -> list[str | int]:
    pieces = SpecialTokenScanner(special_tokens(contents)).split(text)
    return [piece.token_id if isinstance(piece, SpecialToken) else piece for piece in pieces]


def split_by_definition(contents: list[str], text: str) -> list[str | int]:
    pieces: list[str | int] = []
    between = ""
    while text:
        longest = max((content for content in contents if text.startswith(content)), key=len, default="")
        between += "" if longest else text[0]
        text = text[len(longest) or 1 :]
        if between and (longest or not text):
            pieces.append(between)
            between = ""
        if longest:
            pieces.append(contents.index(longest))
    return pieces


@given(contents=st.lists(LETTERS, max_size=12, unique=True), text=st.text("ab|.", max_size=40))
def test_of_special_tokens_that_begin_together_the_longest_counts(contents: list[str], text: str) -> None:
    assert split(contents, text) == split_by_definition(contents, text)


@given(num_before=st.integers(SLICE_LENGTH - 12, SLICE_LENGTH + 1), content=st.sampled_from(["<a>", "<a><b>", "<a><"]))
def test_special_tokens_of_a_long_text_are_found_wherever_they_are(num_before: int, content: str) -> None:
    text = "<" * num_before + content + "<"
    assert split(["<a>", "<a><b>"], text) == around(text)


def around(text: str) -> list[str | int]:
    content = "<a><b>" if "<a><b>" in text else "<a>"
    before, _, after = text.partition(content)
    return [before, ["<a>", "<a><b>"].index(content), after]
