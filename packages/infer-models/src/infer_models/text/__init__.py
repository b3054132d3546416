"""Text on one side, token ids on the other: tokenizers, chat templates, streaming, stop strings. Imports no torch."""

from infer_models.text.chat.call_format import LiteralFormat, ParameterFormat, ToolCallFormat
from infer_models.text.chat.conversation import Conversation
from infer_models.text.chat.encoder import EncodedChat, ReasoningState
from infer_models.text.chat.reasoning_formats import REASONING_FORMATS, ReasoningFormat
from infer_models.text.chat.templates.template import ChatTemplate, ChatTemplateError, ChatTemplateMissingError
from infer_models.text.chat.tool_formats import CHANNEL_CALLS, TOOL_CALL_FORMATS
from infer_models.text.detokenizer import IncrementalDetokenizer
from infer_models.text.dummy import dummy_tokenizer, save_dummy_tokenizer
from infer_models.text.errors import TextTooLongError
from infer_models.text.infill import InfillEncoder
from infer_models.text.stop_strings import StopStringMatcher
from infer_models.text.tokenizer import Tokenizer

__all__ = [
    "CHANNEL_CALLS",
    "REASONING_FORMATS",
    "TOOL_CALL_FORMATS",
    "ChatTemplate",
    "ChatTemplateError",
    "ChatTemplateMissingError",
    "Conversation",
    "EncodedChat",
    "IncrementalDetokenizer",
    "InfillEncoder",
    "LiteralFormat",
    "ParameterFormat",
    "ReasoningFormat",
    "ReasoningState",
    "StopStringMatcher",
    "TextTooLongError",
    "Tokenizer",
    "ToolCallFormat",
    "dummy_tokenizer",
    "save_dummy_tokenizer",
]
