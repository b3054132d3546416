"""Hypothesis strategies for rows to sample."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from infer_kernels.checks.inputs.draws import Draws, make_draws

_LOGITS = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-20, 20, width=16),
    st.sampled_from([-torch.inf, -0.0, 2.0**-120, -(2.0**-120), 2.0**-20, 2.0**10]),
)


@st.composite
def batches(draw: st.DrawFn, *, max_rows: int = 4, max_vocab: int = 24) -> tuple[Tensor, Draws]:
    """Logits [rows, vocab] and how each row is sampled."""
    rows, vocab = draw(st.integers(1, max_rows)), draw(st.integers(1, max_vocab))

    def column(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=rows, max_size=rows))

    logits = torch.tensor([draw(st.lists(_LOGITS, min_size=vocab, max_size=vocab)) for _ in range(rows)])
    return logits, make_draws(
        temperatures=column(st.sampled_from([0.0, 0.3, 1.0, 4.0])),
        top_k=draw(st.lists(st.integers(0, vocab + 1), min_size=rows, max_size=rows)),
        top_p=column(st.sampled_from([0.0, 0.1, 0.37, 0.5, 0.9, 1.0])),
        min_p=column(st.sampled_from([0.0, 0.03, 0.3, 1.0])),
        seeds=draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=rows, max_size=rows)),
        positions=draw(st.lists(st.integers(0, 2**31 - 1), min_size=rows, max_size=rows)),
    )
