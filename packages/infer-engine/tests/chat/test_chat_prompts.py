"""What a `ChatPrompt` says of its tools and of its last message, and what a template gets of it."""

from typing import Any

import pytest

from infer_engine.chat.formats import ChatFormats
from infer_engine.protocol import ChatMessage, ChatPrompt, InvalidRequestError, Tool, ToolCall
from infer_models.text import ReasoningState
from infer_proofs.text import HERMES, KIMI_K2, family_tokenizer

USER = ChatMessage(role="user", content="Hi")
TOOLS = (Tool(name="f"), Tool(name="g"))
TOKENIZER = family_tokenizer(HERMES)
FORMATS = ChatFormats(TOKENIZER)


def prompt(*messages: ChatMessage, **fields: Any) -> ChatPrompt:
    return ChatPrompt(messages=(USER, *messages), **fields)


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["f", "g"]),
        ({"allowed_tools": ("g",)}, ["g"]),
        ({"allowed_tools": ()}, []),
        ({"tool_choice": "required", "tool_name": "f"}, ["f"]),
        ({"tool_choice": "none"}, []),
    ],
)
def test_callable_tools_are_those_that_an_answer_may_call(fields: dict[str, Any], names: list[str]) -> None:
    assert [tool.name for tool in prompt(tools=TOOLS, **fields).callable_tools] == names


def test_allowed_tools_leave_the_prompt_as_it_is() -> None:
    [rendered] = {
        TOKENIZER.chat.render(FORMATS.conversation(prompt(tools=TOOLS, allowed_tools=allowed)))
        for allowed in (None, ("g",), ())
    }
    assert '"name": "f"' in rendered


def test_no_tool_that_may_be_called_is_free_text_or_a_refusal() -> None:
    nothing = prompt(tools=TOOLS, allowed_tools=())
    assert FORMATS.answer_form(nothing, ReasoningState.NONE).tool_call_format is None
    with pytest.raises(InvalidRequestError, match="may be called"):
        FORMATS.answer_form(prompt(tools=TOOLS, allowed_tools=(), tool_choice="required"), ReasoningState.NONE)


def test_a_last_message_is_continued_without_a_generation_prompt() -> None:
    chat = prompt(ChatMessage(role="assistant", content="It is"), continue_final_message=True)
    assert TOKENIZER.chat.render(FORMATS.conversation(chat)).endswith("<|im_start|>assistant\nIt is")


def test_documents_that_the_template_would_leave_out_are_refused() -> None:
    documents = {"documents": [{"title": "Weather", "text": "Rain."}]}
    with pytest.raises(InvalidRequestError, match="left out") as refused:
        FORMATS.conversation(prompt(template_kwargs=documents))
    assert refused.value.param == "documents"
    assert FORMATS.conversation(prompt(template_kwargs={"documents": []})).variables == {"documents": []}
    reads = "{% macro said() %}{% for each in documents or [] %}{{ each.text }}{% endfor %}{% endmacro %}{{ said() }}"
    for tokenizer in (family_tokenizer(reads), family_tokenizer(HERMES, tool_template=reads)):
        assert ChatFormats(tokenizer).conversation(prompt(template_kwargs=documents)).variables == documents


# vllm-project/vllm#50768, sgl-project/sglang#10600: ids are where Kimi's template finds the name and number of a call
def test_kimis_template_gets_ids_that_name_and_count_the_calls() -> None:
    first, second, third = (ToolCall(id=f"call_{each}", name=each, arguments={}) for each in ("f", "g", "f2"))
    chat = ChatPrompt(
        messages=(
            ChatMessage(role="user", content="Hi"),
            ChatMessage(role="assistant", content="", tool_calls=(first, second)),
            ChatMessage(role="tool", content="x", tool_call_id="call_g"),
            ChatMessage(role="tool", content="y", tool_call_id="call_f"),
            ChatMessage(role="assistant", content="", tool_calls=(third,)),
            ChatMessage(role="tool", content="z", tool_call_id="call_f2"),
            ChatMessage(role="tool", content="?", tool_call_id="unknown"),
        )
    )
    tokenizer = family_tokenizer(KIMI_K2)
    text = tokenizer.chat.render(ChatFormats(tokenizer).conversation(chat))
    assert "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>" in text
    assert [part.split("\n")[0] for part in text.split("## Return of ")[1:]] == [
        *("functions.g:1", "functions.f:0", "functions.f2:2", "unknown"),
    ]


def test_an_id_that_a_client_uses_again_is_that_of_the_latest_call() -> None:
    turns = [
        (ChatMessage(role="assistant", content="", tool_calls=(ToolCall(id="call_0", name=name, arguments={}),)),
         ChatMessage(role="tool", content="x", tool_call_id="call_0"))
        for name in ("f", "g")
    ]  # fmt: skip
    tokenizer = family_tokenizer(KIMI_K2)
    chat = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"), *turns[0], *turns[1]))
    text = tokenizer.chat.render(ChatFormats(tokenizer).conversation(chat))
    calls = [part.split("<|tool_call_argument")[0] for part in text.split("<|tool_call_begin|>")[1:]]
    results = [part.split("\n")[0] for part in text.split("## Return of ")[1:]]
    assert calls == results == ["functions.f:0", "functions.g:1"]


def test_a_template_gets_the_names_of_authors_and_of_called_tools() -> None:
    call = ToolCall(id="c", name="f", arguments='{"a": "onc')
    chat = ChatPrompt(
        messages=(
            ChatMessage(role="user", content="Hi", name="Ann"),
            ChatMessage(role="assistant", content="", tool_calls=(call,)),
            ChatMessage(role="tool", content="x", tool_call_id="c"),
            ChatMessage(role="tool", content="x", tool_call_id="d", name="g"),
        )
    )
    messages: list[Any] = list(FORMATS.conversation(chat).messages)
    assert [message.get("name") for message in messages] == ["Ann", None, "f", "g"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": "onc'
