"""`SampledTokens`: what a sampling call chose, on its way to the host; `SamplerOutput`: the same, there."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from infer_engine.protocol import TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """The result of sampling one batch.

    Attributes:
        token_ids: one per row, inside the vocabulary.
        logprobs: by row index, for the rows that need them and are not in `not_finite`.
        not_finite: indices of rows whose logits have NaN or +inf, or only -inf; their token ids are invalid.
        grammar_failed: indices of rows whose grammar cannot go on; their token ids are invalid.
    """

    token_ids: list[int]
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    not_finite: frozenset[int] = frozenset()
    grammar_failed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens that a device chooses.

    Attributes:
        wait: waits for the device and returns what it chose; the device's errors are raised here.
        on_device: [rows] int64, the token ids where the next step reads them; None without a device.
    """

    wait: Callable[[], SamplerOutput]
    on_device: Any = None

    @classmethod
    def known(cls, token_ids: list[int]) -> "SampledTokens":
        """Return tokens that are on the host already."""
        output = SamplerOutput(token_ids=token_ids)
        return cls(lambda: output)
