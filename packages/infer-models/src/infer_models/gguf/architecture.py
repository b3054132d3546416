"""`Architecture`: what a family knows of a `general.architecture` beside its metadata."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from infer_models.family_modules import family_modules
from infer_models.gguf.block_types import OF_LLAMA_CPP
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import ARCHITECTURE, Metadata

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A `general.architecture` that is read.

    Attributes:
        model_type: family of its models.
        own_fields: fields beside the common ones, or in their place.
        norm_epsilon: epsilon of norms where the file has none; None: it must have one.
        has_interleaved_heads: rows of queries and keys are stored in the order of rotated pairs.
        norm_shift: what the file has added to the weights of norms.
        unshifted: names of norms, within a layer, to which nothing was added.
        names: names of tensors that differ from the common ones; see `tensor_names`.
        scaling: fields of the scaling of positions that files leave out.
        has_states: layers may have no heads of keys and values.
        has_query_gates: heads of queries are stored with as many rows of gates.
        layers_differ: heads of keys and values, widths of MLPs and rotations differ by layer; `own_fields` has them.
        rows: gets the name of a tensor within a layer and its number of rows, and returns the models' tensors within a
            layer that are stored in it, where their rows have another order: for each of their rows that of the file.
        column_turns: gets the name of a tensor within a layer and its number of columns, and returns in how many turns
            these are stored, of how many heads in each, of how many columns each; None: they are in the models' order.
    """

    model_type: str
    own_fields: Callable[[Metadata, GgufHeader], Fields] = lambda *_: {}
    norm_epsilon: float | None = None
    has_interleaved_heads: bool = False
    norm_shift: float = 0.0
    unshifted: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    scaling: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    has_states: bool = False
    has_query_gates: bool = False
    layers_differ: bool = False
    rows: Callable[[Metadata, str, int], Mapping[str, Sequence[int]]] = lambda *_: {}
    column_turns: Callable[[Metadata, str, int], tuple[int, int, int] | None] = lambda *_: None


def architecture_of(header: GgufHeader) -> Architecture:
    """Return the architecture of a file: the families' modules `gguf` have them by name, as `ARCHITECTURES`.

    Raises:
        CheckpointError: it is none that is read.
    """
    metadata = Metadata(header)
    if metadata.architecture == "gptoss":
        raise metadata.invalid(ARCHITECTURE, f"another one: Ollama's own files are not read; {OF_LLAMA_CPP}")
    known: dict[str, Architecture] = {}
    for module in family_modules("gguf", like=metadata.architecture):
        known |= module.ARCHITECTURES
        if metadata.architecture in known:
            return known[metadata.architecture]
    raise metadata.invalid(ARCHITECTURE, "one of " + ", ".join(f"`{each}`" for each in sorted(known)))
