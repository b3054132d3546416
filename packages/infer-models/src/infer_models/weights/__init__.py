"""Parameters in checkpoints.

stored_weights.py    the parts of a checkpoint's tensors that a rank holds
assignment.py        copies between weights that store numbers differently
"""

from infer_models.weights.assignment import assign, item_of, select_rows, split_rows
from infer_models.weights.stored_weights import (
    FLOATS,
    ArrangedWeight,
    FusedWeight,
    PaddedWeight,
    Padding,
    RepeatedWeight,
    ScaledWeight,
    StoredWeight,
    WeightSlice,
)

__all__ = [
    "FLOATS",
    "ArrangedWeight",
    "FusedWeight",
    "PaddedWeight",
    "Padding",
    "RepeatedWeight",
    "ScaledWeight",
    "StoredWeight",
    "WeightSlice",
    "assign",
    "item_of",
    "select_rows",
    "split_rows",
]
