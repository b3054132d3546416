"""`StagedStep`: what a step copies to the device, as bytes with which another rank stages the same step."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from infer_engine.model_runner.inputs.forward_batch import BatchShape


class StagedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step in the buffers of one rank; numbers are int32 as bytes.

    Attributes:
        num_tokens: rows, padding included.
        num_seqs: sequences, padding included.
        is_decode_only: as in `BatchShape`.
        real_tokens: rows without padding.
        real_seqs: sequences without padding.
        num_sampled: rows whose logits are sampled.
        has_pending_tokens: whether only rank 0's device knows some token ids.
        parts: the parts of the batch, as `BatchParts` divides them.
        elements: int64 as bytes: elements of the block tables that have changed.
        values: what they have become.
    """

    num_tokens: int
    num_seqs: int
    is_decode_only: bool
    real_tokens: int
    real_seqs: int
    num_sampled: int
    has_pending_tokens: bool
    parts: bytes
    elements: bytes
    values: bytes

    @property
    def shape(self) -> BatchShape:
        """The size of the batch, padding included."""
        return BatchShape(self.num_tokens, self.num_seqs, is_decode_only=self.is_decode_only)

    def read_parts(self) -> NDArray[np.int32]:
        """Return the parts of the batch."""
        return np.frombuffer(self.parts, np.int32)

    def read_edits(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the elements of the block tables that have changed, and their values."""
        return np.frombuffer(self.elements, np.int64), np.frombuffer(self.values, np.int32)
