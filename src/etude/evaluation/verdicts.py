"""What an experiment says about a claim: void, equivalent, held, reversed, or inconclusive.

Arms are paired by seed. With the interval [low, high] of the mean paired difference d = arm - baseline, turned so that
above 0 is what the claim says, and `smallest`, the smallest difference that matters, one measure is, in this order,

    equivalent      -smallest < low and high < smallest
    held            low > 0
    reversed        high < 0
    inconclusive    else, with the number of seeds that would decide

Seeds are added until that is decided: looks after 6, 12, 24 and 48 pairs, each with a t interval of level
1 - 0.015. Over all four looks the error is below 5% (measured 4.9%): a claim without any effect comes out held or
reversed that often at most.

An experiment that could not have shown the effect is *void*, whatever its numbers (`gates.py`). That is a
statement about the bed, not about the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from etude.core.claims import Direction
from etude.core.errors import ConfigError, DataError
from etude.evaluation.aggregates import Array
from etude.evaluation.intervals import Interval

LOOKS = (6, 12, 24, 48)
"""Pairs of runs after which an experiment is judged."""
ALPHA = 0.015
"""Error of one look. 0.0182, the constant for looks at equal spacing (Pocock 1977), gives 5.9% over these four."""


class Outcome(StrEnum):
    """What is said about a measure or a claim."""

    VOID = "void"
    EQUIVALENT = "equivalent"
    HELD = "held"
    REVERSED = "reversed"
    INCONCLUSIVE = "inconclusive"

    @property
    def decided(self) -> bool:
        """Whether it is an answer: held, reversed or equivalent."""
        return self in (Outcome.HELD, Outcome.REVERSED, Outcome.EQUIVALENT)


@dataclass(frozen=True)
class Finding:
    """What paired differences say about one measure.

    Args:
        interval: of the mean of arm - baseline, in the measure's units, at the level of one look.
        smallest: the smallest difference that matters, in the same units.
        pairs: how many there are.
        needed: pairs that would decide if mean and spread stayed as they are; None once decided, or with one pair.
    """

    outcome: Outcome
    interval: Interval
    smallest: float
    pairs: int
    needed: int | None = None

    @property
    def units(self) -> tuple[float, float, float]:
        """Value, low and high in units of the smallest difference that matters."""
        return (
            self.interval.value / self.smallest,
            self.interval.low / self.smallest,
            self.interval.high / self.smallest,
        )


# One measure


def paired_interval(arm: ArrayLike, baseline: ArrayLike | float, *, level: float = 1 - ALPHA) -> Interval:
    """t interval of the mean of arm - baseline over pairs (Student 1908).

    mean(d) +- t(n - 1) s / sqrt(n),  d = arm - baseline

    Args:
        arm: [n], one score for each seed.
        baseline: [n], the scores of the same seeds in the same order; or a number that the arm is held against.

    With one pair nothing is known about the spread: the interval is unbounded. Raises DataError for scores that are
    not finite or not in pairs.

    >>> paired_interval([3.0, 5.0], [1.0, 1.0], level=0.5)  # d = 2, 4; t = 1, s / sqrt(2) = 1
    Interval(value=3.0, low=2.0, high=4.0, level=0.5, method='paired t')
    """
    d = differences(arm, baseline)
    value, count = float(d.mean()), len(d)
    if count < 2:
        return Interval(value, -np.inf, np.inf, level, "paired t")
    from scipy.special import stdtrit

    # rounded in the tenth digit, so that a table of quantiles of another processor gives the same record
    half = float(stdtrit(count - 1, (1 + level) / 2).round(10) * d.std(ddof=1) / np.sqrt(count))
    return Interval(value, value - half, value + half, level, "paired t")


def differences(arm: ArrayLike, baseline: ArrayLike | float) -> Array:
    """arm - baseline by pair, [n]. Raises DataError for scores that are not finite or not in pairs."""
    x = np.asarray(arm, float)
    y = np.broadcast_to(baseline, x.shape) if np.ndim(baseline) == 0 else np.asarray(baseline, float)
    if x.ndim != 1 or x.shape != y.shape or not len(x):
        raise DataError(f"Paired arms must be [seeds], one score for each of the same seeds, got {x.shape}, {y.shape}.")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DataError("Scores must be finite; leave a failed run out together with its partner, and say so.")
    return np.asarray(x - y, float)


def judge(
    arm: ArrayLike, baseline: ArrayLike | float, smallest: float, direction: Direction = "higher", margin: float = 0.0
) -> Finding:
    """What the pairs say about "arm is higher (lower) than the baseline by more than `margin`", or about "equal".

    A margin moves the line, not the arm: held beyond it, reversed on its other side; nothing is equivalent then. That
    two arms are equal is held where they are equivalent, and reversed where the interval excludes 0.

    Args:
        smallest: the smallest difference that matters, above 0, in the scores' units.
        margin: in the claim's direction; below 0 for "not worse by more than".

    Raises: ConfigError for a smallest difference that is not positive; DataError for scores that are not pairs.
    """
    if not smallest > 0:
        raise ConfigError(f"The smallest difference that matters must be above 0, got {smallest}.")
    interval = paired_interval(arm, baseline)
    low, high = (-interval.high, -interval.low) if direction == "lower" else (interval.low, interval.high)
    pairs = len(np.asarray(arm, float))
    within = -smallest < low and high < smallest
    if direction == "equal":
        outcome = Outcome.HELD if within else Outcome.REVERSED if low > 0 or high < 0 else Outcome.INCONCLUSIVE
    elif margin == 0 and within:
        outcome = Outcome.EQUIVALENT
    else:
        outcome = Outcome.HELD if low > margin else Outcome.REVERSED if high < margin else Outcome.INCONCLUSIVE
    line = 0.0 if direction == "equal" else margin
    value = -interval.value if direction == "lower" else interval.value
    needed = None if outcome.decided or pairs < 2 else pairs_needed(differences(arm, baseline), value - line, smallest)
    return Finding(outcome, interval, float(smallest), pairs, needed)


def pairs_needed(d: Array, distance: float, smallest: float) -> int:
    """Pairs after which the interval is narrow enough to be decided, if mean and spread stay as they are.

    Its half width must be below the distance from the line (held, reversed), or below what is left between the
    difference and `smallest` (equivalent), whichever is the larger.

    Args:
        d: [n], paired differences, for their spread.
        distance: of their mean from the line that decides between held and reversed.
    """
    from scipy.special import ndtri, stdtrit

    goal = max(abs(distance), smallest - abs(distance))
    spread = float(d.std(ddof=1))
    count = max(len(d), int((ndtri(1 - ALPHA / 2) * spread / goal) ** 2))  # a little too few: t is wider than normal
    while stdtrit(count - 1, 1 - ALPHA / 2) * spread / np.sqrt(count) >= goal:
        count += 1
    return count


# One arm


def score_interval(scores: ArrayLike, low: float = 0.0, high: float = 1.0, *, level: float = 0.95) -> Interval:
    """Interval of the mean of bounded scores, inside their bounds.

    Inside: the t interval of logit(m) by the delta method, s / (sqrt(n) m (1 - m)), taken back. At a bound, where all
    runs agree and nothing is left to estimate a spread from: exact (Clopper and Pearson 1934), each run one trial.

    Args:
        scores: [n], one for each run.
        low, high: the bounds of the score.

    Raises DataError for scores outside of the bounds.

    >>> score_interval([1.0] * 10).low.__round__(3)  # 0.025 ** (1 / 10)
    0.692
    """
    x = (np.asarray(scores, float) - low) / (high - low)
    if not (len(x) and (x >= 0).all() and (x <= 1).all()):
        raise DataError(f"Scores between {low} and {high} are asked for, got {np.asarray(scores).tolist()}.")
    from scipy.special import expit, logit, stdtrit

    mean, count = float(x.mean()), len(x)
    if mean in (0.0, 1.0):
        width = 1 - ((1 - level) / 2) ** (1 / count)
        ends = (0.0, width) if mean == 0 else (1 - width, 1.0)
    elif count < 2:
        ends = (0.0, 1.0)
    else:
        half = stdtrit(count - 1, (1 + level) / 2) * x.std(ddof=1) / (np.sqrt(count) * mean * (1 - mean))
        ends = (float(expit(logit(mean) - half)), float(expit(logit(mean) + half)))
    back = [low + e * (high - low) for e in ends]
    return Interval(low + mean * (high - low), back[0], back[1], level, "exact" if mean in (0.0, 1.0) else "logit")
