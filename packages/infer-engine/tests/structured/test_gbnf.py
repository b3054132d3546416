"""GBNF means what it means to llama.cpp: without a lexer, character by character."""

import numpy as np
import pytest

from infer_engine.protocol import StructuredOutputs
from infer_engine.structured.compiler import GrammarCompiler, Vocabulary
from infer_engine.structured.gbnf import gbnf_to_lark, is_gbnf
from infer_engine.structured.grammar_text import to_grammar_text

GRAMMARS = GrammarCompiler(lambda: Vocabulary([bytes([byte]) for byte in range(256)], special_ids=[], eos_token_ids=[]))


def accepts(grammar: str, text: str) -> bool:
    constraint = GRAMMARS.constraint(to_grammar_text(StructuredOutputs(grammar=grammar)))
    for byte in text.encode():
        allowed = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
        if constraint.is_over or not allowed[byte]:
            return False
        constraint.consume(byte)
    return constraint.may_end


SUMS = """
# of two numbers, spaced as you like
root ::= (sum "=" gap num "\n")+
sum  ::= part ([-+*/] part)*
part ::= num | "(" gap sum ")" gap
num  ::= [0-9]+ gap
gap  ::= [ \t\n]*
"""
VALUES = r"""root ::= value
value ::= object | text | ("true" | "false" | "null") gap
object ::=
  "{" gap (
            text ":" gap value
    ("," gap text ":" gap value)*
  )? "}" gap
text ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" gap
gap ::= | " " | "\n" [ \t]{0,20}
"""
MOVES = r"""root ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move ::= (pawn | [NBRQK] [a-h]? [1-8]? "x"? [a-h] [1-8] | "O-O" "-O"?) [+#]?
pawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBRQK])?
"""
LINES = r"""root ::= line+

# no character that breaks a line
line ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"""
KANA = """root ::= letter+ ([ \\t\\n] letter+)*
letter ::= kana | cjk
kana   ::= [ぁ-ゟ] | [ァ-ヿ]
cjk    ::= [一-鿿]
"""


@pytest.mark.covers("structured-tools-agents/gbnf")
@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (SUMS, "1+(20*3) = 4\n"),
        (SUMS, "5=3\n6=6\n"),
        (VALUES, '{"a": {"b\\n\\u00e9": true}, "c": null}'),
        (MOVES, "1. e4 e5\n2. Nf3 O-O\n3. exd5 Qxe8+\n"),
        (LINES, "- milk\n- bread, 日本\n"),
        (KANA, "ひらがな 日本"),
        ("root ::= [a-z]* [a-c] {2} [z]", "xxabz"),
        ("root ::= .{2,3}", "\n🙂"),
        (r'root ::= "\U0001F642" "\u65E5" "\x41" "\t\\\"\[\]"', '🙂日A\t\\"[]'),
        ('root ::= a-b\n  | "c"\n\na-b ::= "x" # one', "c"),
        (r"root ::= [\-\w] [a-]", "--"),
        ('root ::= "" | root "a"', "aaa"),
        ('start ::= "s"\r\nroot ::= start\r\n', "s"),
        ('root ::= ( "a" |\n "b"\n)+', "ab"),
    ],
)
def test_what_llama_cpp_generates_is_generated(grammar: str, text: str) -> None:
    assert accepts(grammar, text)


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (SUMS, "1+=2\n"),
        (VALUES, '{"a":}'),
        (MOVES, "1. e9 e5\n"),
        (LINES, "- a\u2028b\n"),
        (KANA, "abc"),
        ("root ::= [^a]", "a"),
    ],
)
def test_nothing_else_is(grammar: str, text: str) -> None:
    assert not accepts(grammar, text)


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("nonsense", "line 1: the end stands where the `::=` of the rule `nonsense` is to be"),
        ('root ::= "a', "line 1: the end is no character"),
        ('root ::=\n"a" b', "the rule `root` names `b`, which is no rule"),
        ('rot ::= "a"', "there is no rule `root`"),
        ('root ::= "a" root', "the rule `root` leads back to itself in every case"),
        ('root ::= "x"\n  "y"', "line 2: '\"y\"' is not the name of a rule"),
        ('root ::= "\\d"', "is no character, and no escape of GBNF"),
        ("root ::= <[12]>", "asks for a token"),
        ("root ::= !<think>", "asks for a token"),
        ("root ::= [z-a]", "ends a range from 'z' to 'a'"),
        ('root ::= "a"{3,1}', "`{3,1}` repeats something at least 3 and at most 1 times"),
        ("root ::= " + "(" * 200, "is the 101th `(` inside another"),
        (r'root ::= "\uD800"', "which is no character"),
    ],
)
def test_what_is_no_grammar_is_refused_by_its_place(grammar: str, says: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared as text
        gbnf_to_lark(grammar)
    assert says in str(error.value)


def test_rules_that_grow_without_end_are_read_in_time() -> None:
    doubled = "\n".join(f"r{number} ::= r{number + 1} r{number + 1}" for number in range(200))
    assert gbnf_to_lark(f'root ::= r0\n{doubled}\nr200 ::= ""')
    assert gbnf_to_lark(f'root ::= r0\n{doubled}\nr200 ::= "a"').startswith("start:")


def test_lark_is_told_from_gbnf() -> None:
    assert not is_gbnf('start: "a"')
    assert not is_gbnf('%import common\nstart : "a"')
    assert is_gbnf('start ::= "a"')
