"""Updates of DQN, TD3 and SAC by etude and by Stable-Baselines3, from the same rows, weights and noise.

Prints the largest difference between the parameters (slow copies too) after the updates, and how far these moved them:
in float32, where 1e-5 is asked, and in float64, where 1e-9 is. SB3's SAC halves the critics' loss, so etude is given
that factor here. Its log-probability is log(1 - a^2 + 1e-6) off from the density's by a constant under the logarithm,
another formula than etude's: what is compared is SB3 with 0 there, and `as_published` says the difference with it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arms import HERE, peer_python

from etude.core.edit import set_values
from etude.core.population import Member
from etude.core.registry import get_method, load_task
from etude.learners.heads import Squared
from etude.loops.off_policy import OffPolicyLoop

BOUNDS = {"float32": 1e-5, "float64": 1e-9}
UPDATES, BATCH = 6, 64
TASKS = {"dqn": "cartpole", "td3": "pendulum", "sac": "pendulum"}
HIDDEN = (64, 64)


class HalfSquared(Squared):
    """SB3's error of SAC's critics."""

    def __call__(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 0.5 * super().__call__(prediction, target)


def composed(name: str) -> Any:
    """The method with networks of 64-64, batches of 64 and a rate of 1e-3."""
    changes: dict[str, Any] = {
        "critic.network.hidden": HIDDEN, "sampling.batch": BATCH, "experience.capacity": 2_000, "optimizer.lr": 1e-3,
    }  # fmt: skip
    if name != "dqn":
        changes["policy.network.hidden"] = HIDDEN
    method = set_values(get_method(name), changes)
    return method.replace(critic=method.critic.replace(error=HalfSquared())) if name == "sac" else method


def networks(loop: OffPolicyLoop) -> dict[str, np.ndarray]:
    """All parameters of the first member, and of its slow copies."""
    found = {}
    for name, trainer in loop.updater.trainers.items():
        for kind, parameters in (("", trainer.parameters), ("slow.", getattr(trainer, "slow", None))):
            if parameters is not None:
                count = len(parameters.networks) // loop.population.size
                found |= {f"{kind}{name}/{k}": v[:count].numpy().copy() for k, v in parameters.named()}
    return found


def own_updates(name: str, seed: int) -> dict[str, np.ndarray]:
    """etude's updates of one member out of two, on rows of its own random steps."""
    loop = OffPolicyLoop(composed(name), load_task(TASKS[name]), [Member(seed), Member(seed + 1)], steps=1)
    for _ in range(1_000):
        loop.collector.step()
    data: dict[str, np.ndarray] = {f"before.{k}": v for k, v in networks(loop).items()}
    for update in range(UPDATES):
        draw = loop.updater.stretches.at(update)
        batch = loop.method.sampling.draw(loop.collector.store, draw)
        assert batch.next_observations is not None
        columns = {
            "observations": batch.observations, "actions": batch.actions, "next": batch.next_observations,
            "rewards": batch.rewards, "done": batch.terminated,
        }  # fmt: skip
        data |= {f"{update}.{k}": v[0].numpy().copy() for k, v in columns.items()}
        shape = batch.actions.shape[1:]
        for purpose in ("smoothing", "policy here", "policy next"):
            normal = draw(purpose, lambda g, n, shape=shape: torch.randn(n, *shape, generator=g))
            data[f"{update}.{purpose}"] = normal[0].numpy().copy()
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    return data | {f"after.{k}": v for k, v in networks(loop).items()}


def compare(name: str, seed: int, scratch: Path) -> dict[str, dict[str, float]]:
    """Differences after the updates, by precision."""
    found: dict[str, dict[str, float]] = {}
    for precision in BOUNDS:
        torch.set_default_dtype(getattr(torch, precision))
        np.savez(file := scratch / "updates.npz", **own_updates(name, seed))
        torch.set_default_dtype(torch.float32)
        row = theirs(name, file, *(["--epsilon", "0"] if name == "sac" else []))
        found[precision] = row | ({"as_published": theirs(name, file)["parameters"]} if name == "sac" else {})
    return found


def theirs(name: str, file: Path, *more: str) -> dict[str, float]:
    """How far SB3's parameters are from those in the file after its updates of the same rows."""
    command = [str(peer_python("sb3")), "-W", "ignore", str(HERE / "_peer_sb3_replay_update.py"), name, str(file)]
    done = subprocess.run([*command, *more], capture_output=True, text=True, cwd=HERE)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the JSON; exit 1 if an update differs by more than is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    result, met = dict[str, Any](), True
    with tempfile.TemporaryDirectory() as scratch:
        for name in TASKS:
            found = [compare(name, seed, Path(scratch)) for seed in chosen.seeds]
            result[name] = {}
            for precision, bound in BOUNDS.items():
                row: dict[str, Any] = {k: max(f[precision][k] for f in found) for k in found[0][precision]}
                row |= {"target": bound, "met": row["parameters"] <= bound}
                met, result[name][precision] = met and row["met"], row
                print(f"{name}, {precision}: {row}", file=sys.stderr, flush=True)
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
