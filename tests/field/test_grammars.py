"""Choices with any characters, llama.cpp's grammars, and grammars that cannot end, over HTTP.

Sources: vllm-project/vllm#48115, mlc-ai/xgrammar#137, ggml-org/llama.cpp#7991, ggml-org/llama.cpp#4799,
ggml-org/llama.cpp#27597, ggml-org/llama.cpp#3081, ggml-org/llama.cpp#19051, ggml-org/llama.cpp#21943.
"""

import re
from typing import Any

import httpx
import pytest


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    return client.post("/v1/completions", json={"prompt": "A", "max_tokens": 80, "seed": 3} | fields)


CHOICES = [
    ["no\nplease", "no\r\nnever"], ['say "x"', "it's \\n"], ["a", "ab", "abc"], ["日本", "🙂🙃", "é"], ["tab\there"],
    ["{{x}}", "%json {}", "/re/i"], ["nul\x00end"], [" lead", "trail "], ["\u2028x"], ["del\x7f"], ["\x1bx", "\x9f"],
    ["\u0085n"], ["same", "same"], ["\\", "\\\\"], ["'", "`", "$("], ["|", "a|b"], ["\ufeffbom"],
]  # fmt: skip


@pytest.mark.parametrize("choices", CHOICES, ids=repr)
def test_a_choice_is_one_of_them_exactly(demo: httpx.Client, choices: list[str]) -> None:
    for field in ({"structured_outputs": {"choice": choices}}, {"guided_choice": choices}):
        reply = ask(demo, **field)
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["text"] in choices


ITEMS = r"""
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})
item ::= "{" space item-name-kv "}" space
item-name-kv ::= "\"name\"" space ":" space "\"" char{1,4} "\"" space
root ::= "[" space item ("," space item){1,2} "]" space
space ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.mark.parametrize(
    ("grammar", "matches"),
    [
        (ITEMS, r'\[.*"name".*\]\s*'),
        ('root ::= "yes" | "no"', "yes|no"),
        ('root ::= sum\nsum ::= [0-9] | "(" sum [-+] sum ")"', r"[0-9()+-]+"),
        (r"root ::= [^\-<]{3}", r"[^\-<]{3}"),
        ('# a comment\nroot ::= (\n  "a" |\n  "b" # another\n) "!"?', "[ab]!?"),
    ],
)
def test_grammars_of_llama_cpp(demo: httpx.Client, grammar: str, matches: str) -> None:
    for field in ({"grammar": grammar}, {"guided_grammar": grammar}):
        reply = ask(demo, **field)
        assert reply.status_code == 200, reply.text
        [choice] = reply.json()["choices"]
        assert choice["finish_reason"] == "length" or re.fullmatch(matches, choice["text"], re.DOTALL), choice


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"grammar": 'root ::= "a" root'}, "leads back to itself in every case"),
        ({"grammar": 'root ::= "\\d"'}, "no escape of GBNF"),
        ({"grammar": "root ::= <|tool|>"}, "asks for a token"),
        ({"grammar": '{"type": "object"}'}, "send Lark or GBNF, or a JSON Schema as `json`"),
        ({"grammar": "start: /[^\\s\\S]/"}, "grammar"),
        ({"structured_outputs": {"regex": "a(?=b)"}}, "look-around"),
        ({"json_schema": {"enum": []}}, "#/enum"),
        (
            {"json_schema": {"type": "string", "minLength": 3, "maxLength": 2}},
            "`minLength` (3) at # is greater than `maxLength`",
        ),
        ({"json_schema": {"allOf": [{"type": "integer"}, {"type": "string"}]}}, "incompatible types"),
        (
            {"json_schema": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
            "holds another such value, without end",
        ),
    ],
    ids=str,
)
def test_what_generates_nothing_is_refused_with_its_cause(
    demo: httpx.Client, fields: dict[str, Any], says: str
) -> None:
    reply = ask(demo, **fields)
    assert reply.status_code == 422, reply.text
    assert says in reply.text
