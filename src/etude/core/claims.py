"""What a paper says, made small enough to check here: a claim and its measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from etude.core.errors import ConfigError

Direction = Literal["higher", "lower", "equal"]
Role = Literal["core", "mechanism"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Something that is measured on both arms of a claim.

    Args:
        name: on a bed 'end' or 'area', of the bed's metric; 'ceiling' or 'rate', of a curve that saturates, fitted to
            it; 'end:pass@8' and the like, of another metric of the evaluation; 'mean:loss' and 'last:loss', of
            what training logged, over all of it or its last quarter; of a claim with a `frontier` 'frontier', the
            mean of the bed's metric over the divergences from the start that both arms reach, and 'frontier:kl', the
            largest of each. In an experiment of its own whatever that calls it.
        role: 'core' measures decide the claim; 'mechanism' measures are shown beside them.
        direction: where the claim sees the method, against its baseline: 'higher', 'lower', or 'equal'.
        smallest: the smallest difference that matters, in the measure's units; None: a tenth of what the baseline
            gains, at least a hundredth of the way between `bounds`.
        margin: the difference that the claim names, in its direction; below 0 for "not worse by more than".
        against: a number that the method is held against instead of its baseline.
        minimum: what the method's mean must reach, else its mechanism did not happen; of 'mechanism' measures.
            On a bed a baseline that logs no such metric counts as 0.
        rests_on: measures without which this one says nothing: it is void where one of them was not held.
        bounds: floor and ceiling, each None where there is none; by default those of the bed's metric for 'end' and
            'area', and else 0 and 1.
    """

    name: str
    role: Role = "core"
    direction: Direction = "higher"
    smallest: float | None = None
    margin: float = 0.0
    against: float | None = None
    minimum: float | None = None
    rests_on: tuple[str, ...] = ()
    bounds: tuple[float | None, float | None] | None = None

    def __post_init__(self) -> None:
        if self.smallest is not None and not self.smallest > 0:
            raise ConfigError(f"Measure {self.name}: smallest must be above 0, got {self.smallest}.")
        if self.minimum is not None and self.role != "mechanism":
            raise ConfigError(f"Measure {self.name}: only a measure with role 'mechanism' has a minimum.")
        if self.direction == "equal" and self.margin:
            raise ConfigError(f"Measure {self.name}: what is claimed to be equal has no margin; give `smallest`.")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says, as an experiment that can come out either way.

    A claim that is not a comparison of two runs on a bed has an experiment of its own,
    `experiments/<family>/<id>.py`, which returns pairs.

    Args:
        statement: the claim as a sentence about this experiment.
        measures: what decides it (at most three of role 'core'), and what is shown beside.
        bed: what both arms are trained on, as in 'language/compose-easy' (`etude beds`); '' for an own experiment.
        baseline: what the method is compared with: a name, with parts stacked by '+'.
        task, setting: what an own experiment is about (a bed has its own), and in words its size, its arms, its start.
        changes, baseline_changes: fields set on the method, and on the baseline, beside the bed's own.
        equal: budgets that both arms must use alike: 'steps' (in control of the environment), 'updates',
            'completions', 'tokens', or what an own experiment counts.
        sweep: values of each field that both arms are tuned over, each by its own best area (in an experiment of its
            own by the measure `learned_on`); None: the bed's sweep; empty: nothing is tuned.
        baseline_sweep: as many settings of other fields, where the baseline has not the same; None: the same.
        frontier: values of one field with which both arms are run as well, to compare what they earn at equal KL
            divergence from the start (`evaluation/frontiers.py`); none by default.
        baseline_frontier: as many values of another field, where the baseline's is another; None: the same.
        learned_on: the measure on which the baseline must have learned; None where nothing is trained. Where a proxy
            is optimised, and what counts may fall, it is the proxy: 'last:reward/reward-model'.
        paper_effect: what the paper reports.
        most_seeds: 6, 12, 24 or 48: the last look.
        runs: on a bed whose runs are far apart, how many of each arm make one score of a pair, their mean.

    Raises: ConfigError unless one to three measures are core ones, and names are given once.
    """

    statement: str
    measures: tuple[Measure, ...]
    bed: str = ""
    baseline: str = ""
    task: str = ""
    setting: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    baseline_changes: Mapping[str, Any] = field(default_factory=dict)
    equal: tuple[str, ...] = ()
    sweep: Mapping[str, Sequence[Any]] | None = None
    baseline_sweep: Mapping[str, Sequence[Any]] | None = None
    frontier: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    baseline_frontier: Mapping[str, Sequence[Any]] | None = None
    learned_on: str | None = "end"
    paper_effect: str = ""
    most_seeds: int = 48
    runs: int = 1

    def __post_init__(self) -> None:
        if self.runs < 1 or (self.runs > 1 and not self.bed):
            raise ConfigError(f"A claim on a bed may take the mean of several runs as one score, got runs={self.runs}.")
        core_measures(self.measures)
        names = [m.name for m in self.measures]
        if len(set(names)) < len(names):
            raise ConfigError(f"A claim measures each thing once, got {', '.join(names)}.")
        if bool(self.bed) != bool(self.baseline):
            raise ConfigError("A claim on a bed has a baseline, and an experiment of its own has neither.")
        if bool(self.bed) == bool(self.task):
            raise ConfigError("A claim is about a bed, or says the task that its own experiment is about.")
        if self.baseline_sweep is not None and _settings(self.baseline_sweep) != _settings(self.sweep or {}):
            raise ConfigError("Both arms must be tuned over as many settings; sweep and baseline_sweep have others.")
        self._check_frontier()

    def _check_frontier(self) -> None:
        other = self.frontier if self.baseline_frontier is None else self.baseline_frontier
        if _settings(other) != _settings(self.frontier) or bool(other) != bool(self.frontier):
            raise ConfigError("Frontiers of both arms must have as many runs; baseline_frontier has others.")
        asked = [m.name for m in self.measures if m.name.partition(":")[0] == "frontier"]
        if asked and not self.frontier and self.bed:
            raise ConfigError(
                f"{asked[0]} is measured over several settings of both arms: say them, as in "
                'frontier={"rewards.kl-penalty.coefficient": (0.01, 0.03, 0.1)}.'
            )
        if self.frontier and not (asked and self.bed):
            raise ConfigError("A frontier is traced on a bed, and a measure 'frontier' says what came of it.")


def core_measures(measures: Sequence[Measure]) -> list[Measure]:
    """Those that decide. Raises ConfigError unless there are one to three."""
    core = [m for m in measures if m.role == "core"]
    if not 1 <= len(core) <= 3:
        raise ConfigError(f"A claim has one to three core measures, got {len(core)}; give the others role='mechanism'.")
    return core


def _settings(sweep: Mapping[str, Sequence[Any]]) -> int:
    return prod(len(values) for values in sweep.values())
