"""Log-probabilities of chosen tokens, from the device to messages. Knows logits as the model gave them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from infer_engine.protocol import TokenLogprob
from infer_engine.protocol.sampling import MAX_LOGPROBS
from infer_kernels import topk_logprobs


def compute_logprobs(logits: Tensor, token_ids: Tensor, *, with_top: bool) -> Tensor:
    """Return what `read_logprobs` reads, in one tensor: [rows, 3 + 2 * listed] fp64, which holds every id exactly.

    Args:
        logits: [rows, vocab].
        token_ids: [rows] int64: the chosen ones.
        with_top: whether the most probable tokens are listed. They are as many for any row: of equal logits at the end
            of a list anyone may be on it, and what others ask for must not decide which.
    """
    found = topk_logprobs(logits, token_ids, k=min(MAX_LOGPROBS, logits.shape[1]) if with_top else 0)
    columns = (token_ids[:, None], found.token_logprobs[:, None], found.token_ranks[:, None])
    return torch.cat([column.double() for column in (*columns, found.top_ids, found.top_logprobs)], dim=1)


def read_logprobs(measured: Tensor, counts: Sequence[int]) -> list[TokenLogprob]:
    """Return each row's log-probabilities with as many of the most probable tokens as `counts` says."""
    listed = (measured.shape[1] - 3) // 2
    return [
        TokenLogprob(
            token_id=int(row[0]),
            logprob=row[1],
            rank=int(row[2]),
            top=[(int(row[3 + i]), row[3 + listed + i]) for i in range(min(count, listed))],
        )
        for row, count in zip(measured.tolist(), counts, strict=True)
    ]
