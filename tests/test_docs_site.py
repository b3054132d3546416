"""The documentation's site: its navigation has every page, and links of the repository become links of the site.

`nox -s docs` builds it. Here nothing of mkdocs is needed.
"""

import importlib
import importlib.util
import logging
import re
from pathlib import Path
from types import ModuleType

import pytest

import infer_kernels

ROOT = Path(__file__).resolve().parent.parent
URL = "https://example.org/infer"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mkdocs_hooks", ROOT / "mkdocs_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_has_every_page_once(hooks: ModuleType) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"^ +- ([\w./-]+\.md)$", navigation, re.MULTILINE)
    there = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("**/*.md")]
    assert sorted(listed) == sorted([*there, *hooks.PAGES.values()])


def test_every_public_package_has_its_readme_on_the_site(hooks: ModuleType) -> None:
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("packages/*/README.md")} <= set(hooks.PAGES)
    assert [path for path in hooks.PAGES if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(
    ("page", "link", "rewritten"),
    [
        ("gpu.md", "[a](cpu.md#how-it-works)", "[a](cpu.md#how-it-works)"),
        ("gpu.md", "[a](../ARCHITECTURE.md#glossary)", "[a](architecture.md#glossary)"),
        ("gpu.md", "![a](images/soak.png)", "![a](images/soak.png)"),
        ("gpu.md", "[a](#goals), [b](https://example.org/x)", "[a](#goals), [b](https://example.org/x)"),
        ("gpu.md", "[`a`](../noxfile.py)", f"[`a`]({URL}/blob/main/noxfile.py)"),
        ("gpu.md", "[a](../tests/field)", f"[a]({URL}/tree/main/tests/field)"),
        ("coverage/1-models.md", "[a](../../README.md)", "[a](../index.md)"),
        ("architecture.md", "[a](docs/api.md) and\n[b\nc](README.md)", "[a](api.md) and\n[b\nc](index.md)"),
        ("packages/infer-cache.md", "[a](../../docs/gpu.md#goals)", "[a](../gpu.md#goals)"),
        ("packages/infer-cache.md", "[a](../infer-ray/README.md)", "[a](infer-ray.md)"),
        ("gpu.md", "```\n[a](../noxfile.py)\n```", "```\n[a](../noxfile.py)\n```"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(
    hooks: ModuleType, page: str, link: str, rewritten: str
) -> None:
    assert hooks.rewrite_links(link, page=page, url=URL) == rewritten


def test_a_file_without_an_address_keeps_its_text_and_shows_its_path(hooks: ModuleType) -> None:
    link = "[`a`](../packages/infer-cache/src/infer_cache/view.py)"
    written = hooks.rewrite_links(link, page="gpu.md", url=None)
    assert written == '<span title="packages/infer-cache/src/infer_cache/view.py">`a`</span>'


def test_a_link_to_a_file_that_is_not_there_is_a_warning(hooks: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        hooks.rewrite_links("[a](../packages/nothing.py)", page="gpu.md", url=None)
    assert [record.getMessage() for record in caplog.records] == [
        "gpu.md links to `packages/nothing.py`, which does not exist"
    ]


def test_the_reference_of_kernels_has_each_public_name_by_the_path_that_it_is_defined_in() -> None:
    page = (ROOT / "docs" / "reference" / "kernels.md").read_text(encoding="utf-8")
    paths = [path.rsplit(".", 1) for path in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)]
    assert sorted(name for _, name in paths) == sorted(infer_kernels.__all__)
    for module, name in paths:
        assert getattr(importlib.import_module(module), name) is getattr(infer_kernels, name)
