"""Prompts of published chat templates are those of `transformers`, for drawn conversations through each API.

A conversation is drawn as OpenAI's API has it, written in the words of one of the three APIs, and read as the server
reads it. Where `transformers` refuses it, or leaves words of it out, our prompt has all words (`KEPT` and `LOST`).
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pytest
import tokenizers
from tests.oracles.drawn_conversations import (
    EFFORTS,
    Drawer,
    Drawn,
    Message,
    chat_body,
    messages_body,
    responses_body,
    with_text,
)
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from infer_engine.chat.formats import ChatFormats
from infer_engine.protocol import ChatPrompt
from infer_models.text import ChatTemplate, ChatTemplateError, Tokenizer
from infer_models.text.chat.templates.left_out import CALLS, SYSTEM_BEFORE_RESULTS, WORDS_BESIDE_CALLS
from infer_server.anthropic.request import MessagesBody, messages_request
from infer_server.http.bodies import decode_body
from infer_server.openai.chat.request import ChatBody, chat_request
from infer_server.openai.responses.item_store import ItemStore
from infer_server.openai.responses.references import resolved_body
from infer_server.openai.responses.request import ResponsesBody, responses_request

Figure = Callable[[str, int, Sequence[str]], None]

NUM_DRAWS = 200
NUM_SAMPLED = 2
SAMPLED = slice(None, None, 4)  # of the templates
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
_MARK = re.compile(r"<[|\uff5c][^<>\n'\"{}]{1,40}[|\uff5c]>|</?[\w:]{2,24}>|\[/?[A-Z_]{3,24}\]|<\|[a-z_]+>|<[a-z_]+\|>")

LOW_OR_HIGH = (("low", "low"), ("medium", "high"), ("high", "high"))
"""Efforts, and what becomes of each where a template knows two."""


@dataclass(frozen=True, kw_only=True)
class Switches:
    """Variables of a template that switch thinking off and on, and those that stand for an effort."""

    off: Mapping[str, object]
    on: Mapping[str, object]
    effort: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def of(self, switch: str) -> dict[str, object]:
        """Return the variables of `off`, `on`, an effort with which it is on, or `only` with an effort alone."""
        if switch in ("off", "on"):
            return dict(self.off if switch == "off" else self.on)
        how, _, effort = switch.partition(" ")
        only = self.effort.get(effort, {"reasoning_effort": effort})
        return {**(self.on if how == "effort" else {}), **only}


def _named(name: str, **efforts: Mapping[str, object]) -> Switches:
    return Switches(off={name: False}, on={name: True}, effort=efforts)


USUAL = _named("enable_thinking")
SWITCHES = {
    "Cohere2MoE": _named("reasoning"),
    "Kimi-K3": _named("thinking", **{each: {"thinking_effort": to} for each, to in LOW_OR_HIGH}),
    "MiniMax-M3": Switches(off={"thinking_mode": "disabled"}, on={"thinking_mode": "enabled"}),
    "ByteDance-Seed-OSS": Switches(off={"thinking_budget": 0}, on={}),
    "deepseek-ai-DeepSeek-V3.1": _named("thinking"),
    "deepseek-ai-DeepSeek-V3.2": _named("thinking"),
    "deepseek-ai-DeepSeek-V4": _named("thinking"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": _named("thinking"),
    "ibm-granite-granite-3.3-2B-Instruct": _named("thinking"),
    "muse-glimmer": Switches(off={}, on={}, effort={each: {"reasoning_strength": each} for each in EFFORTS}),
    "tencent-Hy3": Switches(
        off={"reasoning_effort": "no_think"}, on={"reasoning_effort": "high"},
        effort={each: {"reasoning_effort": to} for each, to in LOW_OR_HIGH},
    ),
    "unsloth-Apriel-1.5": _named("add_thoughts"),
    "upstage-Solar-Open-100B": Switches(off={"reasoning_effort": "minimal"}, on={}),
}  # fmt: skip


class Ours:
    """Reads a drawn conversation as the server does, and returns the text of its prompt's ids."""

    def __init__(self, source: str, vocabulary: tokenizers.Tokenizer) -> None:
        template = ChatTemplate(source, variables=NAMED)
        self._tokenizer = Tokenizer(vocabulary, named_tokens=NAMED, chat_template=template)
        self._formats = ChatFormats(self._tokenizer)

    @property
    def ids(self) -> str:
        """What the ids of calls look like that the template takes."""
        call_format = self._tokenizer.chat.tool_call_format
        return "numbered" if call_format is not None and call_format.is_numbered else "short"

    @property
    def kinds_left_out(self) -> set[str]:
        """The kinds of words that prompts may lack."""
        said = self._tokenizer.chat.left_out
        return {
            "thinking",
            "marked answer",
            *(kind for part, kind in LEFT_OUT.items() if f"{part.name} (lost)" in said),
        }

    def render(self, drawn: Drawn) -> str:
        if drawn.api == "chat":
            request = chat_request(_decoded(chat_body(drawn), ChatBody), served_model="m")
        elif drawn.api == "messages":
            request = messages_request(_decoded(messages_body(drawn), MessagesBody), served_model="m")
        else:
            body = resolved_body(_decoded(responses_body(drawn), ResponsesBody), ItemStore(), owner=None)
            request = responses_request(body, served_model="m")
        assert isinstance(request.prompt, ChatPrompt)
        encoded = self._tokenizer.chat.encode(self._formats.conversation(request.prompt))
        return self._tokenizer.decode(encoded.token_ids, skip_special_tokens=False)


