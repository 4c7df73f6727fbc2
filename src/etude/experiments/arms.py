"""Arms of an experiment: methods trained on equal terms, and the parts of a claim judged on what came out."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from etude.core.edit import set_values
from etude.core.method import Method
from etude.core.registry import get_method
from etude.evaluation.comparison import Outcome, verdict

SEEDS = 100
"""First seed of an experiment: nothing was tuned on these."""


@dataclass(frozen=True)
class Question:
    """One part of a claim: arm against baseline, scores [runs] of each."""

    about: str
    arms: Mapping[str, Sequence[float]]
    direction: Literal["higher", "lower"] = "higher"
    margin: float = 0.0

    def answer(self) -> dict[str, Any]:
        """The comparison as JSON; the first arm is the method's, the second the baseline's."""
        (name, arm), (other, baseline) = self.arms.items()
        found = verdict(arm, baseline, self.direction, self.margin)
        spread = found.interval.to_json()
        low, high = (f"{spread[k]:+.3f}" if spread[k] is not None else "unbounded" for k in ("low", "high"))
        means = f"{name} {np.mean(arm):.3f}, {other} {np.mean(baseline):.3f}"
        return {
            "about": self.about, "verdict": found.outcome, "direction": self.direction, "margin": self.margin,
            "summary": f"{self.about}: {means}; difference {spread['value']:+.3f} (95% {low} to {high}).",
            "arms": {k: [float(x) for x in v] for k, v in self.arms.items()}, "difference": spread,
        }  # fmt: skip


def findings(questions: Sequence[Question], **about: Any) -> dict[str, Any]:
    """What `claims run` records: held if every part held, not held if one did not, else inconclusive.

    Arms, direction and difference at the top are those of the first part; all of them are in `parts`. `about` is what
    the experiment was: task, steps, seeds, and figures worth keeping.
    """
    parts = [q.answer() for q in questions]
    outcomes = {p["verdict"] for p in parts}
    overall: Outcome = "inconclusive"
    if outcomes == {"held"}:
        overall = "held"
    elif "not held" in outcomes:
        overall = "not held"
    first = {k: v for k, v in parts[0].items() if k not in ("verdict", "summary", "about")}
    return {"verdict": overall, "summary": " ".join(p["summary"] for p in parts), **about, **first, "parts": parts}


def variant(method: str | Method, changes: Mapping[str, Any] | None = None, **slots: Any) -> Method:
    """A method with fields changed by path, or whole slots replaced."""
    found = get_method(method) if isinstance(method, str) else method
    return set_values(found.replace(**slots), changes or {})


# Enumerable policies


@dataclass
class Exact:
    """What was true along a run on an enumerable task: `curves[metric]` is [steps + 1, seeds]."""

    curves: dict[str, NDArray[np.float64]]

    def final(self, metric: str) -> list[float]:
        """Each seed's last value."""
        return [float(x) for x in self.curves[metric][-1]]

    def mean(self, metric: str) -> list[float]:
        """Each seed's mean along the run: the area under its curve."""
        return [float(x) for x in self.curves[metric].mean(0)]


