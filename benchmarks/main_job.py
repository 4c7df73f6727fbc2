"""The main job from its start to its end: `etude train` of two checkouts in turn, seconds on the clock.

    python benchmarks/main_job.py OLD NEW [--flags "--threads 2" "--ranks 2"] [--rounds 5] [--steps 150] [--output FILE]

OLD and NEW are folders of the repository (`git clone`, `git checkout COMMIT`; the target goes by 45c6c3e). A round runs
OLD, NEW, and NEW with each of the `--flags`, forwards and backwards in turn, every run a process of its own in a new
folder: imports, evaluation before and after, checkpoints and report are in it. Whatever limits threads is taken out of
its environment. Printed for each arm: the median of seconds on the clock and of processor time, smallest and largest,
and the median over rounds of its seconds over those of OLD, of which the target for one arm of NEW is 0.7. Only an idle
machine can say: the load is printed, too. The exit status is 1 if no arm of NEW meets the target.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _machine import processor

TARGET = 0.7
LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_THREAD_LIMIT")
"""Variables that would decide how many threads there are."""


@dataclass
class Arm:
    """A checkout and the flags that `etude train` gets there; `seconds` and `processor` time of its runs by round."""

    name: str
    checkout: Path
    flags: tuple[str, ...] = ()
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def run(self, steps: int) -> None:
        """One whole run. Raises SystemExit with what it said if it fails."""
        kept = {k: v for k, v in os.environ.items() if k not in LIMITS}
        told = {**kept, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(self.checkout.resolve() / "src")}
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-W", "ignore", "-m", "etude", "train", "--steps", str(steps), "--quiet",
                       "--out", f"{scratch}/run", *self.flags]  # fmt: skip
            before, begun = _used(), time.monotonic()
            done = subprocess.run(command, env=told, cwd=scratch, capture_output=True, text=True, check=False)
            self.seconds.append(time.monotonic() - begun)
            self.processor.append(_used() - before)
        if done.returncode:
            raise SystemExit(f"{self.name} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")


def _used() -> float:
    """Processor time of all processes that have ended and were waited for."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def summary(arms: list[Arm]) -> list[dict[str, Any]]:
    """What each arm took; `ratio`: the median over rounds of its seconds over the first arm's."""
    found = []
    for arm in arms:
        ratios = [round(own / old, 3) for own, old in zip(arm.seconds, arms[0].seconds, strict=True)]
        ratio = statistics.median(ratios)
        met = None if arm is arms[0] else ratio <= TARGET
        found.append({"arm": arm.name, "flags": arm.flags, "seconds": arm.seconds, "processor": arm.processor,
                      "ratios": ratios, "ratio": ratio, "met": met})  # fmt: skip
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The arms as Markdown."""
    lines = ["| | seconds | processor time, s | of OLD | target |", "|---|---|---|---|---|"]
    for row in rows:
        clock, processor = (
            f"{statistics.median(x):.1f} ({min(x):.1f} to {max(x):.1f})" for x in (row["seconds"], row["processor"])
        )
        share = f"{row['ratio']:.2f} ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})"
        said = "" if row["met"] is None else f"{TARGET}: {'met' if row['met'] else 'missed'}"
        lines.append(f"| {row['arm']} | {clock} | {processor} | {share} | {said} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--flags", nargs="*", default=["--threads 2", "--ranks 2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    arms = [Arm("OLD", options.old), Arm("NEW", options.new)]
    arms += [Arm(f"NEW {flags}", options.new, tuple(shlex.split(flags))) for flags in options.flags]
    load = [os.getloadavg()[0]]
    for number in range(options.rounds):
        for arm in arms[:: -1 if number % 2 else 1]:
            arm.run(options.steps)
            print(f"{arm.name}: {arm.seconds[-1]:.1f} s", file=sys.stderr, flush=True)
        load.append(os.getloadavg()[0])
    rows = summary(arms)
    where = f"{processor()}, {os.cpu_count()} cores"
    about = f"{where}, load {min(load):.0f} to {max(load):.0f}"
    print(f"{about}, {options.rounds} rounds of {options.steps} steps\n\n{table(rows)}")
    if options.output:
        options.output.write_text(json.dumps({"machine": about, "steps": options.steps, "arms": rows}, indent=1) + "\n")
    sys.exit(0 if any(row["met"] for row in rows) else 1)


if __name__ == "__main__":
    main()
