"""Hooks of the documentation's site (`mkdocs.yml`): pages from outside of `docs/`, and links to other files.

The pages are written to be read in the repository, so that their links are paths there. On the site

- `PAGES` are pages too, and links to them, and from them, lead to where they are;
- a link to another file leads to the repository, if `pyproject.toml` declares its address as `Repository` in
  `[project.urls]`; otherwise its text stays, and shows the path when it is pointed at;
- a link to a file that does not exist is a warning, which fails a strict build, as mkdocs does for its own pages.
"""

import logging
import posixpath
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

logger = logging.getLogger("mkdocs.hooks.links")

ROOT = Path(__file__).resolve().parent
PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "packages/infer-bench.md",
    **{
        f"packages/infer-{name}/README.md": f"packages/infer-{name}.md"
        for name in ("kernels", "models", "cache", "engine", "server", "ray", "proofs")
    },
}
"""By path in the repository, the path on the site of each page that is not in `docs/`."""

_FENCED = r"^ *```.*?^ *```$"
_LINK = r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)"
_FENCED_OR_LINK = re.compile(f"{_FENCED}|{_LINK}", re.MULTILINE | re.DOTALL)


def repository_url() -> str | None:
    """Return the repository's address, if `pyproject.toml` declares one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    url: str | None = project.get("urls", {}).get("Repository")
    return None if url is None else url.rstrip("/")


def on_config(config: "MkDocsConfig") -> "MkDocsConfig":
    """Show the repository's address on each page, if there is one."""
    config.repo_url = repository_url()
    return config


def on_files(files: "Files", *, config: "MkDocsConfig") -> "Files":
    """Add the pages that are not in `docs/`."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - only where the site is built: tests import this module

    for path, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Return the page with its links as they are on the site."""
    del config, files
    return rewrite_links(markdown, page=page.file.src_uri, url=repository_url())


def rewrite_links(markdown: str, *, page: str, url: str | None) -> str:
    """Return Markdown with links of the repository made to links of the site.

    Args:
        markdown: the text of a page.
        page: its path on the site, such as `packages/infer-cache.md`.
        url: the repository's address; None: files that are no pages have no links.
    """
    paths = {on_site: path for path, on_site in PAGES.items()}
    folder = posixpath.dirname(paths.get(page, f"docs/{page}"))

    def rewritten(match: re.Match[str]) -> str:
        if match["target"] is None:  # fenced code
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, match["target"]))
        if not (ROOT / path).exists():
            logger.warning("%s links to `%s`, which does not exist", page, path)
        text, anchor = match["text"], match["anchor"] or ""
        on_site = "index.md" if path == "README.md" else PAGES.get(path)
        if path.startswith("docs/") and (ROOT / path).is_file():
            on_site = path.removeprefix("docs/")
        if on_site is not None:
            target = posixpath.relpath(on_site, posixpath.dirname(page) or ".")
            return f"{match['image']}[{text}]({target}{anchor})"
        if url is None:
            return f'<span title="{path}">{text}</span>'
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"[{text}]({url}/{kind}/main/{path}{anchor})"

    return _FENCED_OR_LINK.sub(rewritten, markdown)
