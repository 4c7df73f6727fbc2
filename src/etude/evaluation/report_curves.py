"""The report's curves: every number of `metrics.jsonl`, grouped, smoothed where there are many steps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etude.evaluation.page import escape
from etude.evaluation.svg import Series, svg_curve
from etude.evaluation.ticks import number

GROUPS = (
    ("Checks", r"fault|fail|timeout|dropped|discard|skipp|stale|invariant|check|nonfinite|out_of_|error|no_reward"),
    ("Speed", r"per_second|seconds|duration|memory|time$"),
    ("Success", r"@\d|accuracy|success|solved|win_rate"),
    ("Reward", r"reward|return|score|informative|group_(std|spread)"),
    ("Policy", r"entropy|kl|logp|ratio|clip_?frac|clipped|advantage|value|staleness|probab|log_prob"),
    ("Episodes", r"length|stop|^cut$|truncat|turns|tokens|completion|prompt"),
    ("Optimisation", r"loss|grad|lr$|rate|update|norm|weight|epoch|step"),
)
"""Title and pattern; the first that a name matches takes it."""
ORDER = ("Reward", "Success", "Policy", "Episodes", "Optimisation", "Speed", "Checks", "Other")
UNITS = {
    "entropy": "nats", "kl": "nats", "logp_gap": "nats", "logp_gap_bound": "nats", "completion_length": "tokens",
    "episode_length": "steps", "tokens_per_second": "tokens / s", "steps_per_second": "steps / s",
    "prompt_length": "tokens",
}  # fmt: skip
TOGETHER = {
    "reward": "reward by component", "return": "return by setting", "stop": "stop reasons",
    "seconds": "seconds by phase", "level": "by level",
}  # fmt: skip
"""Names before a slash whose members share a unit, and so a chart; and its title."""
NOTE = (
    '<p class="soft">Pale lines are single steps, or members of a population; dark lines a moving mean, or their mean. '
    "Figures compare the first tenth of the run with the last.</p>"
)
MOST_LINES = 7
POINTS = 400
"""Points of one line; longer runs are averaged in stretches."""


class Curve(NamedTuple):
    """One metric: the steps at which it was logged, its values there (None where they were not finite)."""

    steps: list[float]
    values: list[float | None]


def collect(records: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """Every numeric metric by name ('reward/format' for nested ones), in order of appearance.

    In control the axis is environment steps of each member. Of each member the return is kept ('members/return/3').
    """
    curves: dict[str, Curve] = {}
    for index, record in enumerate(records):
        step = record.get("environment_steps", record.get("step"))
        step = step if _finite(step) else index
        for name, value in _flat(record):
            if name in ("step", "seconds", "environment_steps") or isinstance(value, (str, list)):
                continue
            curve = curves.setdefault(name, Curve([], []))
            curve.steps.append(step)
            curve.values.append(float(value) if _finite(value) else None)
    return {name: c for name, c in curves.items() if any(v is not None for v in c.values)}


def render(curves: Mapping[str, Curve]) -> str:
    """All curves as HTML, group by group; those that never change are listed in a line instead."""
    members = {k: c for k, c in curves.items() if k.startswith("members/")}
    curves = {k: c for k, c in curves.items() if k not in members}
    constant = {k: c for k, c in curves.items() if len(set(c.values)) == 1 and len(c.values) > 1}
    moving = {k: c for k, c in curves.items() if k not in constant}
    sections = []
    for title in ORDER:
        inside = {k: c for k, c in moving.items() if group_of(k) == title}
        cards = [
            _card(name, lines, list(members.values()) if name == "return" else []) for name, lines in _charts(inside)
        ]
        if cards:
            sections.append(f'<h3>{title}</h3><div class="grid">{"".join(cards)}</div>')
    if constant:
        listed = ", ".join(f"{escape(k)} {number(c.values[0] or 0.0)}" for k, c in sorted(constant.items()))
        sections.append(f'<h3>The same at every step</h3><p class="soft">{listed}.</p>')
    return NOTE + "".join(sections) if sections else ""


def group_of(name: str) -> str:
    """The title of the group that a metric belongs to."""
    return next((title for title, pattern in GROUPS if re.search(pattern, name)), "Other")


def smooth(values: Sequence[float | None], window: int) -> list[float | None]:
    """Centred moving mean; at the ends over what is there, None where a whole window is missing."""
    half, smoothed = window // 2, []
    for i in range(len(values)):
        near = [v for v in values[max(i - half, 0) : i + half + 1] if v is not None]
        smoothed.append(sum(near) / len(near) if near else None)
    return smoothed


def thin(curve: Curve, points: int = POINTS) -> Curve:
    """At most `points` points: means over stretches of equal length."""
    size = -(-len(curve.steps) // points)
    if size == 1:
        return curve
    stretches = [slice(i, i + size) for i in range(0, len(curve.steps), size)]
    steps = [sum(curve.steps[s]) / len(curve.steps[s]) for s in stretches]
    return Curve(steps, [smooth(curve.values[s], 2 * size + 1)[0] for s in stretches])


def _charts(curves: Mapping[str, Curve]) -> list[tuple[str, dict[str, Curve]]]:
    """Title and lines of each chart: members of a family share one, everything else stands alone."""
    families: dict[str, dict[str, Curve]] = {}
    for name, curve in curves.items():
        prefix, slash, rest = name.partition("/")
        if slash and prefix in TOGETHER:
            families.setdefault(prefix, {})[rest] = curve
    shared = {prefix: members for prefix, members in families.items() if 1 < len(members) <= MOST_LINES}
    alone = [(k, {k: curve}) for k, curve in curves.items() if k.partition("/")[0] not in shared or "/" not in k]
    return alone + [(TOGETHER[prefix], members) for prefix, members in shared.items()]


def _card(title: str, members: Mapping[str, Curve], behind: Sequence[Curve] = ()) -> str:
    alone = len(members) == 1 and not behind
    series = [Series(title, *thin(curve), faint=True) for curve in behind]
    series += [line for name, curve in members.items() for line in _lines(name, curve, alone)]
    label = title.replace("_", " ")
    chart = svg_curve(series, title=label, y_label=UNITS.get(title.rpartition("/")[2], ""))
    return f'<div class="card"><header><b>{escape(label)}</b><span>{_ends(members)}</span></header>{chart}</div>'


def _lines(name: str, curve: Curve, alone: bool) -> list[Series]:
    thinned = thin(curve)
    window = 2 * (len(thinned.steps) // 40) + 1
    name = name.replace("_", " ")
    mean = Series(name, thinned.steps, smooth(thinned.values, window) if window > 1 else thinned.values)
    return [Series(name, *thinned, faint=True), mean] if alone and window > 1 else [mean]


def _ends(members: Mapping[str, Curve]) -> str:
    """First and last value of a curve, as means over a tenth of it, and how often it was not finite."""
    if len(members) > 1:
        return ""
    (curve,) = members.values()
    values = [v for v in curve.values if v is not None]
    tenth = max(len(values) // 10, 1)
    first, last = sum(values[:tenth]) / tenth, sum(values[-tenth:]) / tenth
    missing = len(curve.values) - len(values)
    text = f"{number(first)} → {number(last)}" if len(values) > 1 else number(last)
    return text + (f" · not finite {missing} times" if missing else "")


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in record.items():
        if key == "members" and isinstance(value, Mapping):
            returns = value.get("return")
            yield from ((f"members/return/{m}", v) for m, v in enumerate(returns if isinstance(returns, list) else ()))
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and abs(value) < math.inf
