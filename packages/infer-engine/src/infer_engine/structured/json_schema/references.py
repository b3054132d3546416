"""`localized`: a schema in which every `$ref` that leads to a place of the same document leads into `$defs`.

Places are named by JSON pointers into any folder of the document, by anchors, and by `$id`s, of the root and inside.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Any
from urllib.parse import quote, unquote, urljoin

_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_SINGLE = (
    *("items", "additionalProperties", "additionalItems", "contains", "propertyNames", "contentSchema"),
    *("not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"),
)
_KEYWORDS = frozenset((*_LISTS, *_MAPS, *_SINGLE, "const", "enum"))
_DATA = frozenset({"const", "enum", "default", "example", "examples"})
_FOLDERS = ("$defs", "definitions")
_STAYS_AS_IT_IS = "~!$&'()*+,;=:@?"


def localized(schema: Any, keywords: Collection[str] = ()) -> Any:
    """Return a copy of `schema` whose references lead to its root, or to a name in `$defs` or `definitions`.

    A target elsewhere moves into `$defs`; a reference takes its place. A folder of the root that has only held targets
    is left out, unless it is one of `keywords`, and so are the words that name places. A reference to nothing, or to
    another document, stays.
    """
    return _Document(schema, _KEYWORDS.union(keywords)).localized() if isinstance(schema, dict) else schema


def reference_to(folder: str, name: str) -> str:
    """Return the `$ref` to `name` in a folder of the root."""
    return f"#/{folder}/{quote(name.replace('~', '~0').replace('/', '~1'), safe=_STAYS_AS_IT_IS)}"


class _Document:
    """The places of a schema, by their names."""

    def __init__(self, root: dict[str, Any], keywords: Collection[str]) -> None:
        draft = root.get("$schema")
        draft = draft if isinstance(draft, str) else ""
        self._root = root
        self._keywords = keywords
        self._id_word = "id" if re.search("draft-0[34]", draft) else "$id"
        self._refs_stand_alone = re.search("draft-0[3-7]", draft) is not None
        self._bases: dict[int, str] = {}  # of objects, by identity
        self._named: dict[str, Any] = {}
        self._note_names(root, _schemas_of)
        self._note_names(root, _objects_of)
        self._root_base = self._bases[id(root)]
        self._named |= {"": root, self._root_base: root}
        self._references = {id(root): "#"}  # to targets, by identity
        for folder in _FOLDERS:
            named = root.get(folder)
            for name, each in named.items() if isinstance(named, dict) else ():
                self._references.setdefault(id(each), reference_to(folder, name))
        self._moved: dict[int, tuple[str, Any]] = {}
        self._taken = set(root["$defs"]) if isinstance(root.get("$defs"), dict) else set()
        self._numbers = count(2)
        self._left: set[str] = set()  # words of the root

    def localized(self) -> dict[str, Any]:
        self._find_targets()
        schema = self._rewritten(self._root, is_place=True)
        moved = {name: self._rewritten(each, is_place=True) for name, each in self._moved.values()}
        if moved and isinstance(definitions := schema.get("$defs", {}), dict):
            schema["$defs"] = definitions | moved
        return {word: value for word, value in schema.items() if word not in self._left}

    def _note_names(self, root: dict[str, Any], inside: Callable[[dict[str, Any]], Iterator[Any]]) -> None:
        """Note the base of each object that `inside` leads to, and the names that they give themselves."""
        left: list[tuple[Any, str]] = [(root, "")]
        while left:
            each, base = left.pop()
            if not isinstance(each, dict):
                continue
            own = each.get(self._id_word)
            if isinstance(own, str) and not (self._refs_stand_alone and "$ref" in each):
                place = _joined(base, own)
                if not own.startswith("#"):
                    place = base = place.partition("#")[0]
                self._named.setdefault(place, each)
            for word in ("$anchor", "$dynamicAnchor"):
                if isinstance(each.get(word), str):
                    self._named.setdefault(f"{base}#{each[word]}", each)
            self._bases.setdefault(id(each), base)
            left.extend((inner, base) for inner in inside(each))

    def _find_targets(self) -> None:
        left: list[Any] = [self._root]
        seen: set[int] = set()
        while left:
            each = left.pop()
            if not isinstance(each, dict) or id(each) in seen:
                continue
            seen.add(id(each))
            left.extend(_schemas_of(each))
            if (target := self._target(each)) is not None:
                left.append(target)
                if id(target) not in self._references:
                    self._move(target, each["$ref"])

    def _move(self, target: Any, reference: str) -> None:
        stem = re.sub(r"[^A-Za-z0-9_.-]+", ".", unquote(reference).rpartition("#")[2]).strip(".") or "target"
        name = stem
        while name in self._taken:
            name = f"{stem}.{next(self._numbers)}"
        self._taken.add(name)
        self._moved[id(target)] = (name, target)
        self._references[id(target)] = reference_to("$defs", name)

    def _target(self, schema: dict[str, Any]) -> Any:
        """Return the schema that the `$ref` of `schema` leads to; None: it has none, or there is nothing."""
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return None
        own_base = self._bases.get(id(schema), self._root_base)
        for base in dict.fromkeys((own_base, self._root_base)):  # many tools write an `$id` that is not meant as a base
            uri, _, fragment = _joined(base, reference).partition("#")
            is_pointer = fragment.startswith("/")
            steps = fragment[1:].split("/")
            if is_pointer:
                found = _at(self._named.get(uri), steps)
            else:
                found = self._named.get(f"{uri}#{unquote(fragment)}" if fragment else uri)
            if isinstance(found, dict | bool):
                if (
                    is_pointer
                    and self._named[uri] is self._root
                    and (word := unescaped(steps[0])) not in self._keywords
                ):
                    self._left.add(word)
                return found
        return None

    def _rewritten(self, schema: Any, *, is_place: bool = False) -> Any:
        """Return a copy of `schema`, or a reference to it if it has moved and this is not its place."""
        if not isinstance(schema, dict):
            return schema
        if id(schema) in self._moved and not is_place:
            return {"$ref": self._references[id(schema)]}
        is_root = schema is self._root
        target = self._target(schema)
        copy: dict[str, Any] = {}
        for word, value in schema.items():
            if word == "$ref" and target is not None:
                copy[word] = self._references[id(target)]
            elif "$ref" in schema and self._refs_stand_alone and word != "$ref":
                if is_root and word in ("$schema", *_FOLDERS):
                    copy[word] = self._copied(word, value, are_places=True)
            elif not (word in ("$id", self._id_word, "$anchor") and isinstance(value, str)):
                copy[word] = self._copied(word, value, are_places=is_root and word in _FOLDERS)
        return copy

    def _copied(self, word: str, value: Any, *, are_places: bool) -> Any:
        match value:
            case list() if word in _LISTS:
                return [self._rewritten(each) for each in value]
            case dict() if word in _MAPS:
                return {name: self._rewritten(each, is_place=are_places) for name, each in value.items()}
            case dict() if word in _SINGLE:
                return self._rewritten(value)
            case _:
                return value


def _schemas_of(schema: dict[str, Any]) -> Iterator[Any]:
    """The schemas inside `schema`, where keywords say so."""
    for word, value in schema.items():
        match value:
            case list() if word in _LISTS:
                yield from value
            case dict() if word in _MAPS:
                yield from value.values()
            case dict() if word in _SINGLE:
                yield value


def _objects_of(schema: dict[str, Any]) -> Iterator[Any]:
    """The objects inside `schema`, which may be schemas in folders of its own; data are none."""
    for word, value in schema.items():
        if word not in _DATA:
            yield value
            yield from value if isinstance(value, list) else ()


def _joined(base: str, reference: str) -> str:
    try:
        return base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError:  # one of them is no address
        return reference


def _at(node: Any, steps: Sequence[str]) -> Any:
    """Return what a JSON pointer leads to from `node`, or None."""
    for step in steps:
        name = unescaped(step)
        if isinstance(node, dict):
            node = node.get(name)
        else:
            is_index = isinstance(node, list) and re.fullmatch("0|[1-9][0-9]{0,8}", name) and int(name) < len(node)
            node = node[int(name)] if is_index else None
    return node


def unescaped(step: str) -> str:
    """Return the name that one step of a JSON pointer in a URI stands for."""
    return unquote(step).replace("~1", "/").replace("~0", "~")
