"""The words that tables share: where and when something was measured, and numbers."""

import textwrap
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from infer_bench.publish.declared import Json

WIDTH = 128
BUSY = 0.5
"""The load average from which on a reader must know that other programs ran."""
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def measured_on(name: str, result: Json, *, what: str = "Measured", rounds: int | None = None) -> str:
    """Return a paragraph that ends in a colon: the machine, the commit, and the file `name` of the result.

    Args:
        name: name of the result.
        result: its JSON.
        what: the beginning of the sentence.
        rounds: number of rounds whose median was taken; None where the page says it.
    """
    medians = "" if rounds is None else f", medians of {count_words(rounds)} rounds" if rounds > 1 else ", one round"
    return paragraph(f"{what} on {machine(result)}{medians} ([result](repo:benchmarks/results/{name}.json)):")


def machine(result: Json) -> str:
    """Return the processor, torch and the commit, in words."""
    facts = result["environment"]
    parts = [f"{facts['cores']} cores of {article(facts['cpu'])}{cpu_words(facts)}"]
    parts.append(f"torch {facts['torch'].partition('+')[0]}")
    if facts["torch_threads"] != facts["cores"]:
        parts.append("one thread" if facts["torch_threads"] == 1 else f"{facts['torch_threads']} threads")
    parts.append(f"commit `{facts['commit']}`")
    if "date" in facts:
        parts.append(facts["date"])
    if facts.get("load_average_before", 0.0) >= BUSY:
        parts.append(f"load average {facts['load_average_before']:.1f} before it ran")
    return ", ".join(parts)


def cpu_words(facts: dict[str, Any]) -> str:
    """Return in parentheses the generation and the vector instructions, where a result has them."""
    features = facts.get("cpu_features", [])
    known = [facts["cpu_generation"]] if facts.get("cpu_generation") else []
    if features:
        known.append(next((words for flag, words in _VECTORS if flag in features), "no AVX512"))
        known.append("AMX" if "amx_bf16" in features else "no AMX")
    return f" ({', '.join(known)})" if known else ""


_VECTORS = (("avx512_bf16", "AVX512-bf16"), ("avx512f", "AVX512"))


def article(name: str) -> str:
    """Return a CPU's name after `a` or `an`, its marks left out."""
    plain = name.replace("(R)", "").replace(" Processor", "")
    return f"{'an' if plain[:1] in 'AEIOU' else 'a'} {plain}"


def paragraph(text: str) -> str:
    """Return the text in lines as long as the pages have."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def sections(*parts: str) -> str:
    """Return paragraphs and tables with an empty line between them."""
    return "\n\n".join(parts)


def number(value: float) -> str:
    """Return a number with three digits, or all of those before the point, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def numbers(*names: str) -> dict[str, Callable[[Mapping[str, float]], str]]:
    """Return columns of a table: numbers of a row, each under its own name."""
    return {name: partial(_number_of, name) for name in names}


def _number_of(name: str, row: Mapping[str, float]) -> str:
    return number(row[name])


def spread(values: Iterable[float]) -> str:
    """Return the least and the greatest value in parentheses."""
    found = list(values)
    return f"({number(min(found))} - {number(max(found))})"


def count_words(count: int) -> str:
    """Return a small number as a word."""
    return NUMBERS[count] if count < len(NUMBERS) else f"{count}"
