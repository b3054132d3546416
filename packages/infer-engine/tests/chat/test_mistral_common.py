"""Calls as `mistral-common`, which Mistral's own models are trained with, writes and reads them."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from mistral_common.experimental.tools import _decode_tool_calls, _split_content_and_tool_calls
from mistral_common.protocol.instruct.messages import AssistantMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, FunctionCall, ToolCall
from mistral_common.protocol.instruct.tool_calls import Tool as TheirTool
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy, SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from infer_engine.chat.output_parser import AnswerParser
from infer_engine.protocol import ToolCallDelta
from infer_models.text import TOOL_CALL_FORMATS

Calls = list[tuple[str, Any]]
Theirs = MistralTokenizer[Any, Any, Any, Any, Any]
FORMATS = {"v3": "mistral", "v7": "mistral", "v11": "mistral_args", "v13": "mistral_args"}
"""The formats in which tokenizers of each version write calls."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "a text": {"city": "Rome"},
    "quotes": {"text": """He said: "it's" \\ 'so' \\" \\n"""},
    "other scripts": {"text": "naïve café 日本語 🙂", "ключ": "é"},
    "lines": {"text": "def f(x):\n\treturn x\n\n"},
    "brackets": {"text": '}], [TOOL_CALLS] [{"name": "x"}] {', "list": ["]", "}"]},
    "values": {"flag": True, "none": None, "numbers": [0, -1.5, 1e-7, 12345678901234567890]},
    "nested": {"list": [[], [1.5, ["x"]], {"k": None}], "object": {"a b": {"c": [{}, {"d": False}]}}},
}
NAMES = ("look", "get_file-v2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tekken")


def tokenizer(folder: Path, version: str) -> Theirs:
    """Return a tokenizer of a version whose vocabulary is bytes and special tokens."""
    special = [{"rank": rank, "token_str": each.value, "is_control": True} for rank, each in enumerate(SpecialTokens)]
    texts = [base64.b64encode(bytes([byte])).decode() for byte in range(256)]
    config = {
        "pattern": r"[^\n]+|\n",
        "num_vocab_tokens": 256,
        "default_vocab_size": 256 + len(special),
        "default_num_special_tokens": len(special),
        "version": version,
    }
    vocab = [{"rank": rank, "token_bytes": text, "token_str": None} for rank, text in enumerate(texts)]
    path = folder / version / "tekken.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"config": config, "vocab": vocab, "special_tokens": special}), encoding="utf-8")
    return MistralTokenizer.from_file(str(path), mode=ValidationMode.finetuning)


def written(theirs: Theirs, calls: Calls) -> str:
    """Return an answer with `calls` as `mistral-common` writes it, without its end."""
    made = [
        ToolCall(
            id=f"callid{index:03}",
            function=FunctionCall(name=name, arguments=json.dumps(arguments, ensure_ascii=False)),
        )
        for index, (name, arguments) in enumerate(calls)
    ]
    request: Any = ChatCompletionRequest(
        messages=[UserMessage(content="What is there?"), AssistantMessage(tool_calls=made)],
        tools=[TheirTool(function=Function(name=name, parameters={"type": "object"})) for name in NAMES],
    )
    token_ids = theirs.encode_chat_completion(request).tokens
    text = theirs.decode(token_ids, special_token_policy=SpecialTokenPolicy.KEEP)
    return text.partition("[/INST]")[2].removesuffix("</s>")


def read(text: str, version: str, size: int) -> Calls:
    """Return the calls that we read in an answer, which comes in pieces of `size` characters."""
    parser = AnswerParser(tool_call_format=TOOL_CALL_FORMATS[FORMATS[version]], tool_names=NAMES)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    found: list[tuple[str, str]] = []
    for delta in [each for piece in pieces for each in parser.add(piece)] + parser.finish():
        assert isinstance(delta, ToolCallDelta)
        if delta.name is not None:
            found.append((delta.name, delta.arguments))
        else:
            found[-1] = (found[-1][0], found[-1][1] + delta.arguments)
    return [(name, json.loads(arguments)) for name, arguments in found]


@pytest.mark.covers("structured-tools-agents/formats")
@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_calls_that_mistral_common_writes_are_read(folder: Path, version: str, kind: str) -> None:
    theirs = tokenizer(folder, version)
    for calls in ([("look", ARGUMENTS[kind])], [("look", ARGUMENTS[kind]), ("get_file-v2", {"a": 1}), ("look", {})]):
        text = written(theirs, calls)
        for size in (1, 5, len(text)):
            assert read(text, version, size) == calls


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_calls_that_we_write_are_read_by_mistral_common(folder: Path, version: str, kind: str) -> None:
    tekken: Any = tokenizer(folder, version).instruct_tokenizer.tokenizer
    calls = [("look", ARGUMENTS[kind]), ("get_file-v2", {})]
    ours = TOOL_CALL_FORMATS[FORMATS[version]]
    named = [(name, json.dumps(arguments)) for name, arguments in calls]
    token_ids: list[int] = []
    for text in [ours.write(*named)] if ours.end else [ours.write(each) for each in named]:
        name, mark, arguments = text.removeprefix("[TOOL_CALLS]").partition(ours.before_arguments)
        token_ids += [tekken.get_special_token("[TOOL_CALLS]"), *tekken.encode(name, bos=False, eos=False)]
        is_special = mark == "[ARGS]"
        token_ids += [tekken.get_special_token(mark)] if is_special else tekken.encode(mark, bos=False, eos=False)
        token_ids += tekken.encode(arguments, bos=False, eos=False)
    content, each_call = _split_content_and_tool_calls(token_ids, tekken.get_special_token("[TOOL_CALLS]"))
    found = _decode_tool_calls(each_call, tekken)
    assert content == []
    assert [(call.function.name, json.loads(call.function.arguments)) for call in found] == calls
