"""The OpenAPI document and its page under `/schema`.

`http.bodies` decodes bodies, not the framework, so their schemas are added to the document here. The page is static and
loads nothing else.
"""

import html
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any, cast, get_args

import msgspec
from litestar import Request, Response, Router
from litestar.exceptions import NotFoundException
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.plugins import OpenAPIRenderPlugin
from litestar.openapi.spec import (
    OpenAPI,
    OpenAPIMediaType,
    OpenAPIResponse,
    Operation,
    Reference,
    RequestBody,
    Schema,
    SecurityScheme,
    Server,
)

from infer_server.errors import ErrorReply

_KEY_SCHEMES = {
    "api_key": SecurityScheme(type="http", scheme="bearer", description="One of the server's API keys."),
    "x_api_key": SecurityScheme(
        type="apiKey", name="x-api-key", security_scheme_in="header", description="The same in Anthropic's header."
    ),
}


@dataclass
class _ReadySchema(Schema):
    """A schema that is given as JSON."""

    document: dict[str, Any] = field(default_factory=dict)

    def to_schema(self) -> dict[str, Any]:
        """Return the JSON."""
        return self.document


class _StaticPage(OpenAPIRenderPlugin):
    """The document as a page without scripts."""

    def __init__(self, *, path: str, root: str) -> None:
        """The page is at `path`; its links begin with `root`."""
        super().__init__(path=path)
        self._root = root

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
            f'<p>For programs: <a href="{self._root}{self.get_openapi_json_route(request)}">openapi.json</a></p>'
            f"<pre>{document}</pre>"
        ).encode()


def openapi_config(*, root: str = "") -> OpenAPIConfig:
    """Return the configuration of `/schema`; `root` is the path under which clients find it."""
    return OpenAPIConfig(
        title="infer",
        version=version("infer-server"),
        description="LLM inference over an OpenAI-compatible API.",
        servers=[Server(url=root or "/")],
        render_plugins=[_StaticPage(path="/", root=root)],
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_no_html_error),
    )


def document_api_keys(document: OpenAPI, *, open_paths: Collection[str]) -> None:
    """Document that every operation needs an API key, except those of `open_paths`."""
    document.components.security_schemes = {**_KEY_SCHEMES}
    for path, item in (document.paths or {}).items():
        operations = (item.get, item.post)
        for operation in operations if path not in open_paths else ():
            if operation is not None:
                operation.security = [{scheme: []} for scheme in _KEY_SCHEMES]
                operation.responses = {**(operation.responses or {}), "401": _refusal_like(operation)}


def _refusal_like(operation: Operation) -> OpenAPIResponse:
    """Return the documentation of a refused key, whose body is that of the operation's other errors."""
    known = (operation.responses or {}).get("400")
    usual = OpenAPIMediaType(schema=Reference(ref="#/components/schemas/ErrorReply"))
    content = known.content if isinstance(known, OpenAPIResponse) else {"application/json": usual}
    return OpenAPIResponse(description="The API key is missing or wrong.", content=content)


def operation_with_body(
    *structs: type[msgspec.Struct], events: str | None = None, part_of: type[msgspec.Struct] | None = None
) -> type[Operation]:
    """Return the operation class of a route that decodes its body as one of `structs` itself.

    `events` describes its event stream, if it can answer with one. It answers with the fields of `part_of` that the
    body asks for, if that is given.
    """
    schemas = [schema_of(struct) for struct in structs]
    schema = _ReadySchema(document=schemas[0] if len(schemas) == 1 else {"oneOf": schemas})

    @dataclass
    class OperationWithBody(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(
                content={"application/json": OpenAPIMediaType(schema=schema)}, required=True
            )
            assert self.responses is not None
            success = cast("OpenAPIResponse", self.responses["200"])
            assert success.content is not None
            if part_of is not None:
                part = {name: value for name, value in schema_of(part_of).items() if name != "required"}
                success.content["application/json"] = OpenAPIMediaType(schema=_ReadySchema(document=part))
            if events is not None:
                # No type: some tools apply the schema to the whole text, others to each event.
                stream = _ReadySchema(document={"description": events})
                success.content["text/event-stream"] = OpenAPIMediaType(schema=stream)

    return OperationWithBody


def another_name(of: str) -> msgspec.Meta:
    """Return the annotation of a field that others have for the field `of`, whose schema it has in the document."""
    return msgspec.Meta(extra={"another_name_of": of})


@cache
def other_names(struct: type[msgspec.Struct]) -> Mapping[str, str]:
    """Return the fields of `struct` that are other names, with the names of the fields that they mean."""
    return {
        field.name: metadata.extra["another_name_of"]
        for field in msgspec.structs.fields(struct)
        for metadata in get_args(field.type)[1:]
        if isinstance(metadata, msgspec.Meta) and metadata.extra and "another_name_of" in metadata.extra
    }


@cache
def schema_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of `struct`, without references; leave it as it is, as others get the same."""
    (reference,), components = msgspec.json.schema_components([struct])
    schema: dict[str, Any] = _inlined(reference, components)
    for name, meant in other_names(struct).items():
        kinds = [{"enum": [None, "", [], {}]}, *filter(None, [schema["properties"].get(meant)])]
        schema["properties"][name] = {"anyOf": kinds, "description": f"Another name of `{meant}`."}
    return schema


def error_responses(
    descriptions: dict[int, str], *, reply: type[msgspec.Struct] = ErrorReply
) -> dict[int, ResponseSpec]:
    """Return the documentation of a route's errors: a description for each status; all have `reply` as their body."""
    return {
        status: ResponseSpec(reply, description=text, generate_examples=False)
        for status, text in sorted(descriptions.items())
    }


def _inlined(schema: Any, components: dict[str, Any]) -> Any:
    """Replace references in `schema` by what they refer to; the framework's registry takes only its own schemas."""
    match schema:
        case {"$ref": reference, **beside}:
            return _inlined(components[reference.rsplit("/", 1)[1]], components) | beside
        case {"oneOf": _, "anyOf": _}:  # a field whose `oneOf` is more precise than the `anyOf` of its type
            return _inlined({key: value for key, value in schema.items() if key != "anyOf"}, components)
        case dict():
            return {key: _inlined(value, components) for key, value in schema.items()}
        case list():
            return [_inlined(value, components) for value in schema]
        case _:
            return schema


async def _no_html_error(response: Response[Any]) -> Response[Any]:
    """Replace the framework's HTML page for unknown paths under `/schema` by the usual error reply."""
    if response.status_code == NotFoundException.status_code:
        raise NotFoundException
    return response
