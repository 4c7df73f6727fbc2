"""DQN, TD3 and SAC, etude against Stable-Baselines3: environment steps per second of processor time, and their limit.

Both arms have one configuration (`_replay_cases.py`), one thread, logs and a checkpoint in every turn, and take their
turns in one run: some steps and updates of SB3, of etude with one seed, of etude with several at once. SB3 trains one
seed at a time, so its rate is the same for several.

The limit is the arithmetic of a step's matrix products, counted as they run, over the rate of the largest of them,
measured between the turns: what a step would take if nothing else took time. Stated with it: how far etude is from it,
and what the ratio to SB3 would be there.

    python benchmarks/replay_speed_vs_sb3.py [--cases sac-256 dqn] [--rounds 4] [--output FILE]

Cases that FILE has already are not measured again; delete it to begin anew.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from _arms import Arm, machine, peer_python, ratios
from _replay_cases import SPEED, Replayed

WHAT, CLOCK = "environment_steps", "processor"


class Products:
    """The largest product of a case's updates, [rows, width] by [width, width] for each of the networks at once."""

    def __init__(self, case: Replayed, networks: int) -> None:
        import torch

        import etude  # noqa: F401  # asks for reproducible kernels

        torch.set_num_threads(1)
        inputs, outputs = case.width
        self.x, self.w = torch.randn(networks, case.batch, inputs), torch.randn(networks, inputs, outputs)
        self.out = torch.empty(networks, case.batch, outputs)
        self.operations = 2.0 * networks * case.batch * inputs * outputs
        self.rates: list[float] = []

    def measure(self, seconds: float = 0.2) -> None:
        """Note operations per second of processor time."""
        import torch

        count, begun = 0, time.process_time()
        while time.process_time() - begun < seconds:
            for _ in range(10):
                torch.bmm(self.x, self.w, out=self.out)
            count += 10
        self.rates.append(count * self.operations / (time.process_time() - begun))

    @property
    def rate(self) -> float:
        """The best that was seen: others on the machine only ever take away."""
        return max(self.rates)


def summary(arm: Arm) -> dict[str, Any]:
    """What one arm did; milliseconds of a turn's environment steps, the median over turns."""
    each = [1e3 * s[CLOCK] / s[WHAT] for s in arm.steps]
    return {
        "ms_per_step": round(statistics.median(each), 4), "ms_by_round": [round(x, 4) for x in each],
        "wall_ms_per_step": round(1e3 * statistics.median(s["seconds"] / s[WHAT] for s in arm.steps), 4),
        "return": round(arm.steps[-1]["return"], 1),
    }  # fmt: skip


def own_row(
    case: Replayed, seeds: int, arm: Arm, peer: Arm, operations: float, products: Products
) -> dict[str, Any]:  # fmt: skip
    """What is said of etude with so many seeds."""
    found, each, target = summary(arm), ratios(arm, peer, CLOCK, WHAT), case.targets.get(seeds)
    ratio, per_step = statistics.median(each), operations / seeds
    limit = 1e3 * per_step / products.rate
    return {
        **found, "ratio": round(ratio, 2), "ratio_by_round": [round(r, 2) for r in each],
        "ratio_wall": round(statistics.median(ratios(arm, peer, "seconds", WHAT)), 2), "target": target,
        "met": target is None or ratio >= target, "megaflop_per_step": round(per_step / 1e6, 2),
        "gigaflop_per_second": round(products.rate / 1e9, 1), "limit_ms": round(limit, 4),
        "times_the_limit": round(found["ms_per_step"] / limit, 1),
        "ratio_at_the_limit": round(summary(peer)["ms_per_step"] / limit, 1),
    }  # fmt: skip


def compare(case: Replayed, rounds: int) -> dict[str, Any]:
    """One case: SB3, and etude with each number of seeds that it has a target for."""
    peer = Arm(peer_python("sb3"), "_peer_sb3_replay.py", case.name, threads=1)
    own = {n: Arm(sys.executable, "_own_replay.py", case.name, f"--seeds={n}", threads=1) for n in case.targets}
    arms, products = {0: peer, **own}, {n: Products(case, n) for n in own}
    for number in range(rounds + 1):
        for arm in arms.values():
            arm.step()
        for each in products.values() if number else ():
            each.measure()
    counted = {n: arm.steps.pop(0)["operations"] for n, arm in arms.items()}  # of the turn that warmed up
    row = {"case": case.to_json(), "sb3": {**summary(peer), "megaflop_per_step": round(counted[0] / 1e6, 2)}}
    for n, arm in own.items():
        row[f"seeds-{n}"] = own_row(case, n, arm, peer, counted[n], products[n])
    for arm in arms.values():
        arm.close()
    return row


def told(name: str, row: dict[str, Any]) -> str:
    """Lines of the table in the README."""
    lines = []
    for n, target in row["case"]["targets"].items():
        x = row[f"seeds-{n}"]
        by = f"{min(x['ratio_by_round'])} to {max(x['ratio_by_round'])}"
        lines.append(
            f"| {name}, {n} seeds | {x['ratio']} ({by}) | {target:g}: {'met' if x['met'] else 'missed'} | "
            f"{row['sb3']['ms_per_step']:.3g} | {x['ms_per_step']:.3g} | {x['limit_ms']:.3g} | "
            f"{x['times_the_limit']} | {x['ratio_at_the_limit']} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the JSON; exit 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(SPEED), default=list(SPEED))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    about = machine("sb3", ["torch", "gymnasium"], ["stable_baselines3", "torch", "gymnasium"])
    result: dict[str, Any] = {"machine": about, "cases": {}}
    if chosen.output and chosen.output.exists():
        result = json.loads(chosen.output.read_text())
    for name in chosen.cases:
        if name not in result["cases"]:
            row = json.loads(json.dumps(compare(SPEED[name], chosen.rounds)))
            result["cases"][name] = {**row, "machine": about}
        if chosen.output:
            chosen.output.write_text(json.dumps(result, indent=1) + "\n")
        print(told(name, result["cases"][name]), file=sys.stderr, flush=True)
    print(json.dumps(result, indent=1))
    rows = [row for name in chosen.cases for key, row in result["cases"][name].items() if key.startswith("seeds-")]
    sys.exit(0 if all(row["met"] for row in rows) else 1)


if __name__ == "__main__":
    main()
