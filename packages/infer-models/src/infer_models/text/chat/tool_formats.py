"""The formats in which models write tool calls, and the search for that of a chat template."""

import re

from infer_models.text.chat.call_format import LiteralFormat, ParameterFormat, ToolCallFormat

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
        other_begins=("[",),
        tokens=tokens,
    )


_LINES = ParameterFormat(begin="<parameter=", name_end=">", end="</parameter>", own_lines=True)
_DSML = "\uff5cDSML\uff5c"  # with bars of full width


def _dsml(*, name: str, calls: str, other_calls: str) -> ToolCallFormat:
    """Return DeepSeek's format in which `calls` is the name of the outer tag, `other_calls` that of another version."""
    return ToolCallFormat(
        name=name,
        trigger=f"<{_DSML}{calls}>",
        is_anywhere=True,
        begin=f"<{_DSML}{calls}>\n",
        call_begin=f'<{_DSML}invoke name="',
        before_arguments='">\n',
        parameters=ParameterFormat(
            begin=f'<{_DSML}parameter name="',
            name_end='" string="true">',
            json_name_end='" string="false">',
            end=f"</{_DSML}parameter>",
        ),
        call_end=f"</{_DSML}invoke>",
        separator="\n",
        end=f"\n</{_DSML}{calls}>",
        other_begins=("", f"<{_DSML}{other_calls}>"),
        other_ends=(f"</{_DSML}{other_calls}>",),
        tokens=(_DSML,),
    )


def _gemma(*, name: str, begin: str, end: str, quote: str) -> ToolCallFormat:
    """Return Gemma's format with these special tokens around calls and texts."""
    return ToolCallFormat(
        name=name,
        trigger=begin,
        is_anywhere=True,
        call_begin=f"{begin}call:",
        before_arguments="{",
        literals=LiteralFormat(name_end=":", end="}", separator=",", quote=quote),
        call_end=f"}}{end}",
        tokens=(begin, end, quote),
    )


