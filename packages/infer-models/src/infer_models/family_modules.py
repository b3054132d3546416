"""Finds the modules of families: each folder of `families/` is a family, whose modules have the same names in all."""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from os.path import commonprefix
from pkgutil import iter_modules
from types import ModuleType

_FAMILIES = "infer_models.families"


@cache
def _folders() -> tuple[str, ...]:
    return tuple(sorted(each.name for each in iter_modules(import_module(_FAMILIES).__path__) if each.ispkg))


def family_modules(name: str, *, like: str = "") -> Iterator[ModuleType]:
    """Yield the modules called `name` of all families that have one; each is imported when it is asked for.

    Args:
        name: `config`, `gguf` or `tiny`.
        like: those of folders whose names begin most like it come first, and so most lookups import one family.
    """
    by_likeness = sorted(_folders(), key=lambda each: -len(commonprefix([each, like])))  # noqa: RUF071 - names, no paths
    for folder in by_likeness:
        if find_spec(f"{_FAMILIES}.{folder}.{name}") is not None:
            yield import_module(f"{_FAMILIES}.{folder}.{name}")
