"""Rewrites conversations that a chat template refuses, though APIs allow them: as little as helps.

A rung is one small change, such as joining two turns of one author. `climb` tries them after a refusal. A conversation
that a template renders is changed only where it would leave out a part without a word.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from infer_models.text.chat.templates.template import ChatRefusedError, ChatRenderingError, Message

Messages = Sequence[Message]
Rung = Callable[[Messages], list[Message]]


def climb(messages: Messages, render: Callable[[Messages], str]) -> tuple[tuple[Rung, ...], str]:
    """Return the fewest and least changes with which `render` takes `messages`, and its result.

    Rungs are added, the least change first, until the template takes the result; then those that were not needed are
    left out again, the largest change first.

    Raises:
        ChatRenderingError: no change helps; the template's first refusal in its own words, if there is one.
    """
    failures: list[ChatRenderingError] = []
    rewritten: Messages = ()
    for number in range(len(_LEAST_FIRST) + 1):
        before, rewritten = rewritten, applied(_LEAST_FIRST[:number], messages)
        if number > 0 and rewritten == before:
            continue
        try:
            text = render(rewritten)
        except ChatRenderingError as failure:
            failures.append(failure)
        else:
            return _without_needless(_LEAST_FIRST[:number], messages, render, text)
    raise next((each for each in failures if isinstance(each, ChatRefusedError)), failures[0])


def applied(rungs: Sequence[Rung], messages: Messages) -> list[Message]:
    """Return `messages` with the changes of `rungs`, in the order in which they build on each other."""
    written = list(messages)
    for rung in _IN_ORDER:
        if rung in rungs:
            written = rung(written)
    return written


def _without_needless(
    chosen: tuple[Rung, ...], messages: Messages, render: Callable[[Messages], str], text: str
) -> tuple[tuple[Rung, ...], str]:
    rewritten = applied(chosen, messages)
    for rung in reversed(chosen[:-1]):
        fewer = tuple(each for each in chosen if each is not rung)
        with_fewer = applied(fewer, messages)
        if with_fewer != rewritten:
            try:
                text = render(with_fewer)
            except ChatRenderingError:
                continue
        chosen, rewritten = fewer, with_fewer
    return chosen, text


def no_content_as_empty_text(messages: Messages) -> list[Message]:
    """Give messages without content an empty one, for templates that add to it or go through it."""
    return [each if each.get("content") is not None else {**each, "content": ""} for each in messages]


def roles_by_older_names(messages: Messages) -> list[Message]:
    """Call the developer the system, and a function a tool, as templates do that know only one of both names."""
    older = {"developer": "system", "function": "tool"}
    return [{**each, "role": older.get(str(each.get("role")), each.get("role"))} for each in messages]


def first_system_messages_joined(messages: Messages) -> list[Message]:
    """Make one system message of those at the beginning."""
    num_first = _num_first(messages)
    return [*_joined(messages[:num_first]), *messages[num_first:]]


def words_beside_thinking_as_thinking(messages: Messages) -> list[Message]:
    """Put words between thinking and calls into the thinking."""
    written: list[Message] = []
    for message in messages:
        name = next((each for each in ("reasoning_content", "thinking", "reasoning") if message.get(each)), None)
        if name is not None and message.get("content") and _calls_of(message):
            whole = _both(message[name], message["content"])
            written.append({**message, name: whole, "content": ""})
        else:
            written.append(message)
    return written


def turns_joined(messages: Messages) -> list[Message]:
    """Make one turn of those of one author that follow each other; calls wait for their results."""
    written: list[Message] = []
    for message in messages:
        before = written[-1] if written else {}
        is_same = message.get("role") == before.get("role") and message.get("role") in ("user", "assistant")
        if is_same and not before.get("tool_calls"):
            written[-1:] = _joined([before, message])
        else:
            written.append(message)
    return written


def one_call_in_a_turn(messages: Messages) -> list[Message]:
    """Make parallel calls turns of their own, each followed by its result."""
    written: list[Message] = []
    starts = [index for index, each in enumerate(messages) if index == 0 or each.get("role") != "tool"]
    for start, end in zip(starts, [*starts[1:], len(messages)], strict=False):
        message, results = messages[start], list(messages[start + 1 : end])
        calls = _calls_of(message)
        written += [message, *results] if len(calls) < 2 else _one_by_one(message, calls, results)
    return written


def _one_by_one(message: Message, calls: Sequence[Mapping[str, Any]], results: list[Message]) -> Iterator[Message]:
    by_id: dict[object, list[Message]] = {call.get("id"): [] for call in calls}
    last_id = calls[-1].get("id")
    for result in results:
        call_id = result.get("tool_call_id")
        by_id[call_id if call_id in by_id else last_id].append(result)
    for index, call in enumerate(calls):
        said = message if index == 0 else {"role": message.get("role"), "content": ""}
        yield {**said, "tool_calls": [call]}
        yield from by_id.pop(call.get("id"), [])


def results_without_calls_as_text(messages: Messages) -> list[Message]:
    """Make a result that follows no call the user's words."""
    written: list[Message] = []
    may_follow = False
    for message in messages:
        is_result = message.get("role") == "tool"
        may_follow = bool(_calls_of(message)) or (may_follow and is_result)
        if is_result and not may_follow:
            text = f"Result of {message.get('name') or 'the tool'}: {message.get('content') or ''}"
            written.append({"role": "user", "content": text})
        else:
            written.append(message)
    return written


