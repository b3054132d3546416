"""GGUF files of Gemma 4: the checkpoints that they were made of, their tokenizer, and files that do not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import gguf
from infer_models import CausalLM, CausalView, CheckpointError, load_model
from infer_models.checkpoint import read_checkpoint_config
from infer_models.gguf.end_tokens import end_token_ids
from infer_models.gguf.header import read_header
from infer_models.text import Tokenizer as OwnTokenizer
from infer_models.text.files.gguf_tokenizer import read_gguf_tokenizer
from infer_proofs.models import TINY_FAMILIES, save_tiny
from infer_proofs.models.gguf_files import save_gguf

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "own inputs and shared keys": ("gemma4", {}),
    "keys that are values": (
        "gemma4",
        {
            "num_kv_shared_layers": 0,
            "use_double_wide_mlp": False,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "final_logit_softcapping": 30.0,
        },
    ),
    "experts": ("gemma4_moe", {}),
}
WIDE: dict[str, Any] = {"hidden_size": 256, "head_dim": 64, "global_head_dim": 128, "intermediate_size": 256}
"""Sizes of rows that are whole blocks of every type."""
PLAIN = ("ffn_gate_inp", "inp_gate", "proj")
"""Matrices that converters leave in fp32."""


def mixed(name: str) -> str | None:
    """Return types as common files mix them."""
    within = name.split(".")[-2]
    kinds = {"token_embd": "Q6_K", "per_layer_token_embd": "Q5_1", "attn_v": "Q6_K", "ffn_down": "Q6_K"}
    kinds |= {"ffn_down_exps": "Q8_0", "per_layer_model_proj": "BF16"}
    return None if within in PLAIN else kinds.get(within, "Q4_K")


def save(shape: str, folder: Path, **file: Any) -> Path:
    """Save a tiny checkpoint and the file made of it; return the file."""
    family, fields = SHAPES[shape]
    sizes = {"moe_intermediate_size": 256} if family == "gemma4_moe" else {}
    save_tiny(family, folder, **{**WIDE, **sizes, **fields})
    save_gguf(folder, folder / "model.gguf", **file)
    return folder / "model.gguf"


def loaded(path: Path, **how: Any) -> CausalLM:
    return load_model(path, device=torch.device("cpu"), dtype=torch.float32, **how)


@pytest.mark.covers("gguf/families")
@pytest.mark.parametrize(
    ("kind_of", "dtype"), [(lambda _: None, "float32"), (mixed, "bfloat16")], ids=["plain", "mixed"]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_file_is_the_checkpoint_that_it_was_made_of(
    shape: str, kind_of: Callable[[str], str | None], dtype: str, tmp_path: Path
) -> None:
    path = save(shape, tmp_path, kind_of=kind_of)
    ours, theirs = read_checkpoint_config(path), read_checkpoint_config(tmp_path)
    for field in ours.__slots__:
        if field not in ("dtype", "quantization"):
            assert getattr(ours, field) == getattr(theirs, field), field
    assert ours.dtype == dtype
    found, expected = loaded(path, quantization="none").state_dict(), loaded(tmp_path).state_dict()
    assert found.keys() == expected.keys()
    assert [name for name, numbers in found.items() if not torch.equal(numbers, expected[name])] == []
    twin: Any = getattr(transformers, TINY_FAMILIES[SHAPES[shape][0]].model).from_pretrained(tmp_path)
    ids = torch.arange(40) * 7 % 320
    with torch.inference_mode():
        logits = loaded(path, quantization="none")(ids, torch.arange(40), CausalView())
        torch.testing.assert_close(logits, twin.eval()(ids[None]).logits[0], rtol=0, atol=2e-4)
        as_stored = loaded(path)(ids, torch.arange(40), CausalView())
    if dtype == "bfloat16":  # inputs of quantized products have eight bits
        assert (as_stored - logits).std() < 0.1 * logits.std()


def test_gates_and_ups_apart_are_read_too(tmp_path: Path) -> None:
    path = save("experts", tmp_path)
    expected = loaded(path).state_dict()
    add = gguf.GGUFWriter.add_tensor

    def add_apart(writer: Any, name: str, data: Any, **how: Any) -> None:
        if not name.endswith("ffn_gate_up_exps.weight"):
            return add(writer, name, data, **how)
        for part, half in zip(("gate", "up"), (data[:, :256], data[:, 256:]), strict=True):
            add(writer, name.replace("gate_up", part), half.copy(), **how)
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", add_apart)
        save_gguf(tmp_path, path)
    assert all(torch.equal(numbers, expected[name]) for name, numbers in loaded(path).state_dict().items())


@pytest.mark.parametrize(
    ("shape", "metadata", "message"),
    [
        ("experts", {"attention.sliding_window_pattern": [True, False]}, "an array of 2; it must be 4 values"),
        ("experts", {"attention.head_count_kv": [2, 0, 2, 2]}, "an array of 4; it must be whole numbers above 0"),
        ("experts", {"attention.key_length_swa": None}, "the metadata has no `gemma4.attention.key_length_swa`"),
        ("experts", {"attention.value_length_swa": 32}, "`gemma4.attention.value_length_swa` is 32; it must be"),
        ("experts", {"rope.dimension_count_swa": 32}, "is 32; it must be the size of a sliding layer's heads, 64"),
        ("experts", {"expert_count": 5}, "holds 6 experts, but `gemma4.expert_count` is 5"),
        ("experts", {"attention.shared_kv_layers": 3}, "`num_kv_shared_layers` is 3; it must be so few that"),
        ("own inputs and shared keys", {"feed_forward_length": [256, 256, 512, 256]}, "it or twice it for all others"),
        ("own inputs and shared keys", {"attention.key_length": 64}, "it must be the size of a full layer's heads, 64"),
    ],
)
def test_metadata_that_does_not_fit_is_one_line(
    shape: str, metadata: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError) as caught:
        loaded(save(shape, tmp_path, metadata=metadata | {"attention.value_length": None}))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factors", [[1.0, 2.0, 1e30, 1e30], [1e30] * 4, [1.0, 1e30, 1.0, 1e30], [1.0, 1e30]])
def test_frequencies_that_gemma_4_does_not_have_are_refused(factors: list[float], tmp_path: Path) -> None:
    add = gguf.GGUFWriter.add_tensor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            gguf.GGUFWriter,
            "add_tensor",
            lambda self, name, data, **how: add(
                self, name, torch.tensor(factors * (64 // len(factors))).numpy() if "rope" in name else data, **how
            ),
        )
        path = save("experts", tmp_path)
    with pytest.raises(CheckpointError, match="changes frequencies in another way than Gemma 4"):
        read_checkpoint_config(path)


def published_tokenizer() -> Tokenizer:
    """Return a tokenizer of the parts of Gemma's `tokenizer.json`: pieces that are merged, and bytes for the rest."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))  # noqa: S106 - no secret
    tokenizer.normalizer = normalizers.Replace(" ", "\N{LOWER ONE EIGHTH BLOCK}")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\N{LOWER ONE EIGHTH BLOCK}", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|tool_response>"]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False, max_token_length=12)
    texts = ["the quick brown fox jumps over the lazy dog", "of them, of us; naïve café"]
    tokenizer.train_from_iterator(texts, trainer)
    made = json.loads(tokenizer.to_str())
    vocab: dict[str, int] = made["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n", "\n\n\n", "<table>")])
    return tokenizer


