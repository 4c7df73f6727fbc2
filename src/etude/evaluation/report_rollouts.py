"""The report's rollouts: what the policy said early, halfway and late."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from etude.evaluation.page import escape, plain, visible
from etude.evaluation.ticks import number

PER_STEP = 4
SAID = ("assistant", "policy")


def render(records: Sequence[Mapping[str, Any]]) -> str:
    """Rollouts of the first, the middle and the last step that has any, as HTML."""
    by_step: dict[Any, list[Mapping[str, Any]]] = {}
    for record in records:
        by_step.setdefault(record.get("step", 0), []).append(record)
    if not by_step:
        return ""
    steps = list(by_step)
    chosen = dict(zip(("Early", "Halfway", "Late"), sorted({0, len(steps) // 2, len(steps) - 1})))
    if len(chosen) == 2:
        chosen = {"Early": 0, "Late": len(steps) - 1}
    sections = []
    for when, index in chosen.items():
        problems: dict[object, list[Mapping[str, Any]]] = {}
        for record in spread(by_step[steps[index]]):
            problems.setdefault((_name(record), _asked(record)), []).append(record)
        sections.append(f"<h3>{when}: step {escape(steps[index])}</h3>" + "".join(map(_problem, problems.values())))
    return "".join(sections)


def spread(records: Sequence[Mapping[str, Any]], count: int = PER_STEP) -> list[Mapping[str, Any]]:
    """At most `count` of them, from the highest reward to the lowest at even distances."""
    ordered = sorted(records, key=lambda r: -_number(r.get("reward")))
    if len(ordered) <= count:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def _problem(records: Sequence[Mapping[str, Any]]) -> str:
    """Rollouts of one problem: what was asked stands once above them."""
    asked, several = _asked(records[0]), len(records) > 1
    above = (
        f'<article class="card asked"><header><b>{_name(records[0])}</b></header>{"".join(map(_turn, asked))}</article>'
    )
    cards = "".join(_card(r, len(asked) if several else 0) for r in records)
    return f'{above if several else ""}<div class="grid large">{cards}</div>'


def _card(record: Mapping[str, Any], above: int = 0) -> str:
    """A rollout, without as many of its first turns as stand above it."""
    group = f"group {escape(record['group'])}" if record.get("group") is not None else ""
    head = "" if above else f"<header><b>{_name(record)}</b><span>{group}</span></header>"
    return f'<article class="card">{head}{"".join(map(_turn, _turns(record)[above:]))}{_chips(record)}</article>'


def _name(record: Mapping[str, Any]) -> str:
    return " · ".join(escape(record[k]) for k in ("id", "level") if record.get(k) not in (None, "")) or "rollout"


def _asked(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The turns before the policy's first."""
    return tuple(itertools.takewhile(lambda turn: turn[0] not in SAID, _turns(record)))


def _turns(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(role, text) of each turn; a prompt that the segments repeat is not shown twice."""
    prompt, segments = record.get("prompt"), record.get("segments")
    if not isinstance(segments, list) or not segments:
        completion = record.get("completion")
        return [*_messages(prompt, "prompt"), *_messages("" if completion is None else completion, "assistant")]
    turns = _messages(segments, "assistant")
    before = _messages(prompt, "prompt")
    return turns if before and before[0][1] in [text for _, text in turns] else [*before, *turns]


def _messages(value: object, role: str) -> list[tuple[str, str]]:
    """A text, or a list of messages (`role`, and `text` or `content`), as (role, text)."""
    if isinstance(value, list):
        dicts = [m if isinstance(m, Mapping) else {"text": plain(m)} for m in value]
        return [(str(m.get("role", role)), str(m.get("text", m.get("content", "")))) for m in dicts]
    return [] if value is None else [(role, value if isinstance(value, str) else plain(value))]


def _turn(turn: tuple[str, str]) -> str:
    role, text = turn
    shown = visible(text) if text else '<span class="soft">(nothing)</span>'
    style = " said" if role in SAID else ""
    return f'<div class="turn{style}"><small>{escape(role)}</small><pre>{shown}</pre></div>'


def _chips(record: Mapping[str, Any]) -> str:
    """Reward, its components, advantage and stop reason, in a row."""
    scores = record.get("scores")
    parts = list(scores.items()) if isinstance(scores, Mapping) else []
    if [value for _, value in parts] == [record.get("reward")]:
        parts = []  # one component that is the whole reward
    chips = [("reward", record.get("reward")), *parts]
    used = record.get("used")
    chips += [(k, v) for k, v in used.items() if v] if isinstance(used, Mapping) else []
    chips += [("advantage", record.get("advantage")), ("stop", record.get("stop"))]
    shown = [
        f'<span><span class="soft">{escape(k)}</span> {escape(_value(v))}</span>' for k, v in chips if v is not None
    ]
    return f'<div class="chips">{"".join(shown)}</div>'


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else plain(value).replace("_", " ")


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else float("-inf")
