"""Learning curves of DQN, SAC and TD3: etude and Stable-Baselines3, both in the settings of SB3's zoo.

etude's are its presets (`configurations/`). At each point, the return of a run is the mean of its last 100 training
episodes. Printed as JSON: the interquartile mean over seeds with its 95% bootstrap interval, and whether both are
equivalent: the interval of their difference lies within a tenth of what SB3's curve gains. Runs are kept in runs/curves
and used again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from _arms import HERE, machine, peer_python
from _curves import OWN, Episodes, Train, draw, peer, report

from etude.core.population import Member
from etude.loops.off_policy import OffPolicyLoop
from etude.runs.presets import Preset, load_preset
from etude.runs.training import compose_task

CASES = {"dqn": "CartPole-v1", "sac": "Pendulum-v1", "td3": "Pendulum-v1"}


def own(preset: Preset, task: str, seeds: list[int]) -> list[Episodes]:
    """etude's runs, as one population."""
    goal = compose_task(task)
    block = 250
    loop = OffPolicyLoop(preset.onto(goal.world), goal, [Member(s) for s in seeds], preset.steps // block, block)
    found: list[Episodes] = [[] for _ in seeds]
    for number in range(preset.steps // block):
        for episode in loop.step().episodes:
            found[episode["member"]].append([(number + 1) * block, episode["return"]])
    loop.close()
    return found


def theirs(name: str, budget: int, seeds: list[int]) -> list[Episodes]:
    """SB3's runs, one after another."""
    script = ("_peer_sb3_replay_curve.py", name, CASES[name], str(budget))
    return [peer(peer_python("sb3"), *script, str(seed)) for seed in seeds]


def case(name: str, seeds: list[int]) -> tuple[int, dict[str, Any], dict[str, tuple[dict[str, Any], Train]]]:
    """Budget of a method's case, what is said of it, and its arms."""
    task = CASES[name]
    preset = load_preset(f"{name}/{task}")
    about = {"name": name, "task": task, "budget": preset.steps}
    key = {"case": about, "seeds": seeds}
    arms: dict[str, tuple[dict[str, Any], Train]] = {
        OWN: ({**key, "preset": preset.fingerprint}, lambda: own(preset, task, seeds)),
        "SB3": (key, lambda: theirs(name, preset.steps, seeds)),
    }
    return preset.steps, about, arms


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
    cases = {f"{name}, {CASES[name]}": case(name, list(range(chosen.seeds))) for name in chosen.cases}
    found, panels = report(cases, chosen.runs)
    packages = ["stable_baselines3", "torch", "gymnasium"]
    result = {"machine": machine("sb3", packages[1:], packages), "seeds": chosen.seeds, "cases": found}
    if chosen.image:
        draw(panels, chosen.image)
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
