"""`read_quantization`: from `quantization_config` to a scheme."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from infer_models.config.json_fields import JsonFields
from infer_models.config.quantization import QuantizationConfig
from infer_models.quantization.awq import read_awq
from infer_models.quantization.compressed_tensors import read_compressed_tensors
from infer_models.quantization.fp8 import read_fp8
from infer_models.quantization.gptq import read_gptq
from infer_models.quantization.stored_format import QuantizationScheme

_READERS: Mapping[str, Callable[[JsonFields], QuantizationScheme]] = MappingProxyType(
    {"compressed-tensors": read_compressed_tensors, "fp8": read_fp8, "gptq": read_gptq, "awq": read_awq}
)


def read_quantization(config: QuantizationConfig | None) -> QuantizationScheme | None:
    """Return how the layers of a checkpoint are stored; None: plainly, but for experts in MXFP4, which a family reads.

    Raises:
        CheckpointError: a field of `config.json` has a value that is not supported.
    """
    if config is None or config.method == "mxfp4":
        return None
    return _READERS[config.method](config.fields)
