"""Problems that are kept until they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from etude.core.batches import TokenBatch
from etude.core.episodes import Episode, Problem
from etude.core.fields import Count, Probability
from etude.core.kept import Kept, Order
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.curricula.uniform import Uniform


class HardProblems(Curriculum):
    """Problems that the policy has failed at and that have not been chosen since, then those of another curriculum.

    Written rows say nothing about the policy, and do not count.

    Shapes: learns from solved, scores and group [B] of every scored batch.

    Args:
        at_most: share of a problem's completions that is right in a problem that is kept; 0: none is.
        floor: no completion of it is paid less (-1 for one without the right form, say).
        order: which come first, those of the newest step or of the oldest.
        limit: how many are kept at most, and `each`, of how many failures at one problem; None: no limit.
        age: after how many steps they are forgotten; None: never.
        rest: chooses where too few are kept.

    >>> part = HardProblems().bind()
    >>> part.kept.put([Episode(Problem("p", "1+1="))])
    >>> [p.id for p in part.choose([Problem("q", "1+2=")], 2, Stream(0))]
    ['p', 'q']
    """

    chooses_ahead: ClassVar[bool] = True
    at_most: Probability = 0.0
    floor: float = 0.0
    order: Order = "newest"
    limit: Count | None = None
    each: Count | None = None
    age: Count | None = None
    rest: Curriculum = Uniform()

    def initial_state(self) -> dict[str, Any]:
        return Kept.empty()

    @property
    def kept(self) -> Kept:
        """What is kept, as it stands in this part's state."""
        return Kept(self.state, self.order, self.limit, self.each, self.age)

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        chosen = [e.problem for e in self.kept.take(count)]
        return [*chosen, *self.rest.choose(pool, count - len(chosen), stream)]

    def before_update(self, batch: TokenBatch) -> None:
        self.kept.put([Episode(problem) for problem in self.hard(batch)])

    def after_update(self, batch: TokenBatch) -> None:
        self.kept.step()

    def hard(self, batch: TokenBatch) -> list[Problem]:
        """The problems of a batch that are kept, in its order."""
        attempts = [own and not e.auxiliary for own, e in zip(batch.sampled.tolist(), batch.episodes)]
        tried = torch.tensor(attempts, device=batch.group.device)
        found: list[Problem] = []
        if batch.solved is None:
            return found
        for group in dict.fromkeys(batch.group[tried].tolist()):
            rows = (tried & (batch.group == group)).nonzero()[:, 0]
            share = float(batch.solved[rows].double().mean())
            if share <= self.at_most and float(batch.scores[rows].min()) >= self.floor:
                found.append(batch.episodes[int(rows[0])].problem)
        return found
