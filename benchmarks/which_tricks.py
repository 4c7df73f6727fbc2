"""Which tricks help: every method with verifiable rewards on the same three tasks under one budget.

    python benchmarks/which_tricks.py [--methods grpo maxrl] [--seeds 3] [--steps 25]

Every run starts from the same model and takes the same number of training steps on 16 problems x 8 completions (a
method that samples otherwise keeps its own way and is marked). Runs are kept in runs/which-tricks and found again; the
table goes to docs/which-tricks-help.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from etude.core.edit import set_values
from etude.core.method import Method
from etude.core.registry import family, files, get_method
from etude.evaluation.aggregates import interquartile_mean
from etude.evaluation.arms import SEEDS, Training, spread, train
from etude.evaluation.intervals import bootstrap_interval, difference_interval
from etude.experience.groups import Groups
from etude.tasks import resolve_task
from etude.tasks.language.sums import Sums

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "runs" / "which-tricks"
PAGE = ROOT / "docs" / "which-tricks-help.md"
TASKS: dict[str, Any] = {
    "compose": resolve_task("compose"), "sums": Sums(terms=(3, 4, 5)), "countdown": resolve_task("countdown"),
}  # fmt: skip
BASELINE = "grpo"
PROBLEMS, SIZE = 16, 8


def equal(method: Method) -> tuple[Method, bool]:
    """The method with the common budget, and whether it samples in plain groups of the common size."""
    plain = type(method.experience) is Groups
    changes: dict[str, Any] = {"problems": PROBLEMS}
    if plain:
        changes["experience.size"] = SIZE
    return set_values(method, changes), plain


def names() -> list[str]:
    """Methods that learn from samples of a language model."""
    found = [n for n in files("methods") if family("methods", n) == "rlvr"] + ["reinforce"]
    return [n for n in found if (m := get_method(n)).kind != "theory" and m.experience and m.experience.samples]


def place(name: str, task: str, seed: int, steps: int) -> Path:
    return KEPT / f"{name}-{task}-{steps}-{seed}.json"


def one(job: tuple[str, str, int, int]) -> None:
    """Do a run and keep what came out."""
    name, task, seed, steps = job
    method, _ = equal(get_method(name))
    done = train(Training(name, method, TASKS[task], seed, steps, problems=100, samples=8))
    about = {"pass@1": done.pass_at(1), "pass@8": done.pass_at(8)}
    KEPT.mkdir(parents=True, exist_ok=True)
    place(*job).write_text(json.dumps(about))


def scores(name: str, metric: str, seeds: range, steps: int) -> np.ndarray:
    """[seeds, tasks]."""
    read = lambda task, seed: json.loads(place(name, task, seed, steps).read_text())[metric]  # noqa: E731
    return np.array([[read(task, seed) for task in TASKS] for seed in seeds])


def row(name: str, seeds: range, steps: int, baseline: np.ndarray) -> tuple[float, str]:
    """A line of the table, and what it is sorted by."""
    one_try, eight = (scores(name, m, seeds, steps) for m in ("pass@1", "pass@8"))
    whole = bootstrap_interval(one_try, interquartile_mean)
    gap = difference_interval(one_try, baseline)
    verdict = "**better**" if gap.low > 0 else "**worse**" if gap.high < 0 else ""
    mark = "" if equal(get_method(name))[1] else " *"
    by_task = " | ".join(f"{x:.3f}" for x in one_try.mean(0))
    against = "" if name == BASELINE else f"{gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f}) {verdict}"
    line = (
        f"| [{name}](methods/{name}.md){mark} | {whole.value:.3f} ({whole.low:.3f} to {whole.high:.3f}) | {by_task} "
        f"| {eight.mean():.3f} | {against} |"
    )
    return whole.value, line


def write(chosen: list[str], seeds: range, steps: int) -> None:
    """The page, from the runs that are there."""
    baseline = scores(BASELINE, "pass@1", seeds, steps)
    lines = [line for _, line in sorted((row(n, seeds, steps, baseline) for n in chosen), reverse=True)]
    head = [
        "# Which tricks help?", "",
        f"Every method with verifiable rewards on the same three tasks from the same model, {steps} training steps of "
        f"{PROBLEMS} problems x {SIZE} completions, {len(seeds)} seeds, 100 test problems x 8 samples. Settings are "
        "the methods' own defaults: nothing was tuned for a task. IQM is the interquartile mean of pass@1 over tasks "
        "and seeds with its stratified bootstrap interval; the last column is the difference of means to GRPO.", "",
        f"| method | IQM of pass@1 | {' | '.join(TASKS)} | pass@8 | against {BASELINE} |",
        "|---|---|" + "---|" * (len(TASKS) + 2),
    ]  # fmt: skip
    foot = ["", "\\* samples in a way of its own, so a step is not the same number of completions.", "",
            f"Made by `python benchmarks/which_tricks.py --steps {steps} --seeds {len(seeds)}`."]  # fmt: skip
    PAGE.write_text("\n".join([*head, *lines, *foot]) + "\n")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--methods", nargs="*", default=None)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--steps", type=int, default=25)
    asked.add_argument("--workers", type=int, default=None)
    options = asked.parse_args()
    seeds, chosen = range(SEEDS, SEEDS + options.seeds), options.methods or names()
    jobs = [(n, t, s, options.steps) for n in chosen for t in TASKS for s in seeds]
    missing = [j for j in jobs if not place(*j).is_file()]
    print(f"{len(jobs) - len(missing)} of {len(jobs)} runs are there already", flush=True)
    spread(one, missing, options.workers)
    write(chosen, seeds, options.steps)
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
