"""The formats in which models write reasoning and tool calls, and the search for those of a chat template."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The texts between which a model thinks before it answers; each may be one token of its own.

    Attributes:
        name: name in the configuration.
        begin: before the reasoning, written by the prompt or by the model, or by neither.
        end: after it.
        channels: further texts around the messages of an answer that comes in channels, of which one is for reasoning;
            empty in other formats.
    """

    name: str
    begin: str
    end: str
    channels: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that are one token in vocabularies of this format, if they have it."""
        return self.channels or (self.begin, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallFormat:
    """The texts around a tool call. White space in them stands for any little white space, or none.

    ```
    begin  call_begin NAME before_arguments ARGUMENTS call_end  separator  call_begin ... call_end  end
    ```

    Arguments are a JSON object.

    Attributes:
        name: name in the configuration.
        trigger: the beginning of `begin + call_begin`, which no text but a call contains.
        is_anywhere: text may come before the first call; otherwise an answer is all text or all calls.
        call_begin: before the name.
        before_arguments: between the name and the JSON object of the arguments.
        call_end: after the arguments.
        begin: before the first call.
        separator: between two calls.
        end: after the last call.
        prefix: a text without a meaning that some models write first.
        tokens: the texts in these that are one token in vocabularies of this format, if they have it; left out: as in
            `markers`.
        is_numbered: a colon and the number of the call, counted over the conversation, come after the name. Templates
            take both from the ids of calls.
    """

    name: str
    trigger: str
    is_anywhere: bool
    call_begin: str
    before_arguments: str
    call_end: str
    begin: str = ""
    separator: str = ""
    end: str = ""
    prefix: str = ""
    tokens: tuple[str, ...] = ()
    is_numbered: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that are one token in vocabularies of this format, if they have it."""
        if self.tokens:
            return self.tokens
        return tuple(text for text in (self.trigger, self.prefix, self.before_arguments) if text and '"' not in text)

    def write(self, *calls: tuple[str, str]) -> str:
        """Return the calls of one answer, each a name and its arguments."""
        texts = []
        for index, (name, arguments) in enumerate(calls):
            number = f":{index}" if self.is_numbered else ""
            texts.append(f"{self.call_begin}{name}{number}{self.before_arguments}{arguments}{self.call_end}")
        return self.begin + self.separator.join(texts) + self.end


REASONING_FORMATS = {
    each.name: each
    for each in (
        # DeepSeek R1 and its distillations, Qwen 3, SmolLM 3, Granite 3.3, GLM 4.5, MiniMax M2, Kimi K2, Phi 4
        ReasoningFormat(name="think", begin="<think>", end="</think>"),
        ReasoningFormat(name="mistral", begin="[THINK]", end="[/THINK]"),  # Magistral
        ReasoningFormat(name="seed", begin="<seed:think>", end="</seed:think>"),  # Seed-OSS
        ReasoningFormat(name="kimi", begin="◁think▷", end="◁/think▷"),  # Kimi-VL
        ReasoningFormat(name="exaone", begin="<thought>", end="</thought>"),  # EXAONE Deep
        ReasoningFormat(name="cohere", begin="<|START_THINKING|>", end="<|END_THINKING|>"),  # Command A Reasoning
        ReasoningFormat(  # gpt-oss
            name="harmony",
            begin="<|channel|>analysis<|message|>",
            end="<|end|>",
            channels=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
        ),
    )
}

_DEEPSEEK_WORDS = ("tool▁calls▁begin", "tool▁call▁begin", "tool▁sep", "tool▁call▁end", "tool▁calls▁end")
_DEEPSEEK_TOKENS = tuple(f"<\uff5c{word}\uff5c>" for word in _DEEPSEEK_WORDS)  # with bars of full width
_CALLS_BEGIN, _CALL_BEGIN, _SEPARATOR, _CALL_END, _CALLS_END = _DEEPSEEK_TOKENS


def _json_list(*, name: str, begin: str, end: str, tokens: tuple[str, ...]) -> ToolCallFormat:
    """Return the format in which `begin` comes before a JSON list of calls, and `end` after it."""
    return ToolCallFormat(
        name=name,
        trigger=f"{begin}[" if not tokens else begin,
        is_anywhere=True,
        begin=f"{begin}[",
        call_begin='{"name": "',
        before_arguments='", "arguments": ',
        call_end="}",
        separator=", ",
        end=f"]{end}",
        tokens=tokens,
    )


