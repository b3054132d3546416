"""Makes the parser of an answer: the client's and the core's, which must be of one kind."""

from infer_engine.chat.arguments.parameter_types import ParameterTypes
from infer_engine.chat.channel_parser import ChannelParser
from infer_engine.chat.drafted_calls import DraftedCalls
from infer_engine.chat.output_parser import AnswerParser
from infer_engine.messages import AnswerMarks
from infer_models.text import ReasoningState


def parser_of(marks: AnswerMarks, types: ParameterTypes | None = None) -> AnswerParser | ChannelParser | None:
    """Return the parser of an answer; None if all of it is content. The core needs no `types` of parameters."""
    reasoning, is_unbound = marks.reasoning_format, marks.is_free and not marks.must_call
    if reasoning is not None and reasoning.channels:
        if is_unbound or marks.reasoning_state is not ReasoningState.NONE:
            return ChannelParser(tool_names=marks.tool_names, max_calls=marks.max_calls)
        reasoning = None
    if reasoning is None and marks.tool_call_format is None:
        return None
    return AnswerParser(
        reasoning_format=reasoning,
        state=marks.reasoning_state,
        tool_call_format=marks.tool_call_format,
        tool_names=marks.tool_names,
        strict_names=marks.strict_names,
        max_calls=marks.max_calls,
        must_call=marks.must_call,
        may_lack_begin=is_unbound,
        parameter_types=types,
        drafts=_drafts(marks, types) if types is not None and is_unbound else None,
    )


def _drafts(marks: AnswerMarks, types: ParameterTypes) -> DraftedCalls | None:
    """Return what finds calls in reasoning that never ends; nothing holds these, so strict tools have none."""
    calls, names = marks.tool_call_format, set(marks.tool_names) - set(marks.strict_names)
    if marks.reasoning_format is None or calls is None or not calls.is_anywhere or calls.ends_reasoning or not names:
        return None
    parser = AnswerParser(tool_call_format=calls, tool_names=names, parameter_types=types)
    return DraftedCalls(parser, max_calls=marks.max_calls)
