"""The claim of PPO in control: the clip, against an adaptive penalty, a fixed one and none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.core.kinds import RolloutMethod
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.normalised import Ground, scores, used_steps
from etude.objectives.surrogate import Surrogate
from etude.regularizers.behaviour_kl import AdaptiveBehaviourKL, BehaviourKL

GROUNDS = (
    Ground("cartpole", 20_480, floor=18.2, top=500.0, changes={"gust": 20.0}),
    Ground("four-rooms", 20_480, floor=0.159, top=1.0, changes={"slip": 0.1}, episodes=400),
    Ground("Acrobot-v1", 10_240, floor=-500.0, top=-70.0, episodes=50),
)
MINIBATCHES = 8
"""Of 64 steps, as in the paper."""


def variants() -> dict[str, RolloutMethod]:
    """PPO as it is, and with other bounds in place of its clip."""
    ppo: Any = get_method("ppo", World.CONTROL).replace(minibatches=MINIBATCHES)
    free = ppo.replace(objective=Surrogate())
    return {
        "clip": ppo,
        "adaptive": free.replace(regularizers=(*ppo.regularizers, AdaptiveBehaviourKL(beta=1.0, target=0.01))),
        "fixed": free.replace(regularizers=(*ppo.regularizers, BehaviourKL(beta=1.0))),
        "none": free,
    }


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Mean scores over the tasks, each arm a population on each; 'worst task' is the least of a seed's scores."""
    found = scores(variants(), GROUNDS, seeds, watched=("clip_fraction",))
    clip, none, others = found["clip"], found["none"], ("adaptive", "fixed", "none")
    arm = {f"score against {name}": clip.end for name in others}
    baseline = {f"score against {name}": found[name].end for name in others}
    arm |= {"adaptive against fixed": found["adaptive"].end, "fixed against none": found["fixed"].end}
    baseline |= {"adaptive against fixed": found["fixed"].end, "fixed against none": none.end}
    arm |= {"worst task against none": clip.worst, "clipped": clip.watched("clip_fraction")}
    baseline |= {"worst task against none": none.worst, "clipped": [0.0] * len(seeds)}
    start = {name: found["fixed"].start for name in baseline}
    return pairs(seeds, arm, baseline, start=start, budgets=used_steps(found, len(seeds)))
