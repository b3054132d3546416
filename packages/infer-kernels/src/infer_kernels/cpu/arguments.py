"""`Arguments`: the arguments of a C++ kernel, packed by the names of the fields of their struct.

The struct is declared in `csrc/` alone, and read there, so that its fields may come in any order:

    struct Gated {
        Rows rows;                  added by `calls.run`
        T* out;                     out=out
        int64_t out_stride;         out.stride(0); were it followed by an `out_stride_head`, that would be out.stride(1)
        OrNull<const T> ups;        ups=ups, or ups=None
        int64_t ups_stride;
        int64_t width;              width=...
    };

    Arguments("Gated").pack(out=out, ups=ups, width=width)

`csrc/team.h` lists the names that have a meaning. A field whose type is another struct takes an object that has that
one's fields as attributes.
"""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache, cached_property
from struct import Struct
from typing import NamedTuple

from infer_kernels.cpu.compilation import SOURCE_FOLDER

_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^    (?! )(?!//)(.*?) *(?://.*)?$", re.MULTILINE)
_NO_FIELD = re.compile(r".*\(.*|}|static .*|template .*|using .*")
"""Lines of a struct that declare no field: those of its functions, above all."""
_FIELD = re.compile(r"(OrNull<)?(?:const )?(\w+)(>|\*)? (\w+);")
_ENUM = re.compile(r"enum class (\w+) : int64_t")
_GENERATED_ENUM = "Encoding"
"""The one of `encodings.h`, which is written when the kernels are compiled."""
_ABOUT_TENSOR = re.compile(r"(\w+?)_(stride|row_bytes|bytes)(_\w+)?")


class _Word(NamedTuple):
    """A word of a struct: its type as `struct` names it, the Python expression of its value, and the parameter there.

    The parameter of words about a tensor is the tensor's.
    """

    code: str
    value: str
    parameter: str


class Arguments:
    """The arguments of the kernels that take one struct."""

    def __init__(self, struct: str) -> None:
        """Take the name of the struct; its declaration is read when it is first packed."""
        self._struct = struct

    @cached_property
    def pack(self) -> Callable[..., bytes]:
        """The function that packs fields, given by name: a tensor for a pointer and what else is about it.

        Raises:
            ValueError: there is no such struct, or a field is no word of eight bytes.
        """
        words = _words_of(self._struct)
        parameters = dict.fromkeys(word.parameter for word in words)
        values = ", ".join(word.value for word in words)
        pack = Struct("".join(word.code for word in words)).pack
        packer: Callable[..., bytes] = eval(  # noqa: S307 - made of our own declarations, as `dataclasses` makes methods
            f"lambda *, {', '.join(parameters)}: pack({values})", {"pack": pack}
        )
        return packer


def _words_of(struct: str, within: str = "") -> list[_Word]:
    """Return the words of a struct, but for those of the number of rows.

    Args:
        struct: its name.
        within: the expression of the object that has the fields as attributes; empty: they are parameters.
    """
    structs, enums = declarations()
    root = within.partition(".")[0]
    if struct not in structs:
        raise ValueError(f"no struct `{struct}` is declared in {SOURCE_FOLDER}")
    words: list[_Word] = []
    may_be_null: dict[str, bool] = {}  # by the tensors so far
    num_strides: dict[str, int] = {}
    for line in _LINE.findall(structs[struct]):
        if not line or _NO_FIELD.fullmatch(line):
            continue
        field = _FIELD.fullmatch(line)
        if field is None:
            raise ValueError(f"`{line}` of `{struct}` declares no field that can be packed: write one a line")
        is_optional, kind, is_pointer, name = field.groups()
        value, parameter = (f"{within}.{name}", root) if within else (name, name)
        about = _ABOUT_TENSOR.fullmatch(name)
        if is_pointer:
            may_be_null[name], num_strides[name] = bool(is_optional), 0
            words.append(_Word("P", _of_tensor(value, "data_ptr()", may_be_null=bool(is_optional)), parameter))
        elif about and about[1] in may_be_null:
            tensor = value.removesuffix(name) + about[1]
            if about[2] == "stride":
                asked = f"stride({num_strides[about[1]]})"
                num_strides[about[1]] += 1
            else:
                asked = "element_size()" if about[2] == "bytes" else f"stride(0) * {tensor}.element_size()"
            words.append(_Word("q", _of_tensor(tensor, asked, may_be_null=may_be_null[about[1]]), root or about[1]))
        elif kind in ("int64_t", "double") or kind in enums:
            words.append(_Word("d" if kind == "double" else "q", value, parameter))
        elif kind in structs and kind != "Rows":
            words += _words_of(kind, value)
        elif kind != "Rows":
            raise ValueError(f"`{name}` of `{struct}` is of the type `{kind}`, which is no word of eight bytes")
    return words


def _of_tensor(tensor: str, value: str, *, may_be_null: bool) -> str:
    """Return the expression of a value of a tensor, 0 where that may be None and is."""
    return f"0 if {tensor} is None else {tensor}.{value}" if may_be_null else f"{tensor}.{value}"


@cache
def declarations() -> tuple[dict[str, str], set[str]]:
    """Return what stands in the structs of `csrc/` that have a name of their own, and the names of enums of 8 bytes."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(SOURCE_FOLDER.glob("*.[ch]*")))
    structs = _STRUCT.findall(text)
    times = Counter(name for name, _ in structs)
    return {name: fields for name, fields in structs if times[name] == 1}, {*_ENUM.findall(text), _GENERATED_ENUM}
