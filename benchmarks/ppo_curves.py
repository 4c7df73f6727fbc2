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
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arms import HERE, machine, peer_python
from _control_cases import CURVES, Control
from _equivalence import equivalence

from etude.advantages.returns import GAE
from etude.core.population import Member
from etude.core.transitions import Transitions
from etude.core.worlds import World
from etude.evaluation.intervals import Band, curve_band, probability_of_improvement
from etude.evaluation.plots import draw_panels
from etude.loops.on_policy import OnPolicyLoop
from etude.runs.training import compose_method, compose_task

Episodes = list[list[float]]
"""[environment steps so far, return] of every training episode, in order."""
Train = Callable[[], list[Episodes]]
WINDOW, POINTS = 100, 20
SHOWN = (2, 5, 10, 15, 20)
"""Points, of 20, that the report has numbers for."""
OWN = "etude"
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


def peer(python: Path, *command: str) -> Episodes:
    """One run of a peer, in a process with one thread."""
    limits = {k: "1" for k in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(
        [str(python), "-W", "ignore", *command], capture_output=True, text=True, cwd=HERE, env={**os.environ, **limits}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def arms(
    name: str, seeds: list[int], task: str | None, cleanrl: Path | None
) -> dict[str, Callable[[], list[Episodes]]]:
    """What trains each arm of a case."""
    case = CURVES[name]
    found: dict[str, Train] = {OWN: lambda: own(case, seeds, task)}
    if case.value_clip is None:
        found["SB3"] = lambda: [peer(peer_python("sb3"), "_peer_sb3_curve.py", name, str(s)) for s in seeds]
    if cleanrl is not None:
        script = str(cleanrl.resolve() / "cleanrl" / SCRIPTS[case.task])
        found["CleanRL"] = lambda: [
            peer(peer_python("cleanrl"), "_peer_cleanrl.py", script, name, str(s)) for s in seeds
        ]  # fmt: skip
        found["etude, cuts as ends"] = lambda: own(case, seeds, task, cuts_end=True)
    return found


def kept(folder: Path, key: dict[str, Any], train: Train) -> list[Episodes]:
    """Runs from their file, or made now and written there with the time they took."""
    file = folder / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}.json"
    if not file.exists():
        print(f"{key['case']['name']}: {key['arm']} ...", file=sys.stderr, flush=True)
        begun = time.monotonic()
        runs = train()
        file.write_text(json.dumps({**key, "seconds": round(time.monotonic() - begun), "runs": runs}))
    return json.loads(file.read_text())["runs"]  # type: ignore[no-any-return]


def curve(episodes: Episodes, points: np.ndarray) -> np.ndarray:
    """[points] mean return of the last 100 episodes that had ended by then."""
    steps, returns = np.array(episodes).T
    ended = np.searchsorted(steps, points, side="right")
    return np.array([returns[max(0, n - WINDOW) : n].mean() for n in ended])


def entry(points: np.ndarray, curves: dict[str, np.ndarray], bands: dict[str, Band]) -> dict[str, Any]:
    """What the report says of one case."""
    found, at = dict[str, Any](), [i - 1 for i in SHOWN]
    for name, band in bands.items():
        found[name] = {
            str(int(points[i])): [round(float(x[i]), 1) for x in (band.value, band.low, band.high)] for i in at
        }
    pairs = [(ours, theirs) for ours in bands for theirs in bands if ours.startswith(OWN) and ours != theirs]
    for ours, theirs in [p for p in pairs if p[1] != OWN]:
        found[f"{ours} against {theirs}"] = against(points, curves[ours], curves[theirs])
    return found


def against(points: np.ndarray, own: np.ndarray, theirs: np.ndarray) -> dict[str, Any]:
    """Curves [seeds, points] of one library and of another, by equivalence.

    The smallest difference that matters is a tenth of what the other's curve gains.
    """
    mean = theirs.mean(0)
    smallest = float(mean.max() - mean.min()) / 10
    each = [equivalence(own[:, i], theirs[:, i], smallest)["verdict"] for i in range(len(points))]
    return {
        "smallest difference that matters": round(smallest, 1),
        "points": {verdict: each.count(verdict) for verdict in sorted(set(each))},
        "different at": [int(p) for p, verdict in zip(points, each) if verdict == "different"],
        "at the end": equivalence(own[:, -1], theirs[:, -1], smallest),
        "mean of the curve": equivalence(own.mean(1), theirs.mean(1), smallest),
        "probability that the first curve is higher": str(probability_of_improvement(own.mean(1), theirs.mean(1))),
    }


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
    chosen.runs.mkdir(parents=True, exist_ok=True)
    peer_python("sb3")
    about = machine("sb3", ["torch", "gymnasium", "envpool"], ["stable_baselines3", "torch", "gymnasium"])
    result: dict[str, Any] = {"machine": about, "seeds": chosen.seeds, "cases": {}}
    panels: dict[str, dict[str, Band]] = {}
    for name in chosen.cases:
        case, seeds, curves = CURVES[name], list(range(chosen.seeds)), dict[str, np.ndarray]()
        points = np.linspace(case.budget / POINTS, case.budget, POINTS).round()
        for arm, train in arms(name, seeds, chosen.task, chosen.cleanrl).items():
            task = chosen.task if arm.startswith(OWN) and chosen.task else case.task
            key = {"arm": arm, "case": case.to_json(), "task": task, "seeds": seeds}
            curves[arm] = np.array([curve(run, points) for run in kept(chosen.runs, key, train)])
        panels[name] = {arm: curve_band(values, points) for arm, values in curves.items()}
        result["cases"][name] = {"case": case.to_json(), **entry(points, curves, panels[name])}
    if chosen.image:
        drawn = {
            name: {arm: dataclasses.replace(band, x=band.x / 1000) for arm, band in bands.items()}
            for name, bands in panels.items()
        }
        draw_panels(drawn, chosen.image, x_label="environment steps, thousands", y_label="return (last 100 episodes)")
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
