"""The limits of an answer that a request and its conversation ask for: its grammar, and the budget of its thinking."""

from msgspec import structs

from infer_engine.chat.output_form import AnswerForm
from infer_engine.messages import AnswerMarks
from infer_engine.protocol import ChatPrompt, GenerateRequest, InvalidRequestError, SamplingParams
from infer_engine.protocol.structured_outputs import Whitespace, refusal_code


def grammar_of(
    request: GenerateRequest, form: AnswerForm | None, whitespace: Whitespace
) -> tuple[str | None, AnswerMarks | None]:
    """Return the text of the request's grammar, whose answer has this `form`, and where it begins; see `Submit`.

    It is not compiled here.

    Raises:
        InvalidRequestError: it cannot be kept.
    """
    content = request.params.structured_outputs
    if content is not None and content.whitespace is None and content.whitespace_pattern is None:
        content = structs.replace(content, whitespace=whitespace)
    if content is None and (form is None or form.tool_call_format is None):
        return None, None
    if request.params.allowed_token_ids is not None:
        raise InvalidRequestError(
            "`allowed_token_ids` cannot be kept beside tools; send one of them.",
            param="allowed_token_ids",
            code="conflicting_fields",
        )
    # They import the grammar library.
    from infer_engine.chat.output_grammar import answer_grammar, arguments_grammar  # noqa: PLC0415
    from infer_engine.structured.grammar_text import to_grammar_text  # noqa: PLC0415

    try:
        if form is not None:
            assert isinstance(request.prompt, ChatPrompt)
            if content is None and not form.must_call:
                return arguments_grammar(request.prompt, form), form.marks(is_free=True)
            return answer_grammar(request.prompt, content, form), None
        assert content is not None
        return to_grammar_text(content), None
    except ValueError as error:
        of_tools = str(error).startswith("`tools`")
        param, code = "tools" if of_tools else "structured_outputs", refusal_code(None if of_tools else content)
        raise InvalidRequestError(str(error), param=param, code=code) from None


def thinking_budget(params: SamplingParams, *, default: int) -> int | None:
    """Return the most tokens of thinking; None: no limit. `default` is that of requests that do not say it.

    Raises:
        InvalidRequestError: the request has a budget and a list of tokens, by which no end could be forced.
    """
    if params.allowed_token_ids is not None:
        if params.thinking_token_budget not in (None, -1):
            raise InvalidRequestError(
                "`thinking_token_budget` cannot be kept beside `allowed_token_ids`; send one of them.",
                param="thinking_token_budget",
                code="conflicting_fields",
            )
        return None
    budget = default if params.thinking_token_budget is None else params.thinking_token_budget
    return budget if budget >= 0 else None
