"""`Conversation`: the input of a chat template."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from infer_models.text.chat.templates.template import Message, Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The input of a chat template.

    Attributes:
        messages: the messages in order, with the fields that `transformers` gives its templates.
        tools: functions that the model may call, as OpenAI's API describes them.
        variables: further variables of the template, such as `enable_thinking`.
        add_generation_prompt: end the prompt where the answer begins.
        continue_final_message: end it where the last message's text does, which the answer continues.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    variables: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @property
    def has_calls(self) -> bool:
        """Whether a message has calls, or the result of one."""
        return any(each.get("tool_calls") or each.get("role") == "tool" for each in self.messages)


Change = Callable[[Conversation], Conversation]
"""Says the same in other messages. It looks at roles, fields and ids, not at the words of texts."""
