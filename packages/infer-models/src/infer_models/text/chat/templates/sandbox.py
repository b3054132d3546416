"""Jinja2's sandbox as `transformers` sets it up for chat templates, in which texts with marks stay such."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from infer_models.text.chat.templates.marked_text import joined, joined_with, to_json


class RaisedByTemplateError(jinja2.TemplateError):
    """Raised by `raise_exception` in a template."""


class _GenerationBlock(Extension):
    """Renders `{% generation %}...{% endgeneration %}`, which marks a model's words for training, as its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CodeGenerator(CodeGenerator):
    """Compiles `~` to `TemplateSandbox.concat`."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja2 calls it so
        self.write("concat(map(str, (")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write(")))")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Renders with the same white space, functions and filters as `transformers`.

    What a template makes of a `MarkedText` is one too, wherever templates put texts together.
    """

    code_generator_class = _CodeGenerator
    concat = staticmethod(joined)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, LoopControlExtension])
        self.filters |= {"tojson": _to_json, "join": _join}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def call(self, context: Context, function: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call `function`; a text of the template's own joins others with their marks."""
        own = getattr(function, "__self__", None)
        if isinstance(own, str) and function.__name__ == "join" and len(arguments) == 1:
            texts = list(arguments[0])
            return joined_with(own, texts) if all(isinstance(each, str) for each in texts) else own.join(texts)
        return super().call(context, function, *arguments, **named)


def _to_json(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates may pass it by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - templates may pass it by position
) -> str:
    """Dump as JSON; Jinja2's own filter would escape `<` and `&` for HTML."""
    return to_json(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, values: Iterable[Any], d: object = "", attribute: str | int | None = None
) -> str:
    """Join; Jinja2's own filter would lose what marks stand for."""
    texts = values if attribute is None else map(make_attrgetter(environment, attribute), values)
    return joined_with(str(d), map(str, texts))


def _raise_exception(message: str) -> NoReturn:
    raise RaisedByTemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - local time without a zone, as transformers gives it
