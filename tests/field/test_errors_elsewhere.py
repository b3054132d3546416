"""Errors in other processes and copies: workers of pools, Ray and Dask pickle what they raise.

Sources: python/cpython#103061, python/cpython#120810 (a pool that waits for ever), openai/openai-python#2747.
"""

import copy
import importlib
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_DEFINES_ERRORS = re.compile(r"^class \w+Error\(", re.MULTILINE)
_VALUES = {str: "a", int: 7, "int | None": 7, "str | None": "b"}


def error_classes() -> list[type[Exception]]:
    """Return all exceptions that our packages define."""
    found: dict[str, type[Exception]] = {}
    for source in sorted(ROOT.glob("packages/*/src")):
        for file in sorted(source.rglob("*.py")):
            if _DEFINES_ERRORS.search(file.read_text(encoding="utf-8")) and source.parent.name != "infer-ray":
                name = ".".join(file.relative_to(source).with_suffix("").parts)
                for each in vars(importlib.import_module(name)).values():
                    if isinstance(each, type) and issubclass(each, Exception) and each.__module__ == name:
                        found[each.__qualname__] = each
    return list(found.values())


def made(error: type[Exception]) -> Exception:
    """Return an error with a value for each argument of its constructor."""
    if error.__init__ in (Exception.__init__, ValueError.__init__, RuntimeError.__init__):
        return error("a message")
    positional, named = [], {}
    for name, parameter in list(inspect.signature(error).parameters.items()):
        annotation = parameter.annotation
        value: Any = _VALUES.get(annotation, _VALUES.get(str(annotation)))
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = value
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            positional.append(value)
    return error(*positional, **named)


@pytest.mark.parametrize("error", [pytest.param(made(each), id=each.__name__) for each in error_classes()])
def test_an_error_comes_back_whole_from_pickles_and_copies(error: Exception) -> None:
    copies = [copy.copy(error), copy.deepcopy(error)]
    copies += [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]  # noqa: S301 - our own
    for each in copies:
        assert (type(each), str(each), vars(each)) == (type(error), str(error), vars(error))
