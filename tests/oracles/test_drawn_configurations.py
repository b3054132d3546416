"""Configurations drawn field by field compute what `transformers` computes, or are refused by the name of the field.

Which fields there are, `transformers` says: those of its classes, and the further names that its models ask for.
`drawn_fields.toml` has values for all of them.
"""

import dataclasses
import inspect
import json
import random
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import masking_utils, modeling_rope_utils

from infer_models import CausalView, CheckpointError, ModelConfig, load_model
from infer_models.families.tiny_family import SHAPE, TinyFamily
from infer_proofs.models import TINY_FAMILIES, save_tiny_twin

TABLES = tomllib.loads(Path(__file__).with_name("drawn_fields.toml").read_text(encoding="utf-8"))
IDS = torch.randint(3, 300, (96,), generator=torch.Generator().manual_seed(1))
CPU = torch.device("cpu")
FAMILIES = {name: tiny for name, tiny in TINY_FAMILIES.items() if tiny.wrapper is None}
_OF_PHI3 = {**FAMILIES["phi3"].fields, "original_max_position_embeddings": 32}  # without it `transformers` guesses
FAMILIES["phi3"] = dataclasses.replace(FAMILIES["phi3"], fields=_OF_PHI3)
ASKED = re.compile(
    r"\bconfig\.([a-z]\w+)\b(?!\()|getattr\((?:self\.)?(?:effective_)?config, \"(\w+)\""
    r"|kwargs\.(?:pop|get)\(\s*\"(\w+)\""
)
"""How `transformers` asks for a field that its class may not have."""
OF_OTHER_PARTS = frozenset(TABLES["of_other_parts"])
EXPLAINED = frozenset((each["family"], each["field"]) for each in TABLES["reasons"])

Figure = Callable[[str, int, Sequence[str]], None]
Draw = tuple[str, Mapping[str, Any]]
"""A family, and the fields that are drawn."""


def class_fields(tiny: TinyFamily) -> list[str]:
    return [each.name for each in dataclasses.fields(getattr(transformers, tiny.config))]


@cache
def names_of(family: str) -> frozenset[str]:
    """Return the names of the fields that `transformers` knows of a family's text models."""
    tiny = FAMILIES[family]
    modules = [sys.modules[getattr(transformers, name).__module__] for name in (tiny.config, tiny.model)]
    sources = [inspect.getsource(module) for module in (masking_utils, modeling_rope_utils, *modules)]
    asked = {name for source in sources for found in ASKED.findall(source) for name in found if name}
    return frozenset(class_fields(tiny)) | asked - OF_OTHER_PARTS


def known_names() -> frozenset[str]:
    return frozenset().union(*map(names_of, FAMILIES))


