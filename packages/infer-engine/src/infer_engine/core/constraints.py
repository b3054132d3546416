"""Makes the constraint of a sequence: the tokens that it may take, by a grammar or by a list."""

from typing import TYPE_CHECKING

from infer_engine.messages import Submit
from infer_engine.structured.compiler import GrammarCompiler
from infer_engine.structured.errors import GrammarError

if TYPE_CHECKING:
    from infer_engine.structured.constraint import Constraint


def make_constraint(message: Submit, grammars: GrammarCompiler | None) -> "Constraint | None":
    """Return the constraint of `message`, at its beginning; None allows all tokens.

    Raises:
        GrammarError: its grammar cannot be compiled, or there are no `grammars`.
    """
    if message.params.allowed_token_ids is not None:
        from infer_engine.structured.allowed_tokens import AllowedTokens  # noqa: PLC0415 - numpy: only when used

        return AllowedTokens(message.params.allowed_token_ids)
    if message.grammar is None and message.thinking_limit is None:
        return None
    if grammars is None:
        raise GrammarError("this core compiles no grammars")
    inner = None if message.grammar is None else _constraint_of_grammar(message, message.grammar, grammars)
    if message.thinking_limit is None:
        return inner
    from infer_engine.chat.thinking_constraint import ThinkingConstraint  # noqa: PLC0415 - as above

    return ThinkingConstraint(message.thinking_limit, grammars.vocabulary(), inner)


def _constraint_of_grammar(message: Submit, grammar: str, grammars: GrammarCompiler) -> "Constraint":
    if message.call_marks is not None:
        from infer_engine.chat.call_constraint import CallConstraint  # noqa: PLC0415 - as above

        return CallConstraint(message.call_marks, *grammars.matcher(grammar))
    return grammars.constraint(grammar)
