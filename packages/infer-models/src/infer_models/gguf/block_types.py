"""The types of tensors in GGUF files: the sizes of their blocks.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md names the types by numbers. A row of a quantized tensor is a
sequence of blocks, and a block of so many numbers has so many bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockType:
    """A type of tensors.

    Attributes:
        name: name of the type, for plain numbers as in safetensors.
        numbers: numbers of a block.
        num_bytes: bytes of a block.
    """

    name: str
    numbers: int
    num_bytes: int


_SIZES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    30: ("BF16", 1, 2),
    39: ("MXFP4", 32, 17),
}
_DEQUANTIZED_SIZES = {
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    29: ("IQ1_M", 256, 56),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    40: ("NVFP4", 64, 36),
}
BLOCK_TYPES: Mapping[int, BlockType] = MappingProxyType(
    {
        number: BlockType(name=name, numbers=numbers, num_bytes=num_bytes)
        for number, (name, numbers, num_bytes) in sorted((_SIZES | _DEQUANTIZED_SIZES).items())
    }
)
"""The types that are read, by their numbers in files."""
QUANTIZED: Mapping[str, BlockType] = MappingProxyType(
    {each.name: each for number, each in BLOCK_TYPES.items() if number in _SIZES and each.numbers > 1}
)
"""Those that are quantized and kept so, by name."""
DEQUANTIZED: Mapping[str, BlockType] = MappingProxyType(
    {each.name: each for number, each in BLOCK_TYPES.items() if number in _DEQUANTIZED_SIZES}
)
"""Those whose numbers are made while they are read, by name."""
OF_LLAMA_CPP = "of gpt-oss llama.cpp's files are read, such as those of ggml-org/gpt-oss-20b-GGUF"
"""What to do about files that Ollama has written of gpt-oss, with types, names and an order of its own."""
OTHER_TYPES: Mapping[int, str] = MappingProxyType(
    {
        4: f"Q4_2, which is MXFP4 in Ollama's own order ({OF_LLAMA_CPP})",
        5: "Q4_3",
        9: "Q8_1",
        15: "Q8_K",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
        41: "Q1_0",
    }
)
"""The names of types that are not read."""
