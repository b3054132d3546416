"""HEAD: middleware that answers HEAD like GET, without the body."""

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send


def with_head_requests(app: ASGIApp) -> ASGIApp:
    """Return `app`, which sees each HEAD request as a GET request."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        if scope["type"] == ScopeType.HTTP and scope["method"] == "HEAD":
            scope["method"] = "GET"
            try:
                await app(scope, receive, send_head)
            finally:
                scope["method"] = "HEAD"
        else:
            await app(scope, receive, send)

    return answer
