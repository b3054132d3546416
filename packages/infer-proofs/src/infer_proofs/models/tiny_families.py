"""`TINY_FAMILIES`: how `transformers` makes a tiny model of each family; `TINY_GGUF`: what GGUF files do to them."""

from collections.abc import Mapping
from types import MappingProxyType

from infer_models.families.tiny_family import TinyFamily, TinyGguf
from infer_models.family_modules import family_modules

_MODULES = tuple(family_modules("tiny"))
TINY_FAMILIES: Mapping[str, TinyFamily] = MappingProxyType(
    {name: tiny for module in _MODULES for name, tiny in module.TINY.items()}
)
"""The tiny models, by `model_type` or, for those in wrappers, by a name of their own."""
TINY_GGUF: Mapping[str, TinyGguf] = MappingProxyType(
    {name: of for module in _MODULES for name, of in getattr(module, "TINY_GGUF", {}).items()}
)
"""The GGUF files that are written, by `model_type`."""
