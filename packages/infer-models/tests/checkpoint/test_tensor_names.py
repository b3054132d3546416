"""Names of tensors as files have them become those that models know."""

import pytest

from infer_models.checkpoint.files.tensor_names import text_names

NAMES = (
    "model.embed_tokens.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.11.mlp.experts.3.down_proj.qweight",
    "model.norm.weight",
    "lm_head.weight",
)


def renamed(name: str, decoder: str, head: str) -> str:
    return head + name if name.startswith("lm_head") else decoder + name.removeprefix("model.")


@pytest.mark.parametrize(
    ("decoder", "head"),
    [
        ("model.", ""),
        ("", ""),
        ("model.model.", "model."),
        ("language_model.model.", "language_model."),
        ("model.language_model.", ""),
        ("model.language_model.model.", "model.language_model."),
        ("base_model.model.model.", "base_model.model."),
        ("module._orig_mod.model.", "module._orig_mod."),
        ("thinker.model.", "thinker."),
    ],
)
@pytest.mark.parametrize("absent", ["nothing", "model.embed_tokens.weight", "lm_head.weight"])
def test_the_prefix_is_that_of_the_embedding_or_the_first_layer(decoder: str, head: str, absent: str) -> None:
    stored = {renamed(name, decoder, head): name for name in NAMES if name != absent}
    assert text_names(stored) == stored


def test_other_models_in_the_file_keep_their_names() -> None:
    others = (
        "vision_tower.encoder.layers.0.self_attn.q_proj.weight",
        "audio_tower.layers.0.self_attn.q_proj.weight",
        "model.mtp.layers.0.embed_tokens.weight",
        "visual.norm.weight",
        "talker.model.embed_tokens.weight",
    )
    names = text_names([*others, "language_model.model.embed_tokens.weight", "language_model.model.norm.weight"])
    assert [names[other] for other in others] == list(others)
    assert names["language_model.model.norm.weight"] == "model.norm.weight"


def test_a_prediction_layer_with_an_embedding_of_its_own_does_not_count() -> None:
    names = ["model.embed_tokens.weight", "model.layers.61.embed_tokens.weight", "model.norm.weight"]
    assert list(text_names(names).values()) == names


def test_where_several_decoders_could_be_meant_names_are_left() -> None:
    names = ["first.embed_tokens.weight", "second.embed_tokens.weight", "first.norm.weight"]
    assert list(text_names(names).values()) == names


def test_names_of_other_families_are_left() -> None:
    names = ["transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"]
    assert list(text_names(names).values()) == names
