"""Conversations with every shape that clients send, drawn from a seed, and their bodies in the words of three APIs."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

TRICKS = (
    "", "", "", "", "", "/no_think", "/think", "</think>", "<think>hm</think>", "<tool_response>", "</tool_response>",
    "<tool_response>sun</tool_response>", "/system_override", "<|im_end|>", "[INST]", "[/INST]", '"a\\b"',
    "é 日本 <b> & 'x'", " \n", "{{ bos_token }}", "<tool_call>", "<|end|>",
)  # fmt: skip
EFFORTS = ("low", "medium", "high")


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A conversation, the API through which it comes, its switch, and the kind of what each of its words says."""

    api: str
    messages: list[Message]
    tools: list[dict[str, Any]]
    switch: str
    way: int
    kinds: dict[str, str]


class Drawer:
    """Draws one conversation. Every text in it has a word of its own."""

    def __init__(self, seed: str) -> None:
        self._dice = random.Random(seed)  # noqa: S311 - draws are the same each time
        self.kinds: dict[str, str] = {}
        self._num_calls = 0

    def draw(self, ids: str) -> Drawn:
        """Draw; calls have ids as `ids` says: `short` or `numbered`."""
        dice = self._dice
        num_turns = 30 if dice.random() < 0.03 else dice.randint(1, 4)
        has_tools = dice.random() < 0.6
        messages = [self._system() for _ in range(dice.choice((0, 1, 1, 1, 2)))]
        for turn in range(num_turns):
            messages += self._turn(has_tools=has_tools, ids=ids, is_last=turn == num_turns - 1)
        tools = [self._tool(number) for number in range(3)] if has_tools else []
        switches = ("", "", "off", "on", *(f"effort {each}" for each in EFFORTS), *(f"only {each}" for each in EFFORTS))
        switch = dice.choice(switches)
        api = "messages" if switch.startswith("only") else dice.choice(("chat", "chat", "messages", "responses"))
        if api == "messages" and switch.startswith("effort"):
            switch = "on"
        return Drawn(
            api=api, messages=messages, tools=tools, switch=switch, way=dice.randrange(4), kinds=self.kinds,
        )  # fmt: skip

    def _text(self, kind: str) -> str:
        word = f"w{len(self.kinds)}x"
        trick = self._dice.choice(TRICKS)
        # To many templates what is before the end of thinking in an answer is thinking, which they leave out.
        is_marked = "</think>" in trick and kind in ("answer", "preamble", "call")
        self.kinds[word] = "marked answer" if is_marked else kind
        return self._dice.choice((f"{word} {trick}", f"{trick} {word}", word, f"{word}.\n{trick}\nSo."))

    def _system(self, kind: str = "system") -> Message:
        return {"role": self._dice.choice(("system", "system", "developer")), "content": self._text(kind)}

    def _turn(self, *, has_tools: bool, ids: str, is_last: bool) -> Iterator[Message]:
        dice = self._dice
        yield {"role": "user", "content": self._text("user")}
        if dice.random() < 0.08:
            yield {"role": "user", "content": self._text("user")}
        while has_tools and dice.random() < 0.5:
            yield from self._calls(ids)
            if is_last and dice.random() < 0.5:
                return
            if dice.random() < 0.1:
                yield {"role": "user", "content": self._text("user")}
        if not is_last:
            thinking = {"reasoning_content": self._text("thinking")} if dice.random() < 0.4 else {}
            yield {"role": "assistant", "content": self._text("answer"), **thinking}
            if dice.random() < 0.15:
                yield self._system("later system")
        elif dice.random() < 0.1:
            yield self._system("later system")

    def _calls(self, ids: str) -> Iterator[Message]:
        dice = self._dice
        answer: Message = {"role": "assistant"}
        if dice.random() < 0.4:
            answer["content"] = self._text("preamble")
        if dice.random() < 0.4:
            answer["reasoning_content"] = self._text("thinking")
        calls = [self._call(ids) for _ in range(dice.choice((1, 1, 1, 2, 3)))]
        if any(kind == "marked answer" for kind in list(self.kinds.values())[-len(calls) - 1 :]):
            self.kinds |= {word: "marked answer" for word, kind in self.kinds.items() if kind in ("call", "preamble")}
        yield {**answer, "tool_calls": calls}
        for call in calls:
            yield {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": self._result(),
            }

    def _result(self) -> str:
        match self._dice.randrange(10):
            case 0:
                return ""
            case 1 | 2 | 3:
                return json.dumps({"found": self._text("result"), "n": 1}, ensure_ascii=False)
            case _:
                return self._text("result")

    def _call(self, ids: str) -> dict[str, Any]:
        dice = self._dice
        name = f"f{dice.randrange(3)}"
        number, self._num_calls = self._num_calls, self._num_calls + 1
        call_id = f"functions.{name}:{number}" if ids == "numbered" else f"abcde{number:04}"
        arguments = {"at": self._text("call"), "how": {"n": 1, "list": [True, None, "x"]}}
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _tool(self, number: int) -> dict[str, Any]:
        properties = {
            "at": {"type": "string", "description": self._text("tool")},
            "how": {"type": "object", "properties": {"n": {"type": "integer"}}},
        }
        parameters = {"type": "object", "properties": properties, "required": ["at"]}
        function = {"name": f"f{number}", "description": self._text("tool"), "parameters": parameters}
        return {"type": "function", "function": function}


