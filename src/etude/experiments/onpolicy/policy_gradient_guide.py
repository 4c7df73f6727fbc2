"""The claim of the guide to policy gradients: its six methods on common ground."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from etude.core.kinds import RolloutMethod
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.evaluation.pairs import Pair
from etude.experiments.arms import pairs
from etude.experiments.normalised import Ground, scores, used_steps
from etude.policies.control.networks import MLP

GROUNDS = (
    Ground("cartpole", 20_480, floor=18.2, top=500.0, changes={"gust": 20.0}),
    Ground("Acrobot-v1", 10_240, floor=-500.0, top=-70.0, episodes=50),
)
NETWORK = MLP(hidden=(32, 32), activation="silu")
"""Of all policies and critics: two layers for runs a hundred times shorter than the guide's."""
RATES = {"reinforce": 3e-2, "a2c": 1e-2, "ppo": 3e-2, "v-mpo": 3e-2}
"""The best of 3e-3, 1e-2 and 3e-2 on the first task, seeds 0 to 2; the guide's 3e-4 is for 8 million steps."""
SIX = ("reinforce", "a2c", "npg", "trpo", "ppo", "v-mpo")
REGULARISED = ("trpo", "ppo", "v-mpo")


def on_common_ground(name: str) -> RolloutMethod:
    """A method with the settings that the guide gives to all of its six, its own rollouts and epochs kept."""
    method, guide = (get_method(n, World.CONTROL) for n in (name, "policy-gradient-guide"))
    assert isinstance(method, RolloutMethod) and isinstance(guide, RolloutMethod)
    own: Any = method
    common: Any = guide
    slots: dict[str, Any] = {
        "policy": common.policy.replace(network=NETWORK), "critic": own.critic.replace(network=NETWORK),
        "rewards": common.rewards,
    }  # fmt: skip
    if name in RATES:
        slots["optimizer"] = common.optimizer.replace(lr=RATES[name])
    if name == "ppo":  # whose own credit and bonus are for other tasks
        slots |= {"advantages": common.advantages, "regularizers": common.regularizers}
    return method.replace(**slots)


def experiment(seeds: Sequence[int]) -> list[Pair]:
    """Mean scores over the tasks, each method a population on each."""
    found = scores({name: on_common_ground(name) for name in SIX}, GROUNDS, seeds)
    ends = {name: each.end for name, each in found.items()}
    regularised = [sum(each) / len(each) for each in zip(*(ends[name] for name in REGULARISED))]
    arm = {"regularised against a2c": regularised, "a2c against reinforce": ends["a2c"]}
    baseline = {"regularised against a2c": ends["a2c"], "a2c against reinforce": ends["reinforce"]}
    for name in ("npg", *REGULARISED):
        arm[f"{name} against a2c"], baseline[f"{name} against a2c"] = ends[name], ends["a2c"]
    start = {k: found["reinforce" if k.endswith("reinforce") else "a2c"].start for k in baseline}
    return pairs(seeds, arm, baseline, start=start, budgets=used_steps(found, len(seeds)))
