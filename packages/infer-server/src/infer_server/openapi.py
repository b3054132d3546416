"""The OpenAPI document and its page under `/schema`. Knows the document; knows no route.

Bodies are decoded by `bodies`, not by the framework, so what they look like is told to the document here. The page is
static: it loads nothing from anywhere.
"""

import html
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import msgspec
from litestar import Request, Response, Router
from litestar.exceptions import NotFoundException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema

from infer_server.errors import ErrorReply


@dataclass
class _ReadySchema(Schema):
    """A schema that is JSON already."""

    document: dict[str, Any] = field(default_factory=dict)

    def to_schema(self) -> dict[str, Any]:
        """Return it as it is."""
        return self.document


class _StaticPage(OpenAPIRenderPlugin):
    """The document as a page without scripts."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        """Return a list of the routes and the whole document."""
        title = html.escape(openapi_schema["info"]["title"])
        routes = "".join(
            f"<li><code>{method.upper()} {html.escape(path)}</code> {html.escape(operation.get('summary', ''))}</li>"
            for path, operations in sorted(openapi_schema["paths"].items())
            for method, operation in operations.items()
        )
        document = html.escape(msgspec.json.format(self.render_json(request, openapi_schema), indent=2).decode())
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
            '<body style="font-family: sans-serif; max-width: 60rem; margin: 2rem auto">'
            f"<h1>{title}</h1><ul>{routes}</ul>"
            f'<p>For programs: <a href="{self.get_openapi_json_route(request)}">openapi.json</a></p>'
            f"<pre>{document}</pre>"
        ).encode()


def openapi_config() -> OpenAPIConfig:
    """Return the configuration of `/schema`."""
    return OpenAPIConfig(
        title="infer",
        version=version("infer-server"),
        description="LLM inference over an OpenAI-compatible API.",
        render_plugins=[_StaticPage(path="/")],
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_no_html_error),
    )


def operation_with_body(struct: type[msgspec.Struct]) -> type[Operation]:
    """Return the operation of a route that decodes its body as `struct` by itself."""
    (reference,), components = msgspec.json.schema_components([struct])
    schema = _ReadySchema(document=_inlined(reference, components))

    @dataclass
    class OperationWithBody(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(
                content={"application/json": OpenAPIMediaType(schema=schema)}, required=True
            )

    return OperationWithBody


def error_responses(descriptions: dict[int, str]) -> dict[int, ResponseSpec]:
    """Return what a route documents of its errors: when each status comes; they all look alike."""
    return {
        status: ResponseSpec(ErrorReply, description=text, generate_examples=False)
        for status, text in descriptions.items()
    }


def _inlined(schema: Any, components: dict[str, Any]) -> Any:
    """Put the schemas that `schema` refers to in its place; the framework's registry takes none but its own."""
    match schema:
        case {"$ref": reference}:
            return _inlined(components[reference.rsplit("/", 1)[1]], components)
        case dict():
            return {key: _inlined(value, components) for key, value in schema.items()}
        case list():
            return [_inlined(value, components) for value in schema]
        case _:
            return schema


async def _no_html_error(response: Response[Any]) -> Response[Any]:
    """Turn the framework's own page for unknown paths under `/schema` into an error like any other."""
    if response.status_code == NotFoundException.status_code:
        raise NotFoundException
    return response
