"""Choosing a token from each row of logits.

Of one row, in this order:

1. Logits are divided by the temperature. Temperature 0 is greedy: the most probable token, the lowest id of equals, and
   nothing else counts.
2. Tokens have an order: the larger logit first, the lower id first of equals.
3. min-p keeps the tokens whose probability is at least `min_p` times that of the most probable one, that is those
   whose logit is at most -temperature * ln(min_p) below the largest. -inf is never kept.
4. top-k keeps the first `top_k` of those.
5. top-p keeps the shortest start of those whose mass reaches `top_p` of theirs: a token is kept while the mass before
   it is less than `top_p` times the whole. The first is always kept.
6. One number u of (seed, position), see `uniform.py`, is the draw. The kept tokens' masses are summed *in order of
   their ids*: the first id at which the sum exceeds u times the whole is drawn.

The result depends on the row's logits and parameters alone, so a request draws the same tokens in any batch, and again
after it was preempted. A row whose largest logit is infinite, or that has none but -inf, is greedy. A row with a NaN
gets some id inside the vocabulary.

Bytes moved: the logits once, rows * vocab * itemsize, and again where they do not stay in cache. Nothing is sorted.

Precision: values are compared as stored, so ties are cut exactly. Masses are sums of fp32 weights (in fp32 within a
chunk of the kernels, in fp64 across chunks and in PyTorch): where u or top-p hits a boundary between two tokens to a
part in 10^6, either may win.
"""

import math

import torch
from torch import Tensor

from infer_kernels.arguments import (
    require_dense_rows,
    require_device,
    require_dtype,
    require_float,
    require_integer,
    require_rank,
    require_shape,
)
from infer_kernels.dispatch import takes_triton
from infer_kernels.sampling.largest import greedy_triton
from infer_kernels.sampling.sample_torch import most_probable, sample_torch
from infer_kernels.sampling.sample_triton import sample_triton
from infer_kernels.sampling.uniform import uniform_reference


def kept_tokens_reference(
    logits: Tensor, *, temperature: float, top_k: int | None = None, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """The tokens of one row of logits [vocab] that may be drawn, in their order: [kept] int64; the rules above."""
    values = logits.double().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    largest = float(values.max())
    if temperature <= 0 or math.isinf(largest):
        return values.argmax()[None]
    ordered, ids = values.sort(descending=True, stable=True)
    farthest = max(0.0, -temperature * math.log(min_p)) if min_p > 0 else math.inf
    num_kept = int(((largest - ordered <= farthest) & (ordered > -math.inf)).sum())
    if top_k is not None and top_k >= 1:
        num_kept = min(num_kept, top_k)
    weights = ((ordered[:num_kept] - largest) / temperature).exp()
    if top_p < 1:
        before = weights.cumsum(0) - weights
        num_kept = max(1, int((before < top_p * weights.sum()).sum()))
    return ids[:num_kept]


def sample_reference(
    logits: Tensor,
    *,
    temperatures: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """The rules above, row by row; arguments as for `sample`."""
    drawn = []
    for row, values in enumerate(logits):
        temperature = 0.0 if temperatures is None else float(temperatures[row])
        kept = kept_tokens_reference(
            values,
            temperature=temperature,
            top_k=None if top_k is None else int(top_k[row]),
            top_p=1.0 if top_p is None else float(top_p[row]),
            min_p=0.0 if min_p is None else float(min_p[row]),
        )
        if len(kept) > 1 and seeds is not None and positions is not None:
            ids = kept.sort().values
            masses = ((values[ids].double() - values[kept[0]].double()) / temperature).exp().cumsum(0)
            number = uniform_reference(int(seeds[row]), int(positions[row]))
            drawn.append(ids[int((masses <= number * masses[-1]).sum())])
        else:
            drawn.append(kept[0])
    return torch.stack(drawn) if drawn else torch.empty(0, dtype=torch.int64, device=logits.device)


def sample(
    logits: Tensor,
    *,
    temperatures: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Draw one token per row; the module's text is the definition.

    Args:
        logits: [rows, vocab], fp32, bf16 or fp16; rows may be strided views.
        temperatures: [rows] fp32; 0 or less is greedy. None: all rows are greedy.
        top_k: [rows] int32; less than 1, or the vocabulary and more, is no limit. None limits no row.
        top_p: [rows] fp32; 1 and more is no limit. None limits no row.
        min_p: [rows] fp32; 0 and less is no limit. None limits no row.
        seeds: [rows] int64; needed where `temperatures` is given.
        positions: [rows] int32 or int64, of the token to be drawn in its sequence; needed as `seeds` is.
        out: [rows] int64.

    Returns:
        Token ids [rows] int64: `out`, or a fresh tensor.

    Raises:
        ValueError: a shape, device or stride does not fit, or an argument is missing.
        TypeError: a dtype does not fit.
    """
    logits = logits.detach()
    require_rank("logits", logits, "rows, vocab")
    require_float("logits", logits)
    require_dense_rows("logits", logits)
    rows, vocab = logits.shape
    if not 1 <= vocab < 2**31:
        raise ValueError(f"`logits` has shape {list(logits.shape)}; pass [rows, vocab] with vocab from 1 to 2^31 - 1")
    if out is not None:
        _require_column("out", out, logits, torch.int64)
        if not out.is_contiguous():
            raise ValueError(f"`out` has stride {out.stride(0)}; pass a contiguous one")
    if temperatures is None:
        if takes_triton(logits):
            token_ids = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
            greedy_triton(logits, token_ids=token_ids, largest=logits.new_empty(rows))
            return token_ids
        token_ids = most_probable(logits)
        return token_ids if out is None else out.copy_(token_ids)
    if seeds is None or positions is None:
        missing = "seeds" if seeds is None else "positions"
        raise ValueError(f"`{missing}` is None but `temperatures` is not; pass one for each row, or no temperatures")
    for name, column, dtype in (
        ("temperatures", temperatures, torch.float32),
        ("top_k", top_k, torch.int32),
        ("top_p", top_p, torch.float32),
        ("min_p", min_p, torch.float32),
        ("seeds", seeds, torch.int64),
    ):
        if column is not None:
            _require_column(name, column, logits, dtype)
    require_integer("positions", positions)
    _require_column("positions", positions, logits, positions.dtype)
    if not takes_triton(logits):
        drawn = sample_torch(
            logits,
            temperatures=temperatures,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            seeds=seeds,
            positions=positions,
        )
        return drawn if out is None else out.copy_(drawn)
    return sample_triton(
        logits,
        temperatures=temperatures.contiguous(),
        top_k=None if top_k is None else top_k.contiguous(),
        top_p=None if top_p is None else top_p.contiguous(),
        min_p=None if min_p is None else min_p.contiguous(),
        seeds=seeds.contiguous(),
        positions=positions.contiguous(),
        out=torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out,
    )


def _require_column(name: str, column: Tensor, logits: Tensor, dtype: torch.dtype) -> None:
    require_dtype(name, column, dtype)
    require_shape(name, column, logits.shape[:1], "one for each row of `logits`")
    require_device(name, column, "logits", logits.device)
