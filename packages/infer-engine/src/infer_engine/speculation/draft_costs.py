"""`DraftCosts`: what drafts cost on a device, so that a step gets as many as pay.

    CPU    products of a small model are bound by arithmetic: each row costs much of a step, and few sequences get some
    GPU    a step reads the weights once, whatever its rows: a row costs little but the keys and values of its
           sequence, which it reads again

What drafts by a model, or by a layer of this one, computes them sequence by sequence: there few sequences get some on a
GPU too.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCosts:
    """Costs of a draft, as shares of a step of one row.

    Attributes:
        limits: most drafts of a request, by the most decodes in a step; larger steps get none.
        row: what a further row costs.
        key: what each token adds to that whose keys and values the row reads.
    """

    limits: tuple[tuple[int, int], ...]
    row: float
    key: float = 0.0

    @property
    def most_decodes(self) -> int:
        """Most decodes of a step that gets drafts."""
        return max(decodes for decodes, _ in self.limits)

    @property
    def most_rows(self) -> int:
        """Most drafts of a step."""
        return max(decodes * drafts for decodes, drafts in self.limits)

    def most_drafts(self, num_decodes: int) -> int:
        """Return the most drafts of each request in a step of so many decodes."""
        return next((drafts for most, drafts in self.limits if num_decodes <= most), 0)

    def of_row(self, num_tokens: int) -> float:
        """Return what a draft behind `num_tokens` tokens costs."""
        return self.row + self.key * num_tokens


_FEW = ((1, 16), (3, 3), (7, 2))
_MANY = ((1, 16), (3, 8), (7, 4), (15, 3), (32, 2))

ON_CPU = DraftCosts(limits=_FEW, row=0.25)
"""The costs of small models, as measured."""


def costs_on_gpu(method: str) -> DraftCosts:
    """Return the costs on a GPU of drafts by `method`, by count; `key` is the model's."""
    return DraftCosts(limits=_FEW if method in ("mtp", "draft_model") else _MANY, row=0.02)
