"""Writes the C++ header of what Python declares of encodings: `quantization/encodings.py` as `encodings.h`."""

import runpy
from pathlib import Path
from typing import Any

HEADER = "encodings.h"
ENCODINGS = Path(__file__).resolve().parents[2] / "quantization" / "encodings.py"
"""Declares the encodings; run by itself, as the package around it imports torch."""
DECLARATIONS = (ENCODINGS, Path(__file__))
"""What the header depends on."""


def write_header(folder: Path) -> None:
    """Write the header into `folder`."""
    panels: dict[str, Any] = runpy.run_path(str(ENCODINGS))["panel_kinds"]()
    rows = []
    for name, traits in panels.items():
        panel = traits.panel
        codes = [round(number * traits.times) + panel.zero for number in traits.numbers or ()]
        largest = max(codes) if codes else 2**traits.bits - 1
        fields = (
            *(traits.bits, traits.codes_together, panel.zero, panel.zero - traits.zero + traits.zero_with_minimums),
            *(traits.times, largest, "true" if codes else "false", f"{{{', '.join(map(str, codes))}}}"),
        )
        rows.append(f"    {{{', '.join(map(str, fields))}}},  // {name}")
    numbered = ", ".join(f"{name} = {number}" for number, name in enumerate(panels))
    uses = " ".join(f"USE({name})" for name in panels)
    lines = (
        f"// How panels hold codes. Written from {ENCODINGS.name}: change that.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        f"enum class Encoding : int64_t {{ {numbered} }};",
        "",
        "struct EncodingTraits {",
        "    int64_t bits;",
        "    int32_t codes_together;      // that share bytes",
        "    int32_t zero;                // the byte that stands for 0",
        "    int32_t zero_with_minimums;  // the same of weights with minimums",
        "    int32_t times;               // what numbers are multiplied by, to be whole",
        "    int32_t largest;             // the largest byte",
        "    bool has_numbers;            // whether codes stand for others than themselves",
        "    uint8_t codes[16];           // those, times `times`, plus `zero`",
        "};",
        "",
        "constexpr EncodingTraits ENCODINGS[] = {",
        *rows,
        "};",
        f"#define FOR_ENCODINGS(USE) {uses}",
        "",
    )
    (folder / HEADER).write_text("\n".join(lines), encoding="utf-8")