def save_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    made = json.loads(tokenizer.to_str())
    added = {each["content"]: each for each in made["added_tokens"]}
    texts = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    visible = ("<|tool_response>", *(text for text, each in added.items() if not each["special"]))
    kinds = [4 if text in visible else 3 if text in added else 6 if text.startswith("<0x") else 1 for text in texts]
    writer = gguf.GGUFWriter(path, "gemma4")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(texts)
    writer.add_token_scores([-1000.0] * len(texts))
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in made["model"]["merges"]])
    writer.add_bos_token_id(texts.index("<bos>"))
    writer.add_eos_token_id(texts.index("<turn|>"))
    writer.add_unk_token_id(texts.index("<unk>"))
    writer.add_add_space_prefix(False)  # noqa: FBT003 - the package's own signature
    writer.add_tensor("token_embd.weight", torch.zeros(len(texts), 4).numpy())
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


@pytest.mark.covers("gguf/tokenizers")
def test_ids_are_those_of_the_tokenizer_that_the_file_was_made_of(tmp_path: Path) -> None:
    published = published_tokenizer()
    save_tokenizer(tmp_path / "model.gguf", published)
    own = read_gguf_tokenizer(tmp_path / "model.gguf").tokenizer
    bos = published.token_to_id("<bos>")
    texts = ("the lazy fox", "  two spaces ", "naïve 日本 😀", "a\n\n\n\nb\nc", "<table>the</table>")
    for text in (*texts, "<|turn>user\nof", ""):
        ids = own.encode(text).ids
        assert ids == [bos, *published.encode(text).ids], text
        assert own.decode(ids[1:], skip_special_tokens=False) == text


def test_a_file_that_wants_no_beginning_gets_one(tmp_path: Path) -> None:
    # llama.cpp#21500: so said the files of the first days, and answers were bad
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            gguf.GGUFWriter,
            "add_add_space_prefix",
            lambda self, _: self.add_add_bos_token(False),  # noqa: FBT003 - as above
        )
        save_tokenizer(tmp_path / "model.gguf", published_tokenizer())
    own = read_gguf_tokenizer(tmp_path / "model.gguf").tokenizer
    assert own.encode("the fox").ids[0] == own.token_to_id("<bos>")


def test_answers_end_with_a_turn_and_with_a_call(tmp_path: Path) -> None:
    published = published_tokenizer()
    save_tokenizer(tmp_path / "model.gguf", published)
    ends = end_token_ids(read_header(tmp_path / "model.gguf"))
    assert set(ends) == {published.token_to_id("<turn|>"), published.token_to_id("<|tool_response>")}


def test_text_arrives_bit_by_bit(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "model.gguf", published_tokenizer())
    tokenizer = OwnTokenizer.from_folder(tmp_path / "model.gguf")
    assert tokenizer.decode(tokenizer.encode("of them, 日本\n\nof us")) == "of them, 日本\n\nof us"
