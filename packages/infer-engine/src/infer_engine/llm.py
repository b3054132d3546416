"""`LLM`: the engine as a library, in this thread: prompts in, completions out. Knows no event loop and no HTTP."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from infer_engine.factory import build_parts
from infer_engine.front import RequestText
from infer_engine.messages import Abort
from infer_engine.protocol import EngineConfig, EngineStats, FinishReason, GenerateRequest, SamplingParams

Prompt = str | list[int]


@dataclass(slots=True, kw_only=True)
class Completion:
    """What was generated for one prompt.

    Attributes:
        prompt: as given.
        text: the generated text, without stop strings.
        token_ids: the generated tokens, an end-of-sequence token included.
        finish_reason: why it ended.
        num_prompt_tokens: tokens of the prompt.
    """

    prompt: Prompt
    text: str
    token_ids: list[int]
    finish_reason: FinishReason | None
    num_prompt_tokens: int


class LLM:
    """A model that generates, batched, in the caller's thread. Not safe to share between threads."""

    def __init__(self, model: str | None = None, **config: Any) -> None:
        """Load `model` (a folder, a Hub id, or the bundled demo model); `config` are the fields of `EngineConfig`.

        Raises:
            CheckpointUnusableError: the checkpoint is missing, damaged or of no known kind.
            ValueError: the configuration asks for what is not there.
        """
        parts = build_parts(EngineConfig(model=model, **config))
        self._core = parts.core
        self._front = parts.front
        self.info = parts.info

    @property
    def stats(self) -> EngineStats:
        """A snapshot: steps, requests, blocks, tokens."""
        return self._core.stats

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """Complete every prompt, all batched together, and return the completions in the prompts' order.

        Args:
            prompts: one prompt or several, each text or token ids.
            params: for all prompts, or one per prompt; left out: `SamplingParams()`.
            use_tqdm: show a progress bar on standard error.

        Raises:
            RequestRefusedError: a prompt is empty, too long, or has ids outside the vocabulary; nothing is generated.
            ValueError: there are not as many `params` as prompts.
        """
        listed = _listed(prompts)
        per_prompt = params if isinstance(params, Sequence) else [params or SamplingParams()] * len(listed)
        if len(per_prompt) != len(listed):
            raise ValueError(
                f"`params` has {len(per_prompt)} entries for {len(listed)} prompts; give one, or one each."
            )
        requests = [GenerateRequest(prompt=p, params=s) for p, s in zip(listed, per_prompt, strict=True)]
        return self._run(requests, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]] | Sequence[Sequence[Mapping[str, str]]],
        params: SamplingParams | None = None,
        *,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """Answer one conversation or several; a message has a `role` and a `content`.

        Left out, `params` samples for as long as the context lasts.

        Raises:
            ChatTemplateMissingError: the checkpoint has no chat template.
            RequestRefusedError: a conversation is too long.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        params = params or SamplingParams(max_tokens=None)
        requests = [
            GenerateRequest(prompt=self._front.render_chat(conversation), params=params)  # type: ignore[arg-type]  # narrowed above
            for conversation in conversations
        ]
        return self._run(requests, use_tqdm=use_tqdm)

    def _run(self, requests: Sequence[GenerateRequest], *, use_tqdm: bool) -> list[Completion]:
        submissions = [self._front.prepare(request, serial=self._front.next_serial()) for request in requests]
        pending: dict[str, tuple[Completion, RequestText]] = {}
        for request, submission in zip(requests, submissions, strict=True):
            completion = Completion(
                prompt=request.prompt,
                text="",
                token_ids=[],
                finish_reason=None,
                num_prompt_tokens=len(submission.prompt_token_ids),
            )
            pending[submission.request_id] = completion, self._front.start_text(submission)
        completions = [completion for completion, _ in pending.values()]
        try:
            for submission in submissions:
                self._core.handle(submission)
            with tqdm(total=len(requests), unit="prompt", disable=not use_tqdm) as bar:
                while pending:
                    self._step(pending, bar)
        finally:  # an interrupted call must not leave its requests behind for the next one
            for request_id in pending:
                self._core.handle(Abort(request_id=request_id))
        return completions

    def _step(self, pending: dict[str, tuple[Completion, RequestText]], bar: "tqdm[Any]") -> None:
        result = self._core.step()
        for produced in result.outputs:
            if produced.request_id not in pending:
                continue
            completion, text = pending[produced.request_id]
            output = text.advance(produced)
            completion.token_ids += output.token_ids
            completion.text += output.text
            completion.finish_reason = output.finish_reason
            if output.finished:
                del pending[produced.request_id]
                self._core.handle(Abort(request_id=produced.request_id))
                bar.update()
        bar.set_postfix(tokens=result.stats.num_generated_tokens, running=result.stats.num_running, refresh=False)


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [prompts if isinstance(prompts, str) else list(prompts)]  # type: ignore[arg-type]  # narrowed by the test
    return list(prompts)  # type: ignore[arg-type]  # narrowed by the test
