"""`LayerGroups`: layers that share block tables, because their sliding windows are equal."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroups:
    """Layers in groups; the layers of a group share block tables and have equally many blocks.

    Attributes:
        windows: sliding window of each group's layers in tokens; None keeps all blocks.
        group_of_layer: group of each layer; None of a layer that has no keys and values.
    """

    windows: tuple[int | None, ...]
    group_of_layer: tuple[int | None, ...]

    @classmethod
    def by_window(cls, windows: Sequence[int | None], *, attends: Sequence[bool] | None = None) -> "LayerGroups":
        """Group layers of equal window, given by layer, so that blocks outside a group's window can be freed.

        The group without a window comes first, then the others, longest window first. Layers that do not attend, by
        `attends`, are in no group.
        """
        attends = [True] * len(windows) if attends is None else attends
        of_layers = list(zip(windows, attends, strict=True))
        distinct = sorted(
            {window for window, attend in of_layers if attend},
            key=lambda window: -float("inf") if window is None else -window,
        )
        return cls(
            windows=tuple(distinct),
            group_of_layer=tuple(distinct.index(window) if attend else None for window, attend in of_layers),
        )

    @classmethod
    def all_in_one(cls, num_layers: int, *, attends: Sequence[bool] | None = None) -> "LayerGroups":
        """Put all layers that attend, with any windows, into one group that keeps all blocks."""
        attends = [True] * num_layers if attends is None else attends
        return cls(windows=(None,), group_of_layer=tuple(0 if attend else None for attend in attends))

    @property
    def num_layers(self) -> tuple[int, ...]:
        """Number of layers of each group."""
        return tuple(self.group_of_layer.count(group) for group in range(len(self.windows)))