_PYTHON = LiteralFormat(name_end="=", end=")", true="True", false="False", null="None")


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
        ToolCallFormat(  # Llama 3.1 where its template asks for tags
            name="llama3_function",
            trigger="<function=",
            is_anywhere=True,
            call_begin="<function=",
            before_arguments=">",
            call_end="</function>",
            separator="\n",
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
            tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
            id_mark="[CALL_ID]",
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
            other_begins=("",),
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
            other_begins=("",),
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
            other_begins=("", "<|tool_call_section_begin|>"),
            other_ends=("<|tool_call_section_end|>",),
            tokens=(
                *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
                *("<|tool_call_end|>", "<|tool_calls_section_end|>"),
                *("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),
            ),
            is_numbered=True,
            name_prefix="functions.",
            ends_reasoning=True,
        ),
        _json_list(name="granite", begin="<|tool_call|>", end="", tokens=("<|tool_call|>",)),  # Granite 3
        _json_list(name="phi4_mini", begin="functools", end="", tokens=()),
        _json_list(  # Jamba, Hunyuan A13B
            name="jamba", begin="<tool_calls>", end="</tool_calls>", tokens=("<tool_calls>", "</tool_calls>")
        ),
        _json_list(  # Nemotron Nano 2
            name="nemotron", begin="<TOOLCALL>", end="</TOOLCALL>", tokens=("<TOOLCALL>", "</TOOLCALL>")
        ),
        ToolCallFormat(  # a call is an object whose only member has the tool's name
            name="apertus",
            trigger="<|tools_prefix|>",
            is_anywhere=True,
            begin="<|tools_prefix|>[",
            call_begin='{"',
            before_arguments='": ',
            call_end="}",
            separator=", ",
            end="]<|tools_suffix|>",
            tokens=("<|tools_prefix|>", "<|tools_suffix|>"),
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
        ToolCallFormat(  # Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5
            name="qwen3_coder",
            trigger="<tool_call>",
            is_anywhere=True,
            call_begin="<tool_call>\n<function=",
            before_arguments=">\n",
            parameters=_LINES,
            call_end="</function>\n</tool_call>",
            wrapper="<tool_call>",
            separator="\n",
            tokens=("<tool_call>", "</tool_call>"),
        ),
        ToolCallFormat(
            name="seed_oss",
            trigger="<seed:tool_call>",
            is_anywhere=True,
            call_begin="<seed:tool_call>\n<function=",
            before_arguments=">\n",
            parameters=_LINES,
            call_end="</function>\n</seed:tool_call>",
            wrapper="<seed:tool_call>",
            separator="\n",
            tokens=("<seed:tool_call>", "</seed:tool_call>"),
        ),
        ToolCallFormat(  # GLM 4.5 to 4.7, GLM 5
            name="glm45",
            trigger="<tool_call>",
            is_anywhere=True,
            call_begin="<tool_call>",
            before_arguments="\n",
            parameters=ParameterFormat(begin="<arg_key>", name_end="</arg_key>\n<arg_value>", end="</arg_value>"),
            call_end="</tool_call>",
            separator="\n",
            tokens=(
                *("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>"),
                *("<arg_value>", "</arg_value>"),
            ),
        ),
        ToolCallFormat(  # MiniMax M2 to M2.7
            name="minimax_m2",
            trigger="<minimax:tool_call>",
            is_anywhere=True,
            begin="<minimax:tool_call>\n",
            call_begin='<invoke name="',
            before_arguments='">\n',
            parameters=ParameterFormat(begin='<parameter name="', name_end='">', end="</parameter>"),
            call_end="</invoke>",
            separator="\n",
            end="\n</minimax:tool_call>",
            other_begins=("",),
            tokens=("<minimax:tool_call>", "</minimax:tool_call>"),
        ),
        _dsml(name="deepseek_v32", calls="function_calls", other_calls="tool_calls"),
        _dsml(name="deepseek_v4", calls="tool_calls", other_calls="function_calls"),
        _gemma(name="gemma4", begin="<|tool_call>", end="<tool_call|>", quote='<|"|>'),
        _gemma(
            name="functiongemma", begin="<start_function_call>", end="<end_function_call>", quote="<escape>"
        ),  # Gemma 3 270M for calls
        ToolCallFormat(  # LFM2, LFM2.5
            name="lfm2",
            trigger="<|tool_call_start|>",
            is_anywhere=True,
            begin="<|tool_call_start|>[",
            call_begin="",
            before_arguments="(",
            literals=_PYTHON,
            call_end=")",
            separator=", ",
            end="]<|tool_call_end|>",
            tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
        ),
        ToolCallFormat(
            name="olmo3",
            trigger="<function_calls>",
            is_anywhere=True,
            begin="<function_calls>",
            call_begin="",
            before_arguments="(",
            literals=LiteralFormat(name_end="=", end=")"),
            call_end=")",
            separator="\n",
            end="</function_calls>",
            tokens=("<function_calls>", "</function_calls>"),
        ),
        ToolCallFormat(  # Llama 4, and Llama 3.2 where it is asked for calls of Python
            name="llama4_pythonic",
            trigger="[",
            is_anywhere=False,
            begin="[",
            call_begin="",
            before_arguments="(",
            literals=_PYTHON,
            call_end=")",
            separator=", ",
            end="]",
            prefix="<|python_start|>",
            tokens=("<|python_start|>",),
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

CHANNEL_CALLS = ToolCallFormat(
    name="harmony",
    trigger="<|channel|>commentary to=functions.",
    is_anywhere=True,
    call_begin="<|channel|>commentary to=functions.",
    before_arguments=" <|constrain|>json<|message|>",
    call_end="",
    tokens=("<|channel|>", "<|constrain|>", "<|message|>"),
)
"""How gpt-oss writes a call, the last thing of a turn, behind `<|start|>assistant`; `ChannelParser` reads it."""

_SIGNS = (
    ("<parameter=", "qwen3_coder"),
    ("<arg_key>", "glm45"),
    ("<minimax:tool_call>", "minimax_m2"),
    (f"{_DSML}function_calls", "deepseek_v32"),
    (_DSML, "deepseek_v4"),
    (_CALLS_BEGIN, "deepseek_v31"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<|plugin|>", "internlm"),
    ("<tool_calls>", "minimax_m1"),
    ("<TOOLCALL>", "nemotron"),
    ("<|tools_prefix|>", "apertus"),
    ("<|tool_call|>", "granite"),
    ("<|tool_call>", "gemma4"),
    ("<start_function_call>", "functiongemma"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_list_start|>", "lfm2"),
    ("<function_calls>", "olmo3"),
    ("func_name1(params_name1=", "llama4_pythonic"),
    ("functools[", "phi4_mini"),
    ("<function=", "llama3_function"),
    ("<tool_call>", "hermes"),
    ("[TOOL_CALLS]", "mistral"),
    ("List of tools: ", "lfm2"),  # LFM2.5, whose template has no mark
)
"""Texts of templates, the first of which says the format."""
_VARIANTS: dict[str, tuple[re.Pattern[str], str | None]] = {
    "qwen3_coder": (re.compile("<seed:tool_call>"), "seed_oss"),
    "llama3_function": (re.compile("<tool_call>"), None),  # XML whose parameters are written in a way of its own
    "deepseek_v31": (re.compile("```json"), "deepseek_v3"),
    "minimax_m1": (re.compile(r"<tool_calls>(\s|\\n)*\["), "jamba"),
    "mistral": (re.compile(r"\[ARGS\]"), "mistral_args"),
}
"""By format, what says in a template that it is another one with the same first mark; None: one that is not read."""


def tool_call_format_of(template_source: str) -> ToolCallFormat | None:
    """Return the format in which the template asks for tool calls; None where it is unknown or there is none."""
    for sign, name in _SIGNS:
        if sign in template_source:
            mark, other = _VARIANTS.get(name, (None, None))
            found = name if mark is None or mark.search(template_source) is None else other
            return None if found is None else TOOL_CALL_FORMATS[found]
    if '"parameters": ' in template_source and '{"name": ' in template_source:
        return TOOL_CALL_FORMATS["llama3_json"]
    return None
