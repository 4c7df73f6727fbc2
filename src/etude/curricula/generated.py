"""Problems that are made while a run goes on, those that rules let pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from etude.core.batches import TokenBatch
from etude.core.episodes import Problem
from etude.core.fields import Count, Probability
from etude.core.slots import Curriculum
from etude.core.streams import Stream
from etude.curricula.accepted import AcceptedProblems
from etude.curricula.masking import MaskedText
from etude.curricula.rules import Rule, refusal
from etude.curricula.sources import Source
from etude.curricula.uniform import Uniform


class Generated(Curriculum):
    """Problems that a source makes of the task's, if the rules let them pass; the others of those accepted earlier.

    As many are made as are asked for, of problems drawn at random, at most `tries` times as often. In the place of
    those that are refused come accepted ones of earlier steps, from a pool with a shelf life, and where that has too
    few, problems of the task's own. Evaluation is on the task's own problems, as ever.

    Metrics: `generated/accepted`, `generated/pooled`, `generated/given` (the task's own), and refused ones by reason:
    `generated/nothing` (of that problem the source can make none), `generated/repeated` (it is in the pool), and the
    reasons of the rules.

    Args:
        source: what makes them.
        rules: what they have to pass, asked in this order.
        pool: those accepted earlier.
        share: of the problems of a step that are not the task's own.
        new: how many of these are made in a step at most, the others come from the pool; None: all.
        tries: how often at most one is made for each that is asked for.
        rest: chooses the task's own.

    Shapes: nothing is read of a batch [B, T]; that a step has learned makes the pool a step older.

    >>> facts = [Problem("a", "Bolyai was born in 1802"), Problem("b", "Abel was born in 1802")]
    >>> part = Generated().bind()
    >>> [p.level for p in part.choose(facts, 2, Stream(0))], part.counts()["generated/accepted"], part.counts()
    (['blanks1', 'blanks1'], 2, {})
    """

    chooses_ahead: ClassVar[bool] = True
    source: Source = MaskedText()
    rules: tuple[Rule, ...] = ()
    pool: AcceptedProblems = AcceptedProblems(age=10)
    share: Probability = 1.0
    new: Count | None = None
    tries: Count = 4
    rest: Curriculum = Uniform()

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        wanted = round(self.share * count)
        counted: Counter[str] = self.made.setdefault("counts", Counter())
        made = self._fresh(pool, wanted if self.new is None else min(wanted, self.new), stream, counted)
        again = self.pool.drawn(wanted - len(made), stream.split("pool").numpy)
        self.pool.put(made)
        given = self.rest.choose(pool, count - len(made) - len(again), stream)
        counted.update({"accepted": len(made), "pooled": len(again), "given": len(given)})
        return [*made, *again, *given]

    def counts(self) -> Mapping[str, int]:
        return {f"generated/{name}": number for name, number in self.made.pop("counts", {}).items()}

    def after_update(self, batch: TokenBatch) -> None:
        self.pool.at(self.pool.now + 1)

    def _fresh(self, pool: Sequence[Problem], wanted: int, stream: Stream, counted: Counter[str]) -> list[Problem]:
        """At most so many new ones that pass."""
        found: dict[str, Problem] = {}
        for number in range(wanted * self.tries):
            if len(found) == wanted:
                break
            random = stream.split("made", number).numpy
            problem = self.source.make(pool[int(random.integers(len(pool)))], random)
            why = "nothing" if problem is None else self._refusal(problem, found)
            if problem is None or why is not None:
                counted[str(why)] += 1
            else:
                found[problem.id] = problem
        return list(found.values())

    def _refusal(self, problem: Problem, found: Mapping[str, Problem]) -> str | None:
        return "repeated" if problem.id in found or self.pool.has(problem) else refusal(self.rules, problem)
