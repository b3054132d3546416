"""`without_refusals`: a grammar whose JSON schemas are wider where the grammar library refuses them, and only there.

Its rules are not repeated here: where it complains, the smallest schemas about which it says the same are found, on one
way through all of them, and in each the keyword without which it says something else.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from infer_engine.structured.errors import GrammarError, describe
from infer_engine.structured.json_schema.places import inside, places_of, target_of
from infer_engine.structured.json_schema.references import reference_to
from infer_engine.structured.json_schema.widening import LIMITS, variants

STRICT = "x-strict"
"""The word in a schema for the library that says that it may not become wider; the library passes over it."""
MAX_REPAIRS = 64
"""In one schema."""

_EXPRESSION = "%json "
_NOTHING_MATCHES = "Unsatisfiable"
"""How the library says that a schema contradicts itself: no wider one is meant."""
_FOLDERS = ("$defs", "definitions")
_LOST_LAST = ("$ref", "properties", "type")
_OPTIONS = frozenset({*_FOLDERS, "$schema", "x-guidance", STRICT})

Complaint = Callable[[str], str]
"""Returns what the library says against a grammar; nothing if it takes it."""


def without_refusals(grammar: str, complaint_of: Complaint) -> str:
    """Return `grammar` with the schemas in it as the library takes them, if it can.

    Raises:
        GrammarError: it does not take a strict one; the message has the keyword and its place.
    """
    parts: list[str] = []
    end = 0
    while (begin := grammar.find(_EXPRESSION, end)) >= 0:
        begin += len(_EXPRESSION)
        parts.append(grammar[end:begin])
        try:
            schema, end = json.JSONDecoder().raw_decode(grammar, begin)
        except ValueError:  # a text that looks like an expression
            end = begin
            continue
        taken = _Schema(schema, complaint_of).taken() if isinstance(schema, dict) else schema
        parts.append(grammar[begin:end] if taken == schema else json.dumps(taken))
    return "".join((*parts, grammar[end:]))


@dataclass(frozen=True)
class _Step:
    """A schema on the way to the smallest one that is to blame, and the parts of it that are still to be tried."""

    schema: dict[str, Any]
    place: str
    parts: list[tuple[dict[str, Any], str]]


class _Schema:
    """A schema with the options of the library, as a whole."""

    def __init__(self, schema: dict[str, Any], complaint_of: Complaint) -> None:
        self._complaint_of = complaint_of
        self._root = copy.deepcopy(schema)
        self._tried: dict[int, dict[str, Any]] = {}  # parts, by identity

    def taken(self) -> dict[str, Any]:
        """Return a schema that the library takes, or one that it does not where none that is wider helps."""
        if any(each.get("$ref") == "#" for each in self._objects()):
            self._name_the_root()
        complaint = self._complaint(self._root)
        path = [_Step(self._root, "#", self._parts(self._root, "#"))]
        num_repairs = 0
        while path and num_repairs < MAX_REPAIRS:
            step = path[-1]
            if not complaint or complaint.startswith(_NOTHING_MATCHES):
                path.pop()
                complaint = self._complaint(path[-1].schema) if path else ""
            elif (part := self._part_with(complaint, step)) is not None:
                path.append(part)
            else:
                if (wider := self._wider(step.schema, complaint)) is None:
                    break
                if STRICT in self._root:
                    keyword = next(
                        word for word, value in step.schema.items() if word not in wider or wider[word] != value
                    )
                    raise GrammarError(f"`{keyword}` at {step.place} cannot be kept: {complaint}")
                _replace(step.schema, wider)
                complaint = self._complaint(step.schema)
                num_repairs += 1
        return self._root

    def _objects(self) -> Iterator[dict[str, Any]]:
        return (each for each, _ in places_of(self._root) if isinstance(each, dict))

    def _complaint(self, schema: dict[str, Any]) -> str:
        """Return what the library says against a part of the schema; where a definition is to blame, not which."""
        around = {word: self._root[word] for word in _OPTIONS if word in self._root}
        said = describe(self._complaint_of(f"start: {_EXPRESSION}{json.dumps(schema | around)}"))
        return said.partition(" while processing ")[0]

    def _complaint_with(self, node: dict[str, Any], other: dict[str, Any]) -> str:
        """Return what the library says against `other`, in place of `node` also where it refers to itself."""
        own = dict(node)
        _replace(node, other)
        complaint = self._complaint(node)
        _replace(node, own)
        return complaint

    def _name_the_root(self) -> None:
        """Let a name lead to the root, so that its parts can be tried alone."""
        own = {word: value for word, value in self._root.items() if word not in _OPTIONS}
        name = "root"
        while name in self._root.get("$defs", {}):
            name += "_"
        reference = reference_to("$defs", name)
        for each in list(self._objects()):
            if each.get("$ref") == "#":
                each["$ref"] = reference
        for word in own:
            del self._root[word]
        self._root |= {"$ref": reference, "$defs": self._root.get("$defs", {}) | {name: own}}

    def _part_with(self, complaint: str, step: "_Step") -> "_Step | None":
        """Return a part of `step` that is still to be tried, and about which the library says `complaint`."""
        others: list[tuple[dict[str, Any], str]] = []
        found = None
        while step.parts and found is None:
            part, place = step.parts.pop()
            if id(part) in self._tried:
                continue
            if (said := self._complaint(part)) == complaint:
                self._tried[id(part)] = part
                found = _Step(part, place, self._parts(part, place))
            elif said:
                others.append((part, place))
        step.parts.extend(reversed(others))
        return found

    def _parts(self, node: dict[str, Any], place: str) -> list[tuple[dict[str, Any], str]]:
        """Return the schemas inside `node` and the one that it refers to, the first one last."""
        parts = [(each, at) for word, each, at in inside(node, place) if word not in _FOLDERS]
        if isinstance(reference := node.get("$ref"), str):
            parts.append((target_of(self._root, reference), reference))
        return [(each, at) for each, at in reversed(parts) if isinstance(each, dict)]

    def _wider(self, node: dict[str, Any], complaint: str) -> dict[str, Any] | None:
        """Return `node` with as little less as keeps the library from saying `complaint`; None if nothing does."""
        wider = node
        lost: list[str] = []
        for keyword in sorted(node.keys() - _OPTIONS, key=_order_of_loss):
            lost.append(keyword)
            for variant in variants(wider, keyword):
                if self._complaint_with(node, variant) != complaint:
                    return self._narrower(node, variant, lost[:-1], complaint)
            wider = variant
        return None

    def _narrower(self, node: dict[str, Any], wider: dict[str, Any], lost: list[str], complaint: str) -> dict[str, Any]:
        """Return `wider` with those of the `lost` keywords of `node` back that are not to blame."""
        for keyword in lost:
            back = {word: value for word, value in node.items() if word == keyword or word in wider} | {
                word: value for word, value in wider.items() if word != keyword
            }
            if self._complaint_with(node, back) != complaint:
                wider = back
        return wider


def _order_of_loss(keyword: str) -> tuple[int, str]:
    return (0 if keyword.startswith(LIMITS) else 2 if keyword in _LOST_LAST else 1, keyword)


def _replace(node: dict[str, Any], other: dict[str, Any]) -> None:
    node.clear()
    node.update(other)
