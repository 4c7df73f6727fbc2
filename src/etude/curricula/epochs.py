"""What each problem was worth in every pass over the pool: a record that a run keeps, and that ranks its problems."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etude.core.batches import TokenBatch
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.part import Part
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.curricula.uniform import Uniform
from etude.runtime import checkpoints

KEY = "epoch_means"
FILE = "state.json"
"""Where a checkpoint of language has what its parts have learned and counted."""


class EpochMeans(Part):
    """Mean reward of each problem in each epoch, in order, and how far they spread (arXiv:2504.20571, section 2).

    A visit is one group of completions. A curriculum that passes over its pool visits every problem once in an epoch,
    so that a problem's e-th visit is what it was worth in epoch e.

    Shapes: `note` reads scores and group [B].

    >>> record = EpochMeans().bind()
    >>> for mean in (0.0, 0.5, 1.0):
    ...     record.visit("learned", mean), record.visit("hopeless", 0.0)
    (None, None)
    (None, None)
    (None, None)
    >>> round(record.variance("learned"), 4), record.ranked()
    (0.1667, ['learned', 'hopeless'])
    """

    def initial_state(self) -> dict[str, Any]:
        return {KEY: {}}

    def note(self, batch: TokenBatch) -> None:
        """Take in a scored batch: one visit per group of sampled rows."""
        visits: dict[tuple[int, str], list[float]] = {}
        for group, own, score, episode in zip(
            batch.group.tolist(), batch.sampled.tolist(), batch.scores.tolist(), batch.episodes, strict=True
        ):
            if own:
                visits.setdefault((group, episode.problem.id), []).append(score)
        for (_, problem), scores in sorted(visits.items()):
            self.visit(problem, math.fsum(scores) / len(scores))

    def visit(self, problem: str, mean: float) -> None:
        """Remember the mean reward of a problem's group."""
        self.state[KEY].setdefault(problem, []).append(mean)

    def means(self, problem: str) -> list[float]:
        """Mean rewards of a problem's visits, in order; empty before the first."""
        return list(self.state[KEY].get(problem, ()))

    def variance(self, problem: str) -> float:
        """Variance of a problem's mean rewards over epochs (of all of them: divided by their number); 0 before two."""
        return variance(self.state[KEY].get(problem, ()))

    def ranked(self) -> list[str]:
        """The problems that were met, those of the largest variance first, equal ones by id."""
        return sorted(self.state[KEY], key=lambda problem: (-self.variance(problem), problem))

    @classmethod
    def of_run(cls, run: str | Path) -> EpochMeans:
        """The record that a run kept (`curriculum=recorded`).

        Args:
            run: its folder, of which the newest whole checkpoint is read, a checkpoint, the model of one, or the
                `state.json` in one.

        Raises: ConfigError if nothing there has a record; CheckpointError for a folder without a whole checkpoint.
        """
        path = state_file(run)
        stages = checkpoints.load_json(path).get("parts", ()) if path.is_file() else ()
        kept = [state[KEY] for stage in stages for state in stage.values() if state.get(KEY)]
        if not kept:
            raise ConfigError(
                f"{run} has no record of what its problems were worth in each epoch: name a run that kept one, as "
                "`etude train grpo --set curriculum=recorded` does."
            )
        found = cls().bind()
        found.state[KEY].update(max(kept, key=lambda means: sum(map(len, means.values()))))  # of stages the longest
        return found


def state_file(run: str | Path) -> Path:
    """Where the parts' states of a run, of a checkpoint or beside its model are; anything else is that file itself."""
    path = Path(run)
    if path.name == "model" and (path.parent / FILE).is_file():
        return path.parent / FILE
    if (path / "checkpoints").is_dir():
        path = checkpoints.newest(path / "checkpoints")[0]
    return path / FILE if path.is_dir() else path


def variance(values: Sequence[float]) -> float:
    """Mean squared distance from the mean, exact but for its last rounding; 0 of fewer than two.

    So what is equal is a tie, in whatever order it was added up.

    >>> variance([0.0, 1.0, 0.5, 0.5])
    0.125
    """
    return float(statistics.pvariance(values)) if len(values) > 1 else 0.0


class Recorded(Curriculum):
    """Problems in the order of another curriculum, and a record of what each was worth at every visit.

    Args:
        of: which problems come next.
        record: what is kept; `EpochMeans.of_run` reads it from the finished run.

    Shapes: learns from scores and group [B] of every scored batch.

    >>> part = Recorded().bind()
    >>> pool = [Problem("0", "1+1="), Problem("1", "1+2=")]
    >>> sorted(p.id for p in part.choose(pool, 2, Stream(0)))
    ['0', '1']
    """

    of: Curriculum = Uniform()
    record: EpochMeans = EpochMeans()

    @property
    def chooses_ahead(self) -> bool:  # type: ignore[override]  # a constant elsewhere, here the other's
        """Whether the other does."""
        return self.of.chooses_ahead

    def before_update(self, batch: TokenBatch) -> None:
        self.record.note(batch)

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        return self.of.choose(pool, count, stream)
