"""`create_app`: builds the web application around an engine.

What holds for every path, also for unknown ones, is middleware around the framework, which sees only its own routes:

```
access log -> root path -> request ids -> CORS -> authentication -> HEAD -> routes
```
"""

from collections.abc import Callable, Sequence

from litestar import Litestar
from litestar.types import ASGIApp

from infer_engine.protocol import Engine
from infer_server.anthropic.errors import PATHS, REQUEST_ID_HEADER, error_shape
from infer_server.anthropic.routes import message_routes
from infer_server.http.authentication import OPEN_PATHS, with_authentication
from infer_server.http.cors import with_cors
from infer_server.http.error_handlers import exception_handlers
from infer_server.http.head_requests import with_head_requests
from infer_server.http.request_ids import with_request_ids
from infer_server.http.root_path import with_root_path
from infer_server.invocations import invocation_routes
from infer_server.llama_cpp.routes import infill_routes
from infer_server.observability.access_log import AccessLog, record_route
from infer_server.observability.metric_routes import metric_routes
from infer_server.observability.metrics import ServerMetrics
from infer_server.observability.observed_engine import ObservedEngine
from infer_server.observability.status_routes import status_routes
from infer_server.observability.tracing import tracing
from infer_server.openai.chat.routes import chat_routes
from infer_server.openai.completions.routes import completion_routes
from infer_server.openai.model_routes import model_routes
from infer_server.openai.responses.routes import responses_routes
from infer_server.openai.tokenizer_routes import tokenizer_routes
from infer_server.openapi import document_api_keys, openapi_config
from infer_server.playground.routes import playground_routes
from infer_server.settings import ServerSettings


def create_app(engine: Engine, *, settings: ServerSettings, is_ending: Callable[[], bool] = lambda: False) -> ASGIApp:
    """Return the ASGI application that serves `engine`; the caller drains and closes the engine.

    `is_ending` says whether the server will drain soon: `/ready` is 503 from then on.

    Raises:
        TracingUnavailableError: `settings` ask for traces, and the `tracing` extra is not installed.
    """
    served_models = settings.served_models or (engine.info.model,)
    metrics = ServerMetrics(engine, served_model=served_models[0])
    observed = ObservedEngine(engine, metrics.requests)
    routes = _routes(observed, settings=settings, served_models=served_models, metrics=metrics, is_ending=is_ending)
    app = with_authentication(with_head_requests(routes), keys=settings.api_key, shape=error_shape)
    app = with_request_ids(with_cors(app, origins=settings.cors_allow_origins), other_names={PATHS: REQUEST_ID_HEADER})
    app = with_root_path(app, root=settings.root)
    return AccessLog(app, engine=observed, metrics=metrics.http, settings=settings)


def _routes(
    engine: Engine,
    *,
    settings: ServerSettings,
    served_models: Sequence[str],
    metrics: ServerMetrics,
    is_ending: Callable[[], bool],
) -> Litestar:
    traces = tracing(settings)
    routes = Litestar(
        route_handlers=[
            *completion_routes(engine, settings=settings, served_models=served_models),
            *chat_routes(engine, settings=settings, served_models=served_models),
            *responses_routes(engine, settings=settings, served_models=served_models),
            *message_routes(engine, settings=settings, served_models=served_models),
            *infill_routes(engine, settings=settings, served_models=served_models),
            *invocation_routes(engine, settings=settings, served_models=served_models),
            *tokenizer_routes(engine, settings=settings, served_models=served_models),
            *model_routes(engine, served_models=served_models),
            *status_routes(engine, is_ending=is_ending),
            *metric_routes(metrics),
            *playground_routes(engine),
        ],
        exception_handlers=exception_handlers(shape=error_shape),
        before_request=record_route,
        before_send=traces.before_send,
        plugins=traces.plugins,
        on_shutdown=traces.on_shutdown,
        openapi_config=openapi_config(root=settings.root),
        request_max_body_size=None,  # `read_body` checks the size, and answers clients that are still sending
        logging_config=None,
        debug=False,
    )
    if settings.api_key:
        document_api_keys(routes.openapi_schema, open_paths=OPEN_PATHS)
    return routes
