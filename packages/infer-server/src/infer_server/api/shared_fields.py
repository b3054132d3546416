"""Types of fields that the bodies of several APIs have: how to sample, what to call, how to think."""

from typing import Annotated, Any

from infer_engine.protocol.sampling import MAX_STOP_CHARACTERS
from infer_server.api.fields import described
from infer_server.api.thinking import MAX_EFFORT_CHARACTERS
from infer_server.api.tools import TOOL_NAME_PATTERN

ModelId = Annotated[str | None, described("Id of the served model; may be left out, or empty.")]

Temperature = Annotated[
    float | None, described("0 always takes the most probable token; 1 if left out.", minimum=0, maximum=100)
]
TopP = Annotated[
    float | None,
    described(
        "Sample from the most probable tokens that hold this much probability; 1 if left out, 0 is greedy.",
        minimum=0,
        maximum=1,
    ),
]
TopK = Annotated[int | None, described("Sample from this many most probable tokens; 0 and -1: from all.", minimum=-1)]
MinP = Annotated[
    float | None, described("Drop tokens less probable than this times the most probable one.", minimum=0, maximum=1)
]
Seed = Annotated[
    int | None, described("The same seed gives the same tokens; -1: none.", minimum=-(2**63), maximum=2**63 - 1)
]
StopString = Annotated[str, described("A text.", maxLength=MAX_STOP_CHARACTERS)]
Stream = Annotated[bool | None, described("Send events as tokens are made; if left out, the `Accept` header decides.")]

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
ChatTemplateKwargs = Annotated[
    dict[str, Any] | None, described("Further variables of the chat template, such as `enable_thinking`.")
]
AddGenerationPrompt = Annotated[
    bool | None, described("End the prompt where an answer begins; true if left out, unless a message is continued.")
]
ContinueFinalMessage = Annotated[
    bool | None, described("The answer goes on with the last message, which is the assistant's.")
]
