"""Learning curves of PPO: etude, Stable-Baselines3 and CleanRL with the same configuration, ten seeds each.

At each point, the return of a run is the mean of its last 100 training episodes. Printed as JSON: the interquartile
mean over seeds with its 95% bootstrap interval, and for etude and each peer whether they are equivalent: the interval
of their difference lies within a tenth of what the peer's curve gains. Runs are kept in runs/curves and used again.

CleanRL is a set of scripts, so its repository's folder must be named (--cleanrl); without it only SB3 is compared. It
does not bootstrap where a time limit cuts an episode; `etude, cuts as ends` does the same, to tell that apart. SB3 has
no clipped value loss like the others', so it is not among the runs with clipped values.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from _arms import HERE, machine, peer_python
from _control_cases import CURVES, Control
from _curves import OWN, Episodes, Train, peer, report, shown

from etude.advantages.returns import GAE
from etude.core.population import Member
from etude.core.transitions import Transitions
from etude.core.worlds import World
from etude.loops.on_policy import OnPolicyLoop
from etude.runs.training import compose_method, compose_task

SCRIPTS = {"CartPole-v1": "ppo.py", "Pendulum-v1": "ppo_continuous_action.py"}


class CutsEnd(GAE):
    """Advantages as if an episode that is cut had terminated."""

    def of_transitions(self, batch: Transitions) -> torch.Tensor:
        return super().of_transitions(cut(batch))

    def returns_of_transitions(self, batch: Transitions) -> torch.Tensor:
        return super().returns_of_transitions(cut(batch))


def cut(batch: Transitions) -> Transitions:
    return batch.replace(terminated=batch.terminated | batch.truncated)


def own(case: Control, seeds: list[int], task: str | None, cuts_end: bool = False) -> list[Episodes]:
    """etude's runs, as one population."""
    method = compose_method("ppo", case.etude(), world=World.CONTROL)
    if cuts_end:
        method = method.replace(advantages=CutsEnd(**method.advantages.fields()))
    steps = case.budget // case.rollout
    loop = OnPolicyLoop(method, compose_task(task or case.task), [Member(s) for s in seeds], steps)
    found: list[Episodes] = [[] for _ in seeds]
    for number in range(steps):
        for episode in loop.step().episodes:
            found[episode["member"]].append([(number + 1) * case.rollout, episode["return"]])
    loop.close()
    return found


def arms(name: str, seeds: list[int], task: str | None, cleanrl: Path | None) -> dict[str, Train]:
    """What trains each arm of a case."""
    case = CURVES[name]
    found = {OWN: lambda: own(case, seeds, task)}
    if case.value_clip is None:
        found["SB3"] = lambda: [peer(peer_python("sb3"), "_peer_sb3_curve.py", name, str(s)) for s in seeds]
    if cleanrl is not None:
        script = str(cleanrl.resolve() / "cleanrl" / SCRIPTS[case.task])
        found["CleanRL"] = lambda: [
            peer(peer_python("cleanrl"), "_peer_cleanrl.py", script, name, str(s)) for s in seeds
        ]  # fmt: skip
        found["etude, cuts as ends"] = lambda: own(case, seeds, task, cuts_end=True)
    return found


def main() -> None:
    """Train what is missing, draw, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CURVES), default=list(CURVES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--task", help="etude's task instead of the case's: 'cartpole' and 'pendulum' are built in")
    parser.add_argument("--cleanrl", type=Path, help="folder of CleanRL's repository")
    parser.add_argument("--runs", type=Path, default=HERE.parent / "runs" / "curves")
    parser.add_argument("--image", type=Path, help="a PNG to draw")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    peer_python("sb3")
    about = machine("sb3", ["torch", "gymnasium", "envpool"], ["stable_baselines3", "torch", "gymnasium"])
    seeds, cases = list(range(chosen.seeds)), dict[str, Any]()
    for name in chosen.cases:
        case, trained = CURVES[name], arms(name, seeds, chosen.task, chosen.cleanrl)
        cases[name] = (case.budget, case.to_json(), {
            arm: ({
                "case": case.to_json(), "task": chosen.task if arm.startswith(OWN) and chosen.task else case.task,
                "seeds": seeds,
            }, train)
            for arm, train in trained.items()
        })  # fmt: skip
    found, panels = report(cases, chosen.runs)
    result = {"machine": about, "seeds": chosen.seeds, "cases": found}
    shown(result, panels, chosen.image, chosen.output)


if __name__ == "__main__":
    main()
