"""Updates of CQL, Cal-QL, AWAC and ReBRAC by etude and by d3rlpy, from the same rows, weights and noise, in both types.

Prints the largest difference between the parameters (slow copies too) after the updates, and how far these moved them.
Where the two differ by choice etude does here as d3rlpy does: CQL's target counts the entropy (`soft_q_backup`), the
temperature stays, ReBRAC has no layer norms. Three things are put into d3rlpy's AWAC instead: a target without a
squashed action and its log-probability, a deviation that is a number of its own instead of a sigmoid's, and Adam's
epsilon times the rows, since its policy's loss is their sum.
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
from replay_update_vs_sb3 import networks

from etude.core.edit import set_values
from etude.core.population import Member
from etude.core.registry import get_method
from etude.loops.off_policy import OffPolicyLoop
from etude.tasks.control.logged import LoggedTask

BOUNDS, UPDATES, BATCH, WIDTH, HIDDEN = {"float32": 1e-5, "float64": 1e-9}, 6, 64, 2, (64, 64)
METHODS = ("cql", "cal-ql", "awac", "rebrac")
SOFT = {"critic.backup.entropy": True, "learners.temperature.learning": "none", "order": "critic,policy"}
CHANGES: dict[str, dict[str, Any]] = {
    "cql": SOFT, "cal-ql": SOFT, "awac": {}, "rebrac": {"critic.network.layer_norm": False}
}  # fmt: skip


def columns(episodes: int = 20, length: int = 50, seed: int = 0) -> dict[str, np.ndarray]:
    """A point that actions of two numbers push; every second episode terminates."""
    rng, rows = np.random.default_rng(seed), []
    for episode in range(episodes):
        seen = rng.normal(size=3)
        for t in range(length):
            action, last = rng.uniform(-1, 1, WIDTH), t == length - 1
            led = 0.9 * seen + 0.3 * np.array([*action, action.sum()]) + 0.1 * rng.normal(size=3)
            rows.append((seen, action, 0.2 * seen[0], last and episode % 2 == 0, last and episode % 2 == 1, led))
            seen = led
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def composed(name: str) -> Any:
    """The method with networks of 64-64 and batches of 64."""
    sizes = {"policy.network.hidden": HIDDEN, "critic.network.hidden": HIDDEN, "sampling.batch": BATCH}
    return set_values(get_method(name), {**sizes, **CHANGES[name]})


def noises(draw: Any) -> dict[str, torch.Tensor]:
    """Every random number of an update, by the name that etude draws it under."""

    def normal(*shape: int) -> torch.Tensor:
        return draw(name, lambda g, n: torch.randn(n, *shape, generator=g))

    found = {}
    for name in ("policy here", "policy next", "smoothing"):
        found[name] = normal(BATCH, WIDTH)
    for name in ("policy here 10 times", "policy next 10 times"):
        found[name] = normal(BATCH, 10, WIDTH)
    name = "anything 10 times"
    found[name] = draw(name, lambda g, n: torch.rand(n, BATCH, 10, WIDTH, generator=g) * 2 - 1)
    return found


def own_updates(name: str, seed: int, folder: Path) -> dict[str, np.ndarray]:
    """etude's updates of one member out of two."""
    np.savez(folder / "logs.npz", **columns())
    task = LoggedTask(data=str(folder / "logs.npz"))
    loop = OffPolicyLoop(composed(name), task, [Member(seed), Member(seed + 1)], steps=1)
    if name == "awac":
        with torch.no_grad():
            loop.actor.log_std.fill_(-2.0)  # so narrow that no action is drawn beyond the bounds, where d3rlpy cuts
    data: dict[str, np.ndarray] = {f"before.{k}": v for k, v in networks(loop).items()}
    for update in range(UPDATES):
        draw = loop.updater.stretches.at(update)
        batch = loop.method.sampling.draw(loop.collector.store, draw)
        given = {
            "observations": batch.observations, "actions": batch.actions, "next": batch.next_observations,
            "rewards": batch.rewards, "done": batch.terminated, **batch.offers, **noises(draw),
        }  # fmt: skip
        data |= {f"{update}.{k}": v[0].numpy().copy() for k, v in given.items()}
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    return data | {f"after.{k}": v for k, v in networks(loop).items()}


def compare(name: str, kind: str, seed: int, scratch: Path) -> dict[str, Any]:
    """Differences after the updates."""
    torch.set_default_dtype(getattr(torch, kind))
    file = scratch / "updates.npz"
    np.savez(file, **own_updates(name, seed, scratch))
    command = [str(peer_python("d3rlpy")), "-W", "ignore", str(HERE / "_peer_d3rlpy_update.py"), name, str(file), kind]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the JSON; exit 1 if an update differs by more than its type allows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    result, met = dict[str, Any](), True
    with tempfile.TemporaryDirectory() as scratch:
        for name in chosen.methods:
            for kind, bound in BOUNDS.items():
                found = [compare(name, kind, seed, Path(scratch)) for seed in chosen.seeds]
                row = {k: max(f[k] for f in found) for k in found[0]}
                row |= {"target": bound, "met": row["parameters"] <= bound}
                met, result[f"{name} {kind}"] = met and row["met"], row
                print(f"{name} {kind}: {row}", file=sys.stderr, flush=True)
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