def _decoded(body: dict[str, Any], kind: Any) -> Any:
    return decode_body(json.dumps(body).encode(), kind)


class Theirs:
    """Renders a drawn conversation with `transformers`, in all spellings that say the same."""

    def __init__(self, name: str, source: str, vocabulary: tokenizers.Tokenizer) -> None:
        self._switches = SWITCHES.get(name, USUAL)
        fast: Any = PreTrainedTokenizerFast
        self._tokenizer = fast(tokenizer_object=vocabulary, chat_template=source, **NAMED)

    def render(self, drawn: Drawn) -> Iterator[str]:
        """Yield the prompts; none if all spellings are refused."""
        switch = "effort high" if drawn.switch == "on" and drawn.api == "responses" else drawn.switch
        variables = self._switches.of(switch) if switch else {}
        for messages in _spellings(drawn):
            try:
                yield self._tokenizer.apply_chat_template(
                    messages, tools=drawn.tools or None, tokenize=False, add_generation_prompt=True, **variables
                )
            except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError):
                continue


def _spellings(drawn: Drawn) -> Iterator[list[Message]]:
    empties: tuple[Message, ...] = ({"content": ""}, {}, {"content": None})
    for as_parts, empty, as_text in itertools.product((False, True), empties, (False, True)):
        messages = []
        for message in drawn.messages:
            role = "system" if message["role"] == "developer" else message["role"]
            spelled = {**(empty if role == "assistant" else {}), **message, "role": role}
            if "reasoning_content" in message:
                spelled |= dict.fromkeys(("reasoning", "thought"), message["reasoning_content"])
                if as_parts:
                    thinking = {"type": "thinking", "thinking": message["reasoning_content"]}
                    text = [{"type": "text", "text": message["content"]}] if message.get("content") else []
                    spelled["content"] = [thinking, *text]
            if as_text and "tool_calls" in message:
                spelled["tool_calls"] = [with_text(call) for call in message["tool_calls"]]
            messages.append(spelled)
        if drawn.api == "responses":
            num_first = next((i for i, each in enumerate(messages) if each["role"] != "system"), len(messages))
            first = {"role": "system", "content": "\n\n".join(each["content"] for each in messages[:num_first])}
            messages = [*([first] if num_first else []), *messages[num_first:]]
        yield messages


def _vocabulary(source: str) -> tokenizers.Tokenizer:
    """Return a vocabulary of bytes with the marks of a template as special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*NAMED.values(), *sorted(set(_MARK.findall(source)) - set(NAMED.values()))])
    return tokenizer


LEFT_OUT = {WORDS_BESIDE_CALLS: "preamble", CALLS: "call", SYSTEM_BEFORE_RESULTS: "system"}
"""What a prompt may lack, as with `transformers`: parts that the server names when it starts, and what is drawn."""


def difference(drawn: Drawn, ours: Ours, theirs: Theirs) -> str | None:
    """Return what differs without a reason."""
    try:
        text = ours.render(drawn)
    except ChatTemplateError as error:
        return f"refused ({'by us' if any(theirs.render(drawn)) else 'by both'}): {error}"
    needed = {word for word, kind in drawn.kinds.items() if kind not in ours.kinds_left_out}
    lost = sorted({drawn.kinds[word] for word in needed if word not in text})
    if lost:
        return f"lost: {', '.join(lost)}"
    said = {word for word, kind in drawn.kinds.items() if kind != "thinking"}
    others: list[str] = []
    for expected in theirs.render(drawn):
        if text == expected:
            return None
        others += [expected] if all(word in expected for word in said) else []
    return _place_of_difference(text, others[0]) if others else None


def _place_of_difference(text: str, expected: str) -> str:
    pairs = zip(text, expected, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(expected)))
    shown = slice(max(0, place - 60), place + 60)
    return f"differs: {text[shown]!r} / {expected[shown]!r}"


REFUSED = {"fireworks-ai-llama-3-firefunction-v2": "wants the tools as a text in a variable of its own, `functions`"}
"""Templates that `transformers` cannot render either, and why."""


def _compare(folder: Path, num_draws: int, chosen: slice = slice(None)) -> tuple[int, list[str]]:
    """Return how many conversations were drawn, and what differs."""
    wrong: list[str] = []
    paths = [path for path in sorted(folder.glob("*.jinja")) if path.stem not in REFUSED][chosen]
    for path in paths:
        source = path.read_text(encoding="utf-8")
        vocabulary = _vocabulary(source)
        ours, theirs = Ours(source, vocabulary), Theirs(path.stem, source, vocabulary)
        for number in range(num_draws):
            drawn = Drawer(f"{path.stem} {number}").draw(ours.ids)
            found = difference(drawn, ours, theirs)
            if found is not None:
                wrong.append(f"{path.stem} {number} ({drawn.api} {drawn.switch}): {found}")
    return len(paths) * num_draws, wrong


def test_a_few_prompts_of_published_templates_are_those_of_transformers(llama_cpp: Path, figure: Figure) -> None:
    figure("templates", *_compare(llama_cpp / "models" / "templates", NUM_SAMPLED, SAMPLED))


@pytest.mark.full
def test_prompts_of_published_templates_are_those_of_transformers(llama_cpp: Path, figure: Figure) -> None:
    figure("templates", *_compare(llama_cpp / "models" / "templates", NUM_DRAWS))
