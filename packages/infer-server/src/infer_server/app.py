"""`create_app`: the web application around an engine. The only place where routes, errors and documents meet."""

from litestar import Litestar

from infer_engine.protocol import Engine
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.request_ids import add_request_id
from infer_server.openai.completion_routes import completion_routes
from infer_server.openai.model_routes import model_routes
from infer_server.openapi import openapi_config
from infer_server.operations.status_routes import status_routes
from infer_server.settings import ServerSettings


def create_app(engine: Engine, *, settings: ServerSettings) -> Litestar:
    """Return the ASGI application that serves `engine`, which stays the caller's to drain and close."""
    served_model = settings.served_model_name or engine.info.model
    return Litestar(
        route_handlers=[
            *completion_routes(engine, settings=settings, served_model=served_model),
            *model_routes(engine, served_model=served_model),
            *status_routes(engine),
        ],
        exception_handlers=exception_handlers(),
        before_send=[add_request_id],
        openapi_config=openapi_config(),
        request_max_body_size=None,  # `read_body` counts, and answers clients that are still sending
        logging_config=None,
        debug=False,
    )
