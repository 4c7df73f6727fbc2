"""What is still gained on other problems once those that are trained on are solved (arXiv:2504.20571, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from etude.core.errors import DataError

SOLVED = 0.99


@dataclass(frozen=True)
class Saturation:
    """A run from the step on at which its training problems are solved.

    Args:
        step: the first of `SOLVED` or more of its completions right.
        tested: the first evaluation that is not before it; both in training steps.
        at, best, last: test accuracy there, the largest one since, and the last one.
    """

    step: int
    tested: int
    at: float
    best: float
    last: float

    @property
    def gain(self) -> float:
        """The largest test accuracy since, less that at saturation: never below 0, so that noise alone raises it."""
        return self.best - self.at

    @property
    def rise(self) -> float:
        """The last test accuracy less that at saturation, which noise moves to neither side."""
        return self.last - self.at


def saturation(
    train: Sequence[float], steps: Sequence[int], test: Sequence[float], solved: float = SOLVED
) -> Saturation | None:
    """Where training saturates, and what comes after it; None if it never does, or no evaluation is left then.

    Args:
        train: [steps] accuracy on what is trained on, of the completions of step 1, 2, and so on.
        steps: [evaluations] training steps that were finished at each evaluation, rising.
        test: [evaluations] test accuracy.

    Raises: DataError for numbers of steps and accuracies that differ, or steps that do not rise.

    >>> found = saturation([0.5, 1.0, 0.9, 1.0], steps=[0, 2, 3, 4], test=[0.25, 0.5, 0.75, 0.625])
    >>> found.step, found.gain, found.rise
    (2, 0.25, 0.125)
    """
    at, scores = np.asarray(steps, int), np.asarray(test, float)
    if at.shape != scores.shape or at.ndim != 1 or (np.diff(at) <= 0).any():
        raise DataError(f"Evaluations need rising steps, one for each accuracy, got {at.tolist()}, {scores.tolist()}.")
    step = next((n for n, share in enumerate(train, 1) if share >= solved), None)
    since = np.flatnonzero(at >= step) if step is not None else np.array([], int)
    if step is None or not len(since):
        return None
    first = since[0]
    return Saturation(step, int(at[first]), float(scores[first]), float(scores[since].max()), float(scores[-1]))
