"""The sides of a comparison: `LLM`, `transformers`, any OpenAI-compatible server. Knows how to ask; times nothing.

A workload whose `is_closed_loop` is set is answered one request after another, any other one all at once.
"""

import asyncio
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch

from agreement import JudgedAnswer
from http_client import exchange
from infer_engine import LLM, SamplingParams
from load_generator import run_workload
from request_dialects import Dialect
from server_facts import describe
from workloads import PlannedRequest, Workload


class Side(Protocol):
    """One of those that are compared."""

    @property
    def name(self) -> str:
        """How the table calls it."""

    def run(self, workload: Workload) -> int:
        """Answer every request greedily and return how many tokens were generated.

        Raises:
            RuntimeError: a request failed.
        """

    def describe(self) -> dict[str, Any]:
        """Return what the report says of it."""


class Ours:
    """`LLM` in this process."""

    name = "infer"

    def __init__(self, folder: Path, *, device: str, max_batch_size: int) -> None:
        """Load the checkpoint in `folder`."""
        self._llm = LLM(
            str(folder),
            device=device,
            max_batch_size=max_batch_size,
            use_prefix_caching=False,
            gpu_memory_utilization=0.5,  # the other side has its weights and cache there too
        )

    @property
    def vocab_size(self) -> int:
        """Token ids that prompts may have are below."""
        return self._llm.info.vocab_size

    def run(self, workload: Workload) -> int:
        """Answer all at once, or one by one."""
        return sum(map(len, self.answers(workload)))

    def answers(self, workload: Workload) -> list[list[int]]:
        """Return the tokens of every answer."""
        requests = workload.requests
        groups = [[request] for request in requests] if workload.is_closed_loop else [list(requests)]
        return [answer for group in groups for answer in self._generate(group)]

    def describe(self) -> dict[str, Any]:
        """Return what was loaded."""
        info = self._llm.info
        return {"infer_engine": version("infer-engine")} | {
            name: getattr(info, name) for name in info.__struct_fields__
        }

    def _generate(self, requests: Sequence[PlannedRequest]) -> list[list[int]]:
        params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=request.max_tokens) for request in requests]
        completions = self._llm.generate([request.prompt for request in requests], params, use_tqdm=False)
        for completion in completions:
            if completion.error:
                raise RuntimeError(f"a request failed: {completion.error.message}")
        return [completion.token_ids for completion in completions]


class Transformers:
    """`transformers` in this process: `generate`, padded on the left where prompts are of several lengths."""

    name = "transformers"

    def __init__(self, folder: Path, *, device: str) -> None:
        """Load the checkpoint in `folder`, in its own dtype."""
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 - it takes seconds, and only this side needs it

        self._device = torch.device(device)
        load: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
        self._model = load(folder, dtype="auto").to(self._device)
        self._model.generation_config.eos_token_id = None  # answers run to their full length
        self._model.generation_config.pad_token_id = 0

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    def run(self, workload: Workload) -> int:
        """Answer in one padded batch, or one by one."""
        groups = [[request] for request in workload.requests] if workload.is_closed_loop else [workload.requests]
        return sum(len(answer) for group in groups for answer in self._cut(group, self._generate(group)))

    def judged_answers(self, workload: Workload) -> list[JudgedAnswer]:
        """Return the tokens of every answer with their margins, from one padded batch."""
        requests = workload.requests
        found = self._generate(requests, output_logits=True, return_dict_in_generate=True)
        margins = torch.stack([_margins(logits) for logits in found.logits], dim=1).tolist()
        return [
            JudgedAnswer(token_ids=answer, margins=row[: len(answer)])
            for answer, row in zip(self._cut(requests, found.sequences), margins, strict=True)
        ]

    def describe(self) -> dict[str, Any]:
        """Return versions and how attention is computed."""
        attention = self._model.config._attn_implementation  # noqa: SLF001 - it has no public name
        return {"transformers": version("transformers"), "attention": attention, "dtype": str(self.dtype)}

    def _generate(self, requests: Sequence[PlannedRequest], **options: Any) -> Any:
        longest = max(len(request.prompt) for request in requests)
        ids, mask = torch.zeros(2, len(requests), longest, dtype=torch.long)
        for row, request in enumerate(requests):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        with torch.inference_mode():
            return self._model.generate(
                ids.to(self._device),
                attention_mask=mask.to(self._device),
                max_new_tokens=max(request.max_tokens for request in requests),
                do_sample=False,
                **options,
            )

    @staticmethod
    def _cut(requests: Sequence[PlannedRequest], sequences: torch.Tensor) -> list[list[int]]:
        longest = max(len(request.prompt) for request in requests)
        answers: list[list[int]] = sequences[:, longest:].tolist()
        return [answer[: request.max_tokens] for answer, request in zip(answers, requests, strict=True)]


class OverHttp:
    """A server with an OpenAI-compatible API, ours or another's."""

    def __init__(self, name: str, url: str, *, model: str | None, dialect: Dialect, api_key: str | None = None) -> None:
        """Connect to nothing yet; `url` is without `/v1`."""
        self.name = name
        self._url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._dialect = dialect
        self._api_key = api_key

    def run(self, workload: Workload) -> int:
        """Send all at once, or one after another."""
        results = asyncio.run(
            run_workload(
                self._url, workload, model=self._model, progress=False, dialect=self._dialect, api_key=self._api_key
            )
        )
        for result in results:
            if result.error:
                raise RuntimeError(f"{self.name} at {self._url}: {result.error}")
        return sum(result.num_tokens for result in results)

    def texts(self, workload: Workload) -> list[str]:
        """Return the text of every answer."""

        async def ask_all() -> list[str]:
            return [await self._ask(request) for request in workload.requests]

        return asyncio.run(ask_all())

    def describe(self) -> dict[str, Any]:
        """Return what the server tells of itself."""
        return {"url": self._url, "dialect": self._dialect.name, "told": asyncio.run(self._told())}

    async def _told(self) -> dict[str, Any]:
        return await describe(self._url, headers=self._headers)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    async def _ask(self, request: PlannedRequest) -> str:
        body = msgspec.json.decode(self._dialect.body(request, model=self._model))
        body["stream"] = False
        body.pop("stream_options", None)
        data = msgspec.json.encode(body)
        async with exchange(self._url, self._dialect.path, method="POST", body=data, headers=self._headers) as reply:
            text = await reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{self.name} at {self._url}: HTTP {reply.status}: {text[:300]!r}")
        choice = msgspec.json.decode(text)["choices"][0]
        answer: str = choice["message"]["content"] if "message" in choice else choice["text"]
        return answer


def _margins(logits: torch.Tensor) -> torch.Tensor:
    """Return [sequences]: the best logit above the next one, in standard deviations of all."""
    logits = logits.float()
    best = logits.topk(2, dim=-1).values
    return (best[:, 0] - best[:, 1]) / logits.std(dim=-1)
