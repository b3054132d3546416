"""Small tokenizers of every kind for tests, trained when they are asked for."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from infer_models.hub import demo_model_folder
from infer_models.text.chat.conversation import Conversation
from infer_models.text.chat.template import ChatTemplate
from infer_models.text.dummy import dummy_tokenizer
from infer_models.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Templates in the manner of families of models: they write the same tokens, in words of their own.

HERMES = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif %}"
    "Functions:\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\n"
    'Call them so:\n<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n'
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.role != 'system' %}<|im_start|>{{ m.role + '\n' }}"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

LLAMA_3 = (
    "{{ bos_token }}{% set has_system = messages[0].role == 'system' %}"
    "<|start_header_id|>system<|end_header_id|>\n\n{{ messages[0].content | trim if has_system else 'Be brief.' }}"
    "<|eot_id|>{% for m in messages if m.role != 'system' %}"
    "{% if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    '{% if tools and loop.first %}Answer with {"name": NAME, "parameters": OBJECT} to call one of:\n'
    "{% for tool in tools %}{{ tool | tojson(indent=4) }}\n\n{% endfor %}{% endif %}"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('only one call at once') }}{% endif %}"
    "{% set call = m.tool_calls[0].function %}"
    '{{ \'{"name": "\' + call.name + \'", \' }}{{ \'"parameters": \' }}{{ call.arguments | tojson }}{{ "}" }}'
    "{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

_MISTRAL_START = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'user' %}{% if tools and loop.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]"
    "{% endif %}[INST] {{ m.content }}[/INST]"
)

MISTRAL_V3 = (
    _MISTRAL_START + "{% elif m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}"
    "{% if call.id is not defined or call.id | length != 9 %}{{ raise_exception('an id has 9 letters') }}{% endif %}"
    "{% set text = call.function | tojson %}{{ text[:-1] + ', \"id\": \"' + call.id + '\"}' }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] "
    "{{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/TOOL_RESULTS]"
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)

MISTRAL_V11 = (
    _MISTRAL_START + "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}{{ eos_token }}"
    "{% endif %}{% endfor %}"
)

_SYSTEM_AND_TOOLS = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% for tool in tools or [] %}\n{{ tool | tojson }}{% endfor %}{% for m in messages %}"
)
_DEEPSEEK_TURNS = (
    "{% if m.role == 'user' %}<~User~>{{ m.content }}{% elif m.role == 'tool' %}<~tool▁output▁begin~>{{ m.content }}"
    "<~tool▁output▁end~>{% elif m.role == 'assistant' %}<~Assistant~>{{ m.content or '' }}{% if m.tool_calls %}"
    "<~tool▁calls▁begin~>{% for call in m.tool_calls %}CALL{% endfor %}<~tool▁calls▁end~>{% endif %}"
    "<~end▁of▁sentence~>{% endif %}{% endfor %}{% if add_generation_prompt %}<~Assistant~>{% endif %}"
)


def _deepseek(call: str) -> str:
    """Return a template that writes a call so; its tokens have bars of full width."""
    return (_SYSTEM_AND_TOOLS + _DEEPSEEK_TURNS.replace("CALL", call)).replace("~", "\uff5c")


DEEPSEEK_V3 = _deepseek(
    "<~tool▁call▁begin~>function<~tool▁sep~>{{ call.function.name }}\n```json\n"
    "{{ call.function.arguments | tojson }}\n```<~tool▁call▁end~>"
)
DEEPSEEK_V31 = _deepseek(
    "<~tool▁call▁begin~>{{ call.function.name }}<~tool▁sep~>{{ call.function.arguments | tojson }}<~tool▁call▁end~>"
)

KIMI_K2 = (
    _SYSTEM_AND_TOOLS + "{% if m.role != 'system' %}<|im_user|>{{ m.role }}<|im_middle|>"
    "{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}\n{% endif %}{{ m.content or '' }}"
    "{% if m.tool_calls %}<|tool_calls_section_begin|>{% for call in m.tool_calls %}<|tool_call_begin|>{{ call.id }}"
    "<|tool_call_argument_begin|>{{ call.function.arguments | tojson }}<|tool_call_end|>{% endfor %}"
    "<|tool_calls_section_end|>{% endif %}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_user|>assistant<|im_middle|>{% endif %}"
)

GRANITE_3 = (
    _SYSTEM_AND_TOOLS + "{% if m.role != 'system' %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content or '' }}"
    "{% if m.tool_calls %}<|tool_call|>[{% for call in m.tool_calls %}{{ call.function | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}<|end_of_text|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)

_CHATML_TURNS = (
    "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% if m.tool_calls %}"
    "CALLS{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CHATML_TOOLS = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% for tool in tools or [] %}\n{{ tool | tojson }}{% endfor %}"
)


def _tagged(*, calls: str, before: str = "", after: str = "", call: str, parameter: str, call_end: str) -> str:
    """Return a template that writes the parameters of calls one by one."""
    value = "{{ value if value is string else value | tojson }}"
    parameters = f"{{% for name, value in call.function.arguments.items() %}}{parameter}{{% endfor %}}"
    one = f"{{% for call in m.tool_calls %}}{call}{parameters}{call_end}{{% endfor %}}".replace("VALUE", value)
    return _CHATML_TOOLS + f"{{# {calls} #}}" + _CHATML_TURNS.replace("CALLS", before + one + after)


QWEN3_CODER = _tagged(
    calls="<tool_call>\n<function=NAME>\n<parameter=PARAMETER>\nVALUE\n</parameter>",
    call="\n<tool_call>\n<function={{ call.function.name }}>\n",
    parameter="<parameter={{ name }}>\nVALUE\n</parameter>\n",
    call_end="</function>\n</tool_call>",
)
GLM_45 = _tagged(
    calls="<tool_call>NAME\n<arg_key>PARAMETER</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>",
    call="\n<tool_call>{{ call.function.name }}\n",
    parameter="<arg_key>{{ name }}</arg_key>\n<arg_value>VALUE</arg_value>\n",
    call_end="</tool_call>",
)
MINIMAX_M2 = _tagged(
    calls='<minimax:tool_call><invoke name="NAME"><parameter name="PARAMETER">VALUE</parameter></invoke>',
    before="\n<minimax:tool_call>\n",
    call='<invoke name="{{ call.function.name }}">\n',
    parameter='<parameter name="{{ name }}">VALUE</parameter>\n',
    call_end="</invoke>\n",
    after="</minimax:tool_call>",
)

FAMILIES = {
    "hermes": HERMES,
    "llama3_json": LLAMA_3,
    "mistral": MISTRAL_V3,
    "mistral_args": MISTRAL_V11,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v31": DEEPSEEK_V31,
    "kimi_k2": KIMI_K2,
    "granite": GRANITE_3,
    "qwen3_coder": QWEN3_CODER,
    "glm45": GLM_45,
    "minimax_m2": MINIMAX_M2,
}
"""Templates by the name of their format of tool calls; `family_tokenizer` has their tokens."""

SPECIAL = (
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]"),
    *("[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "<|tool_call|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    *(f"<\uff5ctool▁{word}\uff5c>" for word in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")),
)
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
ORDINARY = ("<table>", "\n\n\n")

CALL_ID = "abcDEF123"
"""The id of the call in `busy_conversation`; Mistral's template refuses any that is not as long."""

