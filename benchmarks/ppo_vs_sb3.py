"""PPO in control, etude against Stable-Baselines3: one JSON with the ratios of environment steps per second.

Both arms have CleanRL's configuration (`_control_cases.py`), one thread, logs and checkpoints, and take their turns:
some rollouts and updates of SB3, of etude with one seed, of etude with ten seeds at once. SB3 trains one seed at a
time, so its rate is the same for ten. With one thread the ratio is that of processor time, which is wall time on an
idle machine and does not count what other processes take; wall time is reported beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from _arms import Arm, in_turn, machine, peer_python, ratios
from _control_cases import SPEED, Control

TARGETS = {"CartPole-64": {"1": 2.5, "10": 12.0}}
"""Ratios to reach, by case and seeds at once."""
WHAT = "environment_steps"


def summary(arm: Arm) -> dict[str, Any]:
    """What one arm did."""
    seconds = sum(s["seconds"] for s in arm.steps)
    return {
        "steps_per_second": round(arm.rate(WHAT)), "steps_per_processor_second": round(arm.rate(WHAT, "processor")),
        "seconds": [round(s["seconds"], 3) for s in arm.steps],
        "processor_seconds": [round(s["processor"], 3) for s in arm.steps],
        **{f"share_{k}": round(sum(s[k] for s in arm.steps) / seconds, 2) for k in ("experience", "update")},
        "return": round(arm.steps[-1]["return"], 1),
    }  # fmt: skip


def compare(
    case: Control, seeds: list[int], rounds: int, every: int, threads: int, task: str | None, backend: str | None
) -> dict[str, Any]:
    """One case: SB3, and etude with each number of seeds."""
    clock = "processor" if threads == 1 else "seconds"
    peer = Arm(peer_python("sb3"), "_peer_sb3.py", case.name, f"--every={every}", threads=threads)
    other = [f"--{k}={v}" for k, v in (("task", task), ("backend", backend)) if v]
    own = {
        n: Arm(sys.executable, "_own_ppo.py", case.name, f"--seeds={n}", f"--every={every}", *other, threads=threads)
        for n in seeds
    }
    in_turn([peer, *own.values()], rounds)
    row: dict[str, Any] = {
        "case": case.to_json(),
        "task": task or case.task,
        "backend": backend,
        "clock": clock,
        "sb3": summary(peer),
    }
    for n, arm in own.items():
        each = ratios(arm, peer, clock, WHAT)
        ratio, target = arm.rate(WHAT, clock) / peer.rate(WHAT, clock), TARGETS.get(case.name, {}).get(str(n))
        row[f"seeds-{n}"] = {
            **summary(arm), "ratio": round(ratio, 2), "median_round": round(statistics.median(each), 2),
            "ratio_by_round": [round(r, 2) for r in each],
            "ratio_wall": round(arm.rate(WHAT) / peer.rate(WHAT), 2),
            "target": target, "met": target is None or ratio >= target,
        }  # fmt: skip
    for arm in (peer, *own.values()):
        arm.close()
    return row


def main() -> None:
    """Print the JSON; exit 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(SPEED), default=list(SPEED))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=20, help="rollouts of one turn, and between two checkpoints")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--task", help="etude's task instead of the case's: 'cartpole' is built in")
    parser.add_argument("--backend", help="of etude's task: 'envpool' instead of the built-in arrays")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    peer_python("sb3")
    about = machine("sb3", ["torch", "gymnasium", "envpool"], ["stable_baselines3", "torch", "gymnasium"])
    result: dict[str, Any] = {"machine": about, "cases": {}}
    met = True
    for name in chosen.cases:
        case, task, backend = SPEED[name], chosen.task, chosen.backend
        row = compare(case, chosen.seeds, chosen.rounds, chosen.every, chosen.threads, task, backend)
        result["cases"][name] = row
        for n in chosen.seeds:
            own = row[f"seeds-{n}"]
            print(f"{name}, {n} seeds: {own['ratio']}x (target {own['target']})", file=sys.stderr, flush=True)
            met = met and own["met"]
    print(text := json.dumps(result, indent=1))
    if chosen.output:
        chosen.output.write_text(text + "\n")
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
