"""Sampling and ranks of whatever Hypothesis thinks of, on the PyTorch path."""

import pytest
import torch
from hypothesis import given
from torch import Tensor

from infer_kernels.checks.inputs.draws import Draws, assert_drawn
from infer_kernels.reference import topk_logprobs_reference
from infer_kernels.sampling import sample, topk_logprobs
from infer_proofs.kernels.inputs.draw_strategies import batches


@given(batch=batches())
def test_sample_draws_what_the_definition_draws(batch: tuple[Tensor, Draws]) -> None:
    logits, draws = batch
    assert_drawn(sample(logits, **draws.arguments), logits, draws)


@pytest.mark.covers("requests/seed-in-any-batch")
@given(batch=batches())
def test_a_row_alone_draws_as_in_company(batch: tuple[Tensor, Draws]) -> None:
    logits, draws = batch
    together = sample(logits, **draws.arguments)
    alone = [sample(logits[i : i + 1], **draws.rows(slice(i, i + 1)).arguments) for i in range(len(logits))]
    assert torch.equal(torch.cat(alone), together)


@given(batch=batches())
def test_ranks_count_the_tokens_before(batch: tuple[Tensor, Draws]) -> None:
    logits, draws = batch
    drawn = sample(logits, **draws.arguments)
    expected = topk_logprobs_reference(logits, drawn, k=1)
    assert torch.equal(topk_logprobs(logits, drawn, k=1).token_ranks, expected.token_ranks)
