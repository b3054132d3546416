"""Finds what a chat template leaves out of conversations without a word, by asking it with a few shapes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infer_models.text.chat.templates.template import PROBE, ChatTemplate, Message

_ASKED: Message = {"role": "user", "content": "Hi"}
_ANSWERED: Message = {"role": "assistant", "content": "Yes?"}


def _system(content: str = "Be brief.") -> Message:
    return {"role": "system", "content": content}


def _call(name: str, number: int = 0) -> Mapping[str, object]:
    return {"id": f"callid{number:03}", "type": "function", "function": {"name": name, "arguments": {}}}


def _result(number: int = 0, content: str = "-") -> Message:
    return {"role": "tool", "tool_call_id": f"callid{number:03}", "name": "f", "content": content}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part:
    """A part of conversations that templates may leave out.

    Attributes:
        name: what it is called in the log.
        instead: what becomes of it then; empty: it is lost, as with `transformers`.
        of_tools: a part of conversations with tools.
        shapes: conversations in which `PROBE` is such a part.
    """

    name: str
    instead: str = ""
    of_tools: bool = False
    shapes: tuple[Sequence[Message], ...]


SYSTEM = Part(name="system messages", shapes=([_system(PROBE), _ASKED],))
DEVELOPER = Part(
    name="messages of the developer",
    instead="the system's",
    shapes=([{"role": "developer", "content": PROBE}, _ASKED],),
)
FUNCTION = Part(
    name="results of the role `function`",
    instead="of the role `tool`",
    shapes=([{"role": "function", "name": "f", "content": PROBE}, _ASKED],),
)
FURTHER_SYSTEM = Part(
    name="further system messages at the beginning",
    instead="joined with the first",
    shapes=([_system(), _system(PROBE), _ASKED],),
)
EARLIER_SYSTEM = Part(
    name="all system messages but the last",
    instead="joined at the beginning, and then the user's where they stand",
    shapes=(
        [_system(PROBE), _system(), _ASKED],
        [_system(PROBE), _ASKED, _ANSWERED, _system(), _ASKED],
    ),
)
LATER_SYSTEM = Part(
    name="later system messages",
    instead="the user's where they stand",
    shapes=(
        [_ASKED, _ANSWERED, _system(PROBE), _ASKED],
        [_system(), _ASKED, _ANSWERED, _system(PROBE), _ASKED],
    ),
)
CALLS = Part(
    name="calls",
    of_tools=True,
    shapes=([_ASKED, {"role": "assistant", "content": "", "tool_calls": [_call(PROBE)]}, _result()],),
)
PARALLEL_CALLS = Part(
    name="all calls of an answer but the first",
    instead="turns of their own",
    of_tools=True,
    shapes=(
        [
            _ASKED,
            {"role": "assistant", "content": "", "tool_calls": [_call("f"), _call(PROBE, 1)]},
            _result(),
            _result(1),
        ],
    ),
)
WORDS_BESIDE_CALLS = Part(
    name="words beside calls",
    of_tools=True,
    shapes=(
        [_ASKED, {"role": "assistant", "content": PROBE, "tool_calls": [_call("f")]}, _result()],
        [_ASKED, {"role": "assistant", "content": PROBE, "tool_calls": [_call("f")]}, _result(), _ANSWERED, _ASKED],
    ),
)
SYSTEM_BEFORE_RESULTS = Part(
    name="system messages where a result is the last",
    of_tools=True,
    shapes=([_system(PROBE), _ASKED, {"role": "assistant", "content": "", "tool_calls": [_call("f")]}, _result()],),
)
RESULTS = Part(
    name="results",
    of_tools=True,
    shapes=([_ASKED, {"role": "assistant", "content": "", "tool_calls": [_call("f")]}, _result(content=PROBE)],),
)
PARTS = (
    SYSTEM,
    DEVELOPER,
    FUNCTION,
    FURTHER_SYSTEM,
    EARLIER_SYSTEM,
    LATER_SYSTEM,
    CALLS,
    PARALLEL_CALLS,
    WORDS_BESIDE_CALLS,
    SYSTEM_BEFORE_RESULTS,
    RESULTS,
)
_WHOLES = {
    FURTHER_SYSTEM: SYSTEM,
    EARLIER_SYSTEM: SYSTEM,
    LATER_SYSTEM: SYSTEM,
    SYSTEM_BEFORE_RESULTS: SYSTEM,
    PARALLEL_CALLS: CALLS,
}
"""Parts of which nothing is said where all of them are left out."""


def parts_left_out(template: ChatTemplate) -> tuple[Part, ...]:
    """Return the parts that `template` leaves out without a word; those that it refuses are not among them."""
    found = [part for part in PARTS if any(template.leaves_out_probe(shape) for shape in part.shapes)]
    return tuple(part for part in found if _WHOLES.get(part) not in found)


def said_of(parts: Sequence[Part]) -> str:
    """Return the names of `parts` and what becomes of each, but for those that only get another role."""
    named = [part for part in parts if part not in (DEVELOPER, FUNCTION)]
    return ", ".join(f"{part.name} ({part.instead or 'lost'})" for part in named)
