"""Last returns of TD3+BC, IQL and CQL on the same logs of HalfCheetah-v4: etude and d3rlpy, in the same settings.

The logs are what `etude data make` records of a TD3 at a third of its expert (100,000 steps). Architectures (256-256),
batches (256), rates and schedules are the same in both; returns are of the last policy's likeliest actions, played in
the same environments. Every run is a line of the record, so what was stopped goes on, in another process too.

    python benchmarks/offline_returns_vs_d3rlpy.py [--cases td3-bc iql cql] [--libraries etude d3rlpy] [--seeds 5]
    python benchmarks/offline_returns_vs_d3rlpy.py --table        # only what the record says

d3rlpy takes the policy's mean in CQL's target, where etude draws as the paper's code does, and bounds IQL's deviation
in another way (`methods/offline/`); all else is told to both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _arms import HERE, peer_python
from _machine import processor
from _offline_cases import RETURNS, Returned

from etude.core.population import Member
from etude.evaluation.control import play
from etude.evaluation.intervals import Interval, welch_interval
from etude.evaluation.verdicts import paired_interval
from etude.experience.logs.reading import open_logs
from etude.loops.off_policy import BLOCK, OffPolicyLoop
from etude.runs.data_make import make_data
from etude.runs.training import compose_method, compose_task
from etude.runtime.jsonl import JsonLines
from etude.tasks.control.logged import LoggedTask

TASK, PLAYED, SIZE = "HalfCheetah-v4", 20, 100_000
BEHAVIOUR = (
    "network.hidden=400,300", "optimizer.lr=1e-3", "sampling.batch=100", "experience.random=10000",
    "experience.warmup=10000",
)  # fmt: skip
"""TD3 as its preset has it for this task."""
RECORD = HERE / "records" / "offline_returns_vs_d3rlpy.jsonl"
SAME = {"iql": ('order=[["value", "critic"], "policy"]',)}
"""What etude is told so that both do the same: d3rlpy steps V and critics together."""


def made(folder: Path) -> Path:
    """The logs, recorded if they are not there."""
    if not (folder / "medium").is_dir():
        make_data(TASK, levels="medium", out=folder, size=SIZE, steps=100_000, behaviour="td3", set=BEHAVIOUR)
    return folder / "medium"


def own(case: Returned, seed: int, logs: Path) -> list[float]:
    """Returns of the episodes of etude's last policy."""
    method = compose_method(case.method, SAME.get(case.method, ()), world=compose_task(TASK).world)
    task = LoggedTask(data=str(logs), environment=compose_task(TASK))
    loop = OffPolicyLoop(method, task, [Member(seed)], case.updates // BLOCK)
    for _ in range(loop.steps):
        loop.step()
    found: list[float] = play(loop, task, PLAYED, deterministic=True)[0].tolist()
    loop.close()
    return found


def theirs(case: Returned, seed: int, logs: Path) -> list[float]:
    """Those of d3rlpy's, which is trained in its own environment and played here."""
    with tempfile.TemporaryDirectory() as scratch:
        read, columns, policy = open_logs(logs), Path(scratch) / "logs.npz", Path(scratch) / "policy.pt"
        np.savez(
            columns, observations=read.observations, actions=read.actions, rewards=read.rewards,
            terminals=read.terminated, timeouts=read.truncated,
        )  # fmt: skip
        command = [str(peer_python("d3rlpy")), "-W", "ignore", "_peer_d3rlpy_returns.py", case.method, str(columns)]
        subprocess.run(
            [*command, str(seed), str(case.updates), str(policy)], check=True, cwd=HERE, stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )  # fmt: skip
        return played(torch.jit.load(policy), seed)


@torch.no_grad()
def played(policy: Any, seed: int) -> list[float]:
    """Returns of a policy, which takes observations [N, 17] and says actions [N, 6]; all episodes are of one length."""
    environment: Any = compose_task(TASK)
    environment = environment.make([seed], PLAYED, "test")
    seen, earned, ended = environment.reset()[0], np.zeros(PLAYED), np.zeros(PLAYED, bool)
    while not ended.all():
        step = environment.step(policy(torch.from_numpy(seen).float()).numpy()[None])
        earned += np.where(ended, 0.0, step.rewards[0])
        ended |= step.terminated[0] | step.truncated[0]
        seen = step.observations[0]
    environment.close()
    return [float(x) for x in earned]


LIBRARIES = {"etude": own, "d3rlpy": theirs}


def run(case: Returned, library: str, seed: int, logs: Path) -> None:
    """One run, as a line of the record, if it is not there."""
    known = open_logs(logs).fingerprint[:12]
    about = {"method": case.method, "library": library, "seed": seed, "updates": case.updates, "logs": known}
    if any(about.items() <= line.items() for line in lines()):
        return
    begun = time.monotonic()
    returns = LIBRARIES[library](case, seed, logs)
    taken = round(time.monotonic() - begun)
    JsonLines(RECORD).append({
        **about, "return": round(float(np.mean(returns)), 1), "seconds": taken, "processor": processor(),
    })  # fmt: skip
    print(f"{case.method}, {library}, seed {seed}: {np.mean(returns):.0f} in {taken} s", flush=True)


def lines() -> list[dict[str, Any]]:
    """Every run of the record."""
    return [dict(line) for line in JsonLines.read(RECORD)] if RECORD.is_file() else []


def table() -> str:
    """Means with 95% intervals, their difference, and whether each mean lies in the other's interval, as Markdown.

    Of runs on the logs that were learned from last: another processor makes others.
    """
    head = ["method", "updates", "seeds", *LIBRARIES, "etude - d3rlpy", "each mean in the other's interval"]
    rows = [head, ["---"] * len(head)]
    for case in RETURNS.values():
        about = {"method": case.method, "updates": case.updates, "logs": lines()[-1]["logs"] if lines() else ""}
        there = [line for line in lines() if about.items() <= line.items()]
        both = {name: [x["return"] for x in there if x["library"] == name] for name in LIBRARIES}
        if min(map(len, both.values())) < 2:
            continue
        told = {name: paired_interval(np.array(values), 0.0, level=0.95) for name, values in both.items()}
        a, b = told.values()
        agree = a.low <= b.value <= a.high and b.low <= a.value <= b.high
        counts = " and ".join(str(n) for n in dict.fromkeys(map(len, both.values())))
        gap = said(welch_interval(*both.values()))
        rows.append(
            [case.method, f"{case.updates:,}", counts, *map(said, told.values()), gap, "yes" if agree else "no"]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def said(interval: Interval) -> str:
    """A mean and its interval."""
    return f"{interval.value:.0f} ({interval.low:.0f} to {interval.high:.0f})"


def main() -> None:
    """Train what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(RETURNS), default=list(RETURNS))
    parser.add_argument("--libraries", nargs="+", choices=list(LIBRARIES), default=list(LIBRARIES))
    parser.add_argument("--seeds", type=int, default=None, help="of each; by default what the case says")
    parser.add_argument(
        "--data", type=Path, default=HERE.parent / "runs" / "halfcheetah", help="where the logs are kept"
    )
    parser.add_argument("--table", action="store_true", help="only print what the record says")
    chosen = parser.parse_args()
    if not chosen.table:
        torch.set_num_threads(1)
        logs = made(chosen.data)
        for name in chosen.cases:
            for seed in range(chosen.seeds or RETURNS[name].seeds):
                for library in chosen.libraries:
                    run(RETURNS[name], library, seed, logs)
    print(table())


if __name__ == "__main__":
    main()
