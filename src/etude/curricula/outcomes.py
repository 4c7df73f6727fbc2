"""How often each problem was solved lately: one record that curricula, gates, filters and allocators read."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Interval

from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative
from etude.core.part import Part

Edge = Annotated[float, Interval(gt=0, lt=1)]
TENTHS = tuple(i / 10 for i in range(1, 10))


class Outcomes(Part):
    """Success rates of problems over their last visits, and the band of difficulty that each is in.

    A visit is what one group of completions came to: the share that was solved, or with `any_of` whether any was.
    Bands are numbered from 0, the hardest; a problem changes band only once its rate passes an edge by `margin`, so
    that noise at an edge does not move it to and fro (arXiv:2601.19280, section 3).

    Args:
        history: visits that are remembered for each problem.
        edges: success rates between the bands, rising.
        any_of: count a visit as 1 if any completion was solved, else as the share that was.

    Shapes: `note` reads solved, sampled and group [B].

    >>> record = Outcomes(history=1, edges=(0.5,), margin=0.1).bind()
    >>> [record.visit("p", rate) or record.band("p") for rate in (0.45, 0.55, 0.65, 0.45, 0.35)]
    [0, 0, 1, 1, 0]
    """

    history: Count = 100
    edges: tuple[Edge, ...] = TENTHS
    margin: NonNegative = 0.0
    any_of: bool = False

    def check(self) -> None:
        if list(self.edges) != sorted(set(self.edges)):
            raise ConfigError(f"Outcomes.edges must rise from one to the next, got {self.edges}.")

    def initial_state(self) -> dict[str, Any]:
        return {"visits": {}, "bands": {}}

    @property
    def bands(self) -> int:
        """How many bands there are."""
        return len(self.edges) + 1

    def note(self, batch: TokenBatch) -> None:
        """Take in a scored batch: one visit per group of sampled rows."""
        assert batch.solved is not None
        visits: dict[tuple[int, str], list[bool]] = {}
        for i, group in enumerate(batch.group.tolist()):
            if bool(batch.sampled[i]):
                visits.setdefault((group, batch.episodes[i].problem.id), []).append(bool(batch.solved[i]))
        for (_, problem), solved in visits.items():
            self.visit(problem, float(any(solved)) if self.any_of else sum(solved) / len(solved))

    def visit(self, problem: str, outcome: float) -> None:
        """Remember one visit's outcome in [0, 1]."""
        past = self.state["visits"].setdefault(problem, [])
        past.append(outcome)
        del past[: -self.history]
        self.state["bands"][problem] = self._band(problem, sum(past) / len(past))

    def rate(self, problem: str) -> float | None:
        """Mean outcome of a problem's remembered visits; None before the first."""
        past = self.state["visits"].get(problem)
        return sum(past) / len(past) if past else None

    def band(self, problem: str) -> int | None:
        """The band that a problem is in; None before the first visit."""
        number: int | None = self.state["bands"].get(problem)
        return number

    def _band(self, problem: str, rate: float) -> int:
        now = self.state["bands"].get(problem)
        if now is None:
            return sum(rate >= e for e in self.edges)
        while now < len(self.edges) and rate >= self.edges[now] + self.margin:
            now += 1
        while now > 0 and rate < self.edges[now - 1] - self.margin:
            now -= 1
        return int(now)
