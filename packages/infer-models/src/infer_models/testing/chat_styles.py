"""`CHAT_STYLES`: chat templates in the style of each family, in words of our own, for tiny checkpoints."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from infer_models.testing.tiny_families import TINY_FAMILIES
from infer_models.testing.tokenizer import save_tiny_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatStyle:
    """The style in which a family writes conversations.

    Attributes:
        template: chat template with the family's control tokens and words of our own.
        control_tokens: control tokens that it writes, beside `<bos>` and `<eos>`.
        file: file that has it: `chat_template.jinja`, `tokenizer_config.json` or, for a processor's,
            `chat_template.json`.
    """

    template: str
    control_tokens: tuple[str, ...] = ()
    file: str = "tokenizer_config.json"


_CHATML = ChatStyle(
    template=(
        "{% if messages[0].role != 'system' %}<|im_start|>system\nAnswer well.<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    control_tokens=("<|im_start|>", "<|im_end|>"),
)
_LLAMA3 = ChatStyle(
    template=(
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    control_tokens=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    file="chat_template.jinja",
)
_INST = ChatStyle(
    template=(
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
        "{% elif m.role == 'user' %}[INST]{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for part in m.content %}{{ part.text if part.type == 'text' else '[IMG]' }}{% endfor %}"
        "{% endif %}[/INST]{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
        "{% else %}{{ raise_exception('There is no role ' + m.role) }}{% endif %}{% endfor %}"
    ),
    control_tokens=("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[IMG]"),
)
_TURNS = ChatStyle(
    template=(
        "{{ bos_token }}{% set start = '' %}{% if messages[0].role == 'system' %}"
        "{% set start = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}"
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('User and assistant take turns') }}{% endif %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ start if loop.first }}"
        "{% if m.content is string %}{{ m.content | trim }}{% else %}{% for part in m.content %}"
        "{{ '<start_of_image>' if part.type == 'image' else part.text | trim }}{% endfor %}{% endif %}"
        "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
    ),
    control_tokens=("<start_of_turn>", "<end_of_turn>", "<start_of_image>"),
    file="chat_template.jinja",
)
_GRANITE = ChatStyle(
    template=(
        "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content + eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
    ),
    control_tokens=("<|start_of_role|>", "<|end_of_role|>"),
    file="chat_template.jinja",
)
_PHI3 = ChatStyle(
    template=(
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
    ),
    control_tokens=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
)
_OLMO2 = ChatStyle(
    template=(
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        "{{ eos_token if m.role == 'assistant' }}{{ '\n' if not loop.last }}{% endfor %}"
        "{% if add_generation_prompt %}\n<|assistant|>\n{% endif %}"
    ),
    file="chat_template.jinja",
)
_HARMONY = ChatStyle(
    template=(
        "<|start|>system<|message|>Effort: {{ reasoning_effort | default('medium') }}\nChannels: analysis, final."
        "<|end|>"
        "{% for m in messages %}{% if m.role == 'system' %}<|start|>developer<|message|>Rules:\n{{ m.content }}<|end|>"
        "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>"
        "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
    ),
    control_tokens=("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>"),
    file="chat_template.jinja",
)
_LLAVA = ChatStyle(
    template=(
        "{% for m in messages %}{{ m.role | upper }}: "
        "{% for part in m.content | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
        "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text + ' ' }}{% endfor %}"
        "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
    ),
    control_tokens=("<image>",),
    file="chat_template.json",
)

CHAT_STYLES: Mapping[str, ChatStyle] = MappingProxyType(
    {
        "llama": _LLAMA3,
        "mistral": _INST,
        "ministral": _INST,
        "ministral3": _INST,
        "mixtral": _INST,
        "qwen2": _CHATML,
        "qwen3": _CHATML,
        "smollm3": _CHATML,
        "granite": _GRANITE,
        "granitemoehybrid": _GRANITE,
        "phi3": _PHI3,
        "olmo2": _OLMO2,
        "olmo3": _CHATML,
        "qwen3_moe": _CHATML,
        "gpt_oss": _HARMONY,
        "lfm2": _CHATML,
        "qwen3_5": _CHATML,
        "qwen3_5_moe": _CHATML,
        "qwen3_next": _CHATML,
        "gemma3": _TURNS,
        "gemma3_wrapped": _TURNS,
        "gemma4": _TURNS,
        "gemma4_moe": _TURNS,
        "gemma4_wrapped": _TURNS,
        "mistral3": _INST,
        "llava": _LLAVA,
        "qwen3_5_wrapped": _CHATML,
        "qwen3_5_moe_wrapped": _CHATML,
    }
)
"""The styles, by the keys of `TINY_FAMILIES`."""


def save_chat_style(family: str, folder: Path, *, vocab_size: int = 320) -> None:
    """Save a tokenizer with the family's control tokens and chat template; for wrappers, a processor's files too.

    Args:
        family: a key of `CHAT_STYLES`.
        folder: made if it is not there.
        vocab_size: vocabulary of the tokenizer, with its control tokens.
    """
    style = CHAT_STYLES[family]
    is_in_config = style.file == "tokenizer_config.json"
    save_tiny_tokenizer(
        folder,
        vocab_size=vocab_size,
        chat_template=style.template if is_in_config else None,
        control_tokens=style.control_tokens,
    )
    if style.file == "chat_template.json":
        _write_json(folder / style.file, {"chat_template": style.template})
    elif not is_in_config:
        (folder / style.file).write_text(style.template, encoding="utf-8")
    if TINY_FAMILIES[family].wrapper is not None:
        _write_json(folder / "processor_config.json", {"processor_class": "TinyProcessor", "image_seq_length": 4})
        _write_json(folder / "preprocessor_config.json", {"image_processor_type": "TinyImageProcessor", "size": 28})


def _write_json(path: Path, fields: dict[str, object]) -> None:
    path.write_text(json.dumps(fields), encoding="utf-8")