def values(family: str, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield what is drawn for a field: it alone, or with others that must go with it."""
    own = TABLES["families"].get(family, {})
    for value in own.get(name, TABLES["values"][name]):
        fields = value if isinstance(value, dict) else {name: value}
        yield {each: None if of == "null" else of for each, of in fields.items()}


def single_draws() -> list[Draw]:
    """Return each known field at each of its values in each family, also in those whose class does not have it."""
    names = sorted(known_names())
    return [(family, fields) for family in FAMILIES for name in names for fields in values(family, name)]


def several_draws(count: int) -> list[Draw]:
    """Return draws of two to five fields of a family's own class."""
    chance = random.Random(0)  # noqa: S311 - draws of tests
    draws: list[Draw] = []
    for index in range(count):
        family = list(FAMILIES)[index % len(FAMILIES)]
        names = chance.sample(class_fields(FAMILIES[family]), chance.randint(2, 5))
        fields: dict[str, Any] = {}
        for name in names:
            fields |= chance.choice(list(values(family, name)))
        draws.append((family, fields))
    return draws


def as_drawn(family: str, fields: Mapping[str, Any], folder: Path) -> None:
    """Write `config.json` with the fields as they were drawn, where `transformers` would complete and rename them."""
    path = folder / "config.json"
    saved = json.loads(path.read_text())
    kept = {name: saved[name] for name in ("model_type", "architectures")}
    path.write_text(json.dumps(kept | SHAPE | FAMILIES[family].fields | dict(fields)))


def read(family: str, fields: Mapping[str, Any]) -> ModelConfig | str:
    """Return the configuration that we read of a file with `fields`, or the words with which it is refused."""
    with tempfile.TemporaryDirectory() as place:
        model_type = getattr(transformers, FAMILIES[family].config).model_type
        drawn = SHAPE | FAMILIES[family].fields | dict(fields) | {"model_type": model_type}
        (Path(place) / "config.json").write_text(json.dumps(drawn))
        try:
            return ModelConfig.from_folder(Path(place))
        except CheckpointError as error:
            return str(error).replace(place, "")


@torch.no_grad()
def difference(draw: Draw, *, is_raw: bool) -> str | None:
    """Return what is wrong with ours of a draw; None: nothing, or `transformers` makes no model of it."""
    family, fields = draw
    if family == "mistral" and "layer_types" in fields:
        family = "ministral"  # whose class `AutoConfig` takes for such a file
    if not names_of(family) & fields.keys() and read(family, fields) == read(family, {}):
        return None  # which nothing of either reads
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        try:
            twin = save_tiny_twin(
                FAMILIES[family], folder, **{name: fields[name] for name in fields if name != "dtype"}
            )
            twin.config.return_dict = True  # as its own parts need it
            expected = twin(IDS[None])[0][0]
        except Exception:  # noqa: BLE001 - whatever it says: there is nothing to compare with
            return None
        if is_raw:
            as_drawn(family, fields, folder)
        try:
            model = load_model(folder, device=CPU, dtype=torch.float32)
            ids = IDS[: model.config.max_position_embeddings]
            ours = model(ids, model.first_position(len(ids)) + torch.arange(len(ids)), CausalView())
            expected = expected if len(ids) == len(IDS) else twin(ids[None])[0][0]
        except CheckpointError as error:
            named = re.findall(r"`[\w.]*?(\w+)`", str(error))
            return None if set(named) & set(fields) else f"refused without its name: {error}".replace(place, "")
        except Exception as error:  # noqa: BLE001 - a crash is what is looked for
            return f"{type(error).__name__}: {error}"
    most = float((ours - expected).abs().max() / expected.abs().max())
    return None if most <= 1e-4 else f"logits differ by {most:.1e} of the largest"


def wrong_ones(draws: Sequence[Draw]) -> list[str]:
    wrong = []
    for index, draw in enumerate(draws):
        family, fields = draw
        if EXPLAINED & {(family, name) for name in fields}:
            continue
        found = difference(draw, is_raw=index % 2 == 1)
        if found is not None:
            wrong.append(f"{family} {'as drawn ' if index % 2 else ''}{json.dumps(fields)}: {found}")
    return wrong


def test_every_field_that_transformers_knows_is_drawn() -> None:
    assert known_names() <= set(TABLES["values"])


def test_drawn_configurations_compute_what_transformers_computes(figure: Figure) -> None:
    draws = several_draws(40)
    figure("drawn-configurations", len(draws), wrong_ones(draws))


@pytest.mark.full
def test_each_field_of_a_configuration_is_as_in_transformers(figure: Figure) -> None:
    draws = [*single_draws(), *several_draws(400)]
    figure("drawn-configurations", len(draws), wrong_ones(draws))


@pytest.mark.full
@pytest.mark.parametrize("reason", TABLES["reasons"], ids=lambda reason: f"{reason['family']}-{reason['field']}")
def test_what_differs_for_a_reason_still_differs(reason: Mapping[str, str]) -> None:
    draws = [(reason["family"], fields) for fields in values(reason["family"], reason["field"])]
    assert any(difference(draw, is_raw=True) for draw in draws)
