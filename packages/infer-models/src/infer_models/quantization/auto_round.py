"""AutoRound: layers as GPTQ or AWQ store them, some of them with bits of their own.

Cheng et al., "Optimize Weight Rounding via Signed Gradient Descent for the Quantization of LLMs", 2023.
"""

from dataclasses import dataclass

from infer_models.config.json_fields import JsonFields
from infer_models.quantization.awq import AwqFormat
from infer_models.quantization.fields import matches, names_in_wrappers
from infer_models.quantization.gptq import GptqFormat, read_gptq_format
from infer_models.stored_format import StoredFormat

_ZEROS_LESS_1 = ("auto_round:auto_gptq", "auto_round:gptq", "auto_gptq", "gptq")
_ZEROS = ("auto_round", "auto_round:gptqmodel")
_AWQ = ("auto_round:auto_awq", "auto_round:awq", "auto_awq", "awq")
_PLAIN_BITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRoundScheme:
    """Implements `QuantizationScheme`.

    Attributes:
        format: format of all quantized layers but those of `own_formats`.
        own_formats: names, or regular expressions, of layers with formats of their own, and these.
        method: see `QuantizationScheme`.
    """

    format: GptqFormat | AwqFormat
    own_formats: tuple[tuple[str, GptqFormat | AwqFormat], ...] = ()
    method: str = "auto-round"

    def format_of(self, name: str) -> StoredFormat:
        """Return how the layer `name` is stored: a name counts before an expression."""
        names = names_in_wrappers(name)
        named = [own for pattern, own in self.own_formats if pattern in names]
        matched = [own for pattern, own in self.own_formats if matches(pattern, name)]
        return [*named, *matched, self.format][0]


def read_auto_round(fields: JsonFields) -> AutoRoundScheme:
    """Read a `quantization_config`.

    Raises:
        CheckpointError: a field has a value that is not supported; the message names it.
    """
    if fields.text("data_type", "int") != "int":
        raise fields.invalid("data_type", "`int`")
    name = "packing_format" if "packing_format" in fields else "backend"
    packing = fields.text(name, _ZEROS_LESS_1[0])
    if packing not in (*_ZEROS_LESS_1, *_ZEROS, *_AWQ):
        raise fields.invalid(name, "`auto_round`, `auto_round:auto_gptq`, `auto_round:auto_awq` or one like them")
    usual = read_gptq_format(fields, zero_offset=1 if packing in _ZEROS_LESS_1 else 0)
    extra = fields.nested("extra_config")
    own = [
        (each, read_gptq_format(extra.nested(each), like=usual))
        for each in extra.names
        if extra.nested(each).count("bits", usual.bits) < _PLAIN_BITS
    ]
    if packing not in _AWQ:
        return AutoRoundScheme(format=usual, own_formats=tuple(own))
    if any(each.bits != 4 for each in (usual, *(own_format for _, own_format in own))):
        raise fields.invalid("bits", f"4 where `{name}` is `{packing}`")
    return AutoRoundScheme(format=_as_awq(usual), own_formats=tuple((each, _as_awq(of)) for each, of in own))


def _as_awq(layer: GptqFormat) -> AwqFormat:
    return AwqFormat(group_size=layer.group_size, has_zeros=not layer.is_symmetric)
