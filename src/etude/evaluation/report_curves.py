"""The report's curves: every number of `metrics.jsonl`, grouped, smoothed where there are many steps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from etude.evaluation.page import escape
from etude.evaluation.svg import Series, svg_curve
from etude.evaluation.ticks import number
from etude.runtime.callbacks import flat
from etude.runtime.looks import INTERVALS, splits_of

GROUPS = (
    ("Checks", r"fault|fail|timeout|dropped|discard|skipp|stale|invariant|check|nonfinite|out_of_|error|no_reward"),
    ("What answers took", r"^used/"),
    ("Speed", r"per_second|seconds|duration|memory|time$"),
    ("Success", r"@\d|accuracy|success|solved|win_rate"),
    ("Reward", r"reward|return|score|informative|group_(std|spread)"),
    ("Policy", r"entropy|kl|logp|ratio|clip_?frac|clipped|advantage|covariance|value|staleness|probab|log_prob"),
    ("Episodes", r"length|stop|^cut$|truncat|turns|tokens|completion|prompt"),
    ("Optimisation", r"loss|grad|lr$|rate|update|norm|weight|epoch|step"),
)
"""Title and pattern; the first that a name matches takes it."""
ORDER = ("Reward", "Success", "Policy", "Episodes", "Optimisation", "Speed", "What answers took", "Checks", "Other")
UNITS = {
    "entropy": "nats", "kl": "nats", "logp_gap": "nats", "logp_gap_bound": "nats", "completion_length": "tokens",
    "episode_length": "steps", "tokens_per_second": "tokens / s", "steps_per_second": "steps / s",
    "prompt_length": "tokens", "sampled_tokens": "tokens", "prefilled_tokens": "tokens", "prefilled_again": "tokens",
    "decoding_iterations": "tokens", "forked_tokens": "tokens", "given_tokens": "tokens",
    "shown_tokens": "tokens", "greedy_tokens": "tokens",
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
FEW = 12
"""Points of an evaluation's curve below which each is marked."""
POINTS = 400
"""Points of one line; longer runs are averaged in stretches."""