TOOL_CALL_FORMATS = {
    each.name: each
    for each in (
        ToolCallFormat(  # Hermes 2 Pro, Qwen 2.5, Qwen 3
            name="hermes",
            trigger="<tool_call>",
            is_anywhere=True,
            call_begin='<tool_call>\n{"name": "',
            before_arguments='", "arguments": ',
            call_end="}\n</tool_call>",
            separator="\n",
        ),
        ToolCallFormat(  # Llama 3.1, 3.2, 3.3
            name="llama3_json",
            trigger='{"name": "',
            is_anywhere=False,
            call_begin='{"name": "',
            before_arguments='", "parameters": ',
            call_end="}",
            separator="; ",
            prefix="<|python_tag|>",
        ),
        ToolCallFormat(  # Mistral 7B v0.3 to Small 3
            name="mistral",
            trigger="[TOOL_CALLS]",
            is_anywhere=True,
            begin="[TOOL_CALLS] [",
            call_begin='{"name": "',
            before_arguments='", "arguments": ',
            call_end="}",
            separator=", ",
            end="]",
        ),
        ToolCallFormat(  # Mistral Small 3.2, Magistral, Devstral
            name="mistral_args",
            trigger="[TOOL_CALLS]",
            is_anywhere=True,
            call_begin="[TOOL_CALLS]",
            before_arguments="[ARGS]",
            call_end="",
        ),
        ToolCallFormat(  # DeepSeek V3 and R1, and their distillations
            name="deepseek_v3",
            trigger=_CALLS_BEGIN,
            is_anywhere=True,
            begin=_CALLS_BEGIN,
            call_begin=f"{_CALL_BEGIN}function{_SEPARATOR}",
            before_arguments="\n```json\n",
            call_end=f"\n```{_CALL_END}",
            separator="\n",
            end=_CALLS_END,
            tokens=_DEEPSEEK_TOKENS,
        ),
        ToolCallFormat(
            name="deepseek_v31",
            trigger=_CALLS_BEGIN,
            is_anywhere=True,
            begin=_CALLS_BEGIN,
            call_begin=_CALL_BEGIN,
            before_arguments=_SEPARATOR,
            call_end=_CALL_END,
            end=_CALLS_END,
            tokens=_DEEPSEEK_TOKENS,
        ),
        ToolCallFormat(  # Kimi K2 and K2.5
            name="kimi_k2",
            trigger="<|tool_calls_section_begin|>",
            is_anywhere=True,
            begin="<|tool_calls_section_begin|>",
            call_begin="<|tool_call_begin|>functions.",
            before_arguments="<|tool_call_argument_begin|>",
            call_end="<|tool_call_end|>",
            end="<|tool_calls_section_end|>",
            tokens=(
                *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
                *("<|tool_call_end|>", "<|tool_calls_section_end|>"),
            ),
            is_numbered=True,
        ),
        _json_list(name="granite", begin="<|tool_call|>", end="", tokens=("<|tool_call|>",)),  # Granite 3
        _json_list(name="phi4_mini", begin="functools", end="", tokens=()),
        _json_list(  # Jamba, Hunyuan A13B
            name="jamba", begin="<tool_calls>", end="</tool_calls>", tokens=("<tool_calls>", "</tool_calls>")
        ),
        ToolCallFormat(  # MiniMax M1
            name="minimax_m1",
            trigger="<tool_calls>",
            is_anywhere=True,
            begin="<tool_calls>\n",
            call_begin='{"name": "',
            before_arguments='", "arguments": ',
            call_end="}",
            separator="\n",
            end="\n</tool_calls>",
            tokens=("<tool_calls>", "</tool_calls>"),
        ),
        ToolCallFormat(  # InternLM 2.5 and 3
            name="internlm",
            trigger="<|action_start|>",
            is_anywhere=True,
            call_begin='<|action_start|><|plugin|>\n{"name": "',
            before_arguments='", "parameters": ',
            call_end="}<|action_end|>",
            separator="\n",
            tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
        ),
        ToolCallFormat(  # for templates that know no tools
            name="json",
            trigger='{"name": "',
            is_anywhere=False,
            call_begin='{"name": "',
            before_arguments='", "arguments": ',
            call_end="}",
            separator="\n",
        ),
    )
}


def reasoning_format_of(template_source: str) -> ReasoningFormat | None:
    """Return the format whose marks the template writes or looks for; None where there are none.

    Many templates write the beginning alone, at the end of a prompt.
    """
    formats = REASONING_FORMATS.values()
    return next((each for each in formats if any(mark in template_source for mark in _signs(each))), None)


def _signs(reasoning: ReasoningFormat) -> tuple[str, ...]:
    """Return the texts of which each says that a template is for this format."""
    return ("<|channel|>",) if reasoning.channels else (reasoning.begin, reasoning.end)


_SIGNS = (
    ("<function=", None),  # Qwen3-Coder
    ("<arg_key>", None),  # GLM 4.5
    ("<invoke name=", None),  # MiniMax M2
    ("DSML\uff5c", None),  # DeepSeek V3.2
    (_CALLS_BEGIN, "deepseek_v31"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<|plugin|>", "internlm"),
    ("<tool_calls>", "minimax_m1"),
    ("<|tool_call|>", "granite"),
    ("functools[", "phi4_mini"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
)
"""Texts of templates, the first of which says the format; None: arguments that are no JSON, which are not read."""
_VARIANTS = {
    "deepseek_v31": (re.compile("```json"), "deepseek_v3"),
    "minimax_m1": (re.compile(r"<tool_calls>(\s|\\n)*\["), "jamba"),
    "mistral": (re.compile(r"\[ARGS\]"), "mistral_args"),
}
"""By format, what says in a template that it is another one with the same first mark."""


def tool_call_format_of(template_source: str) -> ToolCallFormat | None:
    """Return the format in which the template asks for tool calls; None where it is unknown or there is none."""
    for sign, name in _SIGNS:
        if sign in template_source:
            if name is None:
                return None
            mark, other = _VARIANTS.get(name, (None, name))
            return TOOL_CALL_FORMATS[name if mark is None or mark.search(template_source) is None else other]
    if '"parameters": ' in template_source and '{"name": ' in template_source:
        return TOOL_CALL_FORMATS["llama3_json"]
    return None
