"""How many tasks are resolved, in several runs, and which of them are older than the model (arXiv:2505.20411).

With c[i, j] whether task i was resolved in run j of n, and r_j the share of tasks that run j resolved,

    resolved = mean_j r_j,    SEM = sd(r) / sqrt(n)  (the sample's deviation),    pass@n = mean_i max_j c[i, j],

so that pass@n >= resolved, and they are equal where all runs resolve the same tasks. A task that was there before the
model came out may have been read by it: it is flagged, and what is resolved of those and of the fresh ones, and of each
month, is said apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import numpy as np
from numpy.typing import ArrayLike

from etude.core.errors import ConfigError, DataError
from etude.evaluation.intervals import Array, Interval
from etude.evaluation.pass_at_k import over_problems, pass_at_k


def rates(correct: ArrayLike) -> Array:
    """[runs] the share of tasks that each run resolved. correct: [tasks, runs] bool."""
    found: Array = np.asarray(correct, dtype=float).mean(0)
    return found


def standard_error(values: ArrayLike) -> float:
    """The standard error of a mean over runs: the sample's deviation over the root of their number.

    Raises DataError for fewer than two runs.

    >>> round(standard_error([0.2, 0.4, 0.4, 0.6, 0.4]), 6)  # sd = sqrt(0.08 / 4), over sqrt(5)
    0.063246
    """
    runs = np.asarray(values, dtype=float)
    if len(runs) < 2:
        raise DataError(f"A standard error over runs needs at least two of them, got {len(runs)}.")
    return float(runs.std(ddof=1) / np.sqrt(len(runs)))


def flags(created: Sequence[str], released: str) -> list[bool]:
    """Which tasks are older than a model: those created before the day on which it was released.

    Raises ConfigError for what is no date.

    >>> flags(["2025-06-30", "2025-07-01"], "2025-07-01")
    [True, False]
    """
    day = dated(released, "--released")
    return [dated(one, "created_at of a task") < day for one in created]


def dated(text: str, what: str) -> date:
    """A date as YYYY-MM-DD. Raises ConfigError for another text, which `what` is."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{what} must be a date like 2025-07-01, got {text!r}.") from None


def resolved(correct: ArrayLike, created: Sequence[str], released: str) -> dict[str, Interval]:
    """All that is said of several runs on dated tasks; intervals are over tasks.

    'resolved', 'resolved/sem' (no interval), 'pass@n' over all n runs, 'flagged' (the share of tasks), 'resolved/old'
    and 'resolved/fresh' where there are such, and 'resolved/2025-07' of each month.

    Args:
        correct: [tasks, runs] bool.
        created: [tasks] ISO dates.
        released: the date on which the model came out.

    Raises: DataError for fewer than two runs, or another number of dates; ConfigError for what is no date.
    """
    right = np.asarray(correct, dtype=bool)
    if right.ndim != 2 or len(right) != len(created):
        raise DataError(f"resolved needs [tasks, runs] and a date of each task, got {right.shape} and {len(created)}.")
    old, sem = np.array(flags(created, released)), standard_error(rates(right))
    share, runs = right.mean(1), right.shape[1]
    found = {
        "resolved": over_problems(share), "resolved/sem": Interval(sem, sem, sem),
        f"pass@{runs}": over_problems(pass_at_k(right, runs)), "flagged": over_problems(old.astype(float)),
    }  # fmt: skip
    months = {f"resolved/{m}": np.array([c[:7] == m for c in created]) for m in sorted({c[:7] for c in created})}
    parts = {"resolved/old": old, "resolved/fresh": ~old, **months}
    return found | {name: over_problems(share[which]) for name, which in parts.items() if which.any()}
