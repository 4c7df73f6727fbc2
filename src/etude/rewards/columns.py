"""What a user's reward function is given: lists with one item per completion, by the names it asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from etude.core.episodes import Episode
from etude.core.errors import UnknownNameError
from etude.rewards.calls import Signature


def conversation(episode: Episode) -> list[dict[str, str]]:
    """All that was said, prompt included, as messages."""
    messages = [{"role": s.role, "content": s.text} for s in episode.segments]
    if messages and messages[0]["role"] != "assistant":
        return messages
    prompt = episode.problem.prompt
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    return asked + messages


def view(episode: Episode) -> dict[str, Any]:
    """An episode as JSON values; of its info, what is plain data."""
    problem = episode.problem
    return {
        "id": problem.id,
        "prompt": problem.prompt if isinstance(problem.prompt, str) else [dict(m) for m in problem.prompt],
        "answer": problem.answer,
        "level": problem.level,
        "completion": episode.completion,
        "messages": conversation(episode),
        "player": episode.player,
        "stop": str(episode.stop),
        "reward": episode.reward,
        "scores": dict(episode.scores),
        "tokens": episode.action_count,
        "written": episode.written,
        "elsewhere": episode.elsewhere,
        "auxiliary": episode.auxiliary,
        "info": {k: v for k, v in episode.info.items() if is_plain(v)},
    }


GIVEN: dict[str, Callable[[Episode], Any]] = {
    "completions": lambda e: e.completion,
    "prompts": lambda e: e.problem.prompt if isinstance(e.problem.prompt, str) else [dict(m) for m in e.problem.prompt],
    "answers": lambda e: e.problem.answer,
    "levels": lambda e: e.problem.level,
    "ids": lambda e: e.problem.id,
    "messages": conversation,
    "episodes": view,
}
"""What every task can give."""
SINGULAR = {"prompt": "prompts", "answer": "answers", "level": "levels", "id": "ids"}
"""Names that mean the data's own column where there is one."""
ITEM = {"completion": "completions", **SINGULAR, "episode": "episodes"}
"""The same, for a function that is called on each completion: there the first and the last are never the data's."""
ON_REQUEST = ("messages", "episodes", "episode")
"""Large; left out of `**columns`."""


def columns(episodes: Sequence[Episode], signature: Signature) -> dict[str, list[Any]]:
    """The arguments of one call, a list for each; of a function of one completion, what it gets in turn.

    Raises: UnknownNameError for a required one that the data does not have.
    """
    data = {k for e in episodes for k in e.problem.info} - set(GIVEN)
    data -= set(ITEM) - set(SINGULAR) if signature.single else set()
    known = {*GIVEN, *(ITEM if signature.single else SINGULAR), *data, *signature.required}
    names = [n for n in signature.wanted if n in known]
    if signature.rest:
        plain = [k for k in sorted(data) if all(is_plain(e.problem.info.get(k)) for e in episodes)]
        given = ITEM if signature.single else GIVEN
        names += [n for n in [*given, *plain] if n not in ON_REQUEST and n not in names]
    return {n: _column(n, episodes, data, signature) for n in names}


def _column(name: str, episodes: Sequence[Episode], data: set[str], signature: Signature) -> list[Any]:
    if name in data:
        return [e.problem.info.get(name) for e in episodes]
    given = GIVEN.get(ITEM.get(name, name) if signature.single else SINGULAR.get(name, name))
    if given is None:
        known = sorted({*GIVEN, *data})
        raise UnknownNameError(
            "column", name, known, f"{signature.name} asks for it, and the data has: {', '.join(known)}."
        )
    return [given(e) for e in episodes]


def is_plain(value: object) -> bool:
    """Whether JSON can hold a value."""
    if isinstance(value, (list, tuple)):
        return all(is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_plain(v) for k, v in value.items())
    return value is None or isinstance(value, (str, int, float, bool))
