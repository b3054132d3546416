"""Fields of the SDKs' request types: each has an effect, is refused with its place, or is listed in `docs/fields.md`.

A field is sent at values of its type in a body that has the least beside it. What is compared is what the engine gets
and what the client gets, with the field and without, or at two values where it must be there.
"""

import itertools
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union

import httpx
import pytest
import typing_extensions
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_message_count_tokens_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_create_params
from pydantic import BaseModel

from infer_engine.protocol import AnswerDelta, ContentDelta, ReasoningDelta, TextPrompt, ToolCallDelta
from infer_proofs.server import FakeEngine, Script
from infer_proofs.server.client import client_of
from infer_server.api.carried_thinking import carried_thinking

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fields.md"

PARAMETERS = {"type": "object", "properties": {}}
HI = {"role": "user", "content": "x"}


def nested_function(name: str) -> dict[str, Any]:
    """Return a tool as chats have it."""
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}


def flat_function(name: str) -> dict[str, Any]:
    """Return a tool as responses have it."""
    return {"type": "function", "name": name, "parameters": PARAMETERS, "strict": False}


def plain_tool(name: str) -> dict[str, Any]:
    """Return a tool as messages have it."""
    return {"name": name, "input_schema": PARAMETERS}


class Route(NamedTuple):
    """A route, the type of its bodies, a body of its own with as little as it may have, and its shape of tools."""

    path: str
    body: type
    least: dict[str, Any]
    tool: Callable[[str], dict[str, Any]]


MESSAGES: dict[str, Any] = {"messages": [HI], "max_tokens": 9}
COUNTED: dict[str, Any] = {"messages": [HI]}
ROUTES = {
    "completions": Route(
        "/v1/completions", completion_create_params.CompletionCreateParamsBase, {"prompt": "x"}, nested_function
    ),
    "chats": Route(
        "/v1/chat/completions", chat_create_params.CompletionCreateParamsBase, {"messages": [HI]}, nested_function
    ),
    "responses": Route(
        "/v1/responses", response_create_params.ResponseCreateParamsBase, {"input": [HI]}, flat_function
    ),
    "responses/input_tokens": Route(
        "/v1/responses/input_tokens", input_token_count_params.InputTokenCountParams, {"input": [HI]}, flat_function
    ),
    "messages": Route("/v1/messages", message_create_params.MessageCreateParamsBase, MESSAGES, plain_tool),
    "messages/count_tokens": Route(
        "/v1/messages/count_tokens", message_count_tokens_params.MessageCountTokensParams, COUNTED, plain_tool
    ),
    "beta messages": Route(
        "/v1/messages?beta=true", beta_message_create_params.MessageCreateParamsBase, MESSAGES, plain_tool
    ),
    "beta messages/count_tokens": Route(
        "/v1/messages/count_tokens?beta=true",
        beta_message_count_tokens_params.MessageCountTokensParams,
        COUNTED,
        plain_tool,
    ),
}

