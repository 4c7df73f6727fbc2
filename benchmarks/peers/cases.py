"""Which claims a peer repeats, on what ground, and what it does otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from etude.core.claims import Claim, Measure
from etude.core.edit import assignments
from etude.core.worlds import World
from etude.experiments.arms import START
from etude.experiments.onpolicy.ppo_continuous import EPISODES, STEPS, TASK
from etude.experiments.preference import dpo
from etude.runs.beds import load_bed
from etude.runs.claims import claim_of
from etude.runs.training import compose_task

DRAWS = "TRL draws tokens from one generator, so arms of a seed share problems but not draws: their pairs vary more."
DEVIATION = "TRL divides by the sample deviation (n - 1) plus 1e-4, etude by the population's plus 1e-6."
NO_REINFORCE = (
    "TRL has no REINFORCE: the baseline is its GRPO trainer, advantages being rewards minus the batch's mean."
)
RUNNING = "SB3's normalisers move at every step, etude's after each rollout; SB3 divides rewards by what it saw so far."


@dataclass(frozen=True)
class Ground:
    """What both arms are trained and tested on.

    Args:
        steps, every: as of a bed.
        problems, samples: of the test.
        changes: fields of both methods.
        warm: whether the runs begin from the start of the claim's own experiment, each with pairs of its own.
        test_seed: of the draws of the test; None: each run's own.
    """

    task: str
    steps: int
    every: int
    problems: int
    samples: int = 1
    split: str = "test"
    metric: str = "pass@1"
    set: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    warm: bool = False
    test_seed: int | None = None


@dataclass(frozen=True)
class Case:
    """A claim that a peer repeats.

    Args:
        name: of the claim, and of the record.
        measures: what the peer's runs are measured by, for each measure of the claim: 'end', 'area', or
            'last:METRIC' of what its trainer logged.
        coin: values of a measure that the baseline has without a run.
        differs: what the peer does otherwise, as sentences.
        why: what is known about verdicts that are not the same.
        own: whether etude's side is run by the same driver, since the library's claim is about another world.
    """

    name: str
    library: str
    arm: str
    baseline: str
    claim: Claim
    ground: Ground
    world: World
    measures: Mapping[str, str] = field(default_factory=lambda: {"area": "area", "end": "end"})
    coin: Mapping[str, float] = field(default_factory=dict)
    differs: tuple[str, ...] = ()
    why: str = ""
    own: bool = False


def ground_of(bed_name: str) -> Ground:
    """The ground of a bed."""
    bed = load_bed(bed_name)
    task = {k: v for k, v in bed.set.items() if k.startswith("task.")}
    others = {k: v for k, v in bed.set.items() if not k.startswith("task.")}
    return Ground(
        bed.task, bed.steps, bed.test.every, bed.test.problems, bed.test.samples, bed.split, bed.metric,
        tuple(assignments(task)), tuple(assignments(others)),
    )  # fmt: skip


def on_bed(name: str, library: str, *differs: str, claim: Claim | None = None) -> Case:
    """A claim on a bed."""
    said = claim or claim_of(name)[1]
    world = load_bed(said.bed).goal.world
    ground = ground_of(said.bed)
    return Case(name, library, name, said.baseline, said, ground, world, differs=differs, own=claim is not None)


PPO = Claim(
    statement="Using each batch several times within the clip earns more than REINFORCE from as many steps.",
    bed="control/cartpole-hard",
    baseline="reinforce",
    measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
    equal=("steps",),
)
"""The claim of PPO is about language; in control the same is asked here of both libraries."""


def pendulum() -> Case:
    """PPO in its configuration for continuous actions, against its defaults for control."""
    claim = claim_of("ppo-continuous")[1]
    ground = Ground(TASK, STEPS, STEPS, EPISODES, metric="return")
    clipped = "SB3 minimises the error of the clipped value alone, etude the larger of the two errors."
    return Case(
        "ppo-continuous", "sb3", "ppo-continuous", "ppo", claim, ground, World.CONTROL, {"return": "end"},
        differs=(RUNNING, clipped),
    )  # fmt: skip


def preferences() -> Case:
    """DPO on a supervised start, against copying the chosen answers of the same pairs."""
    claim = claim_of("dpo")[1]
    ground = Ground(
        "preferences", dpo.STEPS, dpo.STEPS, problems=400, samples=2, set=("task.levels=3",),
        changes=tuple(assignments(dpo.CHANGES)), warm=True, test_seed=START,
    )  # fmt: skip
    measures = {"accuracy": "end", "pairs told apart": "last:rewards/accuracies"}
    return Case("dpo", "trl", "dpo", "sft", claim, ground, World.LANGUAGE, measures, {"pairs told apart": 0.5})


def cases() -> dict[str, Case]:
    """All of them, the cheapest first."""
    found = [
        on_bed("ppo", "sb3", claim=PPO),
        on_bed("a2c", "sb3", RUNNING),
        on_bed("trpo", "sb3", RUNNING, "SB3's step length keeps the damping in x^T F x, so its steps are shorter."),
        on_bed("sft", "trl", NO_REINFORCE),
        on_bed("grpo", "trl", NO_REINFORCE, DEVIATION, DRAWS),
        on_bed("rloo", "trl", NO_REINFORCE, DRAWS),
        preferences(),
        on_bed("dr-grpo", "trl", DEVIATION, DRAWS),
        on_bed("lite-ppo", "trl", DEVIATION, DRAWS),
        on_bed("dapo", "trl", DEVIATION, DRAWS),
        pendulum(),
    ]
    return {case.name: case for case in found}


def goal_of(ground: Ground) -> Any:
    """The task of a ground."""
    return compose_task(ground.task, list(ground.set))
