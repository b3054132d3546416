"""`LLM`: generates in the caller's thread, for use as a library."""

import os
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgspec

from infer_engine.assembly.core import build_core
from infer_engine.assembly.engine import build_input_processor
from infer_engine.frontend.completion import Completion, CompletionBuilder
from infer_engine.frontend.input_processor import ProcessedInput, grammars_of
from infer_engine.frontend.progress import Progress
from infer_engine.frontend.sync_engine import SyncEngine
from infer_engine.prompt_forms import PromptForm, read_prompt, read_prompts
from infer_engine.protocol import (
    ChatMessage,
    ChatPrompt,
    EngineConfig,
    EngineStats,
    EngineUnavailableError,
    GenerateRequest,
    SamplingParams,
    StepOutput,
    Tool,
)
from infer_engine.protocol.chat import ToolChoice
from infer_engine.structured.errors import GrammarError
from infer_engine.structured.sandbox_queue import grammar_refused

Conversation = Sequence[ChatMessage | Mapping[str, Any]]


class LLM:
    """A loaded model that generates in the caller's thread, in batches. Not safe to share between threads."""

    def __init__(self, model: str | None = None, *, config: EngineConfig | None = None, **fields: Any) -> None:
        """Load a model.

        Args:
            model: a folder, a GGUF file or a Hub id; None takes `config.model`, or the default if that is None too.
            config: what to run and how; by default `EngineConfig()`.
            **fields: fields of `EngineConfig` that replace those of `config`.

        Raises:
            CheckpointUnusableError: the checkpoint is missing, damaged or of an unknown kind.
            ValueError: the configuration asks for more than the model, the device or the memory has.
        """
        if model is not None:
            fields["model"] = model
        config = replace(config or EngineConfig(), **fields)
        if config.data_parallel_size > 1:
            raise ValueError(
                f"`data_parallel_size` is {config.data_parallel_size}, but an `LLM` computes in this process; set it "
                "to 1, or use `infer-server` or `build_engine`."
            )
        built = build_core(config)
        weakref.finalize(self, built.close)  # also when the interpreter ends
        self._pid = os.getpid()
        self._core = built.core
        self._engine = SyncEngine(built.core)
        self._input_processor = build_input_processor(built.tokenizer, config, built.info)
        self._grammars = built.grammars
        self.info = built.info

    @property
    def stats(self) -> EngineStats:
        """Statistics of steps, requests, blocks and tokens."""
        return self._core.stats

    @property
    def default_params(self) -> SamplingParams:
        """The sampling of prompts without `params`: `SamplingParams()` with the model's own recommendations."""
        defaults = self.info.sampling_defaults
        return SamplingParams(**{"max_tokens": SamplingParams().max_tokens, **defaults.given})

    def generate(
        self,
        prompts: PromptForm | Iterable[PromptForm],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        prediction: str | None = None,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """Complete all prompts in batches, and return the completions in the order of the prompts.

        Each prompt has `params.n` completions, one after another. A completion that fails has an `error`; the others
        are not affected.

        Args:
            prompts: one prompt or several, each a text, token ids (whole numbers in a list, a tuple, an array or a
                tensor), or one of these in a dict, as `prompt` or `prompt_token_ids`.
            params: one for all prompts, or one per prompt, taken as they are; None takes `default_params`.
            priority: with the `priority` policy lower numbers come first.
            cache_salt: prompts share cached prefixes only with those of the same salt.
            prediction: a text of which much is expected to be in the completions; see `GenerateRequest`.
            use_tqdm: show a progress bar on standard error.

        Raises:
            RequestRefusedError: a prompt is empty, too long, or has ids outside the vocabulary, or this process is a
                fork of the one that loaded the model and computes with threads; nothing is generated.
            ValueError: there are not as many `params` as prompts.
        """
        prompt_list = read_prompts(prompts)
        per_prompt = params if isinstance(params, Sequence) else [params or self.default_params] * len(prompt_list)
        if len(per_prompt) != len(prompt_list):
            raise ValueError(
                f"`params` has {len(per_prompt)} entries for {len(prompt_list)} prompts; give one, or one each."
            )
        requests = [
            GenerateRequest(
                prompt=p,
                params=s,
                clip_max_tokens=self._clips(params),
                priority=priority,
                cache_salt=cache_salt,
                prediction=prediction,
            )
            for p, s in zip(prompt_list, per_prompt, strict=True)
        ]
        return self._run(requests, use_tqdm=use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] = (),
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        template_kwargs: Mapping[str, Any] = MappingProxyType({}),
        priority: int = 0,
        cache_salt: str | None = None,
        prediction: str | None = None,
        use_tqdm: bool = True,
    ) -> list[Completion]:
        """Answer one conversation or several.

        If `params` is None, an answer may fill the context. The rest is as in `generate`.

        Args:
            messages: each a `ChatMessage`, or a mapping of its attributes: at least a `role` and a `content`.
            params: one for all conversations.
            tools: what the model may call; the calls are in `Completion.tool_calls`.
            tool_choice: `auto` lets the model choose, `required` makes it call, `none` hides the tools from it.
            parallel_tool_calls: whether an answer may have more than one call.
            template_kwargs: further variables of the chat template, such as `enable_thinking`.
            priority: as in `generate`.
            cache_salt: as in `generate`.
            prediction: as in `generate`.
            use_tqdm: as in `generate`.

        Raises:
            RequestRefusedError: the checkpoint has no chat template, or it refuses a conversation; one is too long; the
                tools cannot be kept.
            ValueError: a message has no role or no content, or an attribute of the wrong type.
        """
        is_one = bool(messages) and isinstance(messages[0], Mapping | ChatMessage)
        conversations: Any = [messages] if is_one else messages
        clips = self._clips(params)
        params = params or self.info.sampling_defaults.fill(SamplingParams(max_tokens=None))
        requests = [
            GenerateRequest(
                prompt=ChatPrompt(
                    messages=tuple(_message(message) for message in conversation),
                    tools=tuple(tools),
                    tool_choice=tool_choice,
                    parallel_tool_calls=parallel_tool_calls,
                    template_kwargs=dict(template_kwargs),
                ),
                params=params,
                clip_max_tokens=clips,
                priority=priority,
                cache_salt=cache_salt,
                prediction=prediction,
            )
            for conversation in conversations
        ]
        return self._run(requests, use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: PromptForm,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Generator[StepOutput, None, None]:
        """Yield the outputs of one prompt, step by step; a step is computed when the caller asks for the next output.

        Several streams may be read in turns, and `generate` may be called between: each step computes all of them.
        Closing the iterator before its end aborts the request.

        Raises:
            RequestRefusedError: as in `generate`, before the first output is asked for.
            ValueError: `params.n` is not 1.
        """
        clips = self._clips(params)
        params = params or self.default_params
        if params.n != 1:
            raise ValueError(f"`n` is {params.n}; a stream is one answer: use `generate`, or one stream for each.")
        request = GenerateRequest(
            prompt=read_prompt(prompt),
            params=params,
            clip_max_tokens=clips,
            priority=priority,
            cache_salt=cache_salt,
        )
        [processed] = self._process_input(request)
        return self._stream(processed)

    def _clips(self, params: object) -> bool:
        """Return whether the tokens of an answer are the model's recommendation, which is cut to the context's rest."""
        return params is None and "max_tokens" in self.info.sampling_defaults.given

    def _process_input(self, request: GenerateRequest) -> list[ProcessedInput]:
        processed = self._input_processor.process(request, ids=self._input_processor.reserve_ids(request))
        for grammar in grammars_of(processed):
            try:
                self._grammars.compile(grammar)
            except GrammarError as error:
                raise grammar_refused(error, request.params.structured_outputs) from None
        return processed

    def _stream(self, processed: ProcessedInput) -> Generator[StepOutput, None, None]:
        outputs: deque[StepOutput] = deque()
        try:
            self._engine.submit(processed, outputs.append)
            finished = False
            while not finished:
                while not outputs:
                    self._step()
                output = outputs.popleft()
                finished = output.finished
                yield output
        finally:
            self._engine.abort(processed.submission.request_id)

    def _step(self) -> EngineStats:
        """Compute a step.

        Raises:
            EngineUnavailableError: this process would wait for threads that only its parent has.
        """
        if os.getpid() != self._pid:
            import torch  # noqa: PLC0415 - a process that has loaded a model has it

            if torch.get_num_threads() > 1:
                raise EngineUnavailableError(
                    f"This `LLM` was loaded by process {self._pid}, of which this one is a fork without its threads; "
                    "load one in each process, start processes by `spawn`, or set `OMP_NUM_THREADS=1`."
                )
        return self._engine.step()

    def _run(self, requests: Sequence[GenerateRequest], *, use_tqdm: bool) -> list[Completion]:
        sequences = [
            (CompletionBuilder(request.prompt, index=index), processed)
            for request, sequences_of_request in [(request, self._process_input(request)) for request in requests]
            for index, processed in enumerate(sequences_of_request)
        ]
        with Progress(total=len(sequences), is_shown=use_tqdm) as progress:
            try:
                for builder, processed in sequences:
                    self._engine.submit(processed, progress.counted(builder.add))
                while progress.num_finished < len(sequences):
                    progress.show(self._step())
            finally:  # an interrupted call must not leave requests in the engine
                for _, processed in sequences:
                    self._engine.abort(processed.submission.request_id)
        return [builder.build() for builder, _ in sequences]


def _message(message: ChatMessage | Mapping[str, Any]) -> ChatMessage:
    return message if isinstance(message, ChatMessage) else msgspec.convert(message, ChatMessage)
