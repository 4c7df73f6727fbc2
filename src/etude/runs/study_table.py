"""What follows from the runs of a study: gains, differences to the baseline, and levels apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from etude.core.errors import ConfigError
from etude.evaluation.intervals import Interval
from etude.evaluation.verdicts import paired_interval
from etude.runs.claim_runs import PUBLISHED
from etude.runs.contest import failures

if TYPE_CHECKING:
    from etude.runs.studies import Study

LEVEL = 0.95
"""Of the intervals."""
LEVELS = ("levels", "levels_at_k")
"""What lines say of each level of a test: the share that is right, and pass@k."""
Runs = Mapping[int, Mapping[str, Any]]
"""Lines of an arm by seed."""


def table(study: Study, bed: str, lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each recipe, the baseline first: what it gained on a bed, and how much more than the baseline.

    Both are of the bed's metric, with 95% intervals over pairs of the same seed: after and before, and recipe and
    baseline after. `fell` is how far a run ends below the best of its evaluations, and `tokens` how many it generated
    in training, means over seeds. Where the test has problems of several levels, `levels` has the same of the share
    that is right of each, and `levels_at_k` of pass@k, if there are k samples of a problem. Recipes that could not be
    trained have their reason in `failed`.
    """
    runs: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        if line["setting"] == PUBLISHED and "failed" not in line:
            runs.setdefault(line["arm"], {})[line["seed"]] = line
    why, base = failures(lines), runs.get(study.baseline, {})
    if not base:
        raise ConfigError(f"{study.baseline} could not be trained on {bed}: {why.get(study.baseline, 'no runs')}")
    rows: list[dict[str, Any]] = []
    for arm in (study.baseline, *study.recipes):
        if arm in runs:
            rows.append({"bed": bed, "recipe": arm, **_row(runs[arm], None if arm == study.baseline else base)})
        elif arm in why:
            rows.append({"bed": bed, "recipe": arm, "failed": why[arm]})
    return rows


def _row(own: Runs, base: Runs | None) -> dict[str, Any]:
    seeds = [seed for seed in sorted(own) if base is None or seed in base]
    row: dict[str, Any] = {
        "seeds": len(seeds),
        **_gained(own, base, seeds, lambda line: (line["curve"][0], line["end"])),
        "fell": round(sum(max(own[seed]["curve"]) - own[seed]["curve"][-1] for seed in seeds) / len(seeds), 4),
    }
    if all("tokens" in own[seed] for seed in seeds):
        row["tokens"] = round(sum(own[seed]["tokens"] for seed in seeds) / len(seeds))
    for what in LEVELS:
        for level in own[seeds[0]].get(what, {}):
            row.setdefault(what, {})[level] = _gained(own, base, seeds, partial(_of_level, what, level))
    return row


def _of_level(what: str, level: str, line: Mapping[str, Any]) -> tuple[float, float]:
    before, after = line[what][level]
    return before, after


def _gained(
    own: Runs, base: Runs | None, seeds: Sequence[int], of: Callable[[Mapping[str, Any]], tuple[float, float]]
) -> dict[str, Any]:  # fmt: skip
    """After training, its gain, and the difference to the baseline, of what `of` says of a run before and after."""
    start, end = zip(*(of(own[seed]) for seed in seeds))
    row: dict[str, Any] = {"end": round(sum(end) / len(end), 4)}
    row["gain"] = _ends(paired_interval(end, start, level=LEVEL))
    if base is not None:
        row["against"] = _ends(paired_interval(end, [of(base[s])[1] for s in seeds], level=LEVEL))
    return row


def _ends(found: Interval) -> list[float]:
    return [round(x, 4) for x in (found.value, found.low, found.high)]


def grid(study: Study, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The bed's metric after training: a line for each level of the second factor, a column for each of the first.

    Empty unless there are two factors. The first line names the columns; cells of recipes that failed are empty.
    """
    if len(study.factors) != 2:
        return []
    (_, columns), (corner, lines) = study.factors.items()
    ends = {row["recipe"]: f"{row['end']:.3f}" for row in rows if "end" in row}
    return [[corner, *columns], *([line, *(ends.get(f"{c}, {line}", "") for c in columns)] for line in lines)]
