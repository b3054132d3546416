"""`ToolCallFormat`: how a model writes tool calls."""

import json
import re
from dataclasses import dataclass
from typing import Any

BARE_NAME = re.compile(r"[\w.$-]+")
"""A name that literals have without quotes."""
_RAW_NAME = re.compile(r"""[^\s:=,(){}\[\]<>"']+( +[^\s:=,(){}\[\]<>"']+)*""")
"""The same where texts stand between marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFormat:
    """The texts around the arguments of a call that are written one by one, each with its name.

    ```
    begin NAME name_end VALUE end
    ```

    A value that is a text is written as it is, any other one as JSON. Which of them it is, is in the tool's schema; in
    some formats the mark before it says so too. An `end` behind which neither another parameter nor the end of the call
    follows belongs to the text.

    Attributes:
        begin: before the name.
        name_end: between the name and a value that is a text.
        json_name_end: between the name and any other value; left out: `name_end`.
        end: after the value.
        own_lines: a value is on lines of its own: a line break at each of its ends is no part of it.
    """

    begin: str
    name_end: str
    json_name_end: str = ""
    end: str
    own_lines: bool = False

    def write(self, arguments: str) -> str:
        """Return arguments, which are a JSON object; any other text is written as one parameter."""
        return "".join(self._write_one(name, value) for name, value in _members(arguments).items())

    def _write_one(self, name: str, value: object) -> str:
        line_break = "\n" if self.own_lines else ""
        is_text = isinstance(value, str)
        name_end = self.name_end if is_text or not self.json_name_end else self.json_name_end
        written = value if is_text else json.dumps(value, ensure_ascii=False)
        return f"{self.begin}{name}{name_end}{line_break}{written}{line_break}{self.end}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralFormat:
    """The form of arguments as literals of another language than JSON, such as Python.

    ```
    NAME name_end VALUE, NAME name_end VALUE end
    ```

    Numbers and lists are those of JSON, and objects but for their names. A name that holds more than letters, digits
    and `_.$-`, or with `quote` a bracket or another mark, is written as a text.

    Attributes:
        name_end: between a name of the arguments and its value.
        end: after the last argument.
        separator: between two members or elements.
        quote: at both ends of a text, which is written as it is; the names of objects in values have none. Left out:
            single or double quotes, with backslashes as in Python, also around those names.
        true, false, null: these values.
    """

    name_end: str
    end: str
    separator: str = ", "
    quote: str = ""
    true: str = "true"
    false: str = "false"
    null: str = "null"

    def write(self, arguments: str) -> str:
        """Return arguments, which are a JSON object, without `end`; any other text is written as one argument."""
        members = _members(arguments).items()
        return self.separator.join(
            f"{self.write_name(name)}{self.name_end}{self._write(each)}" for name, each in members
        )

    def write_name(self, name: str) -> str:
        """Return a name of the arguments."""
        return name if (_RAW_NAME if self.quote else BARE_NAME).fullmatch(name) else self.write_text(name)

    def write_text(self, text: str) -> str:
        """Return a text."""
        return f"{self.quote}{text}{self.quote}" if self.quote else json.dumps(text, ensure_ascii=False)

    def write_constant(self, value: bool | None) -> str:  # noqa: FBT001 - the value itself
        """Return true, false or null."""
        return self.null if value is None else self.true if value else self.false

    def _write(self, value: object) -> str:
        match value:
            case bool() | None:
                return self.write_constant(value)
            case str():
                return self.write_text(value)
            case list():
                return f"[{self.separator.join(map(self._write, value))}]"
            case dict():
                colon = ":" if self.quote else ": "
                write_name = self.write_name if self.quote else self.write_text
                members = (f"{write_name(name)}{colon}{self._write(each)}" for name, each in value.items())
                return f"{{{self.separator.join(members)}}}"
            case _:
                return json.dumps(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallFormat:
    """The texts around a tool call. White space in them stands for any little white space, or none.

    ```
    begin  call_begin NAME before_arguments ARGUMENTS call_end  separator  call_begin ... call_end  end
    ```

    Arguments are a JSON object, or `parameters` or `literals` says otherwise; then they end with the first text of
    `call_end`.

    Attributes:
        name: name in the configuration.
        trigger: the beginning of `begin + call_begin`, which no text but a call contains.
        is_anywhere: text may come before the first call; otherwise an answer is all text or all calls.
        call_begin: before the name.
        before_arguments: between the name and the arguments.
        call_end: after the arguments.
        begin: before the first call.
        separator: between two calls.
        end: after the last call.
        prefix: a text without a meaning that some models write first.
        other_begins: what models write in place of `begin`; an empty text: they leave it out.
        other_ends: what they write in place of `end`.
        wrapper: the beginning of `call_begin` that some models leave out; what is left is a trigger too.
        tokens: the texts in these that are one token in vocabularies of this format, if they have it; left out: as in
            `markers`.
        is_numbered: a colon and the number of the call, counted over the conversation, come after the name. Templates
            take both from the ids of calls.
        name_prefix: the end of `call_begin` that some models leave out.
        id_mark: an id of the call, behind this mark, may come after the name.
        ends_reasoning: a call ends reasoning too, of which models forget the end; else what it says of calls is none.
        parameters: how arguments are written that are given one by one between marks.
        literals: how arguments are written that are literals of another language than JSON.
    """

    name: str
    trigger: str
    is_anywhere: bool
    call_begin: str
    before_arguments: str
    call_end: str
    begin: str = ""
    separator: str = ""
    end: str = ""
    prefix: str = ""
    other_begins: tuple[str, ...] = ()
    other_ends: tuple[str, ...] = ()
    wrapper: str = ""
    tokens: tuple[str, ...] = ()
    is_numbered: bool = False
    name_prefix: str = ""
    id_mark: str = ""
    ends_reasoning: bool = False
    parameters: ParameterFormat | None = None
    literals: LiteralFormat | None = None

    @property
    def arguments_end(self) -> str:
        """The text with which `call_end` begins, up to which arguments go; empty where they are JSON."""
        if self.literals is not None:
            return self.literals.end
        return "" if self.parameters is None else self.call_end.split()[0]

    @property
    def closing(self) -> tuple[str, ...]:
        """The marks behind the last argument of the last call, where more than one says that the call is over.

        Together they end a value of `parameters` too, whose own end the model has forgotten.
        """
        marks = (*self.call_end.split(), *self.end.split())
        return marks if self.parameters is not None and len(marks) > 1 else ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that are one token in vocabularies of this format, if they have it."""
        if self.tokens:
            return self.tokens
        return tuple(text for text in (self.trigger, self.prefix, self.before_arguments) if text and '"' not in text)

    @property
    def triggers(self) -> tuple[str, ...]:
        """The texts with which calls begin."""
        call_begin = self.call_begin.removesuffix(self.name_prefix)
        bare = (self.call_begin.removeprefix(self.wrapper).lstrip(),) if self.wrapper else ()
        return (self.trigger, *bare, *(begin or call_begin for begin in self.other_begins))

    def write(self, *calls: tuple[str, str]) -> str:
        """Return the calls of one answer, each a name and its arguments as JSON."""
        texts = []
        for index, (name, arguments) in enumerate(calls):
            number = f":{index}" if self.is_numbered else ""
            written_as = self.parameters or self.literals
            written = arguments if written_as is None else written_as.write(arguments)
            texts.append(f"{self.call_begin}{name}{number}{self.before_arguments}{written}{self.call_end}")
        return self.begin + self.separator.join(texts) + self.end

    def example(self) -> str:
        """Return a call with words in the places of its parts."""
        is_json = self.parameters is None and self.literals is None
        return self.write(("NAME", "{...}" if is_json else '{"PARAMETER": "VALUE"}'))


def _members(arguments: str) -> dict[str, Any]:
    try:
        members = json.loads(arguments)
    except ValueError:
        members = None
    return members if isinstance(members, dict) else {"arguments": arguments}
