"""OLMo 2 and 3, which have one architecture in GGUF files."""

from types import MappingProxyType

from infer_models.gguf.architecture import Architecture, Fields
from infer_models.gguf.header import GgufHeader
from infer_models.gguf.metadata import Metadata
from infer_models.gguf.own_fields import NORMS_AFTER, SLIDING, WINDOW, layer_types


def _olmo2(metadata: Metadata, header: GgufHeader) -> Fields:
    del header
    window = metadata.optional_count(WINDOW)
    if window is None:
        return {}
    base = metadata.optional_number(".rope.freq_base_swa")
    return {
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": layer_types(metadata, every=4),
        "rope_parameters": None if base is None else {SLIDING: {"rope_theta": base}},
    }


ARCHITECTURES = {"olmo2": Architecture(model_type="olmo2", own_fields=_olmo2, names=MappingProxyType(NORMS_AFTER))}
