"""The ids of tokens beside texts, as `return_token_ids` asks for them (vLLM's field).

A choice has those of its answer; those of the prompt are beside the choices of a chat, and in those of completions.
In a stream each chunk has those of its token, and the first one of a choice those of the prompt.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from infer_engine.protocol import RequestStream, StepOutput
from infer_server.api.handler import AcceptedRequest
from infer_server.openai.generation_fields import GenerationFields

G = TypeVar("G", bound=GenerationFields)
S = TypeVar("S", bound=msgspec.Struct)
_Add = Callable[[int, StepOutput], None]


class ReturnedIds:
    """Collects the ids of the answers of a request that does not stream, if its body asks for them."""

    def __init__(self, accepted: AcceptedRequest[G]) -> None:
        """Collect those of the choices of `accepted`."""
        self._streams = accepted.streams
        self._is_asked = bool(accepted.body.return_token_ids)
        self._token_ids: list[list[int]] = [[] for _ in accepted.streams]

    def beside(self, add: _Add) -> _Add:
        """Return what takes an output as `add` does, and its ids."""
        if not self._is_asked:
            return add

        def take(index: int, output: StepOutput) -> None:
            self._token_ids[index] += output.token_ids
            add(index, output)

        return take

    def into(self, reply: S) -> S:
        """Return `reply`, a completion or a chat completion, with the ids."""
        if not self._is_asked:
            return reply
        choices: Any = reply.choices  # type: ignore[attr-defined]  # both have choices
        prompts = [stream.prompt_token_ids for stream in self._streams]
        return _with_ids(reply, choices, self._token_ids, prompts)


class ChunksWithIds:
    """Adds ids to the chunks of another builder: a `ChunkBuilder`."""

    def __init__(self, chunks: Any, streams: Sequence[RequestStream]) -> None:
        """Add to what `chunks`, a `ChunkBuilder`, builds for `streams`."""
        self._chunks = chunks
        self._prompts = {index: stream.prompt_token_ids for index, stream in enumerate(streams)}
        self.finish = chunks.finish
        self.usage = chunks.usage

    def start(self, index: int, first: StepOutput) -> msgspec.Struct | None:
        """Return the chunk before the first token of a choice."""
        chunk = self._chunks.start(index, first)
        return None if chunk is None else self._with_ids(index, chunk, [])

    def token(self, index: int, token: StepOutput) -> list[msgspec.Struct]:
        """Return the chunks of one token, of which the first has its id."""
        first, *others = self._chunks.token(index, token)
        return [self._with_ids(index, first, token.token_ids), *others]

    def _with_ids(self, index: int, chunk: msgspec.Struct, token_ids: list[int]) -> msgspec.Struct:
        choices: Any = chunk.choices  # type: ignore[attr-defined]  # all of these have one choice
        prompt = self._prompts.pop(index, None)
        return _with_ids(chunk, choices, [token_ids], [] if prompt is None else [prompt])


def _with_ids(reply: S, choices: Sequence[Any], token_ids: list[list[int]], prompts: list[list[int]]) -> S:
    """Return `reply` with ids in its choices; those of `prompts` stand where it has a field for them."""
    told = [structs.replace(choice, token_ids=ids) for choice, ids in zip(choices, token_ids, strict=True)]
    if not prompts:
        return structs.replace(reply, choices=told)
    if "prompt_token_ids" in reply.__struct_fields__:  # all choices answer one prompt
        return structs.replace(reply, choices=told, prompt_token_ids=prompts[0])
    told = [structs.replace(choice, prompt_token_ids=ids) for choice, ids in zip(told, prompts, strict=True)]
    return structs.replace(reply, choices=told)
