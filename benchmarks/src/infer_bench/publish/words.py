"""The words about a result: the machine, the commit, when it was measured."""

from typing import Any

from infer_bench.publish.declared import Json
from infer_bench.results import paragraph

BUSY = 0.5
"""The load average from which on a reader must know that other programs ran."""
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_VECTORS = (("avx512_bf16", "AVX512-bf16"), ("avx512f", "AVX512"))


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
    name = facts["cpu"].replace("(R)", "").replace(" Processor", "")
    article = "an" if name[:1] in "AEIOU" else "a"
    parts = [f"{facts['cores']} cores of {article} {name}{cpu_words(facts)}"]
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


def count_words(count: int) -> str:
    """Return a small number as a word."""
    return NUMBERS[count] if count < len(NUMBERS) else f"{count}"
