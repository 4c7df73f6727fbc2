"""TRL's data formats: which columns make a problem, and how its text or messages are read.

    prompt                      what to answer; with an `answer` or `solution` column it can be scored
    prompt, completion          and a worked answer, to learn from
    prompt, chosen, rejected    and two answers of which one is better
    chosen, rejected            the same, the prompt being what both begin with
    messages                    a whole conversation; its last turn is the worked answer

Each of them is text, or conversational: a list of messages {"role", "content"}. All other columns are kept in
`Problem.info`, where reward functions find them by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from etude.core.episodes import Problem, Role
from etude.core.errors import DataError

Messages = list[dict[str, str]]
Text = str | Messages

FORMATS: tuple[tuple[str, ...], ...] = (
    ("prompt", "chosen", "rejected"),
    ("prompt", "completion"),
    ("prompt",),
    ("chosen", "rejected"),
    ("messages",),
)
"""Columns of each format, those that ask for more first."""
ANSWERS = ("answer", "solution")
LEVELS = ("level", "difficulty", "source")


class BadRow(ValueError):
    """A row that does not fit its format; the text says which column and why."""


def detect(columns: Sequence[str] | frozenset[str], where: str) -> tuple[str, ...]:
    """The format that a file's columns make up. Raises DataError naming what is missing and the formats."""
    match = next((f for f in FORMATS if set(f) <= set(columns)), None)
    half = {"chosen", "rejected"} & set(columns)
    if match and len(half) != 1:
        return match
    missing = sorted({"chosen", "rejected"} - half) if half else ["prompt"]
    known = "; ".join(", ".join(f) for f in FORMATS)
    have = ", ".join(sorted(columns)) or "none"
    raise DataError(
        f"{where} lacks the column {missing[0]!r}; it has: {have}. Formats are: {known}. Rename a column, or name the "
        "one that holds the prompt in prompt_column."
    )


def problem(values: dict[str, Any], form: tuple[str, ...], number: str, answer_column: str = "") -> Problem:
    """The problem in a row. Raises BadRow.

    Args:
        values: the row.
        form: its format, one of FORMATS.
        number: its id if there is no `id` column.
        answer_column: which column holds the answer; by default `answer` or `solution`.
    """
    prompt, worked = _READERS[form](values)
    rest = {k: v for k, v in values.items() if k not in form}
    if "completion" in worked and values.get("label") is not False:  # TRL's unpaired preference: a bad example
        worked["demonstration"] = worked["completion"]
    name = answer_column or next((c for c in ANSWERS if c in values), "")
    if name and values[name] is None:
        raise BadRow(f"{name} is null.")
    level = next((values[c] for c in LEVELS if c in values), "")
    if isinstance(level, (list, dict)):
        raise BadRow(f"the level must be text or a number, got {type(level).__name__}.")
    answer = values[name] if name else None
    return Problem(_id(values, number), prompt, answer, "" if level is None else str(level), {**rest, **worked})


def _id(values: dict[str, Any], number: str) -> str:
    name = values.get("id", number)
    if isinstance(name, bool) or not isinstance(name, (str, int)) or name == "":
        raise BadRow(f"id must be text or a whole number, got {name!r:.60}.")
    return str(name)


def _prompt_only(values: dict[str, Any]) -> tuple[Text, dict[str, str]]:
    return _text(values["prompt"], "prompt"), {}


def _completed(values: dict[str, Any]) -> tuple[Text, dict[str, str]]:
    prompt, answer = _answered(
        _text(values["prompt"], "prompt"), _text(values["completion"], "completion"), "completion"
    )
    return prompt, {"completion": answer}


def _conversed(values: dict[str, Any]) -> tuple[Text, dict[str, str]]:
    messages = _text(values["messages"], "messages")
    if isinstance(messages, str) or len(messages) < 2:
        raise BadRow("messages must be a list of at least two messages.")
    prompt, answer = _answered([], messages, "messages")
    return prompt, {"completion": answer}


