"""Quantized checkpoints: the tensors of a weight in files, and their conversion to a `QuantizedWeight`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from infer_models.config.json_fields import JsonFields
from infer_models.config.quantization import QuantizationConfig
from infer_models.quantization.auto_round import read_auto_round
from infer_models.quantization.awq import read_awq
from infer_models.quantization.bitsandbytes import read_bitsandbytes
from infer_models.quantization.compressed_tensors import read_compressed_tensors
from infer_models.quantization.fp8 import read_fp8, read_modelopt
from infer_models.quantization.gguf.block_format import METHOD as GGUF
from infer_models.quantization.gguf.block_format import read_block_scheme
from infer_models.quantization.gptq import read_gptq
from infer_models.stored_format import QuantizationScheme, Storage, StoredFormat, TensorSpec

__all__ = ["GGUF", "MXFP4", "QuantizationScheme", "Storage", "StoredFormat", "TensorSpec", "read_quantization"]

MXFP4 = "mxfp4"
"""The method of experts that a family reads itself."""
_READERS: Mapping[str, Callable[[JsonFields], QuantizationScheme]] = MappingProxyType(
    {
        "compressed-tensors": read_compressed_tensors,
        "fp8": read_fp8,
        "modelopt": read_modelopt,
        "gptq": read_gptq,
        "awq": read_awq,
        "auto-round": read_auto_round,
        "bitsandbytes": read_bitsandbytes,
        GGUF: read_block_scheme,
    }
)


def read_quantization(config: QuantizationConfig | None) -> QuantizationScheme | None:
    """Return how the layers of a checkpoint are stored; None: plainly, but for experts in MXFP4, which a family reads.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names the file and the field.
    """
    if config is None or config.method == MXFP4:
        return None
    if config.method not in _READERS:
        known = ", ".join(f"`{each}`" for each in (*_READERS, MXFP4))
        raise config.fields.invalid("quant_method", f"one of {known}")
    return _READERS[config.method](config.fields)
