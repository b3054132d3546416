"""Types of fields that the bodies of several APIs have: the model, what to call, how to think."""

from typing import Annotated, Any

from infer_engine.protocol.sampling import SAMPLING_FIELDS
from infer_server.api.fields import described
from infer_server.api.thinking import MAX_EFFORT_CHARACTERS
from infer_server.api.tools import TOOL_NAME_PATTERN

ModelId = Annotated[str | None, described("Id of the served model; may be left out, or empty.")]

ToolName = Annotated[str, described("Of letters, digits, `_`, `-` and `.`.", pattern=TOOL_NAME_PATTERN)]
ToolDescription = Annotated[str | None, described("What it does, for the model to read.")]
ToolParameters = Annotated[
    dict[str, Any] | None, described("A JSON Schema of the object of its arguments; left out: no arguments.")
]
ToolStrict = Annotated[
    bool | None,
    described("Refuse a schema that cannot be kept in full; otherwise what cannot be kept of it is left out."),
]
ParallelToolCalls = Annotated[bool | None, described("Whether an answer may have several calls; true.")]

ReasoningEffort = Annotated[
    str | None,
    described(
        "`none` switches thinking off, another word switches it on, where the chat template knows such variables.",
        minLength=1,
        maxLength=MAX_EFFORT_CHARACTERS,
    ),
]
_BUDGET = SAMPLING_FIELDS["thinking_token_budget"]
ThinkingTokenBudget = Annotated[int | None, described(_BUDGET.sentence, **_BUDGET.json_schema)]
ReturnTokenIds = Annotated[bool | None, described("List the ids of the tokens of prompt and answer beside the text.")]
ChatTemplateKwargs = Annotated[
    dict[str, Any] | None, described("Further variables of the chat template, such as `enable_thinking`.")
]
Documents = Annotated[
    list[dict[str, Any]] | None, described("What the template shows the model of found texts, as its `documents`.")
]
AddGenerationPrompt = Annotated[
    bool | None, described("End the prompt where an answer begins; true if left out, unless a message is continued.")
]
ContinueFinalMessage = Annotated[
    bool | None, described("The answer goes on with the last message, which is the assistant's.")
]
