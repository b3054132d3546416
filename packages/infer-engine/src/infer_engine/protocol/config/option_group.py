"""`OptionGroup`: fields of a configuration that check themselves."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar


class OptionGroup:
    """The base of frozen dataclasses whose values are checked when one is made, and then their conflicts.

    Attributes:
        CHECKS: by field, a function of its name and its value that raises ValueError.
    """

    CHECKS: ClassVar[Mapping[str, Callable[[str, object], object]]] = MappingProxyType({})

    def __post_init__(self) -> None:
        """Check each value, then the conflicts between them.

        Raises:
            ValueError: a value is not allowed, or two that were set conflict; the message names the field, the value
                and what is allowed.
        """
        for name, check in self.CHECKS.items():
            check(name, getattr(self, name))
        self.check_conflicts()

    def check_conflicts(self) -> None:
        """Check the values against each other."""

    def conflict(self, name: str, other: str, *, why: str, fix: str) -> ValueError:
        """Return the error of a value of `name` that cannot be with that of `other`."""
        return ValueError(
            f"`{name}` is {getattr(self, name)!r} but `{other}` is {getattr(self, other)!r} {why}; {fix}."
        )
