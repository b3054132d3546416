"""The page at `/`: joins its files into one document, and makes its `Content-Security-Policy`.

The page is written as a few small files and served as one document, so that `/` is the only path that a browser needs
before it has an API key:

    parts/index.html    the skeleton, with one empty <style> and one empty <script>
    parts/*.css, *.js   their content, in the order of `STYLES` and `SCRIPTS`: one scope, no imports

The policy allows exactly that style and that script, by hash: `'unsafe-inline'` would also run a script that a model's
text had injected.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

STYLES = ("base.css", "generation.css", "batch.css")
SCRIPTS = (
    "server.js",
    "generation.js",
    "sampling.js",
    "tools.js",
    "turns.js",
    "chat.js",
    "completion.js",
    "sequences.js",
    "blocks.js",
    "charts.js",
    "load.js",
    "batch.js",
    "main.js",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A document and the `Content-Security-Policy` to send with it."""

    html: str
    content_security_policy: str


def read_page() -> Page:
    """Return the playground's page, read from the package's data."""
    folder = files("infer_server.playground") / "parts"
    style, script = ("\n".join((folder / name).read_text("utf-8") for name in names) for names in (STYLES, SCRIPTS))
    html = (folder / "index.html").read_text("utf-8")
    html = _fill(html, "<style>", style)
    html = _fill(html, '<script type="module">', script)
    policy = {
        "default-src": "'none'",
        "script-src": _hash_source(script),
        "style-src": _hash_source(style),
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return Page(html=html, content_security_policy="; ".join(f"{name} {value}" for name, value in policy.items()))


def _fill(html: str, tag: str, text: str) -> str:
    """Return `html` with `text` after its only `tag`."""
    assert html.count(tag) == 1, tag
    assert not re.search(r"</(style|script)", text, re.IGNORECASE), f"the text ends its own {tag}"
    return html.replace(tag, tag + text)


def _hash_source(text: str) -> str:
    """Return the policy source that allows an inline element with exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
