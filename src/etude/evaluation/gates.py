"""What an experiment must pass before its numbers mean anything, and the verdict on a whole claim.

An experiment whose baseline never learned, whose scores touch a ceiling, whose arms are the same run twice or had other
budgets, or whose mechanism never happened, cannot have shown what a paper says. It is *void*, and says by which gate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from etude.core.claims import Measure, core_measures
from etude.core.errors import ConfigError, DataError
from etude.evaluation.pairs import Results
from etude.evaluation.verdicts import LOOKS, Finding, Outcome, differences, judge

RESOLUTION = 0.75
"""Standard deviations of the paired difference that `smallest` must be worth. With no effect, 95% of experiments come
out equivalent at 0.75, 64% at 0.5 and 0.3% at 0.3: below, only a difference could ever be found, never its absence."""
LEAST = 0.01
"""Least smallest difference where the claim names none: of the way from floor to ceiling, or as it is where one of them
is missing."""
SHARE = (0.0, 1.0)
"""Floor and ceiling where a measure has none of its own."""
ROOM = 2.0
"""Smallest differences that the baseline must gain, and stay away from floor and ceiling."""


class Gate(StrEnum):
    """Why an experiment could not have shown its effect."""

    LEARNED = "the baseline did not learn"
    ROOM = "the baseline ended at a floor or ceiling"
    MECHANISM = "the mechanism did not happen"
    IDENTICAL = "the arms are identical"
    SPREAD = "the seeds change nothing"
    BUDGET = "the budgets are unequal"
    RESTS = "a measure rests on one that was not held"
    RESOLUTION = "the bed cannot resolve the smallest difference"


@dataclass(frozen=True)
class Void:
    """A gate that was not passed, and the numbers that say so as a sentence."""

    gate: Gate
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """What an experiment says about a claim.

    Args:
        findings: of each measure, the core ones first.
        voids: gates that were not passed; with one, the outcome is void.
        rests: measures that say nothing because one that they rest on was not held.
    """

    outcome: Outcome
    findings: Mapping[str, Finding]
    voids: tuple[Void, ...] = ()
    rests: Mapping[str, Void] = field(default_factory=dict)

    def outcome_of(self, measure: str) -> Outcome:
        """The outcome of one measure."""
        return Outcome.VOID if measure in self.rests else self.findings[measure].outcome

    def to_json(self) -> dict[str, Any]:
        """JSON values: outcome, gates, and for each measure its outcome, interval, smallest difference and pairs."""
        return {
            "verdict": self.outcome.value,
            "void": [{"gate": v.gate.name.lower(), "why": v.sentence} for v in self.voids],
            "measures": {name: self._measure(name) for name in self.findings},
        }

    def _measure(self, name: str) -> dict[str, Any]:
        found, void = self.findings[name], self.rests.get(name)
        return {
            "verdict": self.outcome_of(name).value, "difference": found.interval.to_json(), "smallest": found.smallest,
            "pairs": found.pairs, "needed": found.needed, **({"void": void.sentence} if void else {}),
        }  # fmt: skip


def conclude(
    measures: Sequence[Measure], results: Results, *, learned_on: str | None, equal: Sequence[str] = ()
) -> Verdict:
    """The verdict on a claim after the pairs that there are.

    Void if a gate is not passed; reversed if a core measure is; equivalent if one is (so that not all hold);
    inconclusive if one is; held if all are.

    Args:
        learned_on: the measure on which the baseline must have learned: what the claim is about, or a proxy where that
            is what is optimised; None where nothing is trained.
        equal: budgets that both arms must have used alike.

    Raises: ConfigError for no core measure or more than three; DataError for results that lack something named.
    """
    core = core_measures(measures)
    gain = _gain(core, results, learned_on)
    findings = {m.name: _judge(m, results, gain) for m in (*core, *(m for m in measures if m not in core))}
    rests = _rests(measures, findings)
    voids = [*_same(core, results), *_budgets(results, equal)]
    told = findings.get(str(learned_on), findings[core[0].name])
    voids += _learned(str(learned_on), gain, told.smallest, results)
    voids += [v for m in core for v in _room(m, findings[m.name].smallest, results)]
    voids += [v for m in measures if (v := _happened(m, results))]
    voids += [rests[m.name] for m in core if m.name in rests]
    outcome = Outcome.VOID if voids else overall([findings[m.name].outcome for m in core])
    return Verdict(outcome, findings, tuple(voids), rests)


def standing(measure: Measure, baseline: Results, learned_on: str) -> list[Void]:
    """What is void whatever the method: a baseline that gains too little, or that is at a floor or ceiling.

    Args:
        measure: what a claim would be about.
        baseline: what the baseline came to, and its start; of the other arm nothing is read.
        learned_on: the measure on which the baseline must have learned.
    """
    gain = _gain([measure], baseline, learned_on)
    smallest = _smallest(measure, gain)
    return [*_learned(learned_on, gain, smallest, baseline), *_room(measure, smallest, baseline)]


def _judge(measure: Measure, results: Results, gain: float | None) -> Finding:
    """What the pairs say about one measure."""
    smallest = _smallest(measure, gain)
    against = _of(results.baseline, measure.name) if measure.against is None else measure.against
    return judge(_of(results.arm, measure.name), against, smallest, measure.direction, measure.margin)


def _smallest(measure: Measure, gain: float | None) -> float:
    """The smallest difference that matters: the measure's own, or by what the baseline gained."""
    return measure.smallest or max(LEAST * _span(measure), abs(gain or 0.0) / 10)


