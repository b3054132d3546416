"""`SamplerOutput`: what a sampling call decided for each row. Knows ids and numbers on the host; knows no tensors."""

from dataclasses import dataclass, field

from infer_engine.protocol import TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerOutput:
    """What was chosen for the rows of one batch.

    Attributes:
        token_ids: one per row, inside the vocabulary.
        logprobs: by row index, of the rows that asked for them and are not in `not_finite`.
        not_finite: indices of rows whose logits hold NaN or +inf, or nothing but -inf; their token ids mean nothing.
    """

    token_ids: list[int]
    logprobs: dict[int, TokenLogprob] = field(default_factory=dict)
    not_finite: frozenset[int] = frozenset()
