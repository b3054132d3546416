"""Spares Triton's interpreter work that changes nothing, in which it spends most of its time.

It makes the type, the shape and the size of a value anew for every operation, each out of dozens of small objects, and
computes for each sum and product of integers whether it overflows, without a look at the result.
"""

import inspect
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

Attributes = dict[str, Any]

_BUILTIN = tl.core.builtin(lambda: None).__code__
"""The code of the function that Triton wraps around each builtin."""


def make_interpreter_faster() -> None:
    """Patch the interpreter of this process; a second call does nothing."""
    if hasattr(tl.core.block_type, "init_anew"):
        return
    _look_up_numpy_dtypes()
    _patch_language_once()
    _share_block_types()
    _share_shapes()
    _compare_dtypes_by_identity()
    _leave_out_overflow_checks()


def _look_up_numpy_dtypes() -> None:
    """Keep the dtypes of numpy: at each use Triton makes the table of all of them."""
    numpy_dtype = interpreter._get_np_dtype  # noqa: SLF001 - none are public
    numpy_dtypes: dict[str, Any] = {}

    def found_numpy_dtype(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in numpy_dtypes:
            numpy_dtypes[name] = numpy_dtype(dtype)
        return numpy_dtypes[name]

    interpreter._get_np_dtype = found_numpy_dtype  # noqa: SLF001 - as above


def _patch_language_once() -> None:
    """Patch Triton's language once for a launch, and not again for each function that the kernel calls.

    What to patch is looked up once, and made once.
    """
    patch_language = interpreter._patch_lang  # noqa: SLF001 - as above
    made: dict[Any, list[tuple[str, Any]]] = {}

    def patch_unpatched(function: Any) -> Any:
        languages = [value for value in function.__globals__.values() if value is tl or value is tl.core]
        if languages and not any(tl.core.is_builtin(language.load) for language in languages):
            return interpreter._LangPatchScope()  # noqa: SLF001 - which restores nothing
        return patch_language(function)

    def patch_builtins(owner: Any, _builder: Any, scope: Any) -> None:
        if owner not in made:
            members = inspect.getmembers(owner, tl.core.is_builtin)
            made[owner] = [(name, _with_semantic(member)) for name, member in members]
        for name, call in made[owner]:
            scope.set_attr(owner, name, call)

    interpreter._patch_lang, interpreter._patch_builtin = patch_unpatched, patch_builtins  # noqa: SLF001 - as above


def _with_semantic(member: Any) -> Any:
    """Return a builtin that is always given the interpreter's semantic; all that it checks is that it is given one."""
    called = member.__wrapped__ if getattr(member, "__code__", None) is _BUILTIN else member
    semantic = interpreter.interpreter_semantic

    def call(*args: Any, **named: Any) -> Any:
        named["_semantic"] = semantic
        return called(*args, **named)

    return call


def _share_block_types() -> None:
    """Let types of equal elements and shapes share what they consist of, and types of equal shapes their shape."""
    block_type, constexpr = tl.core.block_type, tl.core.constexpr
    init_anew = block_type.__init__
    known: dict[tuple[Any, ...], Attributes] = {}
    shapes: dict[tuple[int, ...], Any] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        kind = type(element_ty)
        if kind is tl.core.dtype:
            element: Any = element_ty.name
        elif kind is tl.core.pointer_type:
            element = (element_ty.name, element_ty.address_space)
        else:
            init_anew(self, element_ty, shape)
            return
        key = (element, *[size.value if type(size) is constexpr else size for size in shape])
        if key not in known:
            init_anew(self, element_ty, shape)
            self.shape = shapes.setdefault(tuple(self.shape.values), self.shape)
            known[key] = dict(vars(self))
        else:
            vars(self).update(known[key], element_ty=element_ty)

    block_type.init_anew, block_type.__init__ = init_anew, init


def _share_shapes() -> None:
    """Let values of equal shapes share their shape and their number of elements, and be compatible at once."""
    tensor = tl.core.tensor
    init_anew = tensor.__init__
    known: dict[tuple[int, ...], Attributes] = {}
    semantic = interpreter.interpreter_semantic
    make_compatible = semantic.broadcast_impl_value

    def init(self: Any, handle: Any, type: Any) -> None:  # noqa: A002 - Triton's name
        sizes = tuple(type.shape.values) if type.is_block() else ()
        if sizes not in known:
            init_anew(self, handle, type)
            known[sizes] = {name: value for name, value in vars(self).items() if name in ("shape", "numel")}
        else:
            vars(self).update(known[sizes], handle=handle, type=type, dtype=type.scalar)

    def broadcast(left: Any, right: Any) -> tuple[Any, Any]:
        one, other = left.type, right.type
        if one.is_block() and other.is_block() and one.shape is other.shape:
            return left, right
        compatible: tuple[Any, Any] = make_compatible(left, right)
        return compatible

    tensor.__init__, semantic.broadcast_impl_value = init, broadcast


def _compare_dtypes_by_identity() -> None:
    """Compare dtypes of numbers, of which there is one each, without unwrapping them first."""
    dtype = tl.core.dtype
    are_equal = dtype.__eq__

    def equals(self: Any, other: Any) -> bool:
        return self is other or (self.name == other.name if type(other) is dtype else are_equal(self, other))

    dtype.__eq__ = equals


def _leave_out_overflow_checks() -> None:
    """Leave out checks of integers, which are computed and then dropped where `options.debug` is False."""
    if not interpreter.interpreter_builder.options.debug:
        interpreter.interpreter_semantic.binary_op_sanitize_overflow_impl = lambda *_: None
