"""Formats of texts: those that the grammar library keeps, and the keywords that say others as their RFCs do."""

from typing import Any

LIBRARY_FORMATS = frozenset({"duration", "ipv4", "uri", "uuid"})

_DAY_OF_MONTH = r"(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"  # 1972, 2000, not 1900
_DATE = (
    rf"(?:[0-9]{{4}}-(?:(?:0[1-9]|1[0-2])-{_DAY_OF_MONTH}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    rf"|{_LEAP_YEAR}-02-29)"
)
_HOURS_MINUTES = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOURS_MINUTES}:[0-5][0-9](?:\.[0-9]{{1,24}})?(?:[Zz]|[+-]{_HOURS_MINUTES})"

_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = r"[0-9a-fA-F]{1,4}"
_LAST_GROUPS = rf"(?:{_GROUP}:{_GROUP}|{IPV4})"
_AFTER_THE_GAP = (*(rf"(?:{_GROUP}:){{{number}}}{_LAST_GROUPS}" for number in range(5, -1, -1)), _GROUP, "")
_WITH_A_GAP = (
    rf"(?:(?:{_GROUP}:){{0,{most_before - 1}}}{_GROUP})?::{after}" if most_before else f"::{after}"
    for most_before, after in enumerate(_AFTER_THE_GAP)
)
_IPV6 = f"(?:{'|'.join((rf'(?:{_GROUP}:){{6}}{_LAST_GROUPS}', *_WITH_A_GAP))})"

_SIGN, _SIGN_OR_HYPHEN = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"
_MIDDLE = f"(?:{_SIGN}{_SIGN_OR_HYPHEN}|-{_SIGN})"  # the third and the fourth place
_LABEL = rf"{_SIGN}(?:{_SIGN_OR_HYPHEN}{{0,2}}{_SIGN}|{_SIGN_OR_HYPHEN}{_MIDDLE}{_SIGN_OR_HYPHEN}{{0,58}}{_SIGN})?"
"""Without hyphens in the third and the fourth place, as encoded names have: no pattern says which of them are right."""
_ENCODED_LABEL = rf"[xX][nN]--{_SIGN}(?:{_SIGN_OR_HYPHEN}{{0,57}}{_SIGN})?"
_MAX_HOSTNAME = 253

_WORD = r"[a-zA-Z0-9!#$%&'*+/=?\^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_DOMAIN = rf"{_SIGN}(?:{_SIGN_OR_HYPHEN}*{_SIGN})?"
_EMAIL = rf"(?:{_WORD}(?:\.{_WORD})*|{_QUOTED})@(?:{_DOMAIN}(?:\.{_DOMAIN})*|\[(?:{IPV4}|IPv6:{_IPV6})\])"


def _hostname(label: str) -> dict[str, Any]:
    return {"pattern": rf"^(?:{label})(?:\.(?:{label}))*$", "maxLength": _MAX_HOSTNAME}


FORMAT_KEYWORDS: dict[str, dict[str, Any]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}[Tt]{_TIME}$"},
    "ipv6": {"pattern": f"^{_IPV6}$"},
    "email": {"pattern": f"^{_EMAIL}$"},
    "hostname": _hostname(_LABEL),
}
"""RFC 3339 without leap seconds, RFC 4291, RFC 5321, RFC 1123."""
WIDER_FORMAT_KEYWORDS = FORMAT_KEYWORDS | {"hostname": _hostname(f"{_LABEL}|{_ENCODED_LABEL}")}
"""The same with names that may be wrong."""
