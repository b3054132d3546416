"""`make_speculator`: the methods by which tokens are drafted."""

from collections.abc import Callable
from functools import partial

from infer_engine.protocol.config.speculation import Speculation
from infer_engine.protocol.stats import StepCounts
from infer_engine.request import Request
from infer_engine.scheduling import BaseScheduler
from infer_engine.speculation.draft_costs import ON_CPU, DraftCosts
from infer_engine.speculation.ngram import NgramProposer
from infer_engine.speculation.proposals import DraftLayer, Proposer
from infer_engine.speculation.speculator import MakeProposer, Speculator


def make_speculator(
    speculation: Speculation | None,
    *,
    max_rows: int,
    keeps_answers: bool,
    costs: DraftCosts = ON_CPU,
    draft_model: MakeProposer | None = None,
    draft_model_cost: float = 0.0,
    draft_layer: DraftLayer | None = None,
) -> Callable[[BaseScheduler, StepCounts], Speculator] | None:
    """Return what makes the speculator over a scheduler; None where nothing is drafted.

    Args:
        speculation: how tokens are drafted.
        max_rows: most rows of a step.
        costs: what drafts cost.
        keeps_answers: whether requests of one salt may find what others of it were answered.
        draft_model: makes what drafts by a model or by a layer of this one, if that is the method.
        draft_model_cost: as for `DraftedSequence`.
        draft_layer: that layer.
    """
    if speculation is None:
        return None
    if draft_model is not None:
        return partial(
            Speculator,
            draft_model,
            num_tokens=speculation.num_tokens,
            max_rows=max_rows,
            costs=costs,
            draft_model_cost=draft_model_cost,
            draft_layer=draft_layer,
        )
    if speculation.method == "ngram":
        shortest, longest = speculation.shortest, speculation.longest
        return partial(
            Speculator,
            lambda _: NgramProposer(shortest=shortest, longest=longest),
            num_tokens=speculation.num_tokens,
            max_rows=max_rows,
            costs=costs,
        )
    from infer_engine.speculation.answer_history import AnswerHistory  # noqa: PLC0415 - numpy: only where it drafts
    from infer_engine.speculation.suffix import SuffixProposer  # noqa: PLC0415 - as above

    history = AnswerHistory() if keeps_answers and speculation.uses_earlier_answers else None

    def make_proposer(request: Request) -> Proposer:
        return SuffixProposer(
            history=None if history is None else history.of(request.submission.cache_salt),
            prediction=request.submission.predicted_token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
        )

    def add_answer(request: Request) -> None:
        if history is not None:
            history.add(request.submission.cache_salt, request.token_ids, num_prompt_tokens=request.num_prompt_tokens)

    return partial(
        Speculator,
        make_proposer,
        num_tokens=speculation.num_tokens,
        max_rows=max_rows,
        costs=costs,
        on_ended=add_answer,
    )
