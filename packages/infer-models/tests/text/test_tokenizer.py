"""A tokenizer from a checkpoint's folder: what its files say, and what is said when they are damaged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infer_models.errors import CheckpointError
from infer_models.text import Tokenizer, dummy_tokenizer, save_dummy_tokenizer
from infer_proofs.text import byte_fallback, byte_level, save_tokenizer

CHAT = [{"role": "user", "content": "Hi"}]


@pytest.mark.covers("models/tokenizers")
@given(text=st.text().filter(lambda text: "<|" not in text))
def test_decode_undoes_encode_of_all_but_special_tokens(text: str) -> None:
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_spelled_out_in_a_prompt_are_ids() -> None:
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.encode("<|im_start|>")[0] == 1
    assert tokenizer.decode([1]) == ""
    assert tokenizer.decode([1], skip_special_tokens=False) == "<|im_start|>"


def test_tokens_around_every_text_can_be_left_out() -> None:
    tokenizer = Tokenizer(byte_fallback())
    assert tokenizer.encode("the") == [1, *tokenizer.encode("the", add_special_tokens=False)]


def test_a_lone_surrogate_is_encoded_as_a_replacement_character() -> None:
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.decode(tokenizer.encode("a\ud800b\udc00")) == "a\ufffdb\ufffd"
    assert tokenizer.decode(tokenizer.encode("\ufeff\ud83d\ude42")) == "\ufeff🙂"


@pytest.mark.covers("models/tokenizer-files")
def test_the_configuration_names_the_special_tokens(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, config={"bos_token": {"content": "<|bos|>"}, "eos_token": "<|im_end|>", "pad_token": None})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 2)


@pytest.mark.covers("models/tokenizer-files")
def test_a_tokenizer_needs_no_configuration(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.eos_token_id is None
    assert tokenizer.decode(tokenizer.encode("the fox")) == "the fox"


def test_tokens_that_only_the_configuration_knows_are_added(tmp_path: Path) -> None:
    size = byte_level().get_vocab_size()
    listed = {str(size + 1): {"content": "<b>"}, str(size): {"content": "<|a|>", "special": True}}
    save_tokenizer(tmp_path, config={"added_tokens_decoder": listed})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.encode("<|a|><b>") == [size, size + 1]
    assert tokenizer.decode([size, size + 1]) == "<b>"


def test_tokens_named_as_special_by_the_configuration_alone_are_special(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, config={"additional_special_tokens": ["the", "absent"]})
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode("the fox")) == " fox"


def test_truncation_and_padding_left_over_from_training_are_off(tmp_path: Path) -> None:
    raw = byte_level()
    raw.enable_truncation(2)
    raw.enable_padding(length=50)
    raw.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.decode(tokenizer.encode("jumps over the dog"), skip_special_tokens=False) == "jumps over the dog"


@pytest.mark.covers("models/tokenizer-files")
@pytest.mark.parametrize(
    "stored",
    ["direct", [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "direct"}]],
    ids=["text", "several"],
)
def test_the_chat_template_may_be_in_the_configuration(tmp_path: Path, stored: object) -> None:
    save_tokenizer(tmp_path, config={"chat_template": stored})
    assert Tokenizer.from_folder(tmp_path).render_chat(CHAT) == "direct"


@pytest.mark.covers("models/tokenizer-files")
def test_the_chat_template_file_comes_first(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, config={"chat_template": "direct"})
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer.from_folder(tmp_path).render_chat(CHAT) == "file"


@pytest.mark.covers("models/tokenizer-files")
@pytest.mark.parametrize("config", [None, {}, {"chat_template": None}], ids=["no file", "nothing", "null"])
def test_the_chat_template_may_be_the_processors(tmp_path: Path, config: dict[str, object] | None) -> None:
    save_tokenizer(tmp_path, config=config)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert Tokenizer.from_folder(tmp_path).render_chat(CHAT) == "processor"


@pytest.mark.covers("models/tokenizer-files")
def test_other_chat_templates_come_before_the_processors(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, config={"chat_template": "direct"})
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert Tokenizer.from_folder(tmp_path).render_chat(CHAT) == "direct"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer.from_folder(tmp_path).render_chat(CHAT) == "file"


def test_a_processors_file_without_a_chat_template_is_none(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "chat_template.json").write_text("{}")
    assert not Tokenizer.from_folder(tmp_path).has_chat


def test_the_files_of_an_image_processor_change_nothing(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, config={"chat_template": "direct"})
    for name in ("processor_config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text(json.dumps({"image_processor_type": "X", "chat_template": 5}))
    assert Tokenizer.from_folder(tmp_path).render_chat(CHAT) == "direct"


@pytest.mark.parametrize(
    ("name", "text", "cause"),
    [
        ("tokenizer.json", "{", "no tokenizer that `tokenizers` can read"),
        ("tokenizer.json", "{}", "no tokenizer that `tokenizers` can read"),
        ("tokenizer.json", b"\xff\xfe", "cannot be read"),
        ("tokenizer_config.json", "{", "is not JSON"),
        ("tokenizer_config.json", "[]", "holds a list"),
        ("tokenizer_config.json", '{"chat_template": 5}', "`chat_template` is a int"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 1}}', "`added_tokens_decoder` is damaged"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"5": {"content": "z"}}}', "gives 'z' the id 5"),
        ("chat_template.jinja", "\n{% if %}", "broken at line 2"),
        ("chat_template.json", "{", "is not JSON"),
        ("chat_template.json", "[]", "holds a list"),
        ("chat_template.json", '{"chat_template": 5}', "`chat_template` is a int"),
        ("chat_template.json", '{"chat_template": "{% if %}"}', "broken at line 1"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, name: str, text: str | bytes, cause: str) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(CheckpointError, match=cause) as caught:
        Tokenizer.from_folder(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("vocab_size", [100, 300])
def test_a_dummy_tokenizer_has_a_text_for_every_id_of_the_model(vocab_size: int) -> None:
    tokenizer = dummy_tokenizer(vocab_size)
    assert tokenizer.vocab_size == vocab_size
    assert all(tokenizer.token_bytes(token_id) for token_id in range(vocab_size))
    assert vocab_size < 256 or tokenizer.decode([vocab_size - 1]) == f"<{vocab_size - 1}>"


def test_a_saved_dummy_tokenizer_is_the_same(tmp_path: Path) -> None:
    save_dummy_tokenizer(tmp_path, 300)
    saved, made = Tokenizer.from_folder(tmp_path), dummy_tokenizer(300)
    assert [saved.token_bytes(token_id) for token_id in range(300)] == [made.token_bytes(each) for each in range(300)]
    assert saved.encode("any text") == made.encode("any text")


def test_text_needs_no_torch() -> None:
    code = "import infer_models.text, infer_models.hub, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