def _span(measure: Measure) -> float:
    low, high = measure.bounds or SHARE
    return 1.0 if low is None or high is None else high - low


def overall(core: Sequence[Outcome]) -> Outcome:
    """The claim's outcome from those of its core measures, all of which must hold.

    >>> str(overall([Outcome.HELD, Outcome.INCONCLUSIVE])), str(overall([Outcome.EQUIVALENT, Outcome.INCONCLUSIVE]))
    ('inconclusive', 'equivalent')
    """
    order = (Outcome.VOID, Outcome.REVERSED, Outcome.EQUIVALENT, Outcome.INCONCLUSIVE, Outcome.HELD)
    return next(outcome for outcome in order if outcome in core)


def sequential(
    results: Callable[[int], Results],
    measures: Sequence[Measure],
    *,
    learned_on: str | None,
    equal: Sequence[str] = (),
    most: int = LOOKS[-1],
    stop: int | None = None,
) -> Verdict:
    """Look after 6, 12, 24, 48 pairs, and stop at the first look that decides or is void.

    An experiment that is undecided at the end is void if its bed could never have told `smallest` from nothing.

    Args:
        results: what the first n pairs came to.
        most: pairs to stop at, one of the looks.
        stop: pairs to leave it at even if undecided, one of the looks; by default only the most.
    """
    last = most if stop is None else min(stop, most)
    if missing := {most, last} - {*LOOKS}:
        raise ConfigError(f"Seeds are added at looks of {', '.join(map(str, LOOKS))}; got {min(missing)} as the most.")
    for pairs in LOOKS[: LOOKS.index(last) + 1]:
        seen = results(pairs)
        verdict = conclude(measures, seen, learned_on=learned_on, equal=equal)
        if verdict.outcome is not Outcome.INCONCLUSIVE:
            return verdict
    if last < most:
        return verdict
    coarse = tuple(v for m in core_measures(measures) if (v := _resolution(m, verdict.findings[m.name], seen)))
    return replace(verdict, outcome=Outcome.VOID, voids=coarse) if coarse else verdict


def _of(scores: Mapping[str, Sequence[float]], name: str) -> Sequence[float]:
    if name not in scores:
        raise DataError(f"The runs did not measure {name}; they measured {', '.join(sorted(scores)) or 'nothing'}.")
    return scores[name]


def _gain(core: Sequence[Measure], results: Results, name: str | None) -> float | None:
    """What the baseline gained over its start; None where nothing has to be learned.

    More is better, unless it is what the claim is about and sees lower; where it sees both arms alike, either is.
    """
    if name is None:
        return None
    gain = float(np.mean(_of(results.baseline, name)) - np.mean(_of(results.start, name)))
    direction = next((m.direction for m in core if m.name == name), "higher")
    return {"higher": gain, "lower": -gain, "equal": abs(gain)}[direction]


