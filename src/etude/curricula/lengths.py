"""Problems by the length of their input, and hard ones of earlier phases again (arXiv:2505.17667)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from etude.core.batches import TokenBatch
from etude.core.episodes import Problem
from etude.core.errors import ConfigError
from etude.core.fields import Count, Positive, Probability, WholeNumber
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.core.task import plain
from etude.curricula.epochs import EpochMeans, state_file
from etude.curricula.uniform import Uniform


class WithinLengths(Curriculum):
    """Problems whose prompt is longer than `above` and at most `most` characters, in the order of another curriculum.

    Phases whose limits follow each other, (0, L1], (L1, L2], ..., part a pool among them. Without limits it is the
    other curriculum on the whole pool.

    Args:
        above, most: in characters of the prompt; None: no limit.
        size: how many of the pool's problems are looked at, if there is a limit.
        of: which of them come next.

    Raises: ConfigError if the limits cannot be kept by any, or no problem keeps them.

    >>> pool = [Problem(str(n), "x" * n) for n in (1, 2, 3, 4)]
    >>> sorted(p.id for p in WithinLengths(above=1, most=3).bind().choose(pool, 2, Stream(0)))
    ['2', '3']
    """

    above: WholeNumber = 0
    most: Count | None = None
    size: Count = 2000
    of: Curriculum = Uniform()

    def check(self) -> None:
        if self.most is not None and self.most <= self.above:
            raise ConfigError(
                f"WithinLengths.most must be larger than above, got {self.most} and {self.above}: nothing is between."
            )

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        return self.of.choose(self._within(pool), count, stream)

    def _within(self, pool: Sequence[Problem]) -> Sequence[Problem]:
        """The problems that keep the limits, found once."""
        if not self.above and self.most is None:
            return pool
        if self.made.get("pool") is not pool:
            looked = [pool[i] for i in range(min(self.size, len(pool)))]
            found = [p for p in looked if self.above < length(p) and (self.most is None or length(p) <= self.most)]
            if not found:
                sizes = sorted(map(length, looked))
                raise ConfigError(
                    f"WithinLengths: none of the first {len(looked)} problems has a prompt of more than {self.above} "
                    f"and at most {self.most} characters; they have from {sizes[0]} to {sizes[-1]}."
                )
            self.made.update(pool=pool, within=found)
        within: Sequence[Problem] = self.made["within"]
        return within


class Retrospective(Curriculum):
    """Mixes problems of an earlier run into those of another curriculum, by 1 / their last mean reward m.

    diff(x) = 1 / max(m(x), 1 / cap): the lower m, the more often, those nearly always solved `cap` times as rarely as
    those never solved. These weigh as much as all with m <= 1 / cap: with 8, and groups of 8, as those solved once.
    m = 1 never comes. m is from the problem's last group of completions, in this run or before. No problem comes twice
    in a step.

    Args:
        run: the earlier run, its folder or a checkpoint, which kept this record; '': there is none.
        share: of a step's problems; exact on average where that is no whole number.
        cap: the largest 1 / m; above the size of a group never solved ones are preferred to all others.
        size: how many of the pool's problems are looked at for those of the earlier run.
        of: where the others come from.

    Shapes: learns from scores and group [B] of every scored batch.

    >>> part = Retrospective(cap=8.0).bind()
    >>> for name, mean in (("never", 0.0), ("rarely", 0.25), ("half", 0.5), ("always", 1.0)):
    ...     part.record.visit(name, mean)
    >>> [part.weight(name) for name in ("never", "rarely", "half", "always")]
    [8.0, 4.0, 2.0, 0.0]
    """

    run: str = ""
    share: Probability = 0.25
    cap: Positive = 8.0
    size: Count = 2000
    of: Curriculum = Uniform()
    record: EpochMeans = EpochMeans()

    def check(self) -> None:
        if self.run and (path := state_file(self.run)).is_file():  # named as it is now: a run may go on
            object.__setattr__(self, "run", str(path))

    def initial_state(self) -> dict[str, Any]:
        return {"earlier": None}

    def before_update(self, batch: TokenBatch) -> None:
        self.record.note(batch)

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        again = self._again(pool, count, stream.split("retrospective")) if self.run else []
        return [*again, *self.of.choose(pool, count - len(again), stream)]

    def weight(self, problem: str) -> float:
        """diff(x) of a problem that was met."""
        mean = self.record.means(problem)[-1]
        return 0.0 if mean >= 1 else 1 / max(mean, 1 / self.cap)

    def _again(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        earlier = self._earlier(pool)
        weights = np.array([self.weight(p.id) for p in earlier])
        random = stream.numpy
        wanted = int(self.share * count + random.random())
        wanted = min(wanted, count, int(np.count_nonzero(weights)))
        if not wanted:
            return []
        drawn = random.choice(len(earlier), wanted, replace=False, p=weights / weights.sum())
        return [earlier[i] for i in drawn]

    def _earlier(self, pool: Sequence[Problem]) -> list[Problem]:
        """The problems of the earlier run that the pool has, found once; their names are in the checkpoints."""
        if self.state["earlier"] is None:
            found = EpochMeans.of_run(self.run)
            names = self.state["earlier"] = found.ranked()
            for problem in names:
                self.record.visit(problem, found.means(problem)[-1])
        if self.made.get("pool") is not pool:
            known = set(self.state["earlier"])
            looked = (pool[i] for i in range(min(self.size, len(pool))))
            self.made.update(pool=pool, earlier=[p for p in looked if p.id in known])
        earlier: list[Problem] = self.made["earlier"]
        return earlier


def length(problem: Problem) -> int:
    """Characters of a problem's prompt; of a conversation, those of all that is said in it.

    >>> length(Problem("0", "1+1="))
    4
    """
    said = problem.prompt
    return len(said) if isinstance(said, str) else sum(len(plain(message.get("content"))) for message in said)
