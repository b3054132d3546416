"""Prompts are those of `AutoTokenizer.apply_chat_template`: layouts of files, shapes of messages, many templates."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from transformers import AutoTokenizer

from infer_models.text import Conversation, Tokenizer
from infer_proofs.text import HERMES, LLAMA_3, MARKERS, MISTRAL_V11, SPECIAL, byte_level

Message = dict[str, Any]
Files = dict[str, object]

STYLES = {
    "hermes": HERMES,
    "llama3": LLAMA_3,
    "mistral": MISTRAL_V11,
    "everything as JSON": "{{ messages | tojson }}{{ tools | tojson(indent=2) }}{{ documents | tojson }}",
    "options of tojson": "{% for m in messages %}{{ m.content | tojson(ensure_ascii=true) }}"
    "{{ m | tojson(separators=(',', ':')) }}{{ m | tojson(sort_keys=true) }}{% endfor %}{{ tools | tojson(indent=1) }}",
    "fields as they are": "{% for m in messages %}{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}"
    "{{ m.content is none }}{{ m.content is defined }}{{ m.thinking }}|{{ m.reasoning }}{% endfor %}{{ tools }}",
    "loop controls": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}"
    "{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "macros": "{%- macro turn(m, n=none) -%}\n  {{- '<|im_start|>' ~ m['role'] ~ '\\n' }}{{ m.get('content', '-') }}\n"
    "  {{- n }}<|im_end|>\n{%- endmacro -%}{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% set ns.n = ns.n + 1 %}{{ turn(m, ns.n) }}{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}",
    "tokens": "{{ bos_token }}{{ unk_token }}{{ pad_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}"
    "{% endfor %}{{ image_token }}{{ cls_token is defined }}",
    "white space": "  {% if messages %}\n    {{- bos_token -}}\n  {% endif %}\n{% for m in messages %}\n"
    "  {{ m.content }}\n  {% if not loop.last %}\n\n  {% endif %}\n{% endfor %}",
    "variables": "{{ enable_thinking }}{{ documents }}{{ date is defined }}{% for m in messages %}{{ m.content }}"
    "{% endfor %}",
    "thinking": "{% for m in messages %}{{ '<think>' + m.thinking + '</think>' if m.thinking }}{{ m.content }}"
    "{% endfor %}",
}

CALL = {"id": "abcDEF123", "type": "function", "function": {"name": "look", "arguments": {"where": "Rome", "é": [1]}}}
TOOL = {
    "type": "function",
    "x-from": "client",
    "function": {
        "parameters": {"properties": {"b": {"type": "string"}, "a": {"$ref": "#"}}, "type": "object"},
        "name": "look",
        "description": "Looks <b>.",
        "strict": None,
    },
}
BARE_TOOL = {"function": {"name": "time"}, "type": "function"}

Shape = tuple[list[Message], list[Message], dict[str, object]]
USER: Message = {"role": "user", "content": "Is it naïve? 日本 <b> & 'x'"}
SHAPES: dict[str, Shape] = {
    "one": ([USER], [], {}),
    "system": ([{"role": "system", "content": " Be brief.\n"}, USER], [], {"enable_thinking": False}),
    "answered": ([USER, {"content": "No.", "role": "assistant"}, {"role": "user", "content": ""}], [], {}),
    "tools": ([USER], [TOOL, BARE_TOOL | {"function": {"name": "time", "description": "d", "parameters": {}}}], {}),
    "null content": ([USER, {"role": "assistant", "content": None}, USER], [], {}),
    "null fields": ([{**USER, "name": None, "tool_calls": None, "reasoning_content": None}], [], {}),
    "reasoning": ([USER, {"role": "assistant", "reasoning": "Hm.", "content": "No."}, USER], [], {}),
    "reasoning_content": ([USER, {"role": "assistant", "content": "No.", "reasoning_content": "Hm."}], [], {}),
    "thinking": ([USER, {"role": "assistant", "content": "No.", "thinking": "Hm."}, USER], [], {}),
    "own fields": ([{**USER, "name": "Ann", "id": 7, "weight": 0.5, "parts": [{"a": None}]}], [], {}),
    "documents": ([USER], [], {"documents": [{"title": "T", "text": "é"}], "n": 2**70}),
    "call": ([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
              {"role": "tool", "tool_call_id": "abcDEF123", "name": "look", "content": "sun"}], [TOOL], {}),
    "call without content": ([USER, {"role": "assistant", "content": None, "tool_calls": [CALL]},
                              {"role": "tool", "tool_call_id": "abcDEF123", "content": "sun"}], [TOOL], {}),
}  # fmt: skip

NAMED = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}
LAYOUTS: dict[str, Callable[[str], Files]] = {
    "file": lambda source: {"chat_template.jinja": source, "tokenizer_config.json": NAMED},
    "configuration": lambda source: {"tokenizer_config.json": {**NAMED, "chat_template": source}},
    "file before configuration": lambda source: {
        "chat_template.jinja": source,
        "tokenizer_config.json": {**NAMED, "chat_template": "not this"},
        "chat_template.json": {"chat_template": "nor this"},
    },
    "list": lambda source: {
        "tokenizer_config.json": {
            **NAMED,
            "chat_template": [{"name": "tool_use", "template": source + "T"}, {"name": "default", "template": source}],
        }
    },
    "folder": lambda source: {
        "chat_template.jinja": source,
        "additional_chat_templates/tool_use.jinja": source + "T",
        "additional_chat_templates/rag.jinja": "not this",
        "tokenizer_config.json": NAMED,
    },
    "all in the folder": lambda source: {
        "additional_chat_templates/default.jinja": source,
        "additional_chat_templates/tool_use.jinja": source + "T",
        "tokenizer_config.json": {**NAMED, "chat_template": "not this"},
    },
    "map of special tokens": lambda source: {
        "chat_template.jinja": source,
        "special_tokens_map.json": {**NAMED, "eos_token": {"content": "<|im_end|>", "lstrip": False}},
        "tokenizer_config.json": {"bos_token": "not this"},
    },
    "map beside added_tokens_decoder": lambda source: {
        "chat_template.jinja": source,
        "special_tokens_map.json": {"bos_token": "not this", "eos_token": "nor this"},
        "tokenizer_config.json": {"bos_token": "<|bos|>", "added_tokens_decoder": {}},
    },
    "no configuration": lambda source: {"chat_template.jinja": source, "special_tokens_map.json": NAMED},
    "tokens of the model": lambda source: {
        "chat_template.jinja": source,
        "tokenizer_config.json": {**NAMED, "image_token": "<think>", "extra_special_tokens": {"cls_token": "[INST]"}},
    },
    "tokens as objects": lambda source: {
        "chat_template.jinja": source,
        "tokenizer_config.json": {
            "bos_token": {"__type": "AddedToken", "content": "<|bos|>", "lstrip": False, "special": True},
            "eos_token": "<|im_end|>",
            "unk_token": None,
            "model_specific_special_tokens": {"image_token": "[ARGS]"},
        },
    },
    "a class's own tokens": lambda source: {
        "chat_template.jinja": source,
        "tokenizer_config.json": {"tokenizer_class": "Qwen2TokenizerFast", "eos_token": "<|im_end|>"},
    },
}


@cache
def folder_of(layout: str, style: str) -> Path:
    folder = Path(mkdtemp())
    tokenizer = byte_level()
    tokenizer.add_special_tokens([*SPECIAL, "<|endoftext|>"])
    tokenizer.add_tokens(list(MARKERS))
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in LAYOUTS[layout](STYLES[style]).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def compare(folder: Path, shape: Shape, *, begins_answer: bool) -> None:
    messages, tools, variables = shape
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    options: Mapping[str, Any] = {"tools": tools or None, "add_generation_prompt": begins_answer, **variables}
    expected = theirs.apply_chat_template(messages, tokenize=False, **options)
    ours = Tokenizer.from_folder(folder).chat
    chat = Conversation(messages=messages, tools=tools, variables=variables, add_generation_prompt=begins_answer)
    assert ours.render(chat) == expected
    ids = theirs.apply_chat_template(messages, return_dict=False, **options)
    assert ours.encode(chat).token_ids == ids


KNOW_TOOLS = ["hermes", "llama3", "mistral", "everything as JSON", "options of tojson", "fields as they are"]
"""To other templates tools are described, which `transformers` leaves out."""

FAILING = [("null content", "options of tojson"), ("call without content", "options of tojson")]
"""On these `transformers` fails: a content that is not there cannot be written as JSON."""

PAIRS = [
    (shape, style)
    for shape, (_, tools, _) in SHAPES.items()
    for style in (KNOW_TOOLS if tools else STYLES)
    if (shape, style) not in FAILING
]


@pytest.mark.parametrize("begins_answer", [True, False])
@pytest.mark.parametrize(("shape", "style"), PAIRS)
def test_every_shape_in_every_style(shape: str, style: str, begins_answer: bool) -> None:  # noqa: FBT001 - a case
    compare(folder_of("file", style), SHAPES[shape], begins_answer=begins_answer)


@pytest.mark.covers("models/tokenizer-files")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("shape", "style"), [("system", "tokens"), ("system", "hermes"), ("tools", "hermes"), ("call", "hermes")]
)
def test_every_layout(layout: str, shape: str, style: str) -> None:
    compare(folder_of(layout, style), SHAPES[shape], begins_answer=True)
