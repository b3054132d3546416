"""How a planned request is put to a server: as a completion of token ids or of text, or as a chat.

Prompts are token ids where the server takes them, so that they have exactly the planned length. Others get text of
common words, about one token each: what they counted is in the reply's usage.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from infer_bench.client.workloads import PlannedRequest

_COMMON = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know"
)
WORDS = tuple(_COMMON.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How requests are put.

    Attributes:
        name: how the report calls it.
        path: where requests go.
        prompt_fields: the prompt as fields of the body.
        extras: further fields of the body.
    """

    name: str
    path: str
    prompt_fields: Callable[[list[int]], dict[str, Any]]
    extras: dict[str, Any]

    def body(self, request: PlannedRequest, *, model: str | None) -> bytes:
        """Return the JSON body of `request`."""
        named = {} if model is None else {"model": model}
        fields = {"max_tokens": request.max_tokens, "stream": True, **self.extras}
        return msgspec.json.encode({**named, **self.prompt_fields(request.prompt), **fields})


PLAIN: dict[str, Any] = {"stream_options": {"include_usage": True}}
"""Fields that all servers know."""
EXTRAS: dict[str, Any] = {"temperature": 0, "ignore_eos": True, **PLAIN}
"""Fields that make every answer as long as planned."""


def as_text(prompt: list[int]) -> str:
    """Return as many words as `prompt` has tokens: the same words for the same ids, so that shared prefixes stay."""
    return " ".join(WORDS[token_id % len(WORDS)] for token_id in prompt)


TOKEN_IDS = Dialect(
    name="completions, token ids",
    path="/v1/completions",
    prompt_fields=lambda prompt: {"prompt": prompt},
    extras=EXTRAS,
)
TEXT = Dialect(
    name="completions, text",
    path="/v1/completions",
    prompt_fields=lambda prompt: {"prompt": as_text(prompt)},
    extras=EXTRAS,
)
CHAT = Dialect(
    name="chat",
    path="/v1/chat/completions",
    prompt_fields=lambda prompt: {"messages": [{"role": "user", "content": as_text(prompt)}]},
    extras=EXTRAS,
)


def add_dialect_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `chosen_dialect` reads."""
    parser.add_argument("--api", choices=("completions", "chat"), default="completions")
    parser.add_argument("--prompt-as-text", action="store_true", help="words in place of token ids")
    parser.add_argument("--plain", action="store_true", help="send neither `ignore_eos` nor `temperature`")


def chosen_dialect(args: argparse.Namespace) -> Dialect:
    """Return the dialect that the flags name."""
    dialect = CHAT if args.api == "chat" else TEXT if args.prompt_as_text else TOKEN_IDS
    return replace(dialect, extras=PLAIN) if args.plain else dialect
