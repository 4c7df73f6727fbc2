"""Two libraries' arms in turn, how far apart they are, and how far each is from what the machine could do.

The limit is the arithmetic of an update's matrix products, counted as they run, over the rate of the largest of them,
measured between the turns: what it would take if nothing else took time.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from _arms import Arm, ratios

CLOCK = "processor"


class Case(Protocol):
    """What both libraries are given."""

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> tuple[int, int]: ...

    @property
    def batch(self) -> int: ...

    @property
    def targets(self) -> dict[int, float]: ...

    def to_json(self) -> dict[str, Any]:
        """All of it, for the report."""


class Products:
    """The largest product of a case's updates, [rows, width] by [width, width] for each of the networks at once."""

    def __init__(self, case: Case, networks: int) -> None:
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


def summary(arm: Arm, what: str) -> dict[str, Any]:
    """What one arm did; milliseconds of processor time of one of `what`, the median over turns."""
    each = [1e3 * s[CLOCK] / s[what] for s in arm.steps]
    found = {
        "ms": round(statistics.median(each), 4), "ms_by_round": [round(x, 4) for x in each],
        "wall_ms": round(1e3 * statistics.median(s["seconds"] / s[what] for s in arm.steps), 4),
    }  # fmt: skip
    reached = arm.steps[-1].get("return", math.nan)  # of logs nothing is played
    return found if math.isnan(reached) else {**found, "return": round(reached, 1)}


def own_row(
    case: Case, seeds: int, arm: Arm, peer: Arm, operations: float, products: Products, what: str
) -> dict[str, Any]:  # fmt: skip
    """What is said of etude with so many seeds; operations are those of all of them."""
    found, each, target = summary(arm, what), ratios(arm, peer, CLOCK, what), case.targets.get(seeds)
    ratio, of_one = statistics.median(each), operations / seeds
    limit = 1e3 * of_one / products.rate
    return {
        **found, "ratio": round(ratio, 2), "ratio_by_round": [round(r, 2) for r in each],
        "ratio_wall": round(statistics.median(ratios(arm, peer, "seconds", what)), 2), "target": target,
        "met": target is None or ratio >= target, "megaflop": round(of_one / 1e6, 2),
        "gigaflop_per_second": round(products.rate / 1e9, 1), "limit_ms": round(limit, 4),
        "times_the_limit": round(found["ms"] / limit, 1),
        "ratio_at_the_limit": round(summary(peer, what)["ms"] / limit, 1),
    }  # fmt: skip


def compare(case: Case, rounds: int, what: str, peer: Arm, own: Mapping[int, Arm]) -> dict[str, Any]:
    """One case: the peer, and etude with each number of seeds, in turns after one that warms up."""
    arms, products = {0: peer, **own}, {n: Products(case, n) for n in own}
    for number in range(rounds + 1):
        for arm in arms.values():
            arm.step()
        for each in products.values() if number else ():
            each.measure()
    counted = {n: arm.steps.pop(0)["operations"] for n, arm in arms.items()}  # of the turn that warmed up
    row = {"case": case.to_json(), "peer": {**summary(peer, what), "megaflop": round(counted[0] / 1e6, 2)}}
    for n, arm in own.items():
        row[f"seeds-{n}"] = own_row(case, n, arm, peer, counted[n], products[n], what)
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
            f"{row['peer']['ms']:.3g} | {x['ms']:.3g} | {x['limit_ms']:.3g} | "
            f"{x['times_the_limit']} | {x['ratio_at_the_limit']} |"
        )
    return "\n".join(lines)


def main(
    text: str | None, cases: Mapping[str, Any], about: Callable[[argparse.Namespace], dict[str, Any]],
    measured: Callable[[Any, argparse.Namespace], dict[str, Any]], flags: Sequence[str] = (),
) -> None:  # fmt: skip
    """Measure the cases that the file lacks, print the JSON; exit 1 if a target was missed."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(cases), default=list(cases))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--output", type=Path)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    chosen = parser.parse_args()
    where = about(chosen)
    result: dict[str, Any] = {"machine": where, "cases": {}}
    if chosen.output and chosen.output.exists():
        result = json.loads(chosen.output.read_text())
    for name in chosen.cases:
        if name not in result["cases"]:
            row = json.loads(json.dumps(measured(cases[name], chosen)))
            result["cases"][name] = {**row, "machine": where}
        if chosen.output:
            chosen.output.write_text(json.dumps(result, indent=1) + "\n")
        print(told(name, result["cases"][name]), file=sys.stderr, flush=True)
    print(json.dumps(result, indent=1))
    rows = [row for name in chosen.cases for key, row in result["cases"][name].items() if key.startswith("seeds-")]
    sys.exit(0 if all(row["met"] for row in rows) else 1)
