"""Which offline methods: every one that learns from logs alone, on six made data sets under one budget.

    python benchmarks/which_offline.py                       # train what is missing, then write the page
    python benchmarks/which_offline.py --page                # only the page, from studies/offline/
    python benchmarks/which_offline.py --methods iql bc --sets "maze, wandering" --seeds 5
    python benchmarks/which_offline.py --share 0.2 --updates 250 --seeds 2 --out /tmp/try    # a look

Methods are as published but for their sizes: networks of 64-64 and batches of 64, so that what is compared is what they
do with data and not how long somebody tuned them. What was stopped goes on: every run is a line of `runs.jsonl`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import _offline_page as page
from _offline_sets import NAMED, SETS, WORLDS, logged, measures, score

from etude.core.edit import set_values
from etude.core.errors import EtudeError
from etude.core.kinds import ReplayMethod
from etude.core.method import Method
from etude.core.registry import compositions, family, files, get_method
from etude.experience.logged import Logged
from etude.experiments.cells import folder_name
from etude.experiments.on_logs import before_and_after
from etude.loops.off_policy import BLOCK
from etude.policies.control.networks import MLP
from etude.runtime.jsonl import JsonLines

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "studies" / "offline"
UPDATES, SEEDS = 2_000, 3
OF_REPLAY = ("dqn", "qr-dqn")
"""Methods that act, as they are where they do not."""
SIZES = {"sampling.batch": 64, "sampling.horizon.gamma": 0.98, "optimizer.lr": 1e-3}


class Job(NamedTuple):
    """A method on a set of one seed."""

    method: str
    made: str
    seed: int
    updates: int
    share: float

    @property
    def key(self) -> str:
        """By all that its result depends on but the code."""
        return folder_name(f"{self.method}-{self.made}-{self.seed}", [small(self.method).to_json(), *self[3:]])


def methods() -> list[str]:
    """Those that learn from logs alone, and values that learn from a replay, from logs."""
    names = [n for n in files("methods") if family("methods", n) == "offline"]
    every = {n: m for n in names for m in compositions(n) if isinstance(m, ReplayMethod)}
    own: dict[str, Any] = {n: m for n, m in every.items() if m.slots()["experience"] is not None}
    found = [n for n, m in own.items() if not m.experience.acts and not m.stages]
    return sorted([*found, *OF_REPLAY])


def small(name: str) -> Method:
    """The method in these sizes; those of its learners too."""
    method: Any = get_method(name, world="control")
    if name in OF_REPLAY:
        method = method.replace(experience=Logged(), exploration=None)
    parts = {k: narrow(part) for k, part in method.slots().items() if k in ("policy", "critic", "value") and part}
    parts["learners"] = tuple(narrow(part) for part in method.learners)
    found: Method = set_values(method.replace(**parts), SIZES)
    return found


def narrow(part: Any) -> Any:
    """The part, and all parts inside, with perceptrons of two layers of 64."""
    if isinstance(part, MLP):
        return part.replace(hidden=(64, 64))
    inside = {k: v for k, v in part.fields().items() if hasattr(v, "fields")}
    return part.replace(**{k: narrow(v) for k, v in inside.items()})


def fits(name: str, made: str) -> bool:
    """Whether its actions are those of a set: numbers, or choices."""
    choices = small(name).slots()["policy"].of_choices
    return bool(choices) == (NAMED[made].world == "cart")


def done(job: Job) -> dict[str, Any]:
    """A run, as a line: what it returned before and after, and the processor's seconds; or why there is none."""
    made, began = NAMED[job.made], time.process_time()
    world, line = WORLDS[made.world], {"key": job.key, **job._asdict()}
    try:
        found = before_and_after(
            small(job.method), logged(made, job.seed, job.share), world.task, job.seed, job.updates, world.played,
            world.allow,
        )  # fmt: skip
    except EtudeError as error:
        return {**line, "error": str(error)}
    before, after = (score(made.world, x) for x in found)
    return {**line, "before": before, "score": after, "return": found[1], "seconds": time.process_time() - began}


def train(jobs: Sequence[Job], out: Path, workers: int) -> None:
    """Those that are not there yet, one process for each core, each written down when it is done."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "runs.jsonl"
    there = {line["key"] for line in JsonLines.read(path)} if path.is_file() else set()
    left, lines = [job for job in jobs if job.key not in there], JsonLines(path)
    for k, line in enumerate(_results(left, workers), 1):
        lines.append(line)
        said = line.get("error") or f"{line['score']:.0f} in {line['seconds']:.1f} s"
        print(f"{k}/{len(left)} {line['method']} on {line['made']}, seed {line['seed']}: {said}", flush=True)


def _results(jobs: Sequence[Job], workers: int) -> Iterator[dict[str, Any]]:
    if workers <= 1:
        yield from map(done, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(done, jobs)


def measured(made: Sequence[str], seeds: int, share: float, out: Path) -> None:
    """The measures of every data set, where they are not there yet."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "sets.jsonl"
    there = {(x["made"], x["seed"], x["share"]) for x in JsonLines.read(path)} if path.is_file() else set()
    lines = JsonLines(path)
    for name in made:
        for seed in range(seeds):
            if (name, seed, share) not in there:
                line = {"made": name, "seed": seed, "share": share}
                lines.append({**line, **measures(NAMED[name], seed, share)})


def main(arguments: Sequence[str] | None = None) -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--methods", nargs="*", default=None)
    asked.add_argument("--sets", nargs="*", default=[made.name for made in SETS])
    asked.add_argument("--seeds", type=int, default=SEEDS)
    asked.add_argument("--updates", type=int, default=UPDATES)
    asked.add_argument("--share", type=float, default=1.0, help="of each set's episodes")
    asked.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    asked.add_argument("--out", type=Path, default=None, help="where runs and page go; studies/offline and docs/")
    asked.add_argument("--page", action="store_true", help="only write the page")
    options = asked.parse_args(arguments)
    if options.updates < BLOCK or options.updates % BLOCK:
        asked.error(f"--updates must be a multiple of {BLOCK}, got {options.updates}.")
    out = options.out or KEPT
    if not options.page:
        names = options.methods or methods()
        measured(options.sets, options.seeds, options.share, out)
        jobs = [
            Job(name, made, seed, options.updates, options.share)
            for seed in range(options.seeds) for made in options.sets for name in names if fits(name, made)
        ]  # fmt: skip
        train(jobs, out, options.workers)
    page.write(out, ROOT / "docs" if options.out is None else out, {made.name: made.about for made in SETS})


if __name__ == "__main__":
    main()
