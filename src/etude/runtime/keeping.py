"""Which checkpoint stays for what it scored, beside the newest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from etude.runtime.callbacks import flat
from etude.runtime.looks import splits_of


class Kept:
    """The step whose evaluation was the highest in one metric; the first of those that are equal.

    Args:
        metric: 'split/metric', as 'test/pass@1'; of a population the mean over members.

    >>> best = Kept("test/pass@1")
    >>> [best.look(step, {"test": {"pass@1": score}}) for step, score in ((10, 0.2), (20, 0.5), (30, 0.5))]
    [True, True, False]
    >>> best.step
    20
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.step: int | None = None
        self.value = float("-inf")

    def look(self, step: int, found: Mapping[str, Mapping[str, Any]]) -> bool:
        """Take down what an evaluation after this step measured; whether it is the best so far."""
        value = flat(found).get(self.metric, float("-inf"))
        if not value > self.value:
            return False
        self.step, self.value = step, value
        return True

    def recall(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Take down the evaluations that a run wrote before it was stopped, up to its checkpoint."""
        for line in lines:
            self.look(int(line["step"]), splits_of(line))
