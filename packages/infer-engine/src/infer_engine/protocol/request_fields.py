"""`RequestField`: the declaration of a field of requests, such as `temperature`, in its annotation in `SamplingParams`.

From it follow the field's check, its row in the documentation, its place among the values that a checkpoint recommends,
and in the server its place in the bodies of all APIs and what other servers call it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

import msgspec

from infer_engine.protocol import values
from infer_engine.protocol.values import Check, refusal, too_many

Api = Literal["completions", "responses", "messages"]
"""An API of the server; chats have the fields of completions."""
ALL: tuple[Api, ...] = ("completions", "responses", "messages")
OPENAI: tuple[Api, ...] = ("completions", "responses")

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestField:
    """The declaration of a field.

    Attributes:
        sentence: what it does, for the OpenAPI document and the documentation: the text beside the declaration.
        allowed: the values that it may have, for errors and the documentation.
        check: refuses all others.
        json_type: its type in a body.
        json_schema: its limits in a body, in words of JSON Schema.
        apis: APIs whose bodies have it by its name; a body in which it has another form declares it itself.
        spellings: places in bodies at which it may be given, if there are several, that which counts first.
        aliases: names that other servers have for it.
        elsewhere: fields of other servers that mean something alike, with the values at which they change nothing.
        key: its name in a `generation_config.json`, if a checkpoint may recommend a value.
    """

    sentence: str = ""
    allowed: str
    check: Check
    json_type: Any = None
    json_schema: Mapping[str, Any] = field(default_factory=dict)
    apis: tuple[Api, ...] = ("completions",)
    spellings: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    elsewhere: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    key: str | None = None


def numbers(low: float, high: float, *, above_low: bool = False, **names: Any) -> RequestField:
    """Declare a finite number from `low` to `high`; NaN is outside, as it compares false."""
    allowed = f"a number in {'(' if above_low else '['}{low:g}, {high:g}]"
    check = values.number(allowed, lambda value: low <= value <= high and not (above_low and value == low), low=low)
    schema = {"exclusiveMinimum" if above_low else "minimum": low, "maximum": high}
    return RequestField(allowed=allowed, check=check, json_type=float, json_schema=schema, **names)


def whole_numbers(low: int, high: int | None = None, *, allowed: str | None = None, **names: Any) -> RequestField:
    """Declare a whole number from `low` to `high`, if there is a largest; `allowed` are better words for them."""
    allowed = allowed or f"a whole number {f'of at least {low}' if high is None else f'in [{low}, {high}]'}"
    check = values.whole_number(allowed, lambda value: low <= value and (high is None or value <= high), low=low)
    schema = {"minimum": low} if high is None else {"minimum": low, "maximum": high}
    return RequestField(allowed=allowed, check=check, json_type=int, json_schema=schema, **names)


def switch(**names: Any) -> RequestField:
    """Declare a field that is true or false."""
    return RequestField(allowed="True or False", check=values.switch(), json_type=bool, **names)


def texts(most: int, *, least_characters: int = 1, most_characters: int, **names: Any) -> RequestField:
    """Declare a list of texts. Where they may be empty, a body may have a text alone, too."""
    allowed = f"strings of 1 to {most_characters} characters"

    def check(name: str, text: object) -> None:
        if not isinstance(text, str):
            raise refusal(name, text, allowed)
        if not least_characters <= len(text) <= most_characters:
            raise refusal(name, text[:40], allowed, code="string_above_max_length" if text else "empty_string")

    limits = ({"minLength": least_characters} if least_characters else {}) | {"maxLength": most_characters}
    text = Annotated[str, msgspec.Meta(description="A text.", extra_json_schema=limits)]
    json_type = list[text] if least_characters else text | list[text]
    return _items(most, allowed, check, noun="strings", json_type=json_type, **names)


def token_ids(most: int, *, least: int = 0, **names: Any) -> RequestField:
    """Declare a list of token ids."""
    return _items(most, "token ids", TOKEN_ID.check, noun="ids", least=least, json_type=list[TokenId], **names)


def _items(most: int, allowed: str, check_item: Check, *, noun: str, least: int = 0, **others: Any) -> RequestField:
    def check(name: str, value: Any) -> None:
        if len(value) > most:
            raise too_many(name, len(value), noun, most=most)
        for item in value:
            check_item(name, item)

    limits = ({"minItems": least} if least else {}) | {"maxItems": most}
    return RequestField(allowed=f"{least or 'up'} to {most} {allowed}", check=check, json_schema=limits, **others)


TOKEN_ID = whole_numbers(0, allowed="token ids of at least 0")
TokenId = Annotated[int, msgspec.Meta(description="A token id.", extra_json_schema=dict(TOKEN_ID.json_schema))]


def declared_fields(struct: type[msgspec.Struct]) -> dict[str, RequestField]:
    """Return the declarations in the annotations of `struct`, each after its sentence, by field."""
    annotated = {each.name: get_args(each.type) for each in msgspec.structs.fields(struct)}
    return {name: replace(declared, sentence=sentence) for name, (_, sentence, declared) in annotated.items()}


def with_fields(types: Mapping[str, Any]) -> Callable[[type[S]], type[S]]:
    """Return a decorator that gives a struct further fields, of `types` by name, which are None if left out."""
    fields = [(name.replace(".", "_"), kind, msgspec.field(default=None, name=name)) for name, kind in types.items()]

    def extended(struct: type[S]) -> type[S]:
        own = {"__doc__": struct.__doc__}
        module = struct.__module__
        more = msgspec.defstruct(struct.__name__, fields, bases=(struct,), module=module, namespace=own, kw_only=True)
        return cast("type[S]", more)

    return extended
