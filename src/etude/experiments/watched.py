"""Runs of language of which more is kept than metrics: what a part thinks after every step, accuracy elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from etude.core.episodes import Problem
from etude.core.fields import Count
from etude.core.kinds import TokenMethod
from etude.experiments.arms import START
from etude.experiments.cells import Cell, by_label, spread, trained
from etude.tasks.language.compose import Compose
from etude.tasks.pool import Pool

if TYPE_CHECKING:
    from etude.core.task import LanguageTask
    from etude.loops.language import LanguageLoop
    from etude.policies.language import LanguagePolicy


class FewCompose(Compose):
    """Compose of which only the first `size` problems are trained on, so that each comes again.

    >>> len(FewCompose(size=3).problems("train")), len(FewCompose(size=3).problems("test"))
    (3, 1000)
    """

    size: Count = 256

    def problems(self, split: str) -> Sequence[Problem]:
        pool = super().problems(split)
        return Pool(lambda i: pool[i], self.size) if split == "train" else pool


@dataclass(frozen=True)
class Job(Cell):
    """One run, then samples of the tests of `tests` (the task itself if empty).

    Args:
        watch: a number about the loop after every step; a function of a module, so that processes can share the work.
        after: more figures from the loop once it is done.
    """

    watch: Callable[[LanguageLoop], float] | None = None
    after: Callable[[LanguageLoop], Mapping[str, float]] | None = None
    tests: Mapping[str, LanguageTask] = field(default_factory=dict)
    problems: int = 400
    samples: int = 2
    keep: str | None = None


class Shared(TypedDict, total=False):
    """What of a `Job` is the same for all arms."""

    start: str
    pool: Sequence[Problem] | None
    watch: Callable[[LanguageLoop], float] | None
    after: Callable[[LanguageLoop], Mapping[str, float]] | None
    tests: Mapping[str, LanguageTask]
    problems: int
    samples: int
    keep: str | None


@dataclass
class Run:
    """What a job came to: `scores` by name ('pass@1', 'pass@8', 'length', each '/test' of `tests`), metrics by step."""

    label: str
    seed: int
    metrics: list[dict[str, float]]
    watched: list[float]
    scores: dict[str, float]


def run(job: Job) -> Run:
    """Do one job."""
    loop, metrics = trained(job, job.watch)
    if job.keep:
        loop.policy.save(Path(job.keep))
    scores: dict[str, float] = {}
    for name, task in (job.tests or {"": job.task}).items():
        found = look(loop.policy, task, job.problems, job.samples)
        scores |= {f"{k}/{name}" if name else k: v for k, v in found.items()}
    watched = [float(m["watched"]) for m in metrics] if job.watch else []
    return Run(job.label, job.seed, metrics, watched, scores | dict(job.after(loop) if job.after else {}))


def look(policy: LanguagePolicy, task: LanguageTask, problems: int, samples: int) -> dict[str, float]:
    """pass@1, pass@8 if there are so many samples, and tokens per completion on a task's test problems."""
    from etude.evaluation.language import evaluate_split
    from etude.evaluation.pass_at_k import pass_at_k

    looked = evaluate_split(policy, task, "test", problems=problems, samples=samples, seed=START)
    counts = [e.action_count for row in looked.episodes for e in row]
    found = {f"pass@{k}": float(pass_at_k(looked.correct, k).mean()) for k in (1, 8) if k <= samples}
    return found | {"length": sum(counts) / len(counts)}


def runs(
    methods: Mapping[str, TokenMethod], task: LanguageTask, *, seeds: Sequence[int], steps: int,
    **options: Unpack[Shared],
) -> dict[str, list[Run]]:  # fmt: skip
    """Every method with the same seeds; `options` are those of `Job`."""
    jobs = [Job(label, method, task, seed, steps, **options) for seed in seeds for label, method in methods.items()]
    return by_label([job.label for job in jobs], spread(run, jobs))


def scores(found: Sequence[Run], name: str) -> list[float]:
    """One score of every run."""
    return [r.scores[name] for r in found]


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Means of the first and the last quarter of a series."""
    size = max(1, len(values) // 4)
    return sum(values[:size]) / size, sum(values[-size:]) / size
