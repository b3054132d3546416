"""Thinking and its effort reach a template in its own names and words."""

from typing import Any

import pytest

from infer_models.text import ChatTemplateError, Conversation
from infer_proofs.text import family_tokenizer

ON = {"enable_thinking": True}
OFF = {"enable_thinking": False}
EFFORTS = (
    "{% if E is defined and E not in ['low', 'high', 'no_think'] %}{{ raise_exception('effort') }}{% endif %}{{ E }}"
)


def rendered(template: str, variables: dict[str, Any]) -> str:
    messages = [{"role": "user", "content": "u"}]
    return family_tokenizer(template).chat.render(Conversation(messages=messages, variables=variables))


@pytest.mark.parametrize(
    ("read", "off", "on"),
    [
        ("{{ enable_thinking }}", "False", "True"),
        ("{{ thinking is defined and thinking }}", "False", "True"),
        ("{{ reasoning }}", "False", "True"),
        ("{{ add_thoughts }}", "False", "True"),
        ("{{ thinking_mode }}", "disabled", "enabled"),
        ("{{ thinking_budget }}", "0", ""),
    ],
)
def test_thinking_is_switched_by_the_name_that_a_template_reads(read: str, off: str, on: str) -> None:
    assert (rendered(read, OFF), rendered(read, ON)) == (off, on)


def test_a_variable_that_is_given_is_not_changed() -> None:
    assert rendered("{{ thinking }}{{ enable_thinking }}", {"thinking": False, "enable_thinking": True}) == "FalseTrue"
    assert rendered("{{ enable_thinking }}", {"thinking": False}) == "False"


def test_a_variable_of_a_templates_own_is_not_set() -> None:
    template = "{% for m in messages %}{% set thinking = m.thinking or 'none' %}{{ thinking }}{% endfor %}"
    assert rendered(template, ON) == "none"


@pytest.mark.parametrize(
    ("words", "off", "on"),
    [
        ("['none']", "none", ""),
        ("['minimal']", "minimal", ""),
        ("['no_think', 'high']", "no_think", "high"),
        ("[]", "", ""),
    ],
)
def test_an_effort_switches_thinking_where_a_template_has_no_switch(words: str, off: str, on: str) -> None:
    read = f"{{{{ reasoning_effort if reasoning_effort not in {words} else reasoning_effort }}}}"
    assert (rendered(read, OFF), rendered(read, ON)) == (off, on)


@pytest.mark.parametrize("name", ["reasoning_effort", "thinking_effort"])
@pytest.mark.parametrize(("effort", "taken"), [("low", "low"), ("minimal", "low"), ("medium", "high"), ("max", "high")])
def test_an_effort_that_a_template_refuses_becomes_the_next(name: str, effort: str, taken: str) -> None:
    assert rendered(EFFORTS.replace("E", name), {**ON, "reasoning_effort": effort}) == taken


def test_an_effort_has_the_name_that_a_template_reads() -> None:
    assert rendered("{{ reasoning_strength }}", {"reasoning_effort": "xhigh"}) == "xhigh"


def test_a_word_that_is_no_effort_is_refused_by_the_template() -> None:
    with pytest.raises(ChatTemplateError, match="effort"):
        rendered(EFFORTS.replace("E", "reasoning_effort"), {"reasoning_effort": "much"})


@pytest.mark.parametrize("name", ["reasoning", "thought", "thinking", "reasoning_content"])
def test_earlier_thinking_has_the_name_that_a_template_reads(name: str) -> None:
    template = f"{{% for m in messages %}}{{{{ m.get('{name}', '') }}}}{{% endfor %}}"
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "reasoning_content": "Hm."}]
    assert family_tokenizer(template).render_chat(messages) == "Hm."


def test_no_tools_are_an_empty_list_where_a_template_goes_through_them_always() -> None:
    assert rendered("{% for tool in tools %}{{ tool.function.name }}{% endfor %}u", {}) == "u"
    assert rendered("{{ tools is none }}", {}) == "True"