def enumerable(
    method: Method, task: Any, *, seeds: int = 64, steps: int = 100,
    measure: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Exact:  # fmt: skip
    """Train a population on an enumerable task and keep exact figures after every step.

    Args:
        measure: more figures from the loop, [P] each.
    """
    import torch

    from etude.loops.enumerable import EnumerableLoop

    torch.set_num_threads(1)
    loop = EnumerableLoop(method, task, seeds=range(SEEDS, SEEDS + seeds), steps=steps)
    found: dict[str, list[Any]] = {}

    def look() -> None:
        for name, value in {**loop.exact(), **(measure(loop) if measure else {})}.items():
            found.setdefault(name, []).append(np.asarray(value, dtype=np.float64))

    look()
    for _ in range(steps):
        loop.step()
        look()
    return Exact({k: np.stack(v) for k, v in found.items()})


# Language models


@dataclass(frozen=True)
class Training:
    """A run of language to be done: picklable, so that several processes can share the work.

    Args:
        start: a folder to load the first policy from, or 'tiny'.
        keep: a folder to save the trained policy in; None keeps nothing.
        samples: samples of each of `problems` problems of `split` after training.
    """

    label: str
    method: Method
    task: Any
    seed: int
    steps: int
    start: str = "tiny"
    keep: str | None = None
    split: str = "test"
    problems: int = 100
    samples: int = 8


@dataclass
class Trained:
    """What a run came to: metrics by step, and which samples were right, [problems, samples]."""

    label: str
    seed: int
    metrics: list[dict[str, float]]
    correct: NDArray[np.bool_]
    rewards: NDArray[np.float64]
    levels: list[str] = field(default_factory=list)
    answers: list[list[str]] = field(default_factory=list)
    lengths: NDArray[np.float64] | None = None

    def pass_at(self, k: int, level: str | None = None) -> float:
        """pass@k, over the problems of one level if given."""
        from etude.evaluation.pass_at_k import pass_at_k

        rows = [i for i, name in enumerate(self.levels) if level is None or name == level]
        return float(pass_at_k(self.correct[rows], k).mean())


def train(job: Training) -> Trained:
    """Do one run and sample from what it made."""
    import torch

    from etude.evaluation.language import evaluate_split
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy

    torch.set_num_threads(1)
    policy = LanguagePolicy.load(job.start, device="cpu")
    loop = LanguageLoop(job.method, job.task, policy, seed=job.seed, steps=job.steps)
    metrics = [loop.step().metrics for _ in range(job.steps)]
    if job.keep:
        policy.save(Path(job.keep))
    looked = evaluate_split(
        policy, job.task, job.split, problems=job.problems, samples=job.samples, seed=SEEDS
    )  # one draw of problems and random numbers for all arms
    counts = [[e.action_count for e in row] for row in looked.episodes]
    return Trained(
        job.label, job.seed, metrics, looked.correct, looked.rewards,
        [row[0].problem.level for row in looked.episodes], looked.answers, np.array(counts, dtype=np.float64),
    )  # fmt: skip


def run(jobs: Iterable[Training], workers: int | None = None) -> dict[str, list[Trained]]:
    """Do runs, two at a time on two cores; what came out by label, in the order of the jobs."""
    return _grouped(spread(train, list(jobs), workers))


def _grouped(results: Sequence[Trained]) -> dict[str, list[Trained]]:
    found: dict[str, list[Trained]] = {}
    for result in results:
        found.setdefault(result.label, []).append(result)
    return found


def spread(function: Callable[[Any], Any], jobs: Sequence[Any], workers: int | None = None) -> list[Any]:
    """`function` of every job, each in a process with one thread; results in order."""
    count = min(len(jobs), workers or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if count <= 1:
        return [function(job) for job in jobs]
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(function, jobs))


def language(
    methods: Mapping[str, Method], task: Any, *, seeds: int = 3, steps: int = 40, start: str = "tiny", **options: Any
) -> dict[str, list[Trained]]:
    """Every method on a task with `seeds` seeds each, on equal terms."""
    jobs = [
        Training(label, method, task, SEEDS + k, steps, start, **options)
        for k in range(seeds)
        for label, method in methods.items()
    ]
    return run(jobs)


class Started:
    """A folder with a policy that has been fine-tuned on worked answers first, for the arms to begin from.

    >>> # with Started(task, steps=200) as folder: language({...}, task, start=folder)
    """

    def __init__(self, task: Any, *, steps: int, start: str = "tiny", changes: Mapping[str, Any] | None = None) -> None:
        method = variant("sft", {"problems": 64, "optimizer.lr": 1e-3, **(changes or {})})
        self.folder = tempfile.TemporaryDirectory()
        self.job = Training("start", method, task, SEEDS - 1, steps, start, keep=self.folder.name, problems=50)

    def __enter__(self) -> str:
        self.trained = train(self.job)
        return self.folder.name

    def __exit__(self, *_: object) -> None:
        self.folder.cleanup()
