"""The formats in which models write reasoning and tool calls, and the search for those of a chat template."""

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

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that are one token in vocabularies of this format, if they have it."""
        return tuple(text for text in (self.trigger, self.prefix, self.before_arguments) if text and '"' not in text)

    def write(self, name: str, arguments: str) -> str:
        """Return one call, alone in its answer."""
        return f"{self.begin}{self.call_begin}{name}{self.before_arguments}{arguments}{self.call_end}{self.end}"


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


def tool_call_format_of(template_source: str) -> ToolCallFormat | None:
    """Return the format in which the template asks for tool calls; None where it is unknown or there is none."""
    if "<function=" in template_source or "<arg_key>" in template_source:  # XML, as in Qwen3-Coder and GLM 4.5
        return None
    if "<tool_call>" in template_source:
        return TOOL_CALL_FORMATS["hermes"]
    if "[TOOL_CALLS]" in template_source:
        return TOOL_CALL_FORMATS["mistral_args" if "[ARGS]" in template_source else "mistral"]
    if '"parameters": ' in template_source and '{"name": ' in template_source:
        return TOOL_CALL_FORMATS["llama3_json"]
    return None
