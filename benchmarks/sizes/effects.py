"""Effects of one size from its lines: seed by seed, and as rows with intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.evaluation.verdicts import differences
from etude.runs.beds import Bed, load_bed
from etude.runs.claim_runs import PUBLISHED
from etude.runs.contest import Row, failures, table
from etude.runtime.jsonl import JsonLines
from sizes.cases import LEVELS, SIZES, Case
from sizes.runs import ABOUT

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Effect:
    """A method against its baseline.

    Args:
        row: the paired difference of areas in units of headroom, and its verdict.
        each: [n], the same seed by seed.
    """

    row: Row
    each: NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """What a size came to.

    Args:
        about: parameters, starts, sweep and rate.
        effects: by the names of cases, of those that have runs.
        baselines: by level and baseline where it begins, its mean area, and where it ends.
        missing: why cases have no runs.
    """

    name: str
    about: Mapping[str, Any]
    effects: Mapping[str, Effect]
    baselines: Mapping[tuple[str, str], tuple[float, float, float]]
    missing: Mapping[str, str]


def measured(folder: Path, cases: Sequence[Case]) -> Measured:
    """A size from its folder."""
    about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
    lines = {level: list(JsonLines.read(folder / f"{level}.jsonl")) for level in about["levels"]}
    found: dict[str, Effect] = {}
    baselines, why = {}, {}
    ordered = sorted(cases, key=_against)
    for (level, name), some in groupby(ordered, _against):
        group = [case.name for case in some]
        own = lines.get(level, [])
        why |= {arm: said for arm, said in failures(own).items() if arm in group}
        if any(line["arm"] == name and "failed" not in line for line in own):
            bed = bed_of(level, about["levels"][level], name)
            baselines[level, name] = _along(own, name)
            found |= effects(bed, [line for line in own if line["arm"] in (name, *group)])
    return Measured(folder.name, about, found, baselines, why)


def _against(case: Case) -> tuple[str, str]:
    return case.level, case.baseline


def bed_of(level: str, about: Mapping[str, Any], baseline: str) -> Bed:
    """A bed as far as its runs are compared: the baseline, the bounds of its metric, and when it was tested."""
    bed = load_bed(LEVELS[level])
    return replace(bed, baseline=baseline, steps=about["steps"], test=replace(bed.test, every=about["every"]))


def effects(bed: Bed, lines: Lines) -> dict[str, Effect]:
    """Every arm of the lines against the bed's baseline."""
    areas: dict[str, dict[int, float]] = {}
    for line in lines:
        if "failed" not in line:
            areas.setdefault(line["arm"], {})[line["seed"]] = line["area"]
    base = areas[bed.baseline]
    room = float(bed.bounds[1] or 1.0) - float(np.mean(list(base.values())))
    return {
        row.arm: Effect(row, differences(list(own.values()), [base[seed] for seed in own]) / room)
        for row in table(bed, lines, PUBLISHED)
        for own in [areas[row.arm]]
    }


def _along(lines: Lines, arm: str) -> tuple[float, float, float]:
    """Start, area and end of an arm, means over seeds."""
    own = [line for line in lines if line["arm"] == arm and "failed" not in line]
    start, area, end = (float(np.mean(values)) for values in zip(*((x["curve"][0], x["area"], x["end"]) for x in own)))
    return start, area, end


def recorded(out: Path, cases: Sequence[Case]) -> list[Measured]:
    """Every size that has a record, by its number of parameters."""
    found = [measured(path.parent, cases) for path in out.glob(f"*/{ABOUT}")]
    return sorted(found, key=lambda size: (size.about["parameters"], size.name))


def waiting(found: Sequence[Measured]) -> list[str]:
    """Sizes that there are recipes of and no effects."""
    there = {size.name for size in found if size.effects}
    return [name for name in SIZES if name not in there]
