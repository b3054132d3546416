"""Finds what only runs on a GPU in the source of a module, and puts a call there that says that it has run.

Such are the statements behind `device.type == "cuda"` or `.is_cuda`, or behind a name or an attribute that was set by
one of them, the rest of a block behind a guard that leaves it elsewhere, and whatever calls `torch.cuda`. Of a
conditional expression each arm is a place of its own.
"""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

ASKS = {"is_available", "device_count", "OutOfMemoryError"}
"""Names of `torch.cuda` that are for machines without a GPU too."""


class Place(NamedTuple):
    """A line, or an arm of a conditional expression on it, that only runs on a GPU, or only without."""

    path: Path
    line: int
    arm: str

    @property
    def text(self) -> str:
        """The line's source."""
        return self.path.read_text(encoding="utf-8").splitlines()[self.line - 1].strip()

    def __str__(self) -> str:
        """Return `path:line` and the source."""
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.arm}{self.text}"


def instrument(source: str, path: Path) -> tuple[ast.Module, list[Place]]:
    """Return the tree of a module that calls `__ran__(number)` where each of the places runs, and the places."""
    tree = ast.parse(source)
    probes = _Probes(path, _gpu_names(tree))
    probes.visit(tree)
    return ast.fix_missing_locations(tree), probes.places


def _gpu_names(tree: ast.Module) -> set[str]:
    """Return the names and attributes that are true, or not None, only on a GPU."""
    names: set[str] = set()
    begin_as_none = {
        ast.unparse(node.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant) and node.value.value is None
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            value = node.value
            has_none = isinstance(value, ast.IfExp) and "None" in (ast.unparse(value.body), ast.unparse(value.orelse))
            if _says_gpu(value.test if isinstance(value, ast.IfExp) and has_none else value, names):
                names.add(ast.unparse(node.targets[0]))
        elif isinstance(node, ast.If) and _says_gpu(node.test, names):
            inside = [each for statement in node.body for each in ast.walk(statement) if isinstance(each, ast.Assign)]
            names |= {ast.unparse(each.targets[0]) for each in inside} & begin_as_none
    return names


def _says_gpu(test: ast.expr, names: set[str]) -> bool | None:
    """Return whether a condition holds only on a GPU, or only without; None: it says neither."""
    match test:
        case ast.Compare(
            left=ast.Attribute(attr="type"), ops=[operator], comparators=[ast.Constant(value="cuda" | "cpu" as device)]
        ):
            if isinstance(operator, ast.Eq | ast.NotEq):
                return (device == "cuda") == isinstance(operator, ast.Eq)
        case ast.Compare(left=left, ops=[operator], comparators=[ast.Constant(value=None)]):
            if ast.unparse(left) in names:
                return isinstance(operator, ast.IsNot)
        case (
            ast.Attribute(attr="is_cuda")
            | ast.Call(func=ast.Attribute(attr="startswith"), args=[ast.Constant(value="cuda")])
        ):
            return True
        case ast.Name() | ast.Attribute() if ast.unparse(test) in names:
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _says_gpu(operand, names)
            return None if inner is None else not inner
        case ast.BoolOp(op=operator, values=values):
            decides = isinstance(operator, ast.And)
            if any(_says_gpu(value, names) is decides for value in values):
                return decides
    return None


class _Probes(ast.NodeTransformer):
    """Puts a call before each statement of a GPU, and around each arm of an expression that depends on one."""

    def __init__(self, path: Path, names: set[str]) -> None:
        self.places: list[Place] = []
        self._path = path
        self._names = names

    def _probe(self, node: ast.stmt | ast.expr, arm: str = "") -> ast.Call:
        number = ast.Constant(len(self.places))
        self.places.append(Place(self._path, node.lineno, arm))
        call = ast.Call(ast.Name("__ran__", ast.Load()), [ast.Constant(str(self._path)), number], [])
        return ast.copy_location(call, node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        says = _says_gpu(node.test, self._names)
        self.generic_visit(node)
        if says is not None:
            for name, on_gpu in (("body", says), ("orelse", not says)):
                arm = getattr(node, name)
                probe = self._probe(arm, f"[{'on a GPU' if on_gpu else 'elsewhere'}: {ast.unparse(arm)}] ")
                setattr(node, name, ast.Subscript(ast.Tuple([probe, arm], ast.Load()), ast.Constant(1), ast.Load()))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if any("jit" in ast.unparse(decorator) for decorator in node.decorator_list):
            return node  # Triton reads its source
        return self._visit_blocks(node, is_gpu=False)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler | ast.match_case):
            return self._visit_blocks(node, is_gpu=False)
        return super().generic_visit(node)

    def _visit_blocks(self, node: ast.AST, *, is_gpu: bool) -> ast.AST:
        """Visit a node's expressions, then each of its blocks of statements."""
        says = _says_gpu(node.test, self._names) if isinstance(node, ast.If) else None
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                on_gpu = is_gpu or (name == "body" and says is True) or (name == "orelse" and says is False)
                setattr(node, name, list(self._visit_block(value, is_gpu=on_gpu)))
            elif isinstance(value, list):
                for each in value:
                    if isinstance(each, ast.ExceptHandler | ast.match_case):
                        self._visit_blocks(each, is_gpu=is_gpu)
                    elif isinstance(each, ast.AST):
                        self.visit(each)
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node

    def _visit_block(self, block: Sequence[ast.stmt], *, is_gpu: bool) -> Iterator[ast.stmt]:
        for statement in block:
            says = _says_gpu(statement.test, self._names) if isinstance(statement, ast.If) else None
            is_definition = isinstance(statement, ast.FunctionDef | ast.ClassDef)
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if (is_gpu or _calls_cuda(statement)) and not is_text:
                yield ast.copy_location(ast.Expr(self._probe(statement)), statement)
            if isinstance(statement, ast.FunctionDef):
                yield self.visit_FunctionDef(statement)  # type: ignore[misc]  # a statement
            else:
                yield self._visit_blocks(statement, is_gpu=is_gpu and not is_definition)  # type: ignore[misc]  # likewise
            if (
                isinstance(statement, ast.If)
                and says is False
                and isinstance(statement.body[-1], ast.Return | ast.Raise)
            ):
                is_gpu = True  # the rest is behind a guard


def _calls_cuda(statement: ast.stmt) -> bool:
    """Return whether a statement, without those in it, calls a function of `torch.cuda`."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AnnAssign) and not getattr(statement, "value", None):
        return False
    parts = [
        each
        for _, value in ast.iter_fields(statement)
        for each in (value if isinstance(value, list) else [value])
        if isinstance(each, ast.expr | ast.withitem)
    ]
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith("torch.cuda.")
        and ast.unparse(node.func).split(".")[2] not in ASKS
        for part in parts
        for node in ast.walk(part)
    )
