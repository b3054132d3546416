"""`SamplingDefaults`: how requests are sampled that do not say how, as the model's authors recommend."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from infer_engine.protocol.sampling import SamplingParams


class SamplingDefaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Values of the fields of `SamplingParams` with these names; None: those of `SamplingParams` itself."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The values that are not None, by name."""
        return {name: value for name, value in structs.asdict(self).items() if value is not None}

    def fill(self, params: SamplingParams, *, leaving: Mapping[str, Any] | None = None) -> SamplingParams:
        """Return `params` with these values where they have their own defaults; names of `leaving` are left alone."""
        usual = structs.asdict(SamplingParams(max_tokens=None))
        changes = {
            name: value
            for name, value in self.given.items()
            if name not in (leaving or {}) and getattr(params, name) == usual[name]
        }
        return structs.replace(params, **changes) if changes else params
