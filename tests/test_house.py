"""What can be counted of the house: code by part, parameters of kernels, imports inside functions.

The numbers are what is there. They may fall, and then they are to be lowered here.
"""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

import infer_kernels

ROOT = Path(__file__).resolve().parent.parent
CODE = {".py", ".cpp", ".h", ".js", ".css", ".html"}
NOT_OURS = {"__pycache__", ".venv", "build", "dist", "node_modules"}
COMMENTS = re.compile(r"//.*|/\*.*?\*/|<!--.*?-->", re.DOTALL | re.MULTILINE)
"""Comments of other languages than Python, one to a line or between its marks."""

CEILINGS: dict[str, int] = {
    "packages/infer-kernels/src": 15_500,
    "packages/infer-kernels/tests": 11_000,
    "packages/infer-models/src": 13_200,
    "packages/infer-models/tests": 8_500,
    "packages/infer-cache/src": 1_400,
    "packages/infer-cache/tests": 2_400,
    "packages/infer-engine/src": 17_900,
    "packages/infer-engine/tests": 18_700,
    "packages/infer-server/src": 8_500,
    "packages/infer-server/tests": 8_300,
    "packages/infer-ray/src": 840,
    "packages/infer-ray/tests": 920,
    "packages/infer-proofs/src": 5_200,
    "benchmarks/src": 7_100,
    "benchmarks/tests": 2_300,
    "tests": 12_400,
    "examples": 770,
}
"""By part, the most lines of code that it may have, without blank lines, comments and docstrings."""
MAX_PARAMETERS = 12.5
"""Parameters that functions of `infer_kernels` have, for each of its public functions."""
MAX_HIDDEN_IMPORTS = 70
"""Imports inside functions, each of something that is slow or optional, and says so."""


NO_NOUN = re.compile(r'^\s*"{3}Of |^\s+\w+: of ', re.MULTILINE)
"""A docstring of an argument or a constant that leaves out its noun: "dtype: of the queries"."""
RELATIVE_CLAUSE = re.compile(r"(What|How|Where|When|Which|Who|Why)\b")
"""The beginning of a docstring that has a clause in place of a noun: "What came of it."."""


@cache
def num_lines() -> dict[PurePosixPath, int]:
    """Return the lines of code of each file."""
    paths = (path for part in ("packages", "benchmarks", "tests", "examples") for path in (ROOT / part).rglob("*"))
    return {
        PurePosixPath(path.relative_to(ROOT)): len(lines_of_code(path))
        for path in paths
        if path.suffix in CODE and not NOT_OURS & set(path.parts)
    }


def lines_of_code(path: Path) -> set[int]:
    """Return the numbers of a file's lines that are neither blank nor comments nor those of docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        kept = COMMENTS.sub(lambda comment: "\n" * comment[0].count("\n"), text) if path.suffix != ".css" else text
        return {number for number, line in enumerate(kept.splitlines()) if line.strip()}
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    written = {
        number for token in tokens if token.type not in skipped for number in range(token.start[0], token.end[0] + 1)
    }
    statements = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Expr))
    texts = (node for node in statements if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str))
    return written - {number for node in texts for number in range(node.lineno, (node.end_lineno or 0) + 1)}


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def trees_of(folder: str) -> list[ast.Module]:
    """Return the syntax trees of the files in a folder."""
    return [tree_of(ROOT / path) for path in num_lines() if path.suffix == ".py" and path.is_relative_to(folder)]


def functions_of(trees: list[ast.Module]) -> list[ast.FunctionDef]:
    """Return all functions and methods."""
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def lines_of_parts() -> dict[str, int]:
    """Return the lines of code in each part that has a ceiling."""
    return {part: sum(lines for path, lines in num_lines().items() if path.is_relative_to(part)) for part in CEILINGS}


def test_a_line_of_code_is_counted_however_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text(
        '"""Text.\n\nMore.\n"""\n\n# a comment\nX = (\n    1,  # one\n)\n"""Text of X."""\nY = """a\n\nb"""\n'
    )
    assert lines_of_code(path) == {7, 8, 9, 11, 12, 13}


def test_a_kernels_parameters_are_written_few_times() -> None:
    functions = functions_of(trees_of("packages/infer-kernels/src"))
    public = set(infer_kernels.__all__)
    parameters = {
        is_public: sum(
            len(each.args.args) + len(each.args.kwonlyargs) for each in functions if (each.name in public) is is_public
        )
        for is_public in (True, False)
    }
    assert 0.95 * MAX_PARAMETERS <= sum(parameters.values()) / parameters[True] <= MAX_PARAMETERS


def test_imports_inside_functions_become_no_more() -> None:
    folders = {str(path.parent) for path in num_lines() if "src" in path.parts}
    trees = [
        tree for folder in sorted({folder.split("/src")[0] + "/src" for folder in folders}) for tree in trees_of(folder)
    ]
    hidden = [
        node
        for function in functions_of(trees)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert 0.9 * MAX_HIDDEN_IMPORTS <= len(hidden) <= MAX_HIDDEN_IMPORTS


def test_the_types_on_a_tokens_way_are_listed_and_few() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.split("## Types on a token's way\n")[1].split("\n## ")[0]
    table, _, around = section.partition("\n\nEleven more")
    rows = [row.split("|")[2] for row in table.splitlines() if row.startswith("| ")][1:]
    forms = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("packages/*/src/**/*.py"))
    classes = set(re.findall(r"^class (\w+)", sources, flags=re.MULTILINE))
    others = set(re.findall(r"`(\w+)`", around)) - {*forms, "StagedStep", "TrackedRequest"}
    assert {*forms, *others} <= classes
    assert (len(forms) + 1, len(others)) == (14, 11)  # and the chunk, of which each API has its own


def test_every_part_has_a_ceiling() -> None:
    assert {path for path in num_lines() if not any(path.is_relative_to(part) for part in CEILINGS)} == set()


def test_docstrings_name_what_they_describe() -> None:
    sources = [path for path in num_lines() if path.suffix == ".py" and "src" in path.parts]
    found = {path.as_posix(): NO_NOUN.findall((ROOT / path).read_text(encoding="utf-8")) for path in sources}
    assert {path: each for path, each in found.items() if each} == {}


def test_first_lines_of_docstrings_begin_with_a_noun_or_a_verb() -> None:
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = {
        f"{path}: {text.splitlines()[0]}"
        for path in num_lines()
        if path.suffix == ".py" and "src" in path.parts
        for node in ast.walk(tree_of(ROOT / path))
        if isinstance(node, described) and (text := ast.get_docstring(node)) and RELATIVE_CLAUSE.match(text)
    }
    assert found == set()


@pytest.mark.parametrize("part", CEILINGS)
def test_no_part_grows_unnoticed(part: str) -> None:
    counted = lines_of_parts()
    table = "\n".join(f"{name:32} {lines:7,} of {CEILINGS[name]:7,}" for name, lines in counted.items())
    most, lines = CEILINGS[part], counted[part]
    assert lines <= most, f"`{part}` has {lines:,} lines: shorten it, or raise its ceiling and say why.\n{table}"
    assert lines >= 0.9 * most, f"`{part}` has {lines:,} lines: lower its ceiling, {most:,}, to what it has.\n{table}"
