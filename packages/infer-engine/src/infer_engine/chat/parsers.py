"""Makes the parser of an answer: the client's and the core's, which must be of one kind."""

from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_engine.chat.channel_parser import ChannelParser
from infer_engine.chat.drafted_calls import DraftedCalls
from infer_engine.chat.output_parser import AnswerParser
from infer_engine.messages import CallHeads, ThinkingLimit


def parser_of_calls(heads: CallHeads, parameter_types: ParameterTypes | None = None) -> AnswerParser | ChannelParser:
    """Return the parser of an answer that is free but for the arguments of its calls; the core needs no types."""
    if heads.reasoning_format is not None and heads.reasoning_format.channels:
        return ChannelParser(tool_names=heads.tool_names, max_calls=heads.max_calls)
    return AnswerParser(
        reasoning_format=heads.reasoning_format,
        state=heads.reasoning_state,
        tool_call_format=heads.tool_call_format,
        tool_names=heads.tool_names,
        strict_names=heads.strict_names,
        max_calls=heads.max_calls,
        parameter_types=parameter_types,
        drafts=None if parameter_types is None else _drafts(heads, parameter_types),
    )


def _drafts(heads: CallHeads, parameter_types: ParameterTypes) -> DraftedCalls | None:
    """Return what finds calls in reasoning that never ends; nothing holds these, so strict tools have none."""
    calls, names = heads.tool_call_format, set(heads.tool_names) - set(heads.strict_names)
    if heads.reasoning_format is None or not calls.is_anywhere or calls.ends_reasoning or not names:
        return None
    parser = AnswerParser(tool_call_format=calls, tool_names=names, parameter_types=parameter_types)
    return DraftedCalls(parser, max_calls=heads.max_calls)


def parser_of_reasoning(limit: ThinkingLimit) -> AnswerParser | ChannelParser:
    """Return the parser of an answer of which nothing but its thinking matters."""
    if limit.reasoning_format.channels:
        return ChannelParser(tool_names=limit.tool_names)
    return AnswerParser(
        reasoning_format=limit.reasoning_format,
        state=limit.reasoning_state,
        tool_call_format=limit.tool_call_format,
        tool_names=limit.tool_names,
        may_lack_begin=False,
    )
