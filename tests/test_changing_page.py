"""`docs/changing.md` leads somewhere: its files and tests are there, and what it calls by name is in them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "changing.md"
SOURCES = ("packages/", "tests/", "benchmarks/", "examples/")
ERRANDS = {
    heading: text
    for heading, _, text in (section.partition("\n") for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:])
}


def named_paths(text: str) -> list[tuple[str, Path]]:
    """Return (text, file or folder) of each link to one of the project."""
    links = re.findall(r"\[([^]]+)\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    return [(name.strip("`"), (PAGE.parent / target).resolve()) for name, target in links]


def paths_run_by(text: str) -> list[Path]:
    """Return the files and folders of tests that the commands of an errand run."""
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    return [ROOT / word for word in commands.split() if word.startswith(SOURCES)]


def test_the_errands_are_in_the_table_of_contents() -> None:
    head = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    listed = re.findall(r"^\| \[([^]]+)\]", head, re.MULTILINE)
    assert [title.lower() for title in ERRANDS] == [title.lower() for title in listed]
    assert len(ERRANDS) == 10


@pytest.mark.parametrize("errand", ERRANDS)
def test_every_path_of_an_errand_exists(errand: str) -> None:
    named = named_paths(ERRANDS[errand])
    assert named
    assert [name for name, path in named if not path.exists()] == []


@pytest.mark.parametrize("errand", ERRANDS)
def test_a_link_says_the_path_that_it_leads_to(errand: str) -> None:
    files = [(name, path) for name, path in named_paths(ERRANDS[errand]) if name.endswith((".py", ".cpp"))]
    assert [name for name, path in files if not path.as_posix().endswith("/" + name)] == []


@pytest.mark.parametrize("errand", ERRANDS)
def test_every_errand_names_tests_that_exist(errand: str) -> None:
    tests = paths_run_by(ERRANDS[errand])
    assert tests
    assert [str(path) for path in tests if not path.exists()] == []


@pytest.mark.parametrize("errand", ERRANDS)
def test_what_an_errand_calls_by_name_is_in_the_files_that_it_links(errand: str) -> None:
    text = ERRANDS[errand].split("```sh")[0]
    code = "".join(
        path.read_text(encoding="utf-8") for _, path in named_paths(text) if path.suffix in (".py", ".cpp", ".h")
    )
    names = re.findall(r"`(_?[A-Za-z]\w*_\w+|[A-Z]\w+[a-z]\w*)`", text)
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
