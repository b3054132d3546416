"""Takes secrets out of a report that is made to be pasted into a public bug report."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MASK = "***"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
_SECRET_SHAPES = (
    (re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_|xox[bp]-)[A-Za-z0-9_-]{8,}"), MASK),
    (re.compile(r"(?<=://)[^/@\s]+@"), f"{MASK}@"),  # user and password of a URL
    (re.compile(r"(?i)(?<=bearer )\S+"), MASK),
)
_LEAST_LENGTH = 6
"""Shorter values, such as `true`, are no secrets, and occur in other places."""


class Redactor:
    """Replaces the values of secret environment variables, what looks like a key, and the home folder."""

    def __init__(self, environment: Mapping[str, str] = os.environ, *, home: Path | None = None) -> None:
        """Hide the secrets of `environment`; `home` is by default that of the user."""
        values = [value for name, value in environment.items() if _SECRET_NAME.search(name)]
        parts = {part.strip() for value in values for part in (value, *value.split(","))}
        # The longest first: a secret may contain another one.
        self._secrets = sorted((part for part in parts if len(part) >= _LEAST_LENGTH), key=len, reverse=True)
        home = _home() if home is None else home
        self._home = None if home is None or home == Path(home.anchor) else str(home)

    def clean(self, value: Any) -> Any:
        """Return a copy of JSON-like `value` without secrets."""
        if isinstance(value, str):
            return self._clean_text(value)
        if isinstance(value, Mapping):
            return {self._clean_text(str(name)): self.clean(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(each) for each in value]
        return value

    def _clean_text(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        for shape, mask in _SECRET_SHAPES:
            text = shape.sub(mask, text)
        if self._home is not None:
            text = re.sub(rf"{re.escape(self._home)}(?=/|$|[\s'\":,;])", "~", text)
        return text


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # this user has none
        return None