class Curve(NamedTuple):
    """One metric: the steps at which it was logged, its values there (None where they were not finite).

    `low` and `high` are the ends of intervals, of what was evaluated.
    """

    steps: list[float]
    values: list[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


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


def collect_looks(lines: Iterable[Mapping[str, Any]], records: Iterable[Mapping[str, Any]] = ()) -> dict[str, Curve]:
    """Every metric of `evaluations.jsonl` by split ('test/pass@1'): of a population the mean over its members.

    Args:
        records: of `metrics.jsonl`, whose axis in control is environment steps.
    """
    axis = {r["step"]: r["environment_steps"] for r in records if "step" in r and "environment_steps" in r}
    points: dict[str, list[tuple[float, float, float | None, float | None]]] = {}
    for line in lines:
        step = float(axis.get(line["step"], line["step"]))
        for name, value in flat(splits_of(line)).items():
            low, high = line.get(INTERVALS, {}).get(name.partition("/")[2], (None, None))
            points.setdefault(name, []).append((step, value, low, high))
    columns = {name: list(zip(*each)) for name, each in points.items()}
    return {name: Curve(list(x), list(y), low, high) for name, (x, y, low, high) in columns.items()}


def render(curves: Mapping[str, Curve], looks: Mapping[str, Curve] = {}) -> str:
    """All curves as HTML, group by group.

    Those that never change, are rounding alone, or repeat another are named in a line instead.

    Args:
        looks: of evaluations in the middle of training; they come first.
    """
    members = {k: c for k, c in curves.items() if k.startswith("members/")}
    own = {k: c for k, c in curves.items() if k not in members}
    constant = {k: c for k, c in own.items() if len(set(c.values)) == 1 and len(c.values) > 1}
    noise = {k: c for k, c in own.items() if k not in constant and _is_noise(k, c)}
    looks = {k: c for k, c in looks.items() if len(c.values) == 1 or not is_flat(k, c)}
    looks = {k: c for k, c in looks.items() if k not in repeats_of([looks])}
    repeats = repeats_of([{k: c for k, c in own.items() if k not in (*constant, *noise)}])
    moving = {k: c for k, c in own.items() if k not in (*constant, *noise, *repeats)}
    sections = [_group("Evaluation", [card(*chart) for chart in _charts(looks)])] if looks else []
    for title in ORDER:
        inside = {k: c for k, c in moving.items() if group_of(k) == title}
        cards = [
            card(name, lines, list(members.values()) if name == "return" else []) for name, lines in _charts(inside)
        ]
        sections += [_group(title, cards)] if cards else []
    said = [
        ("The same at every step", [f"{k} {number(c.values[0] or 0.0)}" for k, c in sorted(constant.items())]),
        ("Only rounding", [f"{k} {_about(c)}" for k, c in sorted(noise.items())]),
        ("The same curve as another", [f"{k} is {of}" for k, of in sorted(repeats.items())]),
    ]
    for title, names in said:
        listed = ", ".join(escape(name.replace("_", " ")) for name in names)
        sections += [f'<h3>{title}</h3><p class="soft">{listed}.</p>'] if names else []
    return NOTE + "".join(sections) if sections else ""


def _group(title: str, cards: Sequence[str]) -> str:
    return f'<h3>{title}</h3><div class="grid">{"".join(cards)}</div>'


NOISE = 1e-6
"""Numbers up to this are rounding, but for rates and sizes of steps, which may be as small."""
STEADY = 1e-3
"""A curve whose largest and smallest value are within this part of each other shows nothing."""


def is_flat(name: str, curve: Curve) -> bool:
    """Whether a chart of it would show nothing."""
    return len(set(curve.values)) == 1 or _is_noise(name, curve)


def _is_noise(name: str, curve: Curve) -> bool:
    """Whether a chart of it would only show rounding."""
    values = [v for v in curve.values if v is not None]
    most = max(map(abs, values))
    if name.startswith("logp_gap"):  # what sampling and training may differ by; a run ends where it is more
        return True
    small = most <= NOISE and not re.search(r"rate|lr$|delta|step", name)
    return small or max(values) - min(values) <= STEADY * most


def _about(curve: Curve) -> str:
    values = [abs(v) for v in curve.values if v is not None]
    return f"at most {max(values):.1e}" if max(values) <= NOISE or min(values) < max(values) / 2 else number(values[-1])


def repeats_of(sides: Sequence[Mapping[str, Curve]]) -> dict[str, str]:
    """Which metrics are another one, number by number, in each of several runs: by name, the one that is drawn."""
    drawn: dict[tuple[object, ...], str] = {}
    repeats: dict[str, str] = {}
    for name in sorted(dict.fromkeys(k for side in sides for k in side), key=lambda k: "/" in k):
        found = [side.get(name) for side in sides]
        first = drawn.setdefault(tuple(c and (tuple(c.steps), tuple(map(_digits, c.values))) for c in found), name)
        if first != name:
            repeats[name] = first
    return repeats


def _digits(value: float | None) -> str:
    """To what float32 holds of it: a sum of one reward is that reward."""
    return "" if value is None else f"{value:.6g}"


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


def card(title: str, members: Mapping[str, Curve], behind: Sequence[Curve] = ()) -> str:
    """A chart of one metric, or of several lines by name; `behind`: pale lines of members."""
    alone = len(members) == 1 and not behind
    series = [Series(title, *thin(curve)[:2], faint=True) for curve in behind]
    series += [line for name, curve in members.items() for line in _lines(name, curve, alone)]
    label = title.replace("_", " ")
    chart = svg_curve(series, title=label, y_label=UNITS.get(title.rpartition("/")[2], ""))
    return f'<div class="card"><header><b>{escape(label)}</b><span>{_ends(members)}</span></header>{chart}</div>'


def _lines(name: str, curve: Curve, alone: bool) -> list[Series]:
    if curve.low:
        known = any(v is not None for v in curve.low)
        low, high = (curve.low, curve.high) if known else (None, None)
        return [Series(name, curve.steps, curve.values, low, high, marked=len(curve.steps) <= FEW)]
    thinned = thin(curve)
    window = 2 * (len(thinned.steps) // 40) + 1
    name = name.replace("_", " ")
    mean = Series(name, thinned.steps, smooth(thinned.values, window) if window > 1 else thinned.values)
    return [Series(name, *thinned[:2], faint=True), mean] if alone and window > 1 else [mean]


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
