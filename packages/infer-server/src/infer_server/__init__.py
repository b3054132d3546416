"""An HTTP server for the engine: the OpenAI API, streaming, the command line.

Names are imported at their first use, so that `infer-server --help` loads no web framework. Nothing here loads torch.
"""

from typing import TYPE_CHECKING, Any

from infer_server.settings import ServerSettings

if TYPE_CHECKING:
    from infer_server.app import create_app

__all__ = ["ServerSettings", "create_app"]


def __getattr__(name: str) -> Any:
    if name == "create_app":
        from infer_server.app import create_app  # noqa: PLC0415 - imports the web framework: only when used

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
