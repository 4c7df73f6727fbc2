"""The report's rollouts: what the policy said early, halfway and late."""

from __future__ import annotations

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
        cards = "".join(map(_card, spread(by_step[steps[index]])))
        sections.append(f'<h3>{when}: step {escape(steps[index])}</h3><div class="grid large">{cards}</div>')
    return "".join(sections)


def spread(records: Sequence[Mapping[str, Any]], count: int = PER_STEP) -> list[Mapping[str, Any]]:
    """At most `count` of them, from the highest reward to the lowest at even distances."""
    ordered = sorted(records, key=lambda r: -_number(r.get("reward")))
    if len(ordered) <= count:
        return ordered
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def _card(record: Mapping[str, Any]) -> str:
    name = " · ".join(escape(record[k]) for k in ("id", "level") if record.get(k) not in (None, ""))
    group = f"group {escape(record['group'])}" if record.get("group") is not None else ""
    head = f"<header><b>{name or 'rollout'}</b><span>{group}</span></header>"
    return f'<article class="card">{head}{"".join(map(_turn, _turns(record)))}{_chips(record)}</article>'


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
    chips = [("reward", record.get("reward")), *(scores.items() if isinstance(scores, Mapping) else ())]
    chips += [("advantage", record.get("advantage")), ("stop", record.get("stop"))]
    shown = [
        f'<span><span class="soft">{escape(k)}</span> {escape(_value(v))}</span>' for k, v in chips if v is not None
    ]
    return f'<div class="chips">{"".join(shown)}</div>'


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else plain(value).replace("_", " ")


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else float("-inf")
