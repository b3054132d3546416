"""The arguments of C++ kernels are packed as their structs are declared."""

import re
from collections.abc import Iterator
from pathlib import Path
from struct import unpack

import pytest
import torch

import infer_kernels
from infer_kernels.cpu import arguments
from infer_kernels.cpu.arguments import Arguments
from infer_kernels.cpu.compilation import SOURCE_FOLDER

PACKAGE = Path(infer_kernels.__file__).parent
STRUCTS = {
    name for path in PACKAGE.rglob("*.py") for name in re.findall(r' = Arguments\("(\w+)"\)', path.read_text("utf-8"))
}
DECLARATION = """
enum class Kind : int64_t { ONE, TWO };

struct Lent {
    float* memory;  // what is lent
    int64_t size;
};

template <class T>
struct Call {
    Rows rows;
    T* out;  // [rows, heads, width]
    int64_t out_stride;
    int64_t out_stride_head;
    OrNull<const T> bias;
    int64_t bias_row_bytes;
    const void* ids;
    int64_t ids_bytes;
    Lent lent;
    Kind kind;
    double scale;

    int64_t first() const { return 0; }
};
"""


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of sources with `DECLARATION`."""
    source = tmp_path / "call.h"
    source.write_text(DECLARATION, "utf-8")
    monkeypatch.setattr(arguments, "SOURCE_FOLDER", tmp_path)
    arguments.declarations.cache_clear()
    yield source
    arguments.declarations.cache_clear()


class Lent:
    memory = torch.zeros(4)
    size = 4


OUT, BIAS, IDS = torch.zeros(2, 3, 8), torch.zeros(3, 5, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.int32)
FIELDS = {"out": OUT, "bias": BIAS, "ids": IDS, "lent": Lent, "kind": 1, "scale": 0.5}


@pytest.mark.usefixtures("declared")
def test_a_tensor_gives_its_address_strides_and_bytes() -> None:
    words = unpack("PqqPqPqPqqd", Arguments("Call").pack(**FIELDS))
    out, bias, ids, lent = (tensor.data_ptr() for tensor in (OUT, BIAS, IDS, Lent.memory))
    assert words == (out, 24, 8, bias, 10, ids, 4, lent, 4, 1, 0.5)


def test_another_order_in_the_declaration_is_another_order_of_words(declared: Path) -> None:
    moved = DECLARATION.replace("    double scale;\n", "").replace("    T* out;", "    double scale;\n    T* out;")
    declared.write_text(moved, "utf-8")
    words = unpack("dPqqPqPqPqq", Arguments("Call").pack(**FIELDS))
    assert words[:3] == (0.5, OUT.data_ptr(), 24)


@pytest.mark.usefixtures("declared")
def test_only_a_pointer_that_may_be_null_takes_none() -> None:
    words = unpack("PqqPqPqPqqd", Arguments("Call").pack(**{**FIELDS, "bias": None}))
    assert words[3:5] == (0, 0)
    with pytest.raises(AttributeError):
        Arguments("Call").pack(**{**FIELDS, "out": None})


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("names", [FIELDS.keys() - {"scale"}, FIELDS.keys() | {"out_stride"}, FIELDS.keys() | {"x"}])
def test_a_missing_or_an_unknown_field_is_an_error(names: set[str]) -> None:
    with pytest.raises(TypeError):
        Arguments("Call").pack(**{name: FIELDS.get(name) for name in names})


def test_a_field_of_another_size_is_refused(declared: Path) -> None:
    declared.write_text(DECLARATION.replace("double scale", "float scale"), "utf-8")
    with pytest.raises(ValueError, match=r"`scale` of `Call` is of the type `float`, which is no word of eight bytes"):
        _ = Arguments("Call").pack


@pytest.mark.parametrize("line", ["int64_t width, height;", "int64_t sizes[2];", "int64_t width = 3;", "T *x;"])
def test_a_field_that_cannot_be_read_is_not_passed_over(declared: Path, line: str) -> None:
    declared.write_text(DECLARATION.replace("double scale;", f"double scale;\n    {line}  // more"), "utf-8")
    with pytest.raises(ValueError, match=f"`{re.escape(line)}` of `Call` declares no field that can be packed"):
        _ = Arguments("Call").pack


def test_a_struct_that_is_declared_twice_or_nowhere_is_refused(declared: Path) -> None:
    declared.write_text(DECLARATION + DECLARATION, "utf-8")
    for name in ("Call", "Calls"):
        with pytest.raises(ValueError, match=f"no struct `{name}`"):
            _ = Arguments(name).pack


@pytest.mark.parametrize("struct", sorted(STRUCTS))
def test_every_struct_that_python_names_is_declared(struct: str) -> None:
    assert callable(Arguments(struct).pack)


def test_python_names_the_structs_of_all_kernels() -> None:
    cast = re.compile(r"static_cast<const (\w+)(?:<.*?>)?\*>\(arguments\)")
    used = {name for path in SOURCE_FOLDER.glob("*.cpp") for name in cast.findall(path.read_text("utf-8"))}
    assert used <= STRUCTS
