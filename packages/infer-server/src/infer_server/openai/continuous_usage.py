"""`ContinuousUsage`: builds a stream's chunks with the usage of their choice so far, as vLLM's clients ask for it."""

from collections.abc import Iterator

import msgspec

from infer_engine.protocol import StepOutput
from infer_server.openai.builders import ChunkBuilder, GeneratedToken
from infer_server.openai.usage import Usage, usage_of


class ContinuousUsage:
    """Adds the usage to the chunks of another builder. Implements `infer_server.openai.builders.ChunkBuilder`."""

    def __init__(self, chunks: ChunkBuilder) -> None:
        """Add to what `chunks` builds; each of its chunks has a field `usage`."""
        self._chunks = chunks
        self._counts: dict[int, tuple[int, int]] = {}  # by choice: tokens of its prompt, and tokens so far

    def start(self, index: int, first: StepOutput) -> msgspec.Struct | None:
        """Return the chunk before the first token of a choice."""
        self._counts[index] = (first.num_prompt_tokens, 0)
        chunk = self._chunks.start(index, first)
        return None if chunk is None else self._with_usage(index, chunk)

    def token(self, index: int, token: GeneratedToken) -> Iterator[msgspec.Struct]:
        """Yield the chunks of one token."""
        num_prompt_tokens, num_tokens = self._counts[index]
        self._counts[index] = (num_prompt_tokens, num_tokens + 1)
        for chunk in self._chunks.token(index, token):
            yield self._with_usage(index, chunk)

    def finish(self, index: int, last: StepOutput, *, text: str) -> msgspec.Struct:
        """Return the chunk that ends a choice."""
        chunk = self._chunks.finish(index, last, text=text)
        return msgspec.structs.replace(chunk, usage=usage_of([last], choices_per_prompt=1))

    def usage(self, usage: Usage) -> msgspec.Struct:
        """Return the chunk with the usage of the whole request."""
        return self._chunks.usage(usage)

    def _with_usage(self, index: int, chunk: msgspec.Struct) -> msgspec.Struct:
        prompt, completion = self._counts[index]
        usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)
        return msgspec.structs.replace(chunk, usage=usage)
