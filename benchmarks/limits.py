"""Where a step of `grpo` stands on this machine, against what one of its cores can multiply.

For each case: the arithmetic of a step's matrix products (counted in a step of its own), the least time that it could
take at the rate of the fastest product found here, what a step takes, and what of that is sampling, the update and the
rest (rewards, text, checks). Processor time of one thread, the median of some steps; rates are measured before and
after every case and the fastest counts, so a busy machine shows a smaller share of the limit than an idle one.

    python benchmarks/limits.py [--cases main short-0.8M] [--steps 5] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import etude  # noqa: F401  # chooses kernels before torch loads, as in every run

import torch  # isort: skip
from _cases import CASES, make_model
from _machine import processor
from _operations import Operations
from _own import build

from etude.core.registry import get_method
from etude.loops.language import LanguageLoop
from etude.policies.conversation import Conversation
from etude.policies.language import LanguagePolicy
from etude.tasks import resolve_task

MAIN = "main"
CHOICES = (MAIN, "short-0.8M", "long-0.8M", "short-10M", "short-10M autocast")
NAMES = {MAIN: "main job (`tiny`, compose)"}
SIZES = (512, 1024, 2048)
"""Rows and columns of the products whose rate is measured."""


def rates(dtype: torch.dtype) -> dict[str, float]:
    """Floating-point operations per second of the fastest square product, by torch's own and by oneDNN's kernels."""
    found = {"torch": 0.0, "oneDNN": 0.0}
    for size in SIZES:
        x, y = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        found["torch"] = max(found["torch"], rate(size, lambda x=x, y=y: x @ y))
        if torch.backends.mkldnn.is_available():
            a, b = x.to_mkldnn(), y.to_mkldnn()
            found["oneDNN"] = max(found["oneDNN"], rate(size, lambda a=a, b=b: torch.nn.functional.linear(a, b)))
    return found


def rate(size: int, product: Callable[[], Any]) -> float:
    """Of one product, the best of several."""
    product()
    repeats = max(1, (2048 // size) ** 3)
    taken = []
    for _ in range(4):
        begun = time.process_time()
        for _ in range(repeats):
            product()
        taken.append(time.process_time() - begun)
    return 2 * size**3 * repeats / min(taken)


def main_job() -> LanguageLoop:
    """What `etude train` without arguments does, at its start."""
    task: Any = resolve_task("compose")
    return LanguageLoop(get_method("grpo"), task, LanguagePolicy.load("tiny", device="cpu"), seed=0, steps=150)


class Clock:
    """Processor time that is spent in a function while this looks on."""

    def __init__(self, owner: Any, name: str) -> None:
        self.spent, inner = 0.0, getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            begun = time.process_time()
            try:
                return inner(*args, **options)
            finally:
                self.spent += time.process_time() - begun

        setattr(owner, name, timed)


def measure(loop: Any, steps: int) -> dict[str, float]:
    """Seconds of a step and of its parts (medians), and the arithmetic of one."""
    loop.step()  # what is made once
    with Operations() as counted:
        loop.step()
    sampling, update = Clock(Conversation, "sample"), Clock(loop.updater, "run_together")
    found: dict[str, list[float]] = {"step": [], "sampling": [], "update": []}
    for _ in range(steps):
        sampling.spent = update.spent = 0.0
        begun = time.process_time()
        loop.step()
        if not sampling.spent or not update.spent:
            raise SystemExit("A step went past what is timed as its sampling or its update.")
        found["step"].append(time.process_time() - begun)
        found["sampling"].append(sampling.spent)
        found["update"].append(update.spent)
    medians = {k: statistics.median(v) for k, v in found.items()}
    rest = statistics.median(s - a - u for s, a, u in zip(*found.values()))
    scatter = (max(found["step"]) - min(found["step"])) / medians["step"]
    return {"operations": counted.total, **medians, "rest": rest, "scatter": scatter}


def row(name: str, folder: Path, steps: int) -> dict[str, Any]:
    """One case."""
    case, _, autocast = name.partition(" ")
    dtype = torch.bfloat16 if autocast else torch.float32
    before = rates(dtype)
    loop = main_job() if case == MAIN else build(case, str(folder / case), None, bool(autocast), False)
    found = measure(loop, steps)
    after = rates(dtype)
    known = {k: max(before[k], after[k]) for k in before}
    floor = found["operations"] / max(known.values())
    return {"case": name, **found, "rates": known, "floor": floor, "of_the_limit": floor / found["step"]}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| case | products, GFLOP | rate, GFLOP/s | floor, ms | step, ms | of the limit | sampling | update | rest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        parts = " | ".join(f"{1e3 * r[k]:,.0f} ms" for k in ("sampling", "update", "rest"))
        name, most = NAMES.get(r["case"], r["case"]), max(r["rates"].values())
        times = " | ".join(f"{1e3 * r[k]:,.0f}" for k in ("floor", "step"))
        share = f"{100 * r['of_the_limit']:.0f} %"
        lines.append(f"| {name} | {r['operations'] / 1e9:.0f} | {most / 1e9:.0f} | {times} | {share} | {parts} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table; the JSON goes to `--output`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in dict.fromkeys(name.partition(" ")[0] for name in chosen.cases if name != MAIN):
            make_model(CASES[case], Path(scratch) / case)
        for name in chosen.cases:
            rows.append(row(name, Path(scratch), chosen.steps))
            print(f"{name}: {100 * rows[-1]['of_the_limit']:.0f} % of the limit", file=sys.stderr, flush=True)
    print(f"{processor()}, torch {torch.__version__}, one thread, medians of {chosen.steps} steps\n\n{table(rows)}")
    if chosen.output:
        about = {"cpu": processor(), "torch": torch.__version__, "steps": chosen.steps}
        chosen.output.write_text(json.dumps({"machine": about, "cases": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
