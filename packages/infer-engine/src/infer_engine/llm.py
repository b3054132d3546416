"""`LLM`: the engine as a library, in the caller's thread: prompts in, completions out."""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from infer_engine.build import build_core, build_input_processor
from infer_engine.frontend.completion import Completion, CompletionBuilder, Prompt
from infer_engine.frontend.input_processor import ProcessedInput
from infer_engine.frontend.progress import Progress
from infer_engine.frontend.sync_engine import SyncEngine
from infer_engine.protocol import (
    ChatMessage,
    ChatPrompt,
    EngineConfig,
    EngineStats,
    GenerateRequest,
    SamplingParams,
    StepOutput,
)


class LLM:
    """A model that generates, batched, in the caller's thread. Not safe to share between threads."""

    def __init__(self, model: str | None = None, *, config: EngineConfig | None = None, **fields: Any) -> None:
        """Load a model.

        Args:
            model: a folder, a Hub id, or None: what `config` says, else the bundled demo model.
            config: what to run and how; by default `EngineConfig()`.
            **fields: fields of `EngineConfig` that replace those of `config`.

        Raises:
            CheckpointUnusableError: the checkpoint is missing, damaged or of an unknown kind.
            ValueError: the configuration asks for more than the model, the device or the memory has.
        """
        if model is not None:
            fields["model"] = model
        config = replace(config or EngineConfig(), **fields)
        built = build_core(config)
        self._core = built.core
        self._engine = SyncEngine(built.core)
        self._input_processor = build_input_processor(built.tokenizer, config, built.info)
        self.info = built.info

    @property
    def stats(self) -> EngineStats:
        """A snapshot: steps, requests, blocks, tokens."""
        return self._core.stats

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """Complete every prompt, all batched together, and return the completions in the prompts' order.

        A prompt has as many completions, one after another, as its `params.n` says. One that fails has an `error`; the
        others are complete.

        Args:
            prompts: one prompt or several, each text or token ids.
            params: for all prompts, or one per prompt; left out: `SamplingParams()`.
            priority: with the `priority` policy lower numbers come first.
            cache_salt: prompts share cached prefixes only with those of the same salt.
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
        requests = [
            GenerateRequest(prompt=p, params=s, priority=priority, cache_salt=cache_salt)
            for p, s in zip(listed, per_prompt, strict=True)
        ]
        return self._run(requests, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, str]] | Sequence[Sequence[Mapping[str, str]]],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """Answer one conversation or several; a message has a `role` and a `content`.

        Left out, `params` samples for as long as the context lasts. The rest is as in `generate`.

        Raises:
            RequestRefusedError: the checkpoint has no chat template, or it refuses a conversation; one is too long.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        params = params or SamplingParams(max_tokens=None)
        requests = [
            GenerateRequest(
                prompt=_conversation(conversation),  # type: ignore[arg-type]  # narrowed above
                params=params,
                priority=priority,
                cache_salt=cache_salt,
            )
            for conversation in conversations
        ]
        return self._run(requests, use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Generator[StepOutput, None, None]:
        """Yield a prompt's outputs as steps make them; steps are computed while the caller waits for the next one.

        Several streams may be read in turns, and `generate` called meanwhile: each step computes for all of them.
        Closing the iterator before its end aborts the request.

        Raises:
            RequestRefusedError: as in `generate`, and at once.
            ValueError: `params.n` is not 1.
        """
        params = params or SamplingParams()
        if params.n != 1:
            raise ValueError(f"`n` is {params.n}; a stream is one answer: use `generate`, or one stream for each.")
        request = GenerateRequest(prompt=_plain(prompt), params=params, priority=priority, cache_salt=cache_salt)
        [prepared] = self._prepare(request)
        return self._stream(prepared)

    def _prepare(self, request: GenerateRequest) -> list[ProcessedInput]:
        return self._input_processor.prepare(request, ids=self._input_processor.reserve_ids(request))

    def _stream(self, prepared: ProcessedInput) -> Generator[StepOutput, None, None]:
        outputs: deque[StepOutput] = deque()
        try:
            self._engine.submit(prepared, outputs.append)
            finished = False
            while not finished:
                while not outputs:
                    self._engine.step()
                output = outputs.popleft()
                finished = output.finished
                yield output
        finally:
            self._engine.abort(prepared.submission.request_id)

    def _run(self, requests: Sequence[GenerateRequest], *, use_tqdm: bool) -> list[Completion]:
        sequences = [
            (CompletionBuilder(request.prompt, index=index), prepared)
            for request, choices in [(request, self._prepare(request)) for request in requests]
            for index, prepared in enumerate(choices)
        ]
        with Progress(total=len(sequences), is_shown=use_tqdm) as progress:
            try:
                for builder, prepared in sequences:
                    self._engine.submit(prepared, progress.counted(builder.add))
                while progress.num_finished < len(sequences):
                    progress.show(self._engine.step())
            finally:  # an interrupted call must not leave its requests behind for the next one
                for _, prepared in sequences:
                    self._engine.abort(prepared.submission.request_id)
        return [builder.build() for builder, _ in sequences]


def _conversation(messages: Sequence[Mapping[str, str]]) -> ChatPrompt:
    return ChatPrompt(messages=tuple(ChatMessage(role=each["role"], content=each["content"]) for each in messages))


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [_plain(prompts)]  # type: ignore[arg-type]  # narrowed by the test
    return [_plain(prompt) for prompt in prompts]  # type: ignore[arg-type]  # narrowed by the test


def _plain(prompt: Prompt) -> Prompt:
    """Return token ids of any sequence type as a list."""
    return prompt if isinstance(prompt, str) else list(prompt)
