"""How a task's prompts are shown to a model: as they are, or as a user's message through its chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.episodes import Segment
from etude.core.errors import ConfigError, nearest
from etude.core.task import LanguageTask
from etude.policies.chat import arguments, conversational
from etude.policies.templates import uses

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from etude.policies.protocols import Speaker

TEXT = "text"
"""What `info["message"]` is for a prompt that was plain text before it became a message."""
FIELDS = ("tool_calls", "reasoning_content", "thinking")
"""Of messages: what a template must read, for it says something that content does not."""


def shown(segments: Sequence[Segment], task: LanguageTask, policy: Speaker) -> list[Segment]:
    """The beginning of an episode as messages, where `task.chat` has it so, with the system's message before them.

    Text of the environment is taken for what the role of its segment says: a user's, the system's, a tool's. The first
    segment keeps what the chat template is given (`arguments`): `task.template_arguments` and the problem's own.

    Raises: ConfigError for a template that is asked for and not there, or does not read what it would be given.
    """
    talks, template = conversational(segments), policy.tokenizer.chat_template
    if talks and task.chat == "never":
        raise ConfigError("The problems are conversations, which chat=never cannot show: take it out.")
    if task.chat == "always" and not template:
        raise ConfigError(f"chat=always needs a chat template, and the model's tokenizer has none. {_HOW}")
    given = {**_parsed(task.template_arguments), **arguments(segments)}
    tools = next((s.info.pop("tools") for s in segments if "tools" in s.info), None)
    if not (talks or (template and task.chat == "auto") or task.chat == "always"):
        _refuse_unused(task, given)
        return _told(list(segments), tools)
    made = [s if s.role == "assistant" else _message(s) for s in segments]
    if task.system is not None:
        made = [_system(task.system, made), *made]
    if tools is not None and template and uses(policy.tokenizer, "tools"):
        given["tools"] = [*given.get("tools", ()), *tools["schemas"]]
    else:
        made = _told(made, tools)
    if template:
        _check(made, given, policy.tokenizer)
    if given:
        made[0].info["arguments"] = given
    return made


def check_given(task: LanguageTask) -> None:
    """Raise ConfigError for what can be said to be wrong before a model is there: a file, the form of an argument."""
    _parsed(task.template_arguments)
    if task.system is not None:
        system_text(task.system)


_HOW = "Set `chat_template` in its tokenizer_config.json, or let chat be auto."


def _message(segment: Segment) -> Segment:
    if not segment.info.get("message"):
        segment.info["message"] = TEXT
    return segment


def _system(path: str, segments: Sequence[Segment]) -> Segment:
    """The system's message in a file. Raises ConfigError if it cannot be read, or if the problem has one of its own."""
    if segments and segments[0].role in ("system", "developer"):
        raise ConfigError(
            f"A problem begins with a {segments[0].role} message of its own, and system={path} gives another one: "
            "leave one of them out."
        )
    return Segment("system", system_text(path), info={"message": TEXT})


def _told(segments: list[Segment], tools: Mapping[str, Any] | None) -> list[Segment]:
    """The segments with words about what can be called, where no template says it: before the first that has text."""
    if tools is None:
        return segments
    first = segments[0]
    if first.info.get("said"):  # more than text
        return [Segment("user", tools["text"], info={"message": TEXT}), *segments]
    pair = (first.text, tools["text"]) if first.role == "system" else (tools["text"], first.text)
    first.text = "\n\n".join(pair)
    return segments


def system_text(path: str) -> str:
    """The system's message, without white space around it. Raises ConfigError for a file that has none."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"The system's message cannot be read from {path}: {why}.") from None
    if not text:
        raise ConfigError(f"{path} is empty: it must hold the system's message.")
    return text


def _parsed(items: Sequence[str]) -> dict[str, Any]:
    """'enable_thinking=false' -> {'enable_thinking': False}; what is no JSON is text."""
    found: dict[str, Any] = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"template_arguments takes NAME=VALUE, as in enable_thinking=false; got {item!r}.")
        try:
            found[name] = json.loads({"True": "true", "False": "false"}.get(text, text))
        except ValueError:
            found[name] = text
    return found


def _refuse_unused(task: LanguageTask, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for what only a chat template could show, where prompts are plain text."""
    asked = {"system": task.system is not None, **dict.fromkeys(given, True)}
    if names := [name for name, there in asked.items() if there]:
        why = "chat=never" if task.chat == "never" else "the model's tokenizer has no chat template"
        how = "Let chat be auto" if task.chat == "never" else "Set `chat_template` in its tokenizer_config.json"
        raise ConfigError(
            f"Prompts are plain text here ({why}), and nothing can show {' and '.join(names)}. {how}, or leave it out."
        )


def _check(segments: Sequence[Segment], given: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError for what the template would leave out without a word."""
    said = {k for s in segments for k in FIELDS if s.info.get("said", {}).get(k)}
    for name in (*given, *sorted(said)):
        if not uses(tokenizer, name):
            known = [w for w in ("enable_thinking", "thinking", "tools", "documents") if uses(tokenizer, w)]
            near = nearest(name, known)
            offer = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise ConfigError(f"The model's chat template does not read {name!r}, so nothing would show it.{offer}")
