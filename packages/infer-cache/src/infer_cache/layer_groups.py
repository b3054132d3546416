"""Which layers share a block table: those of equal window. Knows windows; knows no block and no tensor."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroups:
    """Layers in groups.

    Attributes:
        windows: by group, its layers' sliding window in tokens; None keeps all blocks.
        group_of_layer: by layer, its group.
    """

    windows: tuple[int | None, ...]
    group_of_layer: tuple[int, ...]

    @classmethod
    def by_window(cls, windows: Sequence[int | None]) -> "LayerGroups":
        """Group layers of equal window, so that those with one can give back blocks that left it.

        The group that keeps everything, or has the longest window, is the first.
        """
        distinct = sorted(set(windows), key=lambda window: -float("inf") if window is None else -window)
        return cls(windows=tuple(distinct), group_of_layer=tuple(distinct.index(window) for window in windows))

    @classmethod
    def all_in_one(cls, num_layers: int) -> "LayerGroups":
        """Keep all blocks of all layers, whatever their windows."""
        return cls(windows=(None,), group_of_layer=(0,) * num_layers)

    @property
    def num_layers(self) -> tuple[int, ...]:
        """By group, its layers."""
        return tuple(self.group_of_layer.count(group) for group in range(len(self.windows)))
