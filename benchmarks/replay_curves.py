"""Learning curves of DQN, SAC and TD3: etude and Stable-Baselines3, both in the settings of SB3's zoo.

At each point, the return of a run is the mean of its last 100 training episodes, of HalfCheetah's last 5. Printed as
JSON: the interquartile mean over seeds with its 95% bootstrap interval, and whether both are equivalent: the interval
of their difference lies within a tenth of what SB3's curve gains. Runs are kept in runs/curves and used again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import torch
from _arms import HERE, machine, peer_python
from _curves import OWN, Episodes, Train, peer, report, shown

from etude.core.population import Member
from etude.loops.off_policy import OffPolicyLoop
from etude.runs.training import compose_method, compose_task


class Case(NamedTuple):
    """A method and what it is trained on.

    Args:
        task: an environment that both libraries know.
        budget: environment steps.
        fields: what is set here; SB3's settings are in `_peer_sb3_replay_curve.py`.
        window: episodes that a point of the curve is the mean of.
    """

    method: str
    task: str
    budget: int
    fields: tuple[str, ...] = ()
    window: int = 100


CASES = {
    "dqn": Case("dqn", "CartPole-v1", 50_000),
    "sac": Case(
        "sac", "Pendulum-v1", 20_000, ("optimizer.lr=1e-3", "experience.random=100", "experience.warmup=256")
    ),
    "td3": Case(
        "td3",
        "Pendulum-v1",
        20_000,
        (
            "network.hidden=400,300", "optimizer.lr=1e-3", "sampling.horizon.gamma=0.98", "experience.random=10000",
            "experience.warmup=10000", "experience.capacity=200000",
        ),
    ),
    "sac-cheetah": Case(
        "sac", "HalfCheetah-v4", 30_000, ("experience.random=10000", "experience.warmup=10000"), window=5
    ),
}  # fmt: skip
"""SB3's SAC learns from the 100th step of Pendulum on, here there is a batch of 256 first."""


def own(name: str, seeds: list[int]) -> list[Episodes]:
    """etude's runs, as one population."""
    method_id, task, budget, fields, _ = CASES[name]
    goal, block = compose_task(task), 250
    method = compose_method(method_id, fields, world=goal.world)
    loop = OffPolicyLoop(method, goal, [Member(s) for s in seeds], budget // block, block)
    found: list[Episodes] = [[] for _ in seeds]
    for number in range(budget // block):
        for episode in loop.step().episodes:
            found[episode["member"]].append([(number + 1) * block, episode["return"]])
    loop.close()
    return found


def theirs(name: str, seeds: list[int]) -> list[Episodes]:
    """SB3's runs, one after another."""
    script = ("_peer_sb3_replay_curve.py", name, CASES[name].task, str(CASES[name].budget))
    return [peer(peer_python("sb3"), *script, str(seed)) for seed in seeds]


def case(name: str, seeds: list[int]) -> tuple[int, dict[str, Any], dict[str, tuple[dict[str, Any], Train]]]:
    """Budget of a method's case, what is said of it, and its arms."""
    chosen = CASES[name]
    about = {"name": name, "task": chosen.task, "budget": chosen.budget}
    key = {"case": about, "seeds": seeds}
    arms: dict[str, tuple[dict[str, Any], Train]] = {
        OWN: ({**key, "set": list(chosen.fields)}, lambda: own(name, seeds)),
        "SB3": (key, lambda: theirs(name, seeds)),
    }
    return chosen.budget, {**about, "window": chosen.window}, arms


def main() -> None:
    """Train what is missing, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--runs", type=Path, default=HERE.parent / "runs" / "curves")
    parser.add_argument("--image", type=Path, help="a PNG to draw")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    cases = {f"{name}, {CASES[name].task}": case(name, list(range(chosen.seeds))) for name in chosen.cases}
    found, panels = report(cases, chosen.runs)
    packages = ["stable_baselines3", "torch", "gymnasium"]
    result = {"machine": machine("sb3", packages[1:], packages), "seeds": chosen.seeds, "cases": found}
    shown(result, panels, chosen.image, chosen.output)


if __name__ == "__main__":
    main()
