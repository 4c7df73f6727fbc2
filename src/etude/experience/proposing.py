"""Problems that one player poses, that rules let pass, and that another one solves."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from etude.core.episodes import Episode, Problem, StopReason
from etude.core.errors import DataError
from etude.core.fields import Count
from etude.core.slots import Context
from etude.core.worlds import World
from etude.curricula.accepted import AcceptedProblems
from etude.curricula.rules import Rule, refusal
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout

if TYPE_CHECKING:
    from etude.core.task import Task

PROPOSER, SOLVER = "proposer", "solver"
_QUESTION = re.compile(r"<question>(.*?)</question>", re.DOTALL)
_QUERY = re.compile(r"<search>(.*?)</search>", re.DOTALL)


def posed_in(episode: Episode) -> Problem:
    """What was posed in an episode: the last text between tags <question>, '' for none.

    Its answer is that of the proposer's problem; `info` has the `queries` that the proposer searched for and the
    `documents` that it was shown.
    """
    questions, queries = _QUESTION.findall(episode.completion), _QUERY.findall(episode.completion)
    documents = [s.text for s in episode.segments if s.role == "tool" and s.text]
    asked, question = episode.problem, questions[-1].strip() if questions else ""
    return Problem(asked.id, question, asked.answer, info={"queries": list(map(str.strip, queries)),
                                                           "documents": documents})  # fmt: skip


class PosedProblems(Groups):
    """A problem is posed for each answer of the task's; those that are accepted are solved, `size` times each.

    The task says what a proposer is shown (`proposal(problem)`) and which problem its text is (`posed(proposal, text)`,
    None for one that is kept for a test). What was posed is asked if the rules let it pass; in its place, if not, an
    earlier one is, from a pool with a shelf life. `info` of a proposer's episode: `valid`, and, of problems that are
    asked, `solved`, the mean of what its solvers earned; proposers' rows are `auxiliary`.

    Metrics: `proposals/valid`, `proposals/pooled`, and refused ones by reason: `proposals/no_question`,
    `proposals/held_out`, and the reasons of the rules.

    Args:
        size: solvers of each problem.
        rules: what a problem has to pass, asked in this order.
        pool: accepted problems of earlier steps.
        patience: steps in a row without a problem, be it of the pool, before the run stops.

    Raises: DataError when there was no problem to solve for so long.

    >>> PosedProblems(size=5).rows_per_problem, PosedProblems().players
    (6, ('proposer', 'solver'))
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    size: Count = 5
    rules: tuple[Rule, ...] = ()
    pool: AcceptedProblems = AcceptedProblems(emptied=10)
    patience: Count = 5

    @property
    def players(self) -> tuple[str, ...]:
        return PROPOSER, SOLVER

    @property
    def rows_per_problem(self) -> int:
        return self.size + 1

    def lacks(self, task: Task) -> str | None:
        if not all(hasattr(task, name) for name in ("proposal", "posed")):
            return (
                f"{type(self).__name__} has problems posed of answers, and task {task.id!r} does not say how "
                "(`proposal`, `posed`): choose task=kb-search."
            )
        return super().lacks(task)

    def initial_state(self) -> dict[str, Any]:
        return {"without": 0}

    def earned(self, episode: Episode) -> float:
        """What a solver's episode tells its proposer."""
        return episode.reward

    def doubted(self, proposals: Mapping[int, Problem], context: Context) -> dict[int, str]:
        """Why proposals are not asked, by their number: reasons of the rules, or of who reads all of them together."""
        found = {}
        for number, problem in proposals.items():
            why = refusal(self.rules, problem) if problem.prompt else "no_question"
            if why is not None:
                found[number] = why
        return found

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        self.pool.at(context.step)
        proposed = self._proposed(problems, context)
        posed = self._posed(proposed, context)
        asked = self._filled(posed, len(problems), context)
        self._watch(asked)
        solved = self._solved(asked, context)
        for slot, proposal in enumerate(proposed):
            earned = [self.earned(e) for e in solved if e.group == slot and e.stop is not StopReason.FAULT]
            proposal.info["valid"] = slot in posed
            if slot in posed and earned:
                proposal.info["solved"] = sum(earned) / len(earned)
        self.pool.put(list(posed.values()))
        return proposed + solved

    def _proposed(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        """An episode of the proposer for each answer."""
        task: Any = context.task
        starts = fresh([task.proposal(p) for p in problems], 1, context.stream.split("propose"))
        episodes = rollout([s._replace(player=PROPOSER) for s in starts], context, self.sampling(context), self.view)
        for episode in episodes:
            episode.auxiliary = True
        return episodes

    def _posed(self, proposed: Sequence[Episode], context: Context) -> dict[int, Problem]:
        """The accepted problems, by the number of their proposer."""
        task: Any = context.task
        texts, held = dict(enumerate(map(posed_in, proposed))), dict[int, Problem]()
        doubted = self.doubted(texts, context)
        for number, episode in enumerate(proposed):
            why = doubted.get(number)
            problem = task.posed(episode.problem, texts[number].prompt) if why is None else None
            if problem is not None:
                held[number] = dataclasses.replace(problem, id=f"{problem.id}/{context.step}")
            elif episode.stop is not StopReason.FAULT:
                context.policy.work[f"proposals/{why or 'held_out'}"] += 1
        context.policy.work["proposals/valid"] += len(held)
        return held

    def _filled(self, posed: dict[int, Problem], places: int, context: Context) -> dict[int, Problem]:
        """A problem for each place, those of the pool where none was accepted, as long as there are some."""
        empty = [n for n in range(places) if n not in posed]
        pooled = dict(zip(empty, self.pool.drawn(len(empty), context.stream.split("pool").numpy)))
        context.policy.work["proposals/pooled"] += len(pooled)
        return dict(sorted({**posed, **pooled}.items()))

    def _solved(self, asked: dict[int, Problem], context: Context) -> list[Episode]:
        """The solvers' episodes; their group is the place of the problem."""
        numbers = list(asked)
        starts = fresh(list(asked.values()), self.size, context.stream.split("solve"))
        own = [s._replace(player=SOLVER, group=numbers[s.group]) for s in starts]
        return rollout(own, context, self.sampling(context), self.view) if own else []

    def _watch(self, asked: dict[int, Problem]) -> None:
        """Count steps in a row that have no problem."""
        self.state["without"] = 0 if asked else self.state["without"] + 1
        if self.state["without"] >= self.patience:
            raise DataError(
                f"In {self.patience} steps in a row no question held, and the pool is empty: the policy has to be "
                "taught first how to pose them (a start by sft, as task.proposals=0.5 shows them), or the rules are "
                "too strict (experience.rules)."
            )
