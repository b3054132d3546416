"""Every field of `generation_config.json` is taken, or said not to be, if `transformers` generates otherwise with it.

Which fields there are, the class of `transformers` says; `drawn_fields.toml` has a value for each.
"""

import json
import logging
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from infer_engine import LLM
from infer_proofs.models import save_tiny, save_tiny_tokenizer

TABLE: Mapping[str, list[Any]] = tomllib.loads(
    Path(__file__).with_name("drawn_fields.toml").read_text(encoding="utf-8")
)["generation"]
IDS = [3 + 37 * i % 300 for i in range(24)]
OF_CALLS = frozenset(
    {"constraints", "watermarking_config", "compile_config", "cache_config", "continuous_batching_config"}
)
"""Fields that are objects of Python."""

EXPLAINED = frozenset({"max_length"})
"""A length of prompt and answer together: each request says its own, and the context is the limit of all."""
USUAL: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}

Figure = Callable[[str, int, Sequence[str]], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    save_tiny("llama", place, eos_token_id=None)
    save_tiny_tokenizer(place)
    return place


def fields_of_class() -> set[str]:
    make: Any = transformers.GenerationConfig
    names = {name for name in vars(make()) if not name.startswith("_")}
    return names - OF_CALLS - {"transformers_version"}


def theirs(folder: Path, fields: Mapping[str, Any]) -> list[int]:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    make: Any = transformers.GenerationConfig
    model.generation_config = make(**fields)
    torch.manual_seed(0)
    found = model.generate(torch.tensor([IDS]), tokenizer=transformers.AutoTokenizer.from_pretrained(folder))
    generated: list[int] = getattr(found, "sequences", found)[0, len(IDS) :].tolist()
    return generated


def ours(folder: Path, fields: Mapping[str, Any]) -> list[int]:
    (folder / "generation_config.json").write_text(json.dumps(dict(fields)))
    llm = LLM(str(folder), dtype="float32", kv_cache_memory="16MiB", max_batch_size=2)
    [done] = llm.generate([IDS], use_tqdm=False)
    return list(done.token_ids)


def filled(value: Any, usual: Sequence[int]) -> Any:
    """Return a value of the table with the tokens for their names."""
    if isinstance(value, list):
        return [filled(each, usual) for each in value]
    return {"first": usual[0], "second": usual[1], "null": None}.get(value, value) if isinstance(value, str) else value


def difference(folder: Path, name: str, fields: Mapping[str, Any], log: pytest.LogCaptureFixture) -> str | None:
    """Return what is wrong with ours of a draw; None: nothing, or `transformers` refuses it."""
    (folder / "generation_config.json").unlink(missing_ok=True)
    try:
        expected = theirs(folder, fields)
    except Exception:  # noqa: BLE001 - whatever it says: there is nothing to compare with
        return None
    log.clear()
    with log.at_level(logging.WARNING):
        found = ours(folder, fields)
    if found == expected or f"`{name}`" in log.text:
        return None
    return f"{name}: {found} where `transformers` has {expected} with {json.dumps(dict(fields))}"


def wrong_ones(folder: Path, names: Sequence[str], log: pytest.LogCaptureFixture) -> tuple[int, list[str]]:
    """Return how many draws there are of the fields `names`, and what is wrong with some of them."""
    usual = theirs(folder, USUAL)
    assert len(set(usual[:2])) == 2
    draws = [
        (name, USUAL | {each: filled(value, usual) for each, value in fields.items()})
        for name in names
        for fields in TABLE[name]
    ]
    found = [difference(folder, name, fields, log) for name, fields in draws if name not in EXPLAINED]
    return len(draws), [each for each in found if each is not None]


def test_every_field_of_generation_is_drawn() -> None:
    assert fields_of_class() <= set(TABLE)


def test_some_fields_of_generation_are_as_in_transformers(
    folder: Path, caplog: pytest.LogCaptureFixture, figure: Figure
) -> None:
    names = ["eos_token_id", "repetition_penalty", "top_k", "no_repeat_ngram_size", "num_beams", "length_penalty"]
    figure("drawn-generation", *wrong_ones(folder, names, caplog))


@pytest.mark.full
def test_each_field_of_generation_is_as_in_transformers(
    folder: Path, caplog: pytest.LogCaptureFixture, figure: Figure
) -> None:
    figure("drawn-generation", *wrong_ones(folder, list(TABLE), caplog))