NUM_TEXTS = 23
"""Number of texts that `busy_conversation` asks for."""

_NAMED = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}

_TEXTS = (
    "the quick brown fox jumps over the lazy dog",
    "don't stop me now, i'm having a good time",
    "naïve café 日本語",
)


def byte_level(texts: Sequence[str] = _TEXTS, *, vocab_size: int = 320) -> tokenizers.Tokenizer:
    """Return a byte-level BPE tokenizer (GPT-2, Llama 3, Qwen) with `<|bos|>`, `<|im_start|>` and `<|im_end|>`."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|bos|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def split_byte_level(texts: Sequence[str] = _TEXTS, *, vocab_size: int = 320) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer as Qwen's: composing, splitting by a pattern of its own, with spaces added.

    `<|im_end|>` is special, `<tool>` is added and not special, and `ﬁé` is looked for in composed text.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    pattern = tokenizers.Regex(r"\p{N}|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(["<|im_end|>"])
    tokenizer.add_tokens([tokenizers.AddedToken("<tool>", normalized=False), "ﬁé"])
    return tokenizer


def byte_fallback(texts: Sequence[str] = _TEXTS, *, vocab_size: int = 60) -> tokenizers.Tokenizer:
    """Return a tokenizer as SentencePiece makes them (Llama 2, Gemma): words begin with `▁`, unknown bytes are tokens.

    `vocab_size` counts the words' pieces; `<unk>`, `<s>`, `</s>` and 256 bytes come before them.
    """
    pieces = tokenizers.Tokenizer(models.BPE())
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ascii_texts = [text for text in texts if text.isascii()]
    pieces.train_from_iterator(ascii_texts, trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False))
    trained = json.loads(pieces.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *trained["vocab"]]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={name: index for index, name in enumerate(names)},
            merges=[tuple(merge) for merge in trained["merges"]],
            unk_token="<unk>",  # noqa: S106 - no password
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = pieces.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def word_piece(texts: Sequence[str] = _TEXTS) -> tokenizers.Tokenizer:
    """Return a WordPiece tokenizer (BERT), whose decoder puts the spaces between words."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 - no password
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=["[UNK]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def every_kind() -> dict[str, Tokenizer]:
    """Return a tokenizer of every kind by name, with those of the demo model and of models without a tokenizer."""
    return {
        "byte_level": Tokenizer(byte_level()),
        "split_byte_level": Tokenizer(split_byte_level()),
        "byte_fallback": Tokenizer(byte_fallback()),
        "word_piece": Tokenizer(word_piece()),
        "demo": Tokenizer.from_folder(demo_model_folder()),
        "dummy": dummy_tokenizer(300),
    }


def chat_tokenizer(template: str = CHATML, *, named_tokens: Mapping[str, str] | None = None) -> Tokenizer:
    """Return a byte-level tokenizer with a chat template."""
    named_tokens = named_tokens or _NAMED
    chat_template = ChatTemplate(template, variables=named_tokens)
    return Tokenizer(byte_level(), named_tokens=named_tokens, chat_template=chat_template)


def family(*, normalized: bool = False) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer with the tokens of `FAMILIES`.

    `SPECIAL` are special; `MARKERS`, `<|fim_prefix|>` and, as ordinary text, `ORDINARY` are added and not special.
    """
    raw = byte_level(vocab_size=300)
    raw.add_special_tokens(list(SPECIAL))
    added = (*MARKERS, "<|fim_prefix|>", *ORDINARY)
    raw.add_tokens([tokenizers.AddedToken(text, special=False, normalized=normalized) for text in added])
    return raw


def family_tokenizer(
    template: str,
    *,
    normalized: bool = False,
    tool_template: str | None = None,
    tool_call_format: str = "auto",
    reasoning_format: str = "auto",
) -> Tokenizer:
    """Return the tokenizer of `family` with a chat template."""
    return Tokenizer(
        family(normalized=normalized),
        named_tokens=_NAMED,
        chat_template=ChatTemplate(template, variables=_NAMED),
        tool_template=None if tool_template is None else ChatTemplate(tool_template, variables=_NAMED),
        tool_call_format=tool_call_format,
        reasoning_format=reasoning_format,
    )


def busy_conversation(text: Callable[[str], str] = str, **variables: object) -> Conversation:
    """Return a conversation with texts in every place, each of them made by `text` of a harmless one."""
    parameters = {
        "type": "object",
        "properties": {
            text("city"): {"type": "string", "description": text("where"), "enum": [text("Rome"), text("Oslo")]},
            "where": {"type": "object", "properties": {text("zip"): {"type": "integer", text("key"): text("word")}}},
        },
        "required": [text("city")],
    }
    name, call_id = text("weather"), text(CALL_ID)
    arguments = {text("city"): text("Rome"), "more": [{text("zip"): [text("x"), 1, None]}], "name": text("fox")}
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return Conversation(
        messages=[
            {"role": "system", "content": text("Be kind.")},
            {"role": "user", "content": text("How is the weather?")},
            {"role": "assistant", "content": text("I look."), "reasoning_content": text("Hm."), "tool_calls": [call]},
            {"role": "tool", "content": text("sunny"), "tool_call_id": call_id, "name": name},
            {"role": "assistant", "content": text("It is sunny.")},
            {"role": "user", "content": text("Thanks.")},
        ],
        tools=[
            {
                "type": "function",
                "function": {"name": name, "description": text("tells the weather"), "parameters": parameters},
            }
        ],
        variables=variables,
    )


def control_ids(tokenizer: Tokenizer, chat: Conversation) -> list[int]:
    """Return the ids of the tokens of `family` in the prompt of `chat` that no message may write.

    Those are special ones, `<|fim_prefix|>`, and the markers that the template writes.
    """
    markers = ["<|fim_prefix|>", *(text for text in MARKERS if text in tokenizer.chat.template.source)]
    ids = tokenizer.special_ids.union(map(tokenizer.token_to_id, markers))
    return [token_id for token_id in tokenizer.chat.encode(chat).token_ids if token_id in ids]


def save_tokenizer(folder: Path, *, config: Mapping[str, object] | None = None) -> None:
    """Write a byte-level tokenizer to `folder`, with `config` as its `tokenizer_config.json`."""
    byte_level().save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
