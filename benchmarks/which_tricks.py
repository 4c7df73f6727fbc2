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
from typing import Any, NamedTuple

import numpy as np

from etude.core.edit import set_values
from etude.core.method import Method
from etude.core.registry import family, files, get_method
from etude.evaluation.aggregates import interquartile_mean
from etude.evaluation.comparison import difference
from etude.evaluation.intervals import Interval, bootstrap_interval
from etude.evaluation.plots import interval_bars
from etude.experience.groups import Groups
from etude.experiments.arms import SEEDS, Training, train
from etude.experiments.cells import spread
from etude.tasks import resolve_task
from etude.tasks.language.sums import Sums

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "runs" / "which-tricks"
PAGE = ROOT / "docs" / "which-tricks-help.md"
TASKS: dict[str, Any] = {
    "compose": resolve_task("compose"), "sums": Sums(terms=(3, 4, 5)), "countdown": resolve_task("countdown"),
}  # fmt: skip
PICTURE = ROOT / "docs" / "images" / "which-tricks.png"
BASELINE = "grpo"
PROBLEMS, SIZE = 16, 8

TEXT = """# Which tricks help?

Every method with verifiable rewards on the same three tasks from the same model: {steps} training steps of {problems}
problems x {size} completions, {seeds} seeds, 100 test problems x 8 samples each. Settings are the methods' own
defaults; nothing was tuned for a task. IQM is the interquartile mean of pass@1 over tasks and seeds with its stratified
bootstrap interval. The last column is the difference of means to GRPO with Welch's interval over seeds; of {count}
comparisons at 95%, one or two fall outside by chance. `updates` is how many optimizer steps a batch is used for.

![Differences to GRPO](images/{picture})

{table}

\\* samples in a way of its own, so that a step is not the same number of completions.

What to read into it, and what not: the model has half a million parameters, 25 steps are the beginning of training, and
methods made for long runs, hard problems or large k (pass@k objectives, entropy, difficulty) cannot show here what they
are for; [the claims](claims.md) ask each for its own. Several updates per batch help where there is something quick to
learn (compose). Methods that train at another temperature are sampled at 1 like all others.

Made by `python benchmarks/which_tricks.py --steps {steps} --seeds {seeds}`.
"""


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
    return [n for n in found if (m := get_method(n)).row != "theory" and m.experience and m.experience.samples]


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


class Row(NamedTuple):
    """What the table says of a method."""

    name: str
    whole: Interval
    against: Interval | None
    cells: list[str]


def row(name: str, seeds: range, steps: int, baseline: np.ndarray) -> Row:
    """A method's figures; `baseline` [seeds, tasks] is what it is compared with."""
    one_try, eight = (scores(name, m, seeds, steps) for m in ("pass@1", "pass@8"))
    whole, method = bootstrap_interval(one_try, interquartile_mean), get_method(name)
    gap = None if name == BASELINE else difference(one_try, baseline)
    told = ""
    if gap is not None:
        told = f"{gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f})"
        told += " **better**" if gap.low > 0 else " **worse**" if gap.high < 0 else ""
    cells = [
        f"[{name}](methods/{name}.md){'' if equal(method)[1] else ' *'}",
        f"{whole.value:.3f} ({whole.low:.3f} to {whole.high:.3f})", *(f"{x:.3f}" for x in one_try.mean(0)),
        f"{eight.mean():.3f}", str(method.epochs * method.minibatches), told,
    ]  # fmt: skip
    return Row(name, whole, gap, cells)


def write(chosen: list[str], seeds: range, steps: int) -> None:
    """The page and its picture, from the runs that are there."""
    baseline = scores(BASELINE, "pass@1", seeds, steps)
    rows = sorted((row(n, seeds, steps, baseline) for n in chosen), key=lambda r: -r.whole.value)
    gaps = {r.name: r.against for r in sorted(rows, key=lambda r: -(r.against.value if r.against else 0)) if r.against}
    interval_bars(gaps, PICTURE, x_label=f"pass@1 minus {BASELINE}'s, mean over three tasks, with 95% intervals")
    columns = ["method", "IQM of pass@1", *TASKS, "pass@8", "updates", f"against {BASELINE}"]
    lines = [columns, ["---"] * len(columns), *(r.cells for r in rows)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    PAGE.write_text(TEXT.format(
        steps=steps, problems=PROBLEMS, size=SIZE, seeds=len(seeds), baseline=BASELINE, picture=PICTURE.name,
        count=len(gaps), table=table,
    ))  # fmt: skip


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
