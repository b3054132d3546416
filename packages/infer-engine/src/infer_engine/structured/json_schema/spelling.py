r"""`spelled`: a prepared schema as the grammar library gets it, so that texts may be escaped, and no name is twofold.

With escapes such as `\u0061` a name that a schema lists, or a pattern matches, could be spelled in another way, and
would be another property. The library allows them in names of `additionalProperties`, but in those of
`patternProperties` only where JSON asks for them. So other names match a pattern, if they may have any value: listed
names match it too. If they may not, or there are patterns already, of which no name may match two, texts have short
escapes only.
"""

from collections.abc import Mapping
from typing import Any

from infer_engine.structured.json_schema.places import places_of, rewritten

_ANY_NAME = "^"
_SHORT_ESCAPES = 'nrbtf\\"'


def spelled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with the options of the library.

    It reads `oneOf` as `anyOf`, because `check_schema` shows that at most one branch can hold.
    """
    options: dict[str, Any] = {"lenient": False, "coerce_one_of": True, "json_allowed_escapes": _SHORT_ESCAPES}
    objects = [each for each, _ in places_of(schema) if isinstance(each, dict)]
    with_others = [each for each in objects if _may_have_other_names(each)]
    others_are_free = all(each.get("additionalProperties", True) in (True, {}) for each in with_others)
    if not with_others or (others_are_free and not any("patternProperties" in each for each in objects)):
        options |= {"json_allowed_escapes": f"{_SHORT_ESCAPES}u", "json_allow_general_unicode_escapes": True}
        schema = rewritten(schema, _with_a_pattern)
    return {**schema, "x-guidance": options}


def _may_have_other_names(schema: dict[str, Any]) -> bool:
    """Return whether `schema` tells names from others, which it allows."""
    tells = any(schema.get(word) for word in ("properties", "required", "patternProperties"))
    return tells and schema.get("additionalProperties", True) is not False


def _with_a_pattern(schema: dict[str, Any]) -> dict[str, Any]:
    if not _may_have_other_names(schema):
        return schema
    return schema | {"patternProperties": {_ANY_NAME: True}, "additionalProperties": False}
