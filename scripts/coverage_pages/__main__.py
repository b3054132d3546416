"""Writes `docs/coverage.md` and its parts: `nox -s coverage`."""

import sys
from pathlib import Path

from scripts.coverage_pages.pages import written_pages


def main() -> None:
    """Write each page that has changed; exit with what is wrong if rows and markers do not fit together."""
    try:
        pages = written_pages(Path.cwd())
    except ValueError as error:
        sys.exit(str(error))
    for path, text in pages.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
