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
_FIELD = re.compile(r"^    (OrNull<)?(?:const )?(\w+)(>|\*)? (\w+);", re.MULTILINE)
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


def _words_of(struct: str) -> list[_Word]:
    """Return the words of a struct, but for those of the number of rows."""
    structs, enums = declarations()
    if struct not in structs:
        raise ValueError(f"no struct `{struct}` is declared in {SOURCE_FOLDER}")
    words: list[_Word] = []
    may_be_null: dict[str, bool] = {}  # by the tensors so far
    num_strides: dict[str, int] = {}
    for is_optional, kind, is_pointer, name in _FIELD.findall(structs[struct]):
        about = _ABOUT_TENSOR.fullmatch(name)
        if is_pointer:
            may_be_null[name], num_strides[name] = bool(is_optional), 0
            words.append(_Word("P", _of_tensor(name, "data_ptr()", may_be_null=bool(is_optional)), name))
        elif about and about[1] in may_be_null:
            tensor = about[1]
            if about[2] == "stride":
                value = f"stride({num_strides[tensor]})"
                num_strides[tensor] += 1
            else:
                value = "element_size()" if about[2] == "bytes" else f"stride(0) * {tensor}.element_size()"
            words.append(_Word("q", _of_tensor(tensor, value, may_be_null=may_be_null[tensor]), tensor))
        elif kind in ("int64_t", "double") or kind in enums:
            words.append(_Word("d" if kind == "double" else "q", name, name))
        elif kind in structs and kind != "Rows":
            words += (
                _Word(word.code, re.sub(r"\b" + word.parameter + r"\b", f"{name}.{word.parameter}", word.value), name)
                for word in _words_of(kind)
            )
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
