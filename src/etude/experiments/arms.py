"""Arms of an experiment: methods trained on equal terms, and what came out as pairs of the same seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from etude.core.edit import set_values
from etude.core.kinds import TokenMethod
from etude.core.method import Method
from etude.core.registry import get_method
from etude.core.worlds import World
from etude.evaluation.pairs import Pair
from etude.experiments.cells import Cell, advance, by_label, model_folder, spread, trained

if TYPE_CHECKING:
    from torch import Tensor

    from etude.core.task import LanguageTask
    from etude.loops.enumerable import EnumerableLoop
    from etude.tasks.tabular.enumerable import Enumerable

START = 99
"""Seed of what arms begin from; no arm has it."""
Scores = Mapping[str, Sequence[float]]
"""[n] by measure, seed by seed."""
Figures = Callable[["EnumerableLoop"], Mapping[str, "Tensor"]]
"""More figures of an enumerable loop, [P] each."""


def pairs(
    seeds: Sequence[int], arm: Scores, baseline: Scores, *, start: Scores | None = None,
    budgets: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    weights: tuple[Sequence[str], Sequence[str]] | None = None, data: Sequence[str] = (),
) -> list[Pair]:  # fmt: skip
    """What an experiment returns: for each seed both arms by measure.

    Args:
        baseline: of the measures that are held against a baseline; of each the one that the claim names.
        start: the baseline before its first step.
        budgets: what each arm used.
        weights: hashes of what the two runs of the first measure ended with.
        data: fingerprints of the logs that both learned from.

    >>> pairs([7], {"pass@1": [0.5]}, {"pass@1": [0.25]})[0].arm
    {'pass@1': 0.5}
    """

    def at(scores: Scores | None, i: int) -> dict[str, float]:
        return {name: float(values[i]) for name, values in (scores or {}).items()}

    return [
        Pair(
            seed=seed, arm=at(arm, i), baseline=at(baseline, i), start=at(start, i),
            budgets={k: (float(a[i]), float(b[i])) for k, (a, b) in (budgets or {}).items()},
            weights=(weights[0][i], weights[1][i]) if weights else (), data=data[i] if data else "",
        )
        for i, seed in enumerate(seeds)
    ]  # fmt: skip


def variant(method: str | Method, changes: Mapping[str, Any] | None = None, **slots: object) -> TokenMethod:
    """A method with fields changed by path, or whole slots replaced."""
    found = get_method(method, World.LANGUAGE) if isinstance(method, str) else method
    changed = set_values(found.replace(**slots), changes or {})
    assert isinstance(changed, TokenMethod)
    return changed


# Enumerable policies


@dataclass
class Exact:
    """What was true along a run on an enumerable task: `curves[metric]` is [steps + 1, seeds]."""

    curves: dict[str, NDArray[np.float64]]

    def first(self, metric: str) -> list[float]:
        """Each seed's value before the first step."""
        return [float(x) for x in self.curves[metric][0]]

    def final(self, metric: str) -> list[float]:
        """Each seed's last value."""
        return [float(x) for x in self.curves[metric][-1]]

    def mean(self, metric: str) -> list[float]:
        """Each seed's mean along the run: the area under its curve."""
        return [float(x) for x in self.curves[metric].mean(0)]


def enumerable(
    method: TokenMethod, task: Enumerable, *, seeds: Sequence[int], steps: int = 100,
    measure: Figures | None = None,
) -> Exact:  # fmt: skip
    """Train a population on an enumerable task and keep exact figures after every step.

    Args:
        measure: more figures from the loop, [P] each.
    """
    import torch

    from etude.loops.enumerable import EnumerableLoop

    torch.set_num_threads(1)
    loop = EnumerableLoop(method, task, seeds=seeds, steps=steps)

    def look(loop: EnumerableLoop) -> dict[str, list[float]]:
        found = {**loop.exact(), **(measure(loop) if measure else {})}
        return {name: np.asarray(value, dtype=np.float64).tolist() for name, value in found.items()}

    rows = [look(loop)]  # before the first step
    cell = Cell(f"{method.id}-{len(seeds)}", method, task, seeds[0], steps, start="")
    rows += [line["watched"] for line in advance(loop, cell, look)]
    return Exact({k: np.array([row[k] for row in rows], dtype=np.float64) for k in rows[0]})


class Table(NamedTuple):
    """A method on an enumerable task of one seed, which draws rewards, first policy and samples."""

    method: TokenMethod
    task: Enumerable
    seed: int
    steps: int
    measure: Figures | None


