"""Quantized checkpoints: which tensors a weight consists of in files, and how they become a `QuantizedWeight`."""

from infer_models.quantization.scheme import read_quantization
from infer_models.quantization.storage import Storage
from infer_models.quantization.stored_format import QuantizationScheme, StoredFormat, TensorSpec

__all__ = ["QuantizationScheme", "Storage", "StoredFormat", "TensorSpec", "read_quantization"]
