"""`StructuredOutputs`: what a generated text must look like."""

from typing import Any, Literal, get_args

import msgspec

from infer_engine.protocol.values import ValueCode, WrongValueError, refusal

Whitespace = Literal["compact", "any"]

MAX_CHARACTERS = 65_536
"""Most characters of an expression, a grammar, or all choices together."""
MAX_SCHEMA_CHARACTERS = 524_288
"""Most characters of a schema."""
MAX_CHOICES_OF_TEXT = 1_000
KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form that the generated text must have: exactly one of the first six attributes is given.

    Attributes:
        json: a JSON Schema (draft 2020-12), as an object, a boolean or its JSON text.
        json_object: true: any JSON object.
        regex: a regular expression that the whole text matches, in the syntax of Rust's `regex` crate without
            look-around; digits are those of ASCII.
        choice: the text is one of these strings.
        grammar: a context-free grammar, in Lark's syntax or llama.cpp's GBNF.
        structural_tag: free text with tagged parts: `{"structures": [{"begin", "schema", "end"}], "triggers": [...]}`.
        whitespace_pattern: with `json` and `json_object`: a regular expression for the whitespace between JSON's
            tokens.
        whitespace: the same in a word. `compact`: at most one space, after a comma or a colon. `any`: none, one space,
            or one line break with indentation. None: as the engine's configuration says.
        strict: false: what cannot be kept of a schema is left out, where it is a schema; true: it is refused.

    Raises:
        ValueError: not exactly one is given, or a value is of the wrong type or too long.
    """

    json: Any = None
    json_object: bool | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    structural_tag: Any = None
    whitespace_pattern: str | None = None
    whitespace: Whitespace | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        """Check that exactly one kind is given, and the types and lengths of texts; schemas are checked later."""
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            found = ", ".join(f"`{name}`" for name in given) or "none"
            message = f"`structured_outputs` has {found}; give exactly one of {', '.join(KINDS)}."
            raise WrongValueError(message, code="conflicting_fields")
        if self.json_object not in (None, True):
            raise refusal("json_object", self.json_object, "true; leave it out for free text")
        for name in ("regex", "grammar", "whitespace_pattern"):
            _check_text(name, getattr(self, name))
        if self.choice is not None:
            self._check_choice()
        if self.whitespace_pattern is not None and self.json is None and not self.json_object:
            message = "`whitespace_pattern` is for `json` and `json_object`; leave it out."
            raise WrongValueError(message, code="conflicting_fields")
        if self.whitespace not in (None, *get_args(Whitespace)):
            raise refusal("whitespace", self.whitespace, "`compact` or `any`")
        if self.whitespace is not None and self.whitespace_pattern is not None:
            message = "`whitespace` and `whitespace_pattern` are given; send only one of them."
            raise WrongValueError(message, code="conflicting_fields")

    @property
    def kind(self) -> str:
        """The name of the attribute that is given."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    def _check_choice(self) -> None:
        choices: object = self.choice
        if not isinstance(choices, tuple | list) or not 1 <= len(choices) <= MAX_CHOICES_OF_TEXT:
            raise ValueError(f"`choice` must be a list of 1 to {MAX_CHOICES_OF_TEXT} strings.")
        if not all(isinstance(each, str) and each for each in choices):
            raise ValueError("`choice` must have strings of at least one character only.")
        msgspec.structs.force_setattr(self, "choice", tuple(choices))
        _check_length("choice", sum(map(len, choices)))


def refusal_code(outputs: StructuredOutputs | None) -> ValueCode:
    """Return the code for an answer whose form cannot be kept; without `outputs` that is the arguments of tools."""
    if outputs is None:
        return "invalid_function_parameters"
    return "invalid_json_schema" if outputs.kind in ("json", "json_object") else "invalid_grammar"


def _check_text(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str) or not value:
        raise refusal(name, value, "a text of at least one character")
    _check_length(name, len(value))


def _check_length(name: str, num_characters: int) -> None:
    if num_characters > MAX_CHARACTERS:
        message = f"`{name}` has {num_characters} characters; at most {MAX_CHARACTERS} are allowed."
        raise WrongValueError(message, code="string_above_max_length")
