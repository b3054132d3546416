"""Lets the model call a function, runs it, and sends the result back: `uv run python examples/tools.py`.

The demo model has never seen a tool. `tool_choice="required"` makes it call one, and a grammar keeps the arguments to
their schema; a larger model chooses by itself with `auto`.
"""

import json

from infer_engine import LLM, ChatMessage, SamplingParams, Tool, ToolCall

WEATHER = {"Verona": "a warm night", "Mantua": "rain"}
TOOL = Tool(
    name="get_weather",
    description="Tells the weather of a city.",
    parameters={"type": "object", "properties": {"city": {"enum": list(WEATHER)}}, "required": ["city"]},
)

llm = LLM("infer-demo")
params = SamplingParams(max_tokens=60, seed=1)
messages = [ChatMessage(role="user", content="How is the weather?")]

[asked] = llm.chat(messages, params, tools=[TOOL], tool_choice="required", use_tqdm=False)
call = asked.tool_calls[0]
arguments = json.loads(call.arguments)
result = WEATHER[arguments["city"]]
print(f"{call.name}({arguments}) -> {result}")

messages.append(
    ChatMessage(role="assistant", content=None, tool_calls=(ToolCall(id="1", name=call.name, arguments=arguments),))
)
messages.append(ChatMessage(role="tool", content=result, tool_call_id="1"))
[answer] = llm.chat(messages, params, tools=[TOOL], tool_choice="none", use_tqdm=False)
print(answer.text)
