"""Vocabularies of GGUF files: ways to split texts, pieces by score, blanks, chats of files without a template."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

import gguf
from infer_models.text import TextTooLongError, Tokenizer
from infer_models.text.files.pre_tokenizers import PRE_TOKENIZATIONS

ANY_TEXT = "It's 1234567 o'clock, WE'LL see:\n\n  中文ABC它 e\u0301 हिन्दी ไทย 한국어ㄱ\uff01 x\t\t\r\n//a  "
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CONTROL = ["<unk>", "<s>", "</s>", "<|end|>"]


def write_pieces(
    path: Path, pieces: Sequence[tuple[str, float]], *, architecture: str = "llama", template: str | None = None
) -> list[str]:
    """Write a file with a SentencePiece vocabulary and nothing else; return its tokens."""
    tokens = [*CONTROL, *BYTES, *(text for text, _ in pieces)]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * (len(tokens) - len(pieces)) + [score for _, score in pieces])
    writer.add_token_types([2, 3, 3, 3, *[6] * 256, *[1] * len(pieces)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return tokens


def letters(text: str) -> list[tuple[str, float]]:
    return [(letter, -100.0 - place) for place, letter in enumerate(text)]


def tokens_of(path: Path, tokens: Sequence[str], text: str) -> list[str]:
    found = Tokenizer.from_folder(path).encode(text, add_special_tokens=False)
    return [tokens[token_id] for token_id in found]


@pytest.mark.parametrize("name", PRE_TOKENIZATIONS)
def test_every_way_to_split_keeps_all_of_a_text(name: str) -> None:
    pieces = PRE_TOKENIZATIONS[name].pre_tokenizer().pre_tokenize_str(ANY_TEXT)
    places = [place for _, place in pieces]
    assert places[0][0] == 0
    assert places[-1][1] == len(ANY_TEXT)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(places))


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("afmoe", "12345 a1234567b", ["12", "345", " a", "1", "234", "567", "b"]),
        ("bailingmoe", "a\n\nb 12", ["a", "\n\n", "b", " ", "1", "2"]),
        ("bloom", "so, yes 12", ["so", ",", " yes", " 12"]),
        ("deepseek-v3", "日本1234 ok?!", ["日本", "123", "4", " ok", "?!"]),
        ("hunyuan-dense", ".txt a", [".txt", " a"]),
        ("glm4", "it's 12345", ["it", "'s", " ", "123", "45"]),
        ("jais-2", "a     b", ["a", "    ", " b"]),
        ("kimi-k2", "中文Abc它DEf's", ["中文", "Abc", "它", "DEf's"]),
        ("laguna", "a\n\n b", ["a", "\n\n", " b"]),
        ("minicpm5", "12345ab", ["123", "45", "ab"]),
        ("seed-coder", "a?\nb", ["a", "?", "\n", "b"]),
        ("spark2_5", "a?\n\nb", ["a", "?", "\n", "\n", "b"]),
        ("superbpe", "a b 12345", ["a b ", "12", "345"]),
        ("tiny_aya", "12345 WeLL's", ["12", "345", " We", "LL's"]),
        ("ufakzeka", "Ali'ye", ["Ali", "'ye"]),
        ("viking", "so, 12", ["so", ",", " ", "1", "2"]),
        ("youtu", "中文한국ABc 12", ["中文", "한국", "ABc", " ", "1", "2"]),
    ],
)
def test_a_way_splits_texts_as_its_models_were_trained(name: str, text: str, pieces: list[str]) -> None:
    found = PRE_TOKENIZATIONS[name].pre_tokenizer().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == pieces


def test_pieces_of_a_higher_score_merge_first_wherever_they_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokens = write_pieces(path, [*letters("▁abc"), ("ab", -2.0), ("bc", -1.0)])
    assert tokens_of(path, tokens, "abc") == ["▁", "a", "bc"]


def test_of_pieces_of_one_score_the_leftmost_merges_first(tmp_path: Path) -> None:
    # ymcui/Chinese-LLaMA-Alpaca#882: all pieces that were appended have the score 0
    path = tmp_path / "model.gguf"
    tokens = write_pieces(path, [*letters("▁abcd"), ("ba", 0.0), ("cb", 0.0), ("dc", 0.0), ("dcba", 0.0)])
    assert tokens_of(path, tokens, "dcba cba") == ["▁", "dcba", "▁", "cb", "a"]
    assert tokens_of(path, tokens, "ad ba é") == ["▁", "a", "d", "▁", "ba", "▁", "<0xC3>", "<0xA9>"]


def test_pieces_of_one_score_are_found_in_chats_and_within_limits(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    template = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    tokens = write_pieces(path, [*letters("▁ab"), ("ab", 0.0), ("ba", 0.0)], template=template)
    tokenizer = Tokenizer.from_folder(path)
    messages = [{"role": "user", "content": "aba"}, {"role": "user", "content": "<s>ba"}]
    found = [tokens[token_id] for token_id in tokenizer.encode_chat(messages)]
    assert found[:4] == ["▁", "ab", "a", "</s>"]
    assert "<s>" not in found
    with pytest.raises(TextTooLongError):
        tokenizer.encode("ab" * 50, max_tokens=20)


def test_runs_of_blanks_become_the_longest_pieces_from_the_left(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    runs = [("▁" * count, -1e9) for count in range(2, 9)]
    tokens = write_pieces(path, [*letters("▁a"), ("▁a", -1.0), *runs])
    assert tokens_of(path, tokens, " " * 19 + "a") == ["▁" * 8, "▁" * 8, "▁" * 3, "▁a"]


def test_a_blank_begins_each_text_between_special_tokens(tmp_path: Path) -> None:
    # lm-sys/FastChat#3006, ggml-org/llama.cpp#7094: so Llama 2, TinyLlama and Vicuna were trained
    path = tmp_path / "model.gguf"
    tokens = write_pieces(path, letters("▁ab"))
    assert tokens_of(path, tokens, " a</s>b") == ["▁", "▁", "a", "</s>", "▁", "b"]


@pytest.mark.parametrize(("architecture", "blanks"), [("phi3", ["▁"]), ("llama", ["▁", "▁", "▁"])])
def test_tokens_of_phi_3_take_the_blanks_after_them(architecture: str, blanks: list[str], tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokens = write_pieces(path, letters("▁ab"), architecture=architecture)
    assert tokens_of(path, tokens, "a<|end|>  b") == ["▁", "a", "<|end|>", *blanks, "b"]
    assert tokens_of(path, tokens, "<s>  b") == ["<s>", "▁", "▁", "▁", "b"]


@pytest.mark.parametrize("pre", ["gemma4", "sarvam-moe"])
def test_pieces_with_merges_are_read_where_a_file_calls_them_byte_level(pre: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    tokens = [*CONTROL, *BYTES, "▁", "a", "b", "▁a", "\n"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3, 3, *[6] * 256, *[1] * 5])
    writer.add_token_merges(["▁ a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert tokens_of(path, tokens, "b a\né") == ["b", "▁a", "\n", "<0xC3>", "<0xA9>"]


def test_a_file_without_a_template_is_asked_in_chatml_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.gguf"
    write_pieces(path, letters("▁ab"))
    prompt = Tokenizer.from_folder(path).render_chat([{"role": "user", "content": "a"}])
    assert prompt == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert "has no chat template: conversations are written as in ChatML" in caplog.text
