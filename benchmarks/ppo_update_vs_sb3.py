"""One update of PPO by etude and by Stable-Baselines3, from the same rollout, weights and minibatch order.

Prints the largest difference between the parameters afterwards (and between the advantages), and how far the update
moved them. With clipped values SB3 minimises the clipped error alone, where etude and the other implementations take
the larger of the clipped and the plain one: those two differ, and agree once etude is given SB3's formula.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arms import HERE, peer_python
from _control_cases import Control

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.population import Member
from etude.core.streams import Stream
from etude.core.worlds import World
from etude.learners.state import StateValue
from etude.loops.on_policy import OnPolicyLoop, credited
from etude.runs.training import compose_method
from etude.tasks import resolve_task

BOUND = 1e-5
BASE = {"lr": 3e-3, "anneal": False, "epochs": 10, "steps": 256, "minibatches": 8}
CASES = {
    "CartPole": (Control("CartPole", **BASE, value_clip=None), "cartpole"),
    "Pendulum": (Control("Pendulum", task="Pendulum-v1", **BASE, value_clip=None), "pendulum"),
    "LunarLander": (Control("LunarLander", task="LunarLander-v3", **BASE, value_clip=None), "LunarLander-v3"),
    "CartPole, values clipped": (Control("CartPole", **BASE), "cartpole"),
    "CartPole, values clipped as SB3 does": (Control("CartPole", **BASE), "cartpole"),
}
"""A learning rate and as many epochs as make ratios leave the clip, on the first rollout of a task.
Pendulum's episodes are cut after 200 of its 256 steps."""


class ClippedAlone(StateValue):
    """SB3's clip: the error of the value whose step was clipped, which has no gradient outside."""

    def loss(self, batch: TokenBatch, policy: TokenLogProbs) -> torch.Tensor:
        assert policy.values is not None and batch.values is not None and batch.returns is not None
        near = batch.values + (policy.values - batch.values).clamp(-self.clip, self.clip)
        return self.coefficient / 2 * (near - batch.returns) ** 2


def own_update(case: Control, task: str, alone: bool, seed: int) -> dict[str, np.ndarray]:
    """etude's rollout and update of one member out of two."""
    method = compose_method("ppo", case.etude(), world=World.CONTROL)
    if alone:
        method = method.replace(critic=ClippedAlone(**method.critic.fields()))
    loop = OnPolicyLoop(method, resolve_task(task), [Member(seed), Member(seed + 1)], steps=1)
    before = {k: v[0].numpy().copy() for k, v in loop.parameters.named()}
    batch = loop.collector.collect(0, loop.critic)
    batch = credited(loop.method, batch)
    found = loop.updater.run(batch.flat(), 0, rate=1.0)
    orders = [
        torch.randperm(case.rollout, generator=Stream(seed).split("minibatches", 0, epoch).torch)
        for epoch in range(case.epochs)
    ]
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    rollout = {f"batch.{k}": v[0].numpy() for k, v in fields.items() if isinstance(v, torch.Tensor)}
    return {
        **{f"before.{k}": v for k, v in before.items()},
        **{f"after.{k}": v[0].numpy() for k, v in loop.parameters.named()},
        **rollout, "batch.starts": np.ones(case.environments, bool), "advantages": batch.advantages[0].numpy(),
        "orders": torch.stack(orders).numpy(), "clip_fraction": found["clip_fraction"][0].numpy(),
    }  # fmt: skip


def compare(case: Control, task: str, alone: bool, seed: int, scratch: Path) -> dict[str, Any]:
    """Differences of one update."""
    file = scratch / "update.npz"
    data = own_update(case, task, alone, seed)
    np.savez(file, **data)
    command = [str(peer_python("sb3")), "-W", "ignore", str(HERE / "_peer_sb3_update.py"), str(file)]
    done = subprocess.run([*command, json.dumps(case.to_json())], capture_output=True, text=True, cwd=HERE)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return {**json.loads(done.stdout), "clip_fraction": float(data["clip_fraction"])}


def main() -> None:
    """Print the JSON; exit 1 if an update that should agree differs by more than 1e-5."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    result, met = dict[str, Any](), True
    with tempfile.TemporaryDirectory() as scratch:
        for name, (case, task) in CASES.items():
            alone = name.endswith("as SB3 does")
            found = [compare(case, task, alone, seed, Path(scratch)) for seed in chosen.seeds]
            row = {k: max(f[k] for f in found) for k in found[0]}
            if alone or case.value_clip is None:
                row |= {"target": BOUND, "met": row["parameters"] <= BOUND}
                met = met and row["met"]
            result[name] = row
            print(f"{name}: {row}", file=sys.stderr, flush=True)
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
