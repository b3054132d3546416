"""`SamplerOutput`: the chosen tokens of one sampling call, on the host."""

from dataclasses import dataclass, field

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

    def wait(self) -> "SamplerOutput":
        """Return this output, which is there already."""
        return self