def _learned(name: str, gain: float | None, smallest: float, results: Results) -> list[Void]:
    """The baseline must gain more than twice the smallest difference."""
    if gain is None or gain > ROOM * smallest:
        return []
    start, end = np.mean(results.start[name]), np.mean(results.baseline[name])
    went = f"{name} of the baseline went from {start:.4g} to {end:.4g}"
    least = f"{ROOM:g} times {smallest:.4g}, the smallest difference that matters"
    why = f"{went}, which is worse, not better by" if gain < 0 else f"{went}, by less than"
    return [Void(Gate.LEARNED, f"{why} {least}: another bed, or a tuned rate.")]


def _room(measure: Measure, smallest: float, results: Results) -> list[Void]:
    """What the arm is held against must lie away from floor and ceiling, so that there is room on both sides of it."""
    end = float(np.mean(results.baseline[measure.name])) if measure.against is None else measure.against
    for bound, what in zip(measure.bounds or SHARE, ("floor", "ceiling")):
        if bound is not None and abs(end - bound) < ROOM * smallest:
            why = (
                f"{measure.name} of the baseline ended at {end:.4g}, within {ROOM:g} times {smallest:.4g} of its {what}"
            )
            return [Void(Gate.ROOM, f"{why}: a bed that is {'easier' if what == 'floor' else 'harder'}.")]
    return []


def _same(core: Sequence[Measure], results: Results) -> list[Void]:
    """Arms whose runs are the same, or whose difference is the same with every seed, tell nothing."""
    arm, baseline = results.weights
    if arm and list(arm) == list(baseline):
        return [Void(Gate.IDENTICAL, "Each run of the method ended with its baseline's weights: it changed nothing.")]
    voids = []
    for name in (m.name for m in core if m.against is None):
        gaps = differences(results.arm[name], results.baseline[name])
        if not gaps.any():
            voids.append(Void(Gate.IDENTICAL, f"Both arms have the same {name} with every seed."))
        elif len(gaps) > 1 and np.ptp(gaps) == 0:
            why = f"{name} differs by {gaps[0]:.4g} with every seed"
            voids.append(Void(Gate.SPREAD, f"{why}: let the seed draw what the claim is about."))
    return voids


def _budgets(results: Results, equal: Sequence[str]) -> list[Void]:
    """Budgets that the claim calls equal must be, as counted."""
    voids = []
    for name in equal:
        if name not in results.budgets:
            raise DataError(f"The runs did not count {name}; they counted {', '.join(results.budgets) or 'nothing'}.")
        arm, baseline = (np.asarray(b, float) for b in results.budgets[name])
        if not np.array_equal(arm, baseline):
            why = f"The method used {arm.mean():.6g} {name}, its baseline {baseline.mean():.6g}"
            voids.append(Void(Gate.BUDGET, f"{why}: give both the same, or claim something at equal cost."))
    return voids


def _happened(measure: Measure, results: Results) -> Void | None:
    """What the method does must be seen to happen."""
    reached = float(np.mean(_of(results.arm, measure.name)))
    if measure.minimum is None or reached >= measure.minimum:
        return None
    why = f"{measure.name} of the method is {reached:.4g}, below {measure.minimum:.4g}"
    return Void(Gate.MECHANISM, f"{why}: what the method does did not happen here.")


def _rests(measures: Sequence[Measure], findings: Mapping[str, Finding]) -> dict[str, Void]:
    """Measures that rest on one that was not held, themselves or through others."""
    voids: dict[str, Void] = {}
    while True:
        lost = {m.name for m in measures if m.name in voids or findings[m.name].outcome is not Outcome.HELD}
        more = {m.name: b for m in measures for b in m.rests_on if b in lost and m.name not in voids}
        if not more:
            return voids
        voids |= {n: Void(Gate.RESTS, f"{n} rests on {b}, which was not held.") for n, b in more.items()}


def _resolution(measure: Measure, finding: Finding, results: Results) -> Void | None:
    """An undecided measure whose smallest difference is too small for the spread could only ever be found different."""
    against = results.baseline[measure.name] if measure.against is None else measure.against
    spread = float(differences(results.arm[measure.name], against).std(ddof=1))
    if finding.outcome.decided or finding.smallest >= RESOLUTION * spread:
        return None
    why = f"{measure.name} differs between pairs by {spread:.4g} (standard deviation)"
    return Void(
        Gate.RESOLUTION, f"{why}: {finding.smallest:.4g} is too small to be told from nothing with {LOOKS[-1]} pairs."
    )
