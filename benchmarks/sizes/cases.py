"""Which effects are measured at every size, and what a size is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.errors import ConfigError, UnknownNameError
from etude.optimizers.adam import automatic_rate
from etude.runs.beds import Bed, load_bed
from etude.runs.contest import Arm

LEVELS = {"easy": "language/compose-easy", "medium": "language/compose-medium"}
"""Beds of the smallest size; those of the others have its name behind theirs."""
SIZES = ("0.5m", "3m", "12m")
"""Millions of parameters, the smallest first."""
STARTS = {"easy": (0.25, 0.45), "medium": (0.15, 0.35)}
"""pass@1 of a start between which its effects are compared with those of other sizes: who begins elsewhere has another
way to go."""
RATE = "optimizer.lr"
FACTORS = (1.0, 2.0, 4.0)
"""Times the automatic rate, what is swept for a model that comes without a bed."""
READ = 3000
"""Steps of reading for such a model, which knows nothing of the task."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An effect: a method against a baseline, both from the same start, at the same rate.

    Args:
        level: whose bed, 'easy' or 'medium'.
        claim: whether it is one of those that other libraries repeat (docs/peers.md).
        faster: times the rate that all others have.
        label: its name; the method's if empty.
    """

    method: str
    level: str = "easy"
    baseline: str = "grpo"
    claim: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    faster: float = 1.0
    label: str = ""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.label or self.method


claim = partial(Case, claim=True)
CASES = (
    claim(method="sft", baseline="reinforce"),
    claim(method="grpo", baseline="reinforce"),
    claim(method="rloo", baseline="reinforce"),
    claim(method="dr-grpo", level="medium"),
    claim(method="lite-ppo", level="medium"),
    claim(method="dapo", level="medium"),
    *(Case(method=name) for name in ("rft", "nft", "kl-cov", "gpg", "maxrl", "forking-tokens")),
    Case(method="grpo", label="grpo, 4 updates", changes={"minibatches": 4}),
    Case(method="grpo", label="grpo, twice the rate", faster=2.0),
)
"""Six claims of docs/peers.md, and what is known to differ from GRPO as published."""


def arms(level: str, cases: Sequence[Case], rate: float) -> list[Arm]:
    """All that is trained on the bed of a level, baselines first."""
    own = [case for case in cases if case.level == level]
    baselines = [Arm(label=name, method=name) for name in dict.fromkeys(case.baseline for case in own)]
    others = [
        Arm(label=case.name, method=case.method, changes={**case.changes, **faster(case, rate)})
        for case in own
        if case.name not in {arm.label for arm in baselines}
    ]
    return [*baselines, *others]


def faster(case: Case, rate: float) -> dict[str, float]:
    """The rate of a case that has another one than the rest."""
    return {} if case.faster == 1 else {RATE: case.faster * rate}


# Sizes


@dataclass(frozen=True)
class Size:
    """A model, and what it is trained on.

    Args:
        name: of the record.
        beds: by level, all from the same start, whose sweep has rates.
    """

    name: str
    beds: Mapping[str, Bed]

    @property
    def first(self) -> Bed:
        """The bed on which the rate is chosen."""
        return next(iter(self.beds.values()))


def known(name: str) -> Size:
    """A size that there are recipes of. Raises UnknownNameError for another one."""
    if name not in SIZES:
        raise UnknownNameError("size", name, SIZES, f"There are: {', '.join(SIZES)}; --model takes any other model.")
    tail = "" if name == SIZES[0] else f"-{name}"
    return Size(name, {level: _rates_alone(load_bed(bed + tail)) for level, bed in LEVELS.items()})


def _rates_alone(bed: Bed) -> Bed:
    return replace(bed, sweep={RATE: bed.sweep[RATE]})


def given(model: str, steps: int | None = None, rate: float | None = None) -> Size:
    """A model of somebody's own, which reads the same examples as the others before it begins.

    Args:
        model: a folder, or whatever else `--model` takes.
        steps, rate: of that reading; 3,000 steps, and ten times the automatic rate, if not given.

    Raises: ConfigError if its name is that of a size.
    """
    name = "".join(c if c.isalnum() or c in "-." else "-" for c in Path(model).name)
    if name in SIZES:
        raise ConfigError(f"{model} would be recorded as {name}, which is one of etude's sizes: rename the folder.")
    own = automatic_rate(parameters(model))
    beds = {}
    for level, bed in known(SIZES[-1]).beds.items():
        assert bed.start is not None
        reads = {**bed.start.set, RATE: rate or 10 * own}
        start = replace(bed.start, model=model, set=reads, steps=steps or READ)
        sweep = {RATE: [own * factor for factor in FACTORS]}
        beds[level] = replace(bed, name=f"{LEVELS[level]}-{name}", start=start, sweep=sweep)
    return Size(name, beds)


def parameters(model: str) -> int:
    """How many numbers a model has that can be trained."""
    import torch

    from etude.policies.loading import load_model

    return int(load_model(model, torch.float32, torch.device("cpu")).num_parameters())
