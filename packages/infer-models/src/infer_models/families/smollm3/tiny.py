"""Tiny models of SmolLM 3."""

from collections.abc import Mapping
from typing import Any

from infer_models.families.tiny_family import TinyFamily, TinyGguf


def _positions(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention.rope_pattern": [bool(each) for each in config["no_rope_layers"]]}


TINY = {"smollm3": TinyFamily(config="SmolLM3Config", model="SmolLM3ForCausalLM", fields={"no_rope_layers": [1, 0, 1]})}
TINY_GGUF = {"smollm3": TinyGguf(architecture="smollm3", values=_positions, has_interleaved_heads=True)}