def question_before_first_answer(messages: Messages) -> list[Message]:
    """Put an empty turn of the user before an assistant that speaks first."""
    num_first = _num_first(messages)
    if num_first < len(messages) and messages[num_first].get("role") == "assistant":
        return [*messages[:num_first], {"role": "user", "content": ""}, *messages[num_first:]]
    return list(messages)


def answer_after_results(messages: Messages) -> list[Message]:
    """Put an empty turn of the assistant between the results of tools and the user's words beside them."""
    written: list[Message] = []
    for message in messages:
        if written and written[-1].get("role") == "tool" and message.get("role") == "user":
            written.append({"role": "assistant", "content": ""})
        written.append(message)
    return written


def words_in_results(messages: Messages) -> list[Message]:
    """Put the user's words beside the results of tools into the last of them."""
    written: list[Message] = []
    for message in messages:
        if written and written[-1].get("role") == "tool" and message.get("role") == "user":
            written[-1] = {**written[-1], "content": _both(written[-1].get("content"), message.get("content"))}
        else:
            written.append(message)
    return written


def later_system_messages_as_users(messages: Messages) -> list[Message]:
    """Make system messages the user's where they stand, but for those at the beginning."""
    num_first = _num_first(messages)
    later = [{**each, "role": "user"} if each.get("role") == "system" else each for each in messages[num_first:]]
    return [*messages[:num_first], *later]


def one_system_message(messages: Messages) -> list[Message]:
    """Make one system message of those at the beginning, and the later ones the user's, where there are several."""
    if sum(each.get("role") == "system" for each in messages) < 2:
        return list(messages)
    return later_system_messages_as_users(first_system_messages_joined(messages))


def first_system_messages_as_users(messages: Messages) -> list[Message]:
    """Put the system messages at the beginning into the user's first turn, or into one of their own."""
    num_first = _num_first(messages)
    if num_first == 0:
        return list(messages)
    words = [{"role": "user", "content": each.get("content")} for each in messages[:num_first]]
    is_asked = num_first < len(messages) and messages[num_first].get("role") == "user"
    num_joined = num_first + 1 if is_asked else num_first
    return [*_joined([*words, *messages[num_first:num_joined]]), *messages[num_joined:]]


def question_after_last_answer(messages: Messages) -> list[Message]:
    """Put an empty turn of the user after an answer that ends the conversation."""
    if messages and messages[-1].get("role") == "assistant" and not _calls_of(messages[-1]):
        return [*messages, {"role": "user", "content": ""}]
    return list(messages)


_LEAST_FIRST: tuple[Rung, ...] = (
    no_content_as_empty_text,
    words_beside_thinking_as_thinking,
    roles_by_older_names,
    first_system_messages_joined,
    turns_joined,
    one_call_in_a_turn,
    question_before_first_answer,
    answer_after_results,
    later_system_messages_as_users,
    results_without_calls_as_text,
    first_system_messages_as_users,
    words_in_results,
    question_after_last_answer,
)

# Turns are joined, and gaps between them filled, when all authors are known.
_IN_ORDER: tuple[Rung, ...] = (
    no_content_as_empty_text,
    roles_by_older_names,
    words_beside_thinking_as_thinking,
    one_call_in_a_turn,
    results_without_calls_as_text,
    one_system_message,
    first_system_messages_joined,
    later_system_messages_as_users,
    first_system_messages_as_users,
    turns_joined,
    words_in_results,
    answer_after_results,
    question_before_first_answer,
    question_after_last_answer,
)


OF_SYSTEM: tuple[Rung, ...] = (
    roles_by_older_names,
    later_system_messages_as_users,
    first_system_messages_as_users,
)
"""Rungs that keep the words of system messages, under any role, where a template would leave them out."""


def _num_first(messages: Messages) -> int:
    """Return how many system messages there are at the beginning."""
    return next((i for i, each in enumerate(messages) if each.get("role") != "system"), len(messages))


def _calls_of(message: Message) -> Sequence[Mapping[str, Any]]:
    calls: Any = message.get("tool_calls")
    return calls or ()


def _joined(messages: Messages) -> list[Message]:
    """Return one message that says all that `messages` say; none for none."""
    if not messages:
        return []
    whole = dict(messages[0])
    for message in messages[1:]:
        both = {
            name: _both(whole[name], message[name])
            for name in ("content", "reasoning_content")
            if whole.get(name) is not None and message.get(name) is not None
        }
        whole |= {name: value for name, value in message.items() if value is not None} | both
    return [whole]


def _both(first: object, second: object) -> object:
    """Return two contents as one: texts with an empty line between them, or lists of parts."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(filter(None, (first, second)))
    return [*_parts(first), *_parts(second)]


def _parts(content: object) -> Sequence[object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, Sequence) else []
