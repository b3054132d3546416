"""Paths below a root: middleware for gateways that pass `/llm/v1/models` on as it is.

Every route then answers with and without the root, as some gateways take it away. The framework is not told of it: it
would look for it anywhere in a path.
"""

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send


def with_root_path(app: ASGIApp, *, root: str) -> ASGIApp:
    """Return `app`, which sees no `root` in paths; `app` itself if `root` is empty.

    The root alone redirects to the page at its end, whose links are relative.
    """
    if not root:
        return app

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
        elif scope["path"] == root and scope["method"] in ("GET", "HEAD"):
            location = [(b"location", f"{root}/".encode("latin-1")), (b"content-length", b"0")]
            await send({"type": "http.response.start", "status": 307, "headers": location})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            inner: Scope = {**scope, "path": without_root(scope["path"], root)}
            raw = scope.get("raw_path")
            if raw is not None:
                inner["raw_path"] = without_root(raw.decode("latin-1"), root).encode("latin-1")
            await app(inner, receive, send)

    return answer


def without_root(path: str, root: str) -> str:
    """Return `path` below `root`; a path that is not below it, as it is."""
    return path.removeprefix(root) if path.startswith(f"{root}/") else path
