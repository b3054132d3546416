"""`DraftModel`: a smaller model that drafts, in an `EngineCore` of its own, which the process of the large one steps.

Drafts are drawn as the request draws: by its parameters, its seed and the token's position, so a draft differs only
where the models do. What was computed for a sequence is found again in the prefix cache of the small model's core,
which gives up what was not used for longest.
"""

from collections.abc import Sequence
from itertools import count

from msgspec import structs

from infer_engine.core.engine_core import EngineCore
from infer_engine.messages import Submit
from infer_engine.protocol import SamplingParams
from infer_engine.request import Request
from infer_engine.speculation.proposals import Proposal, Source


class DraftModel:
    """A model, and the core that computes it."""

    def __init__(self, core: EngineCore, *, max_seq_len: int) -> None:
        """Draft with `core`, which has no other requests, for sequences of up to `max_seq_len` tokens."""
        self._core = core
        self._max_seq_len = max_seq_len
        self._numbers = count()

    def proposer(self, request: Request) -> "DraftModelProposer":
        """Return what drafts for `request`."""
        return DraftModelProposer(self, request)

    def draft(self, request: Request, token_ids: Sequence[int], params: SamplingParams, limit: int) -> list[int]:
        """Return up to `limit` tokens of the model behind `token_ids`, which are those of `request`."""
        limit = min(limit, self._max_seq_len - len(token_ids))
        if limit < 1:
            return []
        num_prompt = request.num_prompt_tokens
        self._core.handle(
            Submit(
                request_id=f"draft {next(self._numbers)}",
                prompt_token_ids=list(token_ids[:num_prompt]),
                generated_token_ids=list(token_ids[num_prompt:]),  # penalties tell them apart
                max_tokens=len(token_ids) - num_prompt + limit,
                seed=request.submission.seed,
                params=params,
                cache_salt=request.submission.cache_salt,
            )
        )
        drafts: list[int] = []
        while self._core.has_work:
            for output in self._core.step().outputs:
                drafts += output.token_ids  # none of a request that failed
        return drafts


class DraftModelProposer:
    """Proposes for one request. Implements `Proposer`."""

    __slots__ = ("_model", "_params", "_request")

    def __init__(self, model: DraftModel, request: Request) -> None:
        """Draft for `request` by `model`, with what decides a draw alone; grammars come into play later."""
        self._model = model
        self._request = request
        self._params = structs.replace(
            request.submission.params,
            logprobs=None,
            prompt_logprobs=None,
            min_tokens=0,
            stop=(),
            stop_token_ids=(),
            allowed_token_ids=None,
            ignore_eos=True,
            n=1,
        )

    def propose(self, token_ids: Sequence[int], limit: int) -> Proposal:
        """Return up to `limit` tokens of the draft model."""
        return Proposal(self._model.draft(self._request, token_ids, self._params, limit), Source.DRAFT_MODEL)
