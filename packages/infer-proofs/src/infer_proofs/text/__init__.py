"""Small tokenizers of every kind for tests, trained when they are asked for."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from infer_models.hub import demo_model_folder
from infer_models.text.chat.conversation import Conversation
from infer_models.text.chat.templates.template import ChatTemplate
from infer_models.text.dummy import dummy_tokenizer
from infer_models.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

FAMILIES = {
    path.stem: path.read_text(encoding="utf-8").removesuffix("\n")
    for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))
}
"""Templates in the manner of families of models, in words of our own; `family_tokenizer` has their tokens.

Their names are those of their formats of tool calls, or, for `harmony`, of reasoning.
"""

HERMES, LLAMA_3, KIMI_K2 = (FAMILIES[name] for name in ("hermes", "llama3_json", "kimi_k2"))
MISTRAL_V3, MISTRAL_V11 = (FAMILIES[name] for name in ("mistral", "mistral_args"))

SPECIAL = (
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]"),
    *("[/SYSTEM_PROMPT]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "<|tool_call|>", "<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    *(f"<\uff5ctool▁{word}\uff5c>" for word in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")),
    *("<|python_tag|>", "<|eom_id|>", "<|tool|>", "<|/tool|>", "<|tool_response|>", "<tool_calls>"),
    *("</tool_calls>", "<|action_start|>", "<|plugin|>", "<|action_end|>", "<seed:bos>", "<seed:eos>"),
    *("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>", "<|turn>", "<turn|>", "<|think|>"),
    *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"),
    *("<|channel>", "<channel|>", "<start_of_turn>", "<end_of_turn>", "<escape>"),
    *(f"<{edge}_function_{word}>" for word in ("declaration", "call", "response") for edge in ("start", "end")),
    *(f"<|tool_{word}_{edge}|>" for word in ("list", "call", "response") for edge in ("start", "end")),
    *("<|header_start|>", "<|header_end|>", "<|eot|>", "<|python_start|>", "<|python_end|>"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    *("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", "<TOOLCALL>", "</TOOLCALL>"),
    *(f"<|{word}_{edge}|>" for word in ("system", "developer", "user", "assistant") for edge in ("start", "end")),
    *(f"<|{word}_{edge}|>" for word in ("tools", "inner") for edge in ("prefix", "suffix")),
)
RARE = ('<|"|>', "\uff5cDSML\uff5c")
"""Special tokens of few families; templates of others are told apart from messages without them."""
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


def family(template: str = "", *, normalized: bool = False) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer with the tokens of `FAMILIES`.

    `SPECIAL` are special, and of `RARE` those in `template`; `MARKERS`, `<|fim_prefix|>` and, as ordinary text,
    `ORDINARY` are added and not special.
    """
    raw = byte_level(vocab_size=300)
    raw.add_special_tokens([*SPECIAL, *(text for text in RARE if text in template)])
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
        family(template, normalized=normalized),
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
