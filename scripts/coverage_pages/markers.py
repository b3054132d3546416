"""Finds the tests that say which rows they cover, by reading their files: nothing is imported."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

MARKER = "pytest.mark.covers"
OTHER_SESSIONS = {
    "benchmarks/tests": "tests_bench",
    "packages/infer-ray/tests": "ray",
    "tests/browser": "browser",
    "tests/simulated_gpu": "simulated_gpu",
}
"""By folder whose tests `nox -s tests`, the README's command, leaves out: the session that runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveringTest:
    """A test with the marker `covers`.

    Attributes:
        name: of its function, or of the class that Hypothesis makes of a state machine.
        path: of its file in the repository.
        line: where it begins.
        keys: the rows that it covers.
        session: the session of the noxfile that runs it.
    """

    name: str
    path: str
    line: int
    keys: tuple[str, ...]
    session: str


def covering_tests(root: Path) -> list[CoveringTest]:
    """Return all tests below `root` with the marker, in the order of their files and lines.

    Raises:
        ValueError: a marker is not on a test, or its arguments are no texts.
    """
    folders = [root / "benchmarks" / "tests", *sorted(root.glob("packages/*/tests")), root / "tests"]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    return [test for path in paths for test in _tests_of(path, path.relative_to(root).as_posix())]


def _tests_of(path: Path, name: str) -> list[CoveringTest]:
    text = path.read_text(encoding="utf-8")
    if MARKER not in text:
        return []
    tree = ast.parse(text)
    tests = sorted(_marked(tree, name), key=lambda test: test.line)
    num_markers = sum(_is_marker(node) for node in ast.walk(tree))
    if num_markers != len(tests):
        raise ValueError(f"`{name}` has {num_markers} markers `covers` for {len(tests)} tests; give each test one.")
    return tests


def _marked(tree: ast.Module, path: str) -> Iterator[CoveringTest]:
    for node in ast.walk(tree):
        match node:
            case (
                ast.FunctionDef(name=name, decorator_list=decorators)
                | ast.AsyncFunctionDef(name=name, decorator_list=decorators)
            ) if name.startswith("test_"):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=marker)) if name.startswith("Test"):
                decorators = [marker]  # `TestMachine = pytest.mark.covers("page/row")(Machine.TestCase)`
            case _:
                continue
        keys = [key for decorator in decorators if _is_marker(decorator) for key in _keys(decorator, path)]
        if keys:
            session = _session(path, is_full="pytest.mark.full" in map(ast.unparse, decorators))
            yield CoveringTest(name=name, path=path, line=node.lineno, keys=tuple(keys), session=session)


def _is_marker(node: ast.AST) -> TypeGuard[ast.Call]:
    match node:
        case ast.Call(func=ast.Attribute(attr="covers") as function):
            return ast.unparse(function) == MARKER
        case _:
            return False


def _keys(marker: ast.Call, path: str) -> Iterator[str]:
    for argument in marker.args:
        match argument:
            case ast.Constant(value=str(key)):
                yield key
            case _:
                raise ValueError(
                    f"`{path}`, line {argument.lineno}: `covers` takes names of rows, such as 'http/metrics'."
                )


def _session(path: str, *, is_full: bool) -> str:
    for folder, session in OTHER_SESSIONS.items():
        if path.startswith(f"{folder}/"):
            return session
    return "tests_full" if is_full else "tests"
