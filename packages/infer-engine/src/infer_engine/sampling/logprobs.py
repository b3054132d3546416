"""Log-probabilities of chosen tokens: computes them on the device and reads them to the host."""

from collections.abc import Sequence

import torch
from torch import Tensor

from infer_engine.protocol import TokenLogprob
from infer_engine.protocol.sampling import MAX_LOGPROBS
from infer_kernels import topk_logprobs


def compute_logprobs(logits: Tensor, token_ids: Tensor, *, with_top: bool) -> Tensor:
    """Return the input of `read_logprobs`, [rows, 3 + 2 * num_top] fp64, which represents every id exactly.

    Args:
        logits: [rows, vocab], before any edit.
        token_ids: [rows] int64, the chosen tokens.
        with_top: whether to add the most probable tokens. Their number is fixed: which of several equal logits is last
            in the list depends on its length, and must not depend on the other requests.
    """
    top = topk_logprobs(logits, token_ids, k=min(MAX_LOGPROBS, logits.shape[1]) if with_top else 0)
    columns = (token_ids[:, None], top.token_logprobs[:, None], top.token_ranks[:, None])
    return torch.cat([column.double() for column in (*columns, top.top_ids, top.top_logprobs)], dim=1)


def read_logprobs(logprobs: Tensor, counts: Sequence[int]) -> list[TokenLogprob]:
    """Return the log-probabilities of each row, with `counts` of the most probable tokens."""
    num_top = (logprobs.shape[1] - 3) // 2
    return [
        TokenLogprob(
            token_id=int(row[0]),
            logprob=row[1],
            rank=int(row[2]),
            top=[(int(row[3 + i]), row[3 + num_top + i]) for i in range(min(count, num_top))],
        )
        for row, count in zip(logprobs.tolist(), counts, strict=True)
    ]
