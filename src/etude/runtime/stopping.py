"""When a run may end before its last step: a number that is good enough or improves no more, or a clock."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etude.core.errors import ConfigError, UnknownNameError
from etude.runtime.callbacks import flat
from etude.runtime.looks import Best, best, splits_of

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
FORM = re.compile(r"\s*(?P<name>[^<>=\s]+)\s*(?P<operator>>=|<=|>|<)\s*(?P<number>[-+.0-9eE]+)\s*")
WAITING = re.compile(r"\s*no\s+(?P<how>better|higher|lower)\s+(?P<name>[^<>=\s]+)\s+in\s+(?P<count>[1-9][0-9]*)\s*")


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
                f"'test/pass@1 > 0.9', or patience, as in 'no better test/pass@1 in 5'; got {text!r}."
            ) from None

    def met(self, numbers: Mapping[str, float]) -> bool:
        """Whether it is so; not, while the metric has no value yet."""
        return self.name in numbers and OPERATORS[self.operator](numbers[self.name], self.number)


@dataclass
class Patience:
    """A number that improves no more, as in 'no better test/pass@1 in 5' evaluations or 'no lower loss in 20' steps.

    Args:
        count: values in a row, none of them better than the best before, after which the run ends.
        lower: whether lower is better.
    """

    name: str
    count: int
    lower: bool = False
    best: float = math.nan
    since: int = 0
    fresh: bool = False
    """Whether the last value was not asked about yet."""

    @staticmethod
    def parse(text: str) -> Patience | None:
        """None for a text that is no such sentence. Raises ConfigError for 'no better loss'."""
        found = WAITING.fullmatch(text)
        if found is None:
            return None
        if found["how"] == "better" and "loss" in found["name"]:
            raise ConfigError(f"'no better' takes higher for better: for a loss say 'no lower {found['name']} in N'.")
        return Patience(found["name"], int(found["count"]), found["how"] == "lower")

    def see(self, value: float) -> None:
        """Take down the next value; one that is not a number is no better than any."""
        better = math.isnan(self.best) or (value < self.best if self.lower else value > self.best)
        self.fresh = True
        if better and not math.isnan(value):
            self.best, self.since = value, 0
        else:
            self.since += 1

    def met(self) -> bool:
        """Whether it is time, as of a value that is new."""
        fresh, self.fresh = self.fresh, False
        return fresh and self.since >= self.count


def parse_stop(text: str) -> StopWhen | Patience:
    """What a run stops at. Raises ConfigError for a text that is neither a comparison nor patience."""
    return Patience.parse(text) or StopWhen.parse(text)


def best_by(lines: Sequence[Mapping[str, Any]], when: StopWhen | Patience | None) -> Best | None:
    """The best of logged evaluations: by the metric that patience waits for if they have it, else by the first."""
    found = best(lines, when.name, when.lower) if isinstance(when, Patience) else None
    return found or best(lines)


class Stopping:
    """Says after each step whether a run ends there, and why.

    Args:
        when: a number that is good enough, or improves no more; None: none.
        minutes: of this session, after which it ends; None: no limit.
        evaluated: metrics that evaluations in the middle of training measure, as 'test/pass@1'.
        until: training steps after which it ends for now; None: none but the last.
    """

    def __init__(
        self, when: StopWhen | Patience | None = None, minutes: float | None = None, evaluated: Iterable[str] = (),
        until: int | None = None,
    ) -> None:  # fmt: skip
        self.when, self.minutes, self.evaluated, self.until = when, minutes, set(evaluated), until
        self.numbers: dict[str, float] = {}

    def look(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        """Take down what an evaluation measured: of a population, the mean over members."""
        numbers = flat(found)
        self.numbers |= numbers
        self._see(numbers)

    def again(self, metrics: Iterable[Mapping[str, Any]], evaluations: Iterable[Mapping[str, Any]]) -> None:
        """Take down what a run that goes on has logged so far, so that patience counts as if it had never stopped."""
        if not isinstance(self.when, Patience):
            return
        for line in metrics:
            self._see(line)
        for line in evaluations:
            self.look(splits_of(line))
        self.when.fresh = False

    def _see(self, numbers: Mapping[str, Any]) -> None:
        if isinstance(self.when, Patience) and self.when.name in numbers:
            value = numbers[self.when.name]
            self.when.see(math.nan if value is None else float(value))

    def why(self, metrics: Mapping[str, float], seconds: float, step: int) -> str | None:
        """A sentence if the run ends after this step.

        Args:
            metrics: of the step.
            seconds: of this session.
            step: training steps done so far.

        Raises: UnknownNameError, with the nearest, if nothing measures what was asked for.
        """
        if self.when is not None:
            known = {*metrics, *self.evaluated, *self.numbers}
            if self.when.name not in known:
                raise UnknownNameError("metric to stop at", self.when.name, sorted(known))
            self._see(metrics)
            if sentence := self._reached({**self.numbers, **metrics}):
                return sentence
        if self.minutes is not None and seconds >= 60 * self.minutes:
            return f"Stopped early: {self.minutes:g} minutes are over."
        if self.until is not None and step >= self.until:
            return f"Stopped early: it was to go to step {self.until} for now."
        return None

    def _reached(self, numbers: Mapping[str, float]) -> str | None:
        if isinstance(self.when, StopWhen) and self.when.met(numbers):
            return f"Stopped early: {self.when.name} is {numbers[self.when.name]:.4g}."
        if isinstance(self.when, Patience) and self.when.met():
            unit = "evaluations" if self.when.name in self.numbers else "steps"
            better = "lower" if self.when.lower else "higher"
            was = f"{self.when.name} was not {better} than {self.when.best:.4g}"
            return f"Stopped early: {was} in {self.when.since} {unit}."
        return None