def _preferred(values: dict[str, Any]) -> tuple[Text, dict[str, str]]:
    chosen, rejected = (_text(values[k], k) for k in ("chosen", "rejected"))
    if isinstance(chosen, str) is not isinstance(rejected, str):
        raise BadRow("chosen and rejected must both be text, or both be messages.")
    prompt = _text(values["prompt"], "prompt") if "prompt" in values else ""
    if not prompt or not isinstance(chosen, str):
        shared, chosen, rejected = _divide(chosen, rejected)
        # Some data repeats a prompt that is text as the first message of both answers; like TRL, believe the messages.
        prompt = _joined(prompt, shared) if isinstance(prompt, list) and isinstance(shared, list) else shared or prompt
    if chosen == rejected:
        raise BadRow("chosen and rejected are the same.")
    if not prompt:
        raise BadRow("chosen and rejected share no beginning that could be the prompt.")
    return prompt, {"chosen": _last(chosen, "chosen"), "rejected": _last(rejected, "rejected")}


_READERS = {
    ("prompt", "chosen", "rejected"): _preferred,
    ("prompt", "completion"): _completed,
    ("prompt",): _prompt_only,
    ("chosen", "rejected"): _preferred,
    ("messages",): _conversed,
}


def _divide(chosen: Text, rejected: Text) -> tuple[Text, Text, Text]:
    """What both begin with, and the two rests. Text is divided before a word and its space, never inside a word."""
    shared = next((i for i, (a, b) in enumerate(zip(chosen, rejected)) if a != b), min(len(chosen), len(rejected)))
    if isinstance(chosen, str):
        while shared and chosen[shared - 1].isalnum():
            shared -= 1
        shared -= shared > 0 and chosen[shared - 1] == " "
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _answered(prompt: Text, answer: Text, column: str) -> tuple[Text, str]:
    """Prompt and final answer; earlier turns of a longer completion belong to the prompt."""
    if isinstance(answer, str):
        return prompt, _last(answer, column)
    return _joined(prompt, answer[:-1]), _last(answer[-1:], column)


def _joined(prompt: Text, more: Messages) -> Text:
    if not more:
        return prompt
    return [*([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt), *more]


def _last(answer: Text, column: str) -> str:
    """The text of an answer: itself, or its only message, which must be the assistant's."""
    if not isinstance(answer, str):
        if len(answer) != 1:
            raise BadRow("chosen and rejected must differ in one last message only.")
        if answer[0]["role"] != "assistant":
            raise BadRow(f"the last message of {column} must be the assistant's, got {answer[0]['role']!r}.")
        answer = answer[0]["content"]
    if not answer:
        raise BadRow(f"{column} holds no answer.")
    return answer


def _text(value: object, column: str) -> Text:
    """Text, or messages, checked."""
    if isinstance(value, str):
        if not value.strip():
            raise BadRow(f"{column} is empty.")
        return value
    if not isinstance(value, list):
        raise BadRow(f"{column} must be text or a list of messages, got {_kind(value)}.")
    if not value:
        raise BadRow(f"{column} is empty.")
    return [_message(m, f"{column}[{i}]") for i, m in enumerate(value)]


def _message(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not {"role", "content"} <= set(value):
        raise BadRow(f"{where} must be a message with role and content, got {_kind(value)}.")
    role, content = value["role"], value["content"]
    if role not in get_args(Role):
        raise BadRow(f"{where}.role must be one of {', '.join(get_args(Role))}, got {_kind(role)}.")
    if not isinstance(content, str):
        raise BadRow(f"{where}.content must be text, got {_kind(content)}.")
    if extra := [k for k, v in value.items() if v and k not in ("role", "content")]:
        raise BadRow(f"{where}.{extra[0]} is not supported: a message has a role and a content.")
    return {"role": role, "content": content}


def _kind(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r:.60}"
