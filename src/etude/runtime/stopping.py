"""When a run may end before its last step: a number that is good enough, or a clock that has run out."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from etude.core.errors import ConfigError, UnknownNameError

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
FORM = re.compile(r"\s*(?P<name>[^<>=\s]+)\s*(?P<operator>>=|<=|>|<)\s*(?P<number>[-+.0-9eE]+)\s*")


@dataclass(frozen=True)
class StopWhen:
    """A number that is good enough, as in 'test/pass@1 > 0.9' (of an evaluation) or 'reward >= 0.8' (of training)."""

    name: str
    operator: str
    number: float

    @staticmethod
    def parse(text: str) -> StopWhen:
        """Raises ConfigError for a text that is no comparison with a number."""
        found = FORM.fullmatch(text)
        try:
            assert found is not None
            return StopWhen(found["name"], found["operator"], float(found["number"]))
        except (AssertionError, ValueError):
            raise ConfigError(
                f"What a run stops at must be a metric, one of {' '.join(OPERATORS)} and a number, as in "
                f"'test/pass@1 > 0.9'; got {text!r}."
            ) from None

    def met(self, numbers: Mapping[str, float]) -> bool:
        """Whether it is so; not, while the metric has no value yet."""
        return self.name in numbers and OPERATORS[self.operator](numbers[self.name], self.number)


def numbers_of(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """What an evaluation measured by 'split/metric': of a population, the mean over members."""
    pairs = [(f"{split}/{k}", v) for split, metrics in found.items() for k, v in metrics.items()]
    return {name: fmean(v) if isinstance(v, list) else float(v) for name, v in pairs}


class Stopping:
    """Says after each step whether a run ends there, and why.

    Args:
        when: a number that is good enough; None: none.
        minutes: of this session, after which it ends; None: no limit.
        evaluated: metrics that evaluations in the middle of training measure, as 'test/pass@1'.
    """

    def __init__(
        self, when: StopWhen | None = None, minutes: float | None = None, evaluated: Iterable[str] = ()
    ) -> None:
        self.when, self.minutes, self.evaluated = when, minutes, set(evaluated)
        self.numbers: dict[str, float] = {}

    def look(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Take down what an evaluation measured: of a population, the mean over members."""
        self.numbers |= numbers_of(found)

    def why(self, metrics: Mapping[str, float], seconds: float) -> str | None:
        """A sentence if the run ends after this step.

        Args:
            metrics: of the step.
            seconds: of this session.

        Raises: UnknownNameError, with the nearest, if nothing measures what was asked for.
        """
        numbers = {**self.numbers, **metrics}
        if self.when is not None:
            known = {*metrics, *self.evaluated}
            if self.when.name not in known:
                raise UnknownNameError("metric to stop at", self.when.name, sorted(known))
            if self.when.met(numbers):
                return f"Stopped early: {self.when.name} is {numbers[self.when.name]:.4g}."
        if self.minutes is not None and seconds >= 60 * self.minutes:
            return f"Stopped early: {self.minutes:g} minutes are over."
        return None