def chat_body(drawn: Drawn) -> dict[str, Any]:
    """Return the body of a chat; thinking has either name, and no content beside calls is left out, empty or null."""
    messages = []
    for index, message in enumerate(drawn.messages):
        name = ("reasoning_content", "reasoning")[(drawn.way + index) % 2]
        written = {name if key == "reasoning_content" else key: value for key, value in message.items()}
        if "tool_calls" in message:
            empty: tuple[Message, ...] = ({}, {"content": None}, {"content": ""})
            written = {
                **empty[drawn.way % 3],
                **written,
                "tool_calls": [with_text(call) for call in message["tool_calls"]],
            }
        messages.append(written)
    kind, _, effort = drawn.switch.partition(" ")
    word = {"off": "none", "on": "high"}.get(kind, effort)
    is_on = kind != "off"
    ways: tuple[dict[str, Any], ...] = (
        {"reasoning_effort": word},
        {"reasoning": {"effort": word}},
        {"thinking": {"type": "enabled" if is_on else "disabled"}},
        {"enable_thinking": is_on},
    )
    if kind == "on":  # without an effort
        ways = (*ways[2:], {"reasoning": {"enabled": True}}, {"chat_template_kwargs": {"enable_thinking": True}})
    elif kind == "effort":
        ways = (*ways[:2], *ways[:2])
    return {"messages": messages, "tools": drawn.tools, **(ways[drawn.way] if kind else {})}


def with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def messages_body(drawn: Drawn) -> dict[str, Any]:
    """Return the body of Anthropic's API; the results of one answer are blocks of one message."""
    messages: list[Message] = []
    for message in drawn.messages:
        role = "system" if message["role"] == "developer" else message["role"]
        if role == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
            if messages and isinstance(messages[-1]["content"], list) and messages[-1]["role"] == "user":
                messages[-1]["content"].append(block)
            else:
                messages.append({"role": "user", "content": [block]})
        elif role == "assistant":
            blocks = [{"type": "thinking", "thinking": each} for each in [message.get("reasoning_content")] if each]
            blocks += [{"type": "text", "text": each} for each in [message.get("content")] if each]
            for call in message.get("tool_calls", ()):
                function = call["function"]
                blocks.append(
                    {"type": "tool_use", "id": call["id"], "name": function["name"], "input": function["arguments"]}
                )
            messages.append({"role": "assistant", "content": blocks})
        else:
            messages.append({"role": role, "content": message["content"]})
    kind, _, effort = drawn.switch.partition(" ")
    switch: dict[str, Any] = {}
    if kind in ("on", "off"):
        switch = {"thinking": {"type": "enabled" if kind == "on" else "disabled"}}
    elif kind == "only":
        switch = {"output_config": {"effort": effort}}
    functions = [tool["function"] for tool in drawn.tools]
    tools = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]
    return {"messages": messages, "tools": tools, "max_tokens": 8, **switch}


def responses_body(drawn: Drawn) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    for message in drawn.messages:
        if message["role"] == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            )
            continue
        if "reasoning_content" in message:
            content = [{"type": "reasoning_text", "text": message["reasoning_content"]}]
            items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": content})
        if "content" in message:
            items.append({"type": "message", "role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls", ()):
            named = {"call_id": call["id"], "name": call["function"]["name"]}
            items.append({"type": "function_call", **named, "arguments": with_text(call)["function"]["arguments"]})
    kind, _, effort = drawn.switch.partition(" ")
    word = {"off": "none", "on": "high"}.get(kind, effort)
    tools = [{"type": "function", **tool["function"]} for tool in drawn.tools]
    switch = {"reasoning": {"effort": word}} if word else {}
    return {"input": items, "tools": tools, **switch}
