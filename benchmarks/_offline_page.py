"""The page of `which_offline.py`: what each method came to on each data set, and what the sets are like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.core.registry import files
from etude.evaluation.intervals import Interval, bootstrap_interval
from etude.evaluation.plots import interval_bars
from etude.evaluation.verdicts import paired_interval
from etude.runtime.jsonl import JsonLines

NAME = "which-offline-methods"
CLONING = ("bc", "bc-discrete")
"""What everything else is held against."""
TEXT = """# Which offline methods?

{first}

## How to read it

Every method learns from the same logs, made here, for {updates:,} updates with networks of 64-64, batches of 64 and a
rate of 1e-3; all else is as published, nothing was tuned, and a method that was made for larger data, longer training
or other rewards cannot show here what it is for. {seeds} seeds each draw their own data. Scores are 0 for chance and
100 for who made the best of the data without what disturbs him; they are returns of likeliest actions, played at the
end (last, not best), and say nothing beside scores of D4RL or Minari. A cell is the mean with its 95% interval
(Student's t over seeds); *all* is the interquartile mean over seeds and sets with its stratified bootstrap interval,
and *beside cloning* the mean difference to cloning on the same data, in pairs of seeds: **better** and **worse** where
its interval is on one side of 0. Of so many methods one in twenty is so by chance. Where a method cannot learn from a
set, *all* and *beside cloning* are of the others.

Some have nothing of their own to do here: `ss-orl` labels steps without rewards, these all have one, so it is `td3-bc`;
`recoil` does not read rewards; `d4rl` is `iql` as it is set in mazes, `tq-saco` the value-based method of its study.

## The data

{sets}

TQ is how good episodes are, from 0 (chance) to 1 (who scores 100), SACo how many pairs of state and action a set covers
of those that all sets of its task cover together, PSV how far good episodes are above usual ones (near 0 cloning is
enough), *effective* as how many episodes count once they are weighted by return
([your own logs](your-logs.md): `etude data info` prints them for yours). Means over seeds.

{tables}
{missing}
Made by `python benchmarks/which_offline.py` in {hours:.1f} hours of one core; the runs are in `studies/offline/`.
"""


class Arm(NamedTuple):
    """A method's scores, [seeds, sets]; NaN where a run is missing."""

    scores: np.ndarray
    whole: Interval
    gap: Interval | None


def write(out: Path, docs: Path, about: Mapping[str, str]) -> Path:
    """The page and its pictures, from the lines in `out`."""
    lines = list(JsonLines.read(out / "runs.jsonl"))
    latest = max(line["updates"] for line in lines)
    lines = [line for line in lines if line["updates"] == latest]
    runs, seeds = [x for x in lines if "score" in x], sorted({x["seed"] for x in lines})
    sets = [name for name in about if any(x["made"] == name for x in runs)]
    (docs / "images").mkdir(parents=True, exist_ok=True)
    tables, first = [], []
    for title, own in (("Numbers", CLONING[0]), ("Choices", CLONING[1])):
        here = [s for s in sets if any(x["method"] == own and x["made"] == s for x in runs)]
        if here:
            arms = compared(runs, here, seeds, own)
            tables.append(section(title, arms, here, docs, own))
            first.append(said(title, arms, own))
    text = TEXT.format(
        first="\n".join(first), updates=latest, seeds=len(seeds), sets=described(out, sets, about),
        tables="\n".join(tables), missing=left_out(lines), hours=sum(x["seconds"] for x in runs) / 3600,
    )  # fmt: skip
    path = docs / f"{NAME}.md"
    path.write_text(text, encoding="utf-8")
    return path


def compared(runs: Sequence[Mapping[str, Any]], sets: Sequence[str], seeds: Sequence[int], own: str) -> dict[str, Arm]:
    """Methods on these sets, the highest mean first."""
    tables: dict[str, np.ndarray] = {}
    for line in runs:
        if line["made"] in sets:
            table = tables.setdefault(line["method"], np.full((len(seeds), len(sets)), np.nan))
            table[seeds.index(line["seed"]), sets.index(line["made"])] = line["score"]
    found = {}
    for name, table in tables.items():
        there = ~np.isnan(table).any(0)
        rows = ~np.isnan(table[:, there]).any(1)
        whole = bootstrap_interval(table[:, there]) if there.any() else Interval(*[np.nan] * 3, 0.95, "none")
        base = tables[own][:, there]
        gap = paired_interval(table[rows][:, there].mean(1), base[rows].mean(1), level=0.95) if there.any() else None
        found[name] = Arm(table, whole, gap if name != own else None)
    return dict(sorted(found.items(), key=lambda item: -np.nanmean(item[1].scores)))


def section(title: str, arms: Mapping[str, Arm], sets: Sequence[str], docs: Path, own: str) -> str:
    """A picture and a table."""
    picture = docs / "images" / f"{NAME}-{title.lower()}.png"
    bars = dict(sorted(((n, arm.whole) for n, arm in arms.items()), key=lambda item: -item[1].value))
    interval_bars(bars, picture, x_label="interquartile mean of scores over seeds and sets", title=title.lower())
    head = ["method", *sets, "all", f"beside {own}", ""]
    rows = [head, ["---"] * len(head)]
    for name, arm in arms.items():
        link = f"[{name}](methods/{name}.md)" if name in files("methods") else name
        cells = [_cell(column) for column in arm.scores.T]
        rows.append([link, *cells, _shown(arm.whole), "" if arm.gap is None else _shown(arm.gap), verdict(arm.gap)])
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    return f"## {title}\n\n![{title}](images/{picture.name})\n\n{text}\n"


def verdict(gap: Interval | None) -> str:
    """Which side of cloning it is on, if its interval is on one."""
    if gap is None or gap.low <= 0 <= gap.high:
        return ""
    return "**better**" if gap.low > 0 else "**worse**"


def _cell(scores: np.ndarray) -> str:
    there = scores[~np.isnan(scores)]
    return _shown(paired_interval(there, 0.0, level=0.95)) if len(there) else "-"


def _shown(interval: Interval) -> str:
    if not np.isfinite([interval.low, interval.high]).all():
        return f"{interval.value:.0f}"
    return f"{interval.value:.0f} ({interval.low:.0f} to {interval.high:.0f})"


def said(title: str, arms: Mapping[str, Arm], own: str) -> str:
    """What came of it, in a sentence."""
    by = {v: [n for n, arm in arms.items() if verdict(arm.gap) == f"**{v}**"] for v in ("better", "worse")}
    best = max(arms, key=lambda name: arms[name].whole.value)
    better = f" ({', '.join(by['better'])})" if by["better"] else ""
    return (
        f"- **{title}**: of {len(arms) - 1} methods {len(by['better'])} were better than cloning{better} over all "
        f"sets, {len(by['worse'])} worse; the highest interquartile mean is that of {best}, "
        f"{_shown(arms[best].whole)}, and cloning's is {_shown(arms[own].whole)}."
    )


def described(out: Path, sets: Sequence[str], about: Mapping[str, str]) -> str:
    """What the sets are like."""
    lines = list(JsonLines.read(out / "sets.jsonl"))
    names = ("steps", "episodes", "return", "TQ", "SACo", "PSV", "effective episodes")
    rows = [["set", "who made it", *names[:-1], "effective"], ["---"] * (len(names) + 2)]
    for made in sets:
        own = [line for line in lines if line["made"] == made]
        means = [float(np.mean([line[name] for line in own])) for name in names]
        shown = [f"{x:,.0f}" for x in means[:3]] + [f"{x:.2f}" for x in means[3:5]] + [f"{means[5]:.3f}"]
        rows.append([made, about[made], *shown, f"{means[6]:.0f}"])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def left_out(lines: Sequence[Mapping[str, Any]]) -> str:
    """Why runs are missing, once for each method."""
    why = {line["method"]: re.sub(r"\S+logs\.npz", "the file", line["error"]) for line in lines if "error" in line}
    return (
        "\n".join(f"\n{name} was left out where this was said: {error}" for name, error in sorted(why.items())) + "\n"
    )
