"""TRL's data formats: which columns make a problem, and how its text or messages are read.

    prompt                      what to answer; with an `answer` or `solution` column it can be scored
    prompt, completion          and a worked answer, to learn from
    prompt, chosen, rejected    and two answers of which one is better
    chosen, rejected            the same, the prompt being what both begin with
    messages                    a whole conversation; its last turn is the worked answer

Each of them is text, or conversational: a list of messages {"role", "content"}, whose content may come in parts of
text, and which may have what chat templates read (`tool_calls`). `tools` and `chat_template_kwargs` are given to the
model's chat template; images are refused. All other columns are kept in `Problem.info`, where reward functions find
them by name.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args

from etude.core.episodes import Problem, Role
from etude.core.errors import DataError, nearest
from etude.core.task import plain

Messages = list[dict[str, Any]]
Text = str | Messages

FORMATS: tuple[tuple[str, ...], ...] = (
    ("prompt", "chosen", "rejected"),
    ("prompt", "completion"),
    ("prompt",),
    ("chosen", "rejected"),
    ("messages",),
)
"""Columns of each format, those that ask for more first."""
ROLES = get_args(Role)
ANSWERS = ("answer", "solution")
LEVELS = ("level", "difficulty", "source")
GIVEN = ("tools", "chat_template_kwargs")
IMAGES = ("images", "image")
KEPT = ("tool_calls", "tool_call_id", "name", "reasoning_content", "thinking")
"""Of a message: what chat templates read besides role and content."""
NAMES = tuple(dict.fromkeys([*(c for form in FORMATS for c in form), *ANSWERS, "id", *LEVELS, "label", *GIVEN]))
"""Columns that mean something; all others are for reward functions."""


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
        f"{where} lacks the column {missing[0]!r}; it has: {have}. Formats are: {known}. If a column has another name: "
        f"--columns {missing[0]}={near(missing[0], columns)}."
    )


def near(wanted: str, columns: Sequence[str] | frozenset[str]) -> str:
    """A column that may be meant."""
    usual = {"prompt": ("question", "problem", "instruction", "input", "query", "text")}.get(wanted, ())
    return next((c for c in (*usual, *nearest(wanted, columns)) if c in columns), "ITS_NAME")


def problem(values: dict[str, Any], form: tuple[str, ...], number: str) -> Problem:
    """The problem in a row. Raises BadRow.

    Args:
        values: the row.
        form: its format, one of FORMATS.
        number: its id if there is no `id` column.
    """
    if seen := next((c for c in IMAGES if values.get(c)), ""):
        raise BadRow(f"{seen} holds images, which no policy of text can see: leave them out with --columns {seen}=.")
    prompt, worked = _READERS[form](values)
    rest = {k: v for k, v in values.items() if k not in (*form, *GIVEN, *IMAGES)} | _given(values)
    if "completion" in worked and values.get("label") is not False:  # TRL's unpaired preference: a bad example
        worked |= {k.replace("completion", "demonstration", 1): v for k, v in worked.items()}
    name = next((c for c in ANSWERS if c in values), "")
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


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """What the chat template is given with this row, as `template_arguments`."""
    tools, given = values.get("tools"), values.get("chat_template_kwargs")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError:
            raise BadRow(f"tools must be a list of JSON schemas, got {tools!r:.60}.") from None
    if tools and not (isinstance(tools, list) and all(isinstance(t, dict) for t in tools)):
        raise BadRow(f"tools must be a list of JSON schemas, got {_kind(tools)}.")
    if given and not isinstance(given, dict):
        raise BadRow(f"chat_template_kwargs must be an object, got {_kind(given)}.")
    found = {**(given or {}), **({"tools": tools} if tools else {})}
    return {"template_arguments": found} if found else {}


def _prompt_only(values: dict[str, Any]) -> tuple[Text, dict[str, Any]]:
    return _text(values["prompt"], "prompt"), {}


def _completed(values: dict[str, Any]) -> tuple[Text, dict[str, Any]]:
    return _answered(_text(values["prompt"], "prompt"), _text(values["completion"], "completion"), "completion")


def _conversed(values: dict[str, Any]) -> tuple[Text, dict[str, Any]]:
    messages = _text(values["messages"], "messages")
    if isinstance(messages, str) or len(messages) < 2:
        raise BadRow("messages must be a list of at least two messages.")
    return _answered([], messages, "messages")


def _preferred(values: dict[str, Any]) -> tuple[Text, dict[str, Any]]:
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
    return prompt, {**_last(chosen, "chosen"), **_last(rejected, "rejected")}


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


def _answered(prompt: Text, answer: Text, column: str) -> tuple[Text, dict[str, Any]]:
    """Prompt and final answer, the completion; earlier turns of a longer one belong to the prompt."""
    if isinstance(answer, str):
        return prompt, _last(answer, "completion", column)
    return _joined(prompt, answer[:-1]), _last(answer[-1:], "completion", column)


def _joined(prompt: Text, more: Messages) -> Text:
    if not more:
        return prompt
    return [*([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt), *more]


def _last(answer: Text, which: str, column: str = "") -> dict[str, Any]:
    """An answer under its name: its text, or that of its only message, which must be the assistant's.

    A message that is more than its text is also there whole, as `{which}_message`.
    """
    column, message = column or which, {}
    if not isinstance(answer, str):
        if len(answer) != 1:
            raise BadRow("chosen and rejected must differ in one last message only.")
        message = answer[0]
        if message["role"] != "assistant":
            raise BadRow(f"the last message of {column} must be the assistant's, got {message['role']!r}.")
        answer = plain(message["content"])
    if not answer and not message.get("tool_calls"):
        raise BadRow(f"{column} holds no answer.")
    whole = message and (not isinstance(message["content"], str) or len(message) > 2)
    return {which: answer, **({f"{which}_message": message} if whole else {})}


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


def _message(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not ("content" in value or value.get("tool_calls")) or "role" not in value:
        raise BadRow(f"{where} must be a message with role and content, got {_kind(value)}.")
    role = value["role"]
    if role not in ROLES:
        raise BadRow(f"{where}.role must be one of {', '.join(ROLES)}, got {_kind(role)}.")
    if extra := [k for k, v in value.items() if v and k not in ("role", "content", *KEPT)]:
        raise BadRow(f"{where}.{extra[0]} is not supported: of a message are read role, content, {', '.join(KEPT)}.")
    kept = {k: value[k] for k in KEPT if value.get(k)}
    calls = kept.get("tool_calls", [])
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadRow(f"{where}.tool_calls must be a list of objects, got {_kind(calls)}.")
    return {"role": role, "content": _content(value.get("content"), where, bool(calls)), **kept}


def _content(content: object, where: str, calls: bool) -> str | Messages | None:
    """The content of a message: text, parts of text, or null in a message that calls tools instead."""
    if isinstance(content, str) or (content is None and calls):
        return content
    if not isinstance(content, list):
        raise BadRow(f"{where}.content must be text or a list of parts, got {_kind(content)}.")
    parts = [{k: v for k, v in p.items() if v is not None} if isinstance(p, dict) else p for p in content]
    for i, part in enumerate(parts):
        if isinstance(part, dict) and "image" in str(part.get("type")):
            raise BadRow(f"{where}.content[{i}] is an image, which no policy of text can see.")
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise BadRow(f"{where}.content[{i}] must be {{'type': 'text', 'text': ...}}, got {_kind(part)}.")
    return parts


def _kind(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {value!r:.60}"