# What a field needs beside it to have an effect.
COMPANIONS: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "suffix": {"prompt": "y"},
}
# Values of fields whose type says less than their names.
NAMED: dict[str, list[Any]] = {
    "model": ["fake-model", "another"],
    "name": ["f", "g"],
    "schema": [PARAMETERS],
    "encrypted_content": [carried_thinking("c")],
    "signature": [carried_thinking("c"), "another's"],
    "max_tokens": [5],
    "budget_tokens": [1024],
    "stop": ["e", ["e"]],
    "best_of": [1, 2],
    "function_call": ["none", "auto", {"name": "f"}],
}
# What a typed dictionary needs beyond what its type says, to be understood or to have an effect.
FILLED: dict[str, dict[str, Any]] = {
    "JSONSchema": {"schema": PARAMETERS},
    "ResponseReasoningItemParam": {"summary": [{"type": "summary_text", "text": "s"}]},
    "FunctionCallOutput": {"name": "f"},
    "BetaCompactionBlockParam": {"content": "s"},
    "ThinkingBlockParam": {"thinking": ""},
    "BetaThinkingBlockParam": {"thinking": ""},
}
# Fields that the SDK sends as headers.
HEADERS = {
    "betas": "anthropic-beta",
    "user_profile_id": "anthropic-user-profile-id",
    "workspace_id": "anthropic-workspace-id",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A field: its path with the kind of each element, a value of its parent without it, and values with it."""

    path: str
    without: Any
    values: list[Any]


def is_typed_dict(kind: Any) -> bool:
    return typing_extensions.is_typeddict(kind)


def structs(kind: Any) -> list[Any]:
    """Return the typed dictionaries of a union."""
    return [each for each in members(kind) if is_typed_dict(each)]


def members(kind: Any) -> list[Any]:
    """Return the kinds of a union that a body can have; those of what the SDK returns are the same as their params."""
    origin: Any = typing.get_origin(kind)
    if origin in (Annotated, typing_extensions.Required, typing_extensions.NotRequired):
        return members(typing.get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return [each for one in typing.get_args(kind) for each in members(one)]
    if isinstance(kind, type) and not is_typed_dict(kind) and issubclass(kind, BaseModel):
        return []
    return [kind]


def hints(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a typed dictionary, and whether it must be there."""
    found = typing_extensions.get_type_hints(kind, include_extras=True)
    return {
        name: (hint, _origin(hint) is typing_extensions.Required or kind.__total__)
        for name, hint in found.items()
        if _origin(hint) is not typing_extensions.NotRequired
    }


def _origin(kind: Any) -> Any:
    return typing_extensions.get_origin(kind)


def tag(kind: Any) -> str:
    """Return what tells a typed dictionary from the others of its union: its type, its role, or its name."""
    for name in ("type", "role"):
        if name in hints(kind):
            [one, *_] = members(hints(kind)[name][0])
            if typing.get_origin(one) is Literal:
                return str(typing.get_args(one)[0])
    return str(kind.__name__)


def element(kind: Any) -> Any:
    """Return the kind of a list's elements; None if `kind` is no list."""
    origin = typing.get_origin(kind)
    is_list = isinstance(origin, type) and issubclass(origin, Iterable) and not issubclass(origin, Mapping | tuple)
    return typing.get_args(kind)[0] if is_list or getattr(origin, "__name__", "") == "SequenceNotStr" else None


def least(kind: Any, name: str = "") -> Any:
    """Return a value of a kind with as little as it may have."""
    return next(iter(values(kind, name)))


def values(kind: Any, name: str = "") -> list[Any]:
    """Return values of a kind: all words of a literal, both truths, something of each member of a union."""
    if name in NAMED:
        return NAMED[name]
    found: list[Any] = []
    for one in members(kind):
        if is_typed_dict(one):
            found.append(least_object(one))
        elif typing.get_origin(one) is Literal:
            found += typing.get_args(one)
        elif (inside := element(one)) is not None:
            found += [[value] for value in values(inside, name)]
        elif one in _PLAIN:
            found += _PLAIN[one]
        elif typing.get_origin(one) is dict or one is dict:
            found.append(_OBJECTS.get(typing.get_args(one), PARAMETERS))
    return found


_PLAIN: dict[Any, list[Any]] = {
    str: ["a", "b"],
    int: [2, 3],
    float: [0.5, 0.25],
    bool: [True, False],
    object: [PARAMETERS, {"type": "object", "title": "T"}],
    type(None): [None],
}
_OBJECTS: dict[Any, dict[str, Any]] = {(str, int): {"5": 1}, (str, str): {"a": "b"}, (str, bool): {"a": True}}


def least_object(kind: Any) -> dict[str, Any]:
    """Return a typed dictionary with the fields that must be there."""
    required = {name: least(hint, name) for name, (hint, is_required) in hints(kind).items() if is_required}
    return required | FILLED.get(kind.__name__, {})


def cases(kind: Any, *, seen: tuple[Any, ...] = ()) -> Iterator[Case]:
    """Yield the fields within a kind, those of its elements and members too; a kind within itself once."""
    several = len(structs(kind)) > 1
    for one in members(kind):
        if is_typed_dict(one) and one not in seen:
            label = f"[{tag(one)}]" if several else ""
            if several:
                yield Case(label, None, [least_object(one)])
            for case in _fields(one, seen=(*seen, one)):
                yield Case(label + case.path, case.without, case.values)
        elif (inside := element(one)) is not None:
            for each in structs(inside):
                yield Case(f"[{tag(each)}]", [], [[least_object(each)]])
                if each not in seen:
                    for case in _fields(each, seen=(*seen, each)):
                        yield Case(f"[{tag(each)}]{case.path}", [case.without], [[value] for value in case.values])


def _fields(kind: Any, *, seen: tuple[Any, ...]) -> Iterator[Case]:
    start = least_object(kind)
    for name, (hint, required) in hints(kind).items():
        found = values(hint, name)
        without = start if required else {key: value for key, value in start.items() if key != name}
        if any(value not in ({}, [], None) for value in found) and (not required or len(found) > 1):
            yield Case(f".{name}", without, [start | {name: value} for value in found])
        for case in cases(hint, seen=seen):
            yield Case(
                f".{name}{case.path}",
                start | {name: case.without},
                [start | {name: value} for value in case.values],
            )


def in_body(route: Route, name: str, value: Any) -> dict[str, Any]:
    """Return a body with a value of the field `name`: a message between two turns, a tool beside another."""
    turns = route.least.get(name)
    body = route.least | COMPANIONS.get(name, {})
    if "tools" in hints(route.body):
        body["tools"] = [route.tool("f")]
    if isinstance(value, list) and isinstance(turns, list):
        return body | {name: [*turns, *value, {"role": "assistant", "content": "z"}, HI]}
    if isinstance(value, list) and name == "tools":
        return body | {name: [route.tool("spare"), *value]}
    return {key: each for key, each in (body | {name: value}).items() if each is not None}


class RecordingEngine(FakeEngine):
    """An engine that also records the prompt that it counts."""

    counted: TextPrompt | None = None

    async def tokenize(self, prompt: TextPrompt, *, add_special_tokens: bool = True) -> list[int]:
        self.counted = prompt
        return await super().tokenize(prompt, add_special_tokens=add_special_tokens)


PARTS: tuple[AnswerDelta, ...] = (ReasoningDelta("Hm."), ContentDelta("Hello."), ToolCallDelta(0, "f", "{}"))
_DRAWN = re.compile(r'"(created|created_at)":\d+|\b(resp|rs|msg|fc|ctc|call|chatcmpl|cmpl|toolu|req)[_-][0-9a-f]+')
_INDEX = re.compile(r"\[[^\]]*\]")


class Outcome(NamedTuple):
    """What came of a body."""

    status: int
    effect: tuple[Any, ...]
    error: str
    places: list[str]


class Server:
    """The application around an engine without a model, which says what a body makes of both."""

    def __init__(self) -> None:
        self._engine = RecordingEngine(Script(steps=tuple(((index,), (part,)) for index, part in enumerate(PARTS))))
        self._client = client_of(self._engine)

    async def answer(self, route: Route, body: dict[str, Any]) -> Outcome:
        """Send `body`; return what came of it."""
        self._engine.requests.clear()
        self._engine.streams.clear()
        self._engine.counted = None
        headers = {header: str(body[name]) for name, header in HEADERS.items() if name in body}
        sent = {name: value for name, value in body.items() if name not in HEADERS}
        reply = await self._client.post(route.path, json=sent, headers=headers)
        effect = ([*self._engine.requests], self._engine.counted, _DRAWN.sub("", reply.text))
        return Outcome(reply.status_code, effect, *_error_of(reply))


def _error_of(reply: httpx.Response) -> tuple[str, list[str]]:
    """Return the message of an error and the places that it names; Anthropic's envelope has them in its words only."""
    if reply.status_code == 200:
        return "", []
    error = reply.json()["error"]
    return error["message"], [error["param"] or ""] if "param" in error else re.findall(r"`([^`]+)`", error["message"])


def is_at(place: str, path: str) -> bool:
    """Return whether a place in a body is that of a field, or of what is around or in it."""
    found, wanted = _INDEX.sub("", place), _INDEX.sub("", path)
    return bool(found) and (f"{wanted}.".startswith(f"{found}.") or f"{found}.".startswith(f"{wanted}."))


async def verdict(server: Server, route: Route, name: str, case: Case) -> str:
    """Return `taken`, `passed over` or `refused`, or what is wrong."""
    path = name + case.path
    before = await server.answer(route, in_body(route, name, case.without))
    results = [await server.answer(route, in_body(route, name, value)) for value in case.values]
    refused = [each for each in results if each.status != 200]
    for each in refused:
        is_named = any(is_at(place, path) or place in before.places for place in filter(None, each.places))
        if not 400 <= each.status < 500 or not is_named:
            return f"{each.status}, {each.error[:200]}"
    if any(each.status == 200 and each.effect != before.effect for each in results):
        return "taken"
    return "refused" if refused else "passed over"


def top_cases(route: Route) -> Iterator[tuple[str, Case]]:
    """Yield the fields of a body, each with the name of that in which it stands."""
    for name, (hint, _) in hints(route.body).items():
        found = values(hint, name)
        if any(value not in ({}, [], None) for value in found):
            yield name, Case("", None, found)
        for case in cases(hint):
            yield name, case


_RANKS = ("passed over", "refused", "taken")


async def verdicts(server: Server, route: Route, *, every: int = 1) -> dict[str, str]:
    """Return the verdict of each field of a route, or of one in `every`; one path may be that of several kinds.

    What is in an element that is passed over is so too.
    """
    found: dict[str, str] = {}
    dropped = "an element that is passed over"
    for name, case in itertools.islice(top_cases(route), 0, None, every):
        path = name + case.path
        is_inside = path.startswith(dropped)
        result = "passed over" if is_inside else await verdict(server, route, name, case)
        if path.endswith("]") and result == "passed over" and not is_inside:
            dropped = path
        known = found.get(path, "passed over")
        found[path] = result if result not in _RANKS else max(known, result, key=_rank)
    return found


def _rank(result: str) -> int:
    """Return how much a verdict says; one that is none says most."""
    return _RANKS.index(result) if result in _RANKS else len(_RANKS)


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of the page: the APIs that it is about, and the fields, with what is inside of them."""

    apis: str
    pattern: str

    def fits(self, route: str, path: str) -> bool:
        """Return whether a field of a route is one of these."""
        api = route.removeprefix("beta ")
        fields = "".join(".*" if part == "*" else re.escape(part) for part in re.split(r"(\*)", self.pattern))
        of_api = self.apis == "all" or any(f"{api}/".startswith(f"{each}/") for each in self.apis.split(", "))
        return of_api and re.fullmatch(rf"{fields}([.\[].*)?", path) is not None


def listed() -> list[Listed]:
    """Return the entries of the page."""
    rows = re.findall(r"^\| ([a-z_/, ]+) \| (`.*`) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [Listed(apis, pattern) for apis, fields in rows for pattern in re.findall(r"`([^`]+)`", fields)]


def without_verdict(route: str, found: Mapping[str, str], entries: Sequence[Listed]) -> list[str]:
    """Return the fields of a route that have none: no effect and not listed, or refused without their place."""
    return [
        f"{route} {path}: {result}"
        for path, result in found.items()
        if result not in ("taken", "refused")
        and not (result == "passed over" and any(entry.fits(route, path) for entry in entries))
    ]


async def test_fields_of_the_sdks_have_a_verdict(figure: Callable[[str, int, Sequence[str]], None]) -> None:
    """A sample: one field in many of each route."""
    server, entries = Server(), listed()
    found = {name: await verdicts(server, route, every=23) for name, route in ROUTES.items() if " " not in name}
    wrong = [each for name, fields in found.items() for each in without_verdict(name, fields, entries)]
    figure("sdk-fields", sum(map(len, found.values())), wrong)


@pytest.mark.full
@pytest.mark.timeout(1800)
async def test_every_field_of_the_sdks_has_a_verdict(figure: Callable[[str, int, Sequence[str]], None]) -> None:
    server, entries = Server(), listed()
    found = {name: await verdicts(server, route) for name, route in ROUTES.items()}
    wrong = [each for name, fields in found.items() for each in without_verdict(name, fields, entries)]
    figure("sdk-fields", sum(map(len, found.values())), wrong)
    dropped = [
        (name, path) for name, fields in found.items() for path, result in fields.items() if result == "passed over"
    ]
    assert [entry for entry in entries if not any(entry.fits(*field) for field in dropped)] == []
