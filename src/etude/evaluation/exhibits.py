"""A reported fault that said nothing, brought back into etude for a moment: who answers it, and how soon.

An `Exhibit` patches etude, a part, a task or a file as the fault had it (`inject`), and trains or measures for a few
steps (`run`). What etude does about it is observed, never declared: it *stopped* with the sentence that was expected,
it *said* that sentence and went on, a metric left its band (*visible*), or it was *silent*. An answer counts up to
`WITHIN` steps after the first step at which the fault has an effect. Without the fault the same run says nothing.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from etude.core.errors import ConfigError

WITHIN = 2
"""Steps after the first effect of a fault up to which an answer counts."""
KINDS = {
    "weights": "Stale or wrong weights",
    "probabilities": "Probabilities",
    "reductions": "Reductions",
    "rewards": "Rewards and groups",
    "targets": "Advantages and targets",
    "resume": "Data and resume",
    "environments": "Environments",
    "statistics": "Statistics",
    "security": "Security",
}
"""What goes wrong, in the order of the page."""
STOPPED, SAID, VISIBLE, SILENT = "stopped", "said", "visible in a metric", "silent"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The public thread in which the fault was reported.

    Args:
        thread: 'owner/repository#number'.
        title: of the thread, as it stands there.
        pull: whether it is a pull request.
    """

    thread: str
    title: str
    pull: bool = False

    @property
    def address(self) -> str:
        """Where to read it."""
        repository, _, number = self.thread.partition("#")
        return f"https://github.com/{repository}/{'pull' if self.pull else 'issues'}/{number}"


@dataclass(frozen=True, kw_only=True)
class Band:
    """Where a metric lies in a run without the fault, ends included."""

    metric: str
    low: float
    high: float

    def left(self, metrics: Mapping[str, float]) -> bool:
        """Whether the metric is there and outside."""
        return self.metric in metrics and not self.low <= metrics[self.metric] <= self.high


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """A reported fault, how it comes back, and what is expected of etude.

    Args:
        says: one sentence, what went wrong and who was hurt.
        mechanism: one sentence, how `inject` brings it back.
        inject: the fault, for as long as the context lasts.
        run: the steps of a tiny run, or whatever else shows the fault: metrics of each step, or a sentence that etude
            tells its user.
        expect: a pattern in the sentence that answers it; empty where only a metric can.
        band: of the metric that shows it.
        begins: the first step, from 0, at which the fault has an effect.
        miss: why etude is silent about it, where that is known.

    Raises: ConfigError for an unknown kind, a report that names no thread, or nothing that is expected.
    """

    id: str
    kind: str
    report: Report
    says: str
    mechanism: str
    inject: Callable[[], AbstractContextManager[Any]]
    run: Callable[[], Iterator[Mapping[str, float] | str]]
    expect: str = ""
    band: Band | None = None
    begins: int = 0
    miss: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"{self.id}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}.")
        if not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", self.report.thread):
            raise ConfigError(f"{self.id}: thread must be 'owner/repository#number', got {self.report.thread!r}.")
        if not (self.expect or self.band or self.miss):
            raise ConfigError(f"{self.id} must expect a sentence or a metric, or say why it is missed.")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was observed.

    Args:
        verdict: one of *stopped*, *said*, *visible in a metric*, *silent*.
        answer: what was expected, as it was found; the metric, if that shows it.
        step: at which it came.
        other: sentences that nobody expected.
    """

    verdict: str = SILENT
    answer: str = ""
    step: int = 0
    other: tuple[str, ...] = ()


def observe(exhibit: Exhibit, fault: bool = True) -> Outcome:
    """Run an exhibit, with its fault or without, and say what came of it."""
    watch = _Watch(exhibit)
    with warnings.catch_warnings(record=True) as told, exhibit.inject() if fault else nullcontext():
        warnings.simplefilter("always")
        try:
            for found in exhibit.run():
                watch.heard(SAID, [found] if isinstance(found, str) else [str(w.message) for w in told])
                told.clear()
                if not isinstance(found, str):
                    watch.seen(found)
        except Exception as error:  # whatever ends the run ends it with a sentence
            watch.heard(SAID, [str(w.message) for w in told])
            watch.heard(STOPPED, [str(error) or type(error).__name__])
        else:
            watch.heard(SAID, [str(w.message) for w in told])
    return watch.outcome()


class _Watch:
    """Collects the answers of a run, step by step; the first that counts is the verdict."""

    def __init__(self, exhibit: Exhibit) -> None:
        self.exhibit, self.step = exhibit, 0
        self.answers: list[tuple[str, str, int]] = []
        self.other: list[str] = []

    def heard(self, how: str, sentences: list[str]) -> None:
        for sentence in sentences:
            match = re.search(self.exhibit.expect, sentence) if self.exhibit.expect else None
            if match:
                self.answers.append((how, match[0], self.step))
            else:
                self.other.append(sentence)

    def seen(self, metrics: Mapping[str, float]) -> None:
        band = self.exhibit.band
        if band is not None and band.left(metrics):
            self.answers.append((VISIBLE, band.metric, self.step))
        self.step += 1

    def outcome(self) -> Outcome:
        in_time = [a for a in self.answers if a[2] <= self.exhibit.begins + WITHIN]
        for how in (STOPPED, SAID, VISIBLE):
            for verdict, answer, step in in_time:
                if verdict == how:
                    return Outcome(verdict=verdict, answer=answer, step=step, other=tuple(self.other))
        late = [f"too late, at step {step}: {answer}" for _, answer, step in self.answers]
        return Outcome(other=(*self.other, *late))