def tables(
    methods: Mapping[str, TokenMethod], task: Enumerable, *, seeds: Sequence[int], steps: int = 100,
    measure: Figures | None = None,
) -> dict[str, Exact]:  # fmt: skip
    """Every method on a table of each seed's own, so that a claim is about such tables and not about one of them.

    Args:
        measure: as in `enumerable`; a function of a module, so that processes can share the work.
    """
    jobs = [Table(m, task.replace(seed=s), s, steps, measure) for s in seeds for m in methods.values()]
    labels = [label for _ in seeds for label in methods]
    found = by_label(labels, spread(_on_table, jobs))
    return {
        label: Exact({k: np.concatenate([e.curves[k] for e in rows], axis=1) for k in rows[0].curves})
        for label, rows in found.items()
    }


def _on_table(job: Table) -> Exact:
    return enumerable(job.method, job.task, seeds=[job.seed], steps=job.steps, measure=job.measure)


# Language models


@dataclass(frozen=True)
class Training(Cell):
    """A run of language, and how it is tested.

    Args:
        keep: a folder to save the trained policy in; None keeps nothing.
        samples: samples of each of `problems` problems of `split` after training.
    """

    keep: str | None = None
    split: str = "test"
    problems: int = 400
    samples: int = 2


class Tested(TypedDict, total=False):
    """What of a `Training` is the same for all arms."""

    keep: str | None
    split: str
    problems: int
    samples: int


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

    @property
    def completions(self) -> float:
        """How many were learned from."""
        return sum(line["rows"] for line in self.metrics)

    def pass_at(self, k: int, level: str | None = None) -> float:
        """pass@k, over the problems of one level if given."""
        from etude.evaluation.pass_at_k import pass_at_k

        rows = [i for i, name in enumerate(self.levels) if level is None or name == level]
        return float(pass_at_k(self.correct[rows], k).mean())


def drawdown(run: Trained, window: int = 3) -> float:
    """Largest fall of the mean accuracy of `window` training steps below its best so far."""
    curve = np.convolve([m["accuracy"] for m in run.metrics], np.ones(window) / window, "valid")
    return float((np.maximum.accumulate(curve) - curve).max())


def train(job: Training) -> Trained:
    """Do one run and sample from what it made."""
    from etude.evaluation.language import evaluate_split
    from etude.experience.groups import Groups
    from etude.experience.views import view_of

    loop, metrics = trained(job)
    if job.keep:
        loop.policy.save(Path(job.keep))
    looked = evaluate_split(
        loop.policy,
        job.task,
        job.split,
        problems=job.problems,
        samples=job.samples,
        seed=START,
        experience=Groups(view=view_of(loop.method, job.task)),
    )  # one draw of problems and random numbers for all arms
    counts = [[e.action_count for e in row] for row in looked.episodes]
    return Trained(
        job.label, job.seed, metrics, looked.correct, looked.rewards,
        [row[0].problem.level for row in looked.episodes], looked.answers, np.array(counts, dtype=np.float64),
    )  # fmt: skip


def run(jobs: Iterable[Training], workers: int | None = None) -> dict[str, list[Trained]]:
    """Do runs, two at a time on two cores; what came out by label, in the order of the jobs."""
    jobs = list(jobs)
    return by_label([job.label for job in jobs], spread(train, jobs, workers))


def language(
    methods: Mapping[str, TokenMethod],
    task: LanguageTask,
    *,
    seeds: Sequence[int],
    steps: int = 40,
    start: str = "tiny",
    **options: Unpack[Tested],
) -> dict[str, list[Trained]]:
    """Every method on a task with each of the seeds, on equal terms."""
    jobs = [
        Training(label, method, task, seed, steps, start, **options)
        for seed in seeds
        for label, method in methods.items()
    ]
    return run(jobs)


def untrained(method: TokenMethod, task: LanguageTask, *, start: str = "tiny", **options: Unpack[Tested]) -> Trained:
    """What arms begin from, tested as they are."""
    return train(Training("start", method, task, START, 0, start, **options))


@contextmanager
def started(
    task: LanguageTask, *, steps: int, start: str = "tiny", changes: Mapping[str, Any] | None = None
) -> Iterator[Start]:
    """A policy that has been fine-tuned on worked answers first, for the arms to begin from.

    >>> # with started(task, steps=200) as first: language({...}, task, start=first.folder)
    """
    method = variant("sft", {"problems": 64, "optimizer.lr": 1e-3, **(changes or {})})
    job = Training("start", method, task, START, steps, start, problems=50)
    with model_folder(job.folder()) as folder:
        yield Start(str(folder), train(replace(job, keep=str(folder))))


class Start(NamedTuple):
    """Where the policy is, and how it came about."""

    folder: str
    trained: Trained
