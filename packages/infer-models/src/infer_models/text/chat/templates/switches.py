"""Thinking and its effort in the names and words of a chat template.

Clients say `enable_thinking` and `reasoning_effort`; templates call them by other names, and take other words.
"""

from collections.abc import Mapping
from functools import lru_cache

from infer_models.text.chat.templates.template import ChatRefusedError, ChatTemplate, ChatTemplateError

_SWITCHES: Mapping[str, tuple[object, object]] = {
    "enable_thinking": (False, True),
    "thinking": (False, True),  # DeepSeek V3.1, Kimi K2.5, Granite 3.3
    "reasoning": (False, True),  # Command A Reasoning
    "add_thoughts": (False, True),  # Apriel
    "thinking_mode": ("disabled", "enabled"),  # MiniMax M3
    "thinking_budget": (0, None),  # Seed-OSS
}
"""Variables of templates, and their values for thinking that is off and on; None: as if it were not there."""

_EFFORTS = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_OFF_WORDS: Mapping[str, str | None] = {"none": None, "no_think": "high", "minimal": None}
"""Efforts that are no thinking, and the one for thinking where that has to be asked for."""
_SCALE = ("minimal", "low", "medium", "high", "xhigh", "max")


class Switches:
    """Says thinking and its effort in the words of `template`. Immutable, and safe to use from any thread."""

    def __init__(self, template: ChatTemplate) -> None:
        """Read the variables of `template`."""
        self._template = template
        self._switches = [name for name in _SWITCHES if name in template.variable_names]
        self._efforts = [name for name in _EFFORTS if name in template.variable_names]
        self._taken = lru_cache(maxsize=64)(self._nearest)

    def of(self, variables: Mapping[str, object]) -> dict[str, object]:
        """Return `variables` with those of the template that say the same, but for those that are there."""
        given = [variables[name] for name in ("enable_thinking", "thinking") if isinstance(variables.get(name), bool)]
        effort = variables.get("reasoning_effort")
        said = dict(variables)
        if given:
            said = {**self._switched(on=bool(given[0]), effort=effort), **variables}
        if isinstance(effort, str):
            own = [name for name in self._efforts if name == "reasoning_effort" or name not in variables]
            said |= {name: self._taken(name, effort, on=not given or bool(given[0])) for name in own}
        return said

    def _switched(self, *, on: bool, effort: object) -> dict[str, object]:
        if self._switches:
            values = {name: _SWITCHES[name][on] for name in self._switches}
            return {name: value for name, value in values.items() if value is not None}
        word = next((word for word in _OFF_WORDS if word in self._template.words), None)
        wanted = word if not on else _OFF_WORDS.get(word or "")
        return dict.fromkeys(self._efforts, wanted) if wanted is not None and effort is None else {}

    def _nearest(self, name: str, effort: str, *, on: bool) -> str:
        """Return the effort next to `effort` that the template does not refuse, a higher one before a lower one."""
        place = _SCALE.index(effort) if effort in _SCALE else 0
        nearest = sorted(_SCALE, key=lambda word: (abs(_SCALE.index(word) - place), -_SCALE.index(word)))
        for word in (effort, *nearest) if effort in _SCALE else (effort,):
            variables = {name: word, **self._switched(on=on, effort=word)}
            try:
                self._template.render([{"role": "user", "content": "Hi"}], variables=variables)
            except ChatRefusedError:
                continue
            except ChatTemplateError:
                break
            return word
        return effort
