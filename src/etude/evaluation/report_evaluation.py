"""The report's headline: what was measured before and after training, per split, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from etude.evaluation.page import breakable, escape, rows
from etude.evaluation.svg import Bar, svg_bars
from etude.evaluation.ticks import number

HEADLINE = ("pass@1", "accuracy", "success", "return", "fqe", "reward")
"""Which metric leads, the first that the evaluation has."""
TILES = 4

Key = tuple[str, str]
"""Split and metric."""
Found = tuple[float, float, float]
"""Value and the ends of its interval."""


def render(evaluation: Mapping[str, Any]) -> str:
    """`evaluation.json` as HTML; empty if it holds no numbers.

    Its layout is `{"before": {split: {metric: entry}}, "after": ...}`, where an entry is a number, `[value, low,
    high]` or `{"value": ..., "low": ..., "high": ...}`; either side, and the level of the splits, may be missing.
    """
    before, after = (measured(evaluation.get(when)) for when in ("before", "after"))
    keys = sorted(dict.fromkeys([*after, *before]), key=lambda k: k[0] == "train")
    if not keys:
        return ""
    named = {metric.partition("/")[0]: metric for _, metric in reversed(keys)}  # 'pass@1/greedy' leads as 'pass@1'
    lead = next((named[m] for m in HEADLINE if m in named), keys[0][1])
    tiles = [_tile(k, before.get(k), after.get(k)) for k in keys if k[1] == lead]
    keys = [k for k in keys if not _repeats(k, lead, before, after)]
    lines = [[breakable(name_of(k)), *(cell(k, side.get(k)) for side in (before, after))] for k in keys]
    table = rows(["", "before", "after"], lines)
    bars = [Bar(name_of(k), *side[k], series=i) for k in keys if _is_share(k)
            for i, side in enumerate((before, after)) if k in side]  # fmt: skip
    if bars:
        chart = svg_bars(bars, title="Before and after", legend=("before", "after"), span=(0, 1), width=460)
        table = f'<div class="beside"><div class="card">{chart}</div>{table}</div>'
    note = f'<p class="soft">{"Bars and brackets" if bars else "Brackets"} are 95% intervals.</p>'
    doubted = "".join(f'<p class="down">{escape(sentence)}</p>' for sentence in doubts(evaluation.get("after")))
    return f'<div class="tiles">{"".join(tiles[:TILES])}</div>{doubted}{table}{note}'


def doubts(side: object) -> list[str]:
    """Why numbers of one side of `evaluation.json` are not to be trusted, a sentence for those with the same reason.

    >>> doubts({"logs": {"fqe": {"value": 7.0, "reason": "it ran away"}, "logged": {"value": 1.0, "reason": ""}}})
    ['fqe: it ran away.']
    """
    of_splits = side.values() if isinstance(side, Mapping) else ()
    entries = [item for split in of_splits if isinstance(split, Mapping) for item in split.items()]
    found = dict[str, list[str]]()
    for name, entry in entries:
        if isinstance(entry, Mapping) and (why := entry.get("reason")):
            found.setdefault(why, []).append(name)
    return [f"{', '.join(names)}: {why}." for why, names in found.items()]


def _repeats(key: Key, lead: str, before: Mapping[Key, Found], after: Mapping[Key, Found]) -> bool:
    """Whether a reward is nothing but the metric that leads, as where it is 1 for what is right."""
    first = (key[0], lead)
    of = [(side[key][0], side[first][0]) for side in (before, after) if key in side and first in side]
    return key[1].partition("/")[0] == "reward" and key != first and bool(of) and all(a == b for a, b in of)


def measured(side: object) -> dict[Key, Found]:
    """One side of `evaluation.json` by split and metric; the split is '' where there is none."""
    numbers: dict[Key, Found] = {}
    for name, entry in side.items() if isinstance(side, Mapping) else ():
        if interval := _interval(entry):
            numbers["", name] = interval
        elif isinstance(entry, Mapping):
            numbers |= {(name, metric): i for metric, value in entry.items() if (i := _interval(value))}
    return numbers


def _interval(entry: object) -> Found | None:
    """An entry as value, low, high; an end that is missing or unbounded makes both ends the value itself."""
    ends = [entry.get(k) for k in ("value", "low", "high")] if isinstance(entry, Mapping) else entry
    numbers = [v for v in (ends if isinstance(ends, list) else [ends]) if _is_number(v)]
    if isinstance(ends, list) and (not ends or not _is_number(ends[0])):
        return None
    match numbers:
        case [value, low, high]:
            return value, low, high
        case [value, *_]:
            return value, value, value
    return None


def _tile(key: Key, before: Found | None, after: Found | None) -> str:
    """The change of one number, written large."""
    numbers = [_said(key, side[0]) for side in (before, after) if side]
    change = ""
    if before and after:
        gain = after[0] - before[0]
        gained = f"{100 * gain:+.1f} points" if _is_share(key) else ("+" if gain >= 0 else "") + number(gain)
        change = f'<div class="{"up" if gain >= 0 else "down"}">{gained}</div>'
    big = ' <span class="arrow">→</span> '.join(numbers)
    name = escape(name_of(key))
    return f'<div class="card tile"><div class="soft">{name}</div><div class="big">{big}</div>{change}</div>'


def cell(key: Key, side: Found | None) -> str:
    """A value with its interval; empty where there is none."""
    if side is None:
        return ""
    value, low, high = (_said(key, v) for v in side)
    return value if side[1] == side[2] else f'{value} <span class="range">[{low}, {high}]</span>'


def name_of(key: Key) -> str:
    """Split and metric in words."""
    return " ".join(key).strip().replace("_", " ")


def _is_share(key: Key) -> bool:
    """Whether a metric is a fraction of problems or samples."""
    return "@" in key[1] or key[1] in ("accuracy", "success")


def _said(key: Key, value: float) -> str:
    return f"{100 * value:.1f}%" if _is_share(key) else number(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
