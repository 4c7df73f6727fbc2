"""Self-play of a searcher: questions are posed of answers alone, verified, and solved."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from etude.core.episodes import Episode, Problem, StopReason
from etude.core.errors import DataError
from etude.core.fields import Count, WholeNumber
from etude.core.kept import stored_problem
from etude.core.part import Part
from etude.core.slots import Context, Reward
from etude.core.worlds import World
from etude.experience.groups import Groups
from etude.experience.rollout import fresh, rollout
from etude.rewards.search_tags import same_words

if TYPE_CHECKING:
    from etude.core.task import Task

PROPOSER, SOLVER = "proposer", "solver"
_QUESTION = re.compile(r"<question>(.*?)</question>", re.DOTALL)
_QUERY = re.compile(r"<search>(.*?)</search>", re.DOTALL)
MOST_ANSWERS = 10


class Refused(StrEnum):
    """Why a question is not asked."""

    NO_QUESTION = "no_question"
    TOO_SHORT = "too_short"
    TOO_LONG = "too_long"
    TELLS = "tells"  # the answer stands in it
    UNINFORMED = "uninformed"  # nothing was found
    FEW_QUERIES = "few_queries"
    REPEATED_QUERY = "repeated_query"
    WRONG = "wrong"  # its documents give another answer
    HELD_OUT = "held_out"  # the task keeps it for a test


@dataclass(frozen=True)
class Proposal:
    """What a proposer came to: its question ('' for none), its queries, and what they found."""

    question: str
    queries: tuple[str, ...]
    documents: tuple[str, ...]


def proposal_of(episode: Episode) -> Proposal:
    """What was posed in an episode, the last question of it."""
    questions, queries = _QUESTION.findall(episode.completion), _QUERY.findall(episode.completion)
    documents = tuple(s.text for s in episode.segments if s.role == "tool" and s.text)
    return Proposal(questions[-1].strip() if questions else "", tuple(q.strip() for q in queries), documents)


class QuestionRules(Part):
    """What a question has to be, before anybody reads it (the rule filter).

    Args:
        words: at least so many.
        characters: at most so many.
        queries: at least so many searches, no two alike, that found something.

    >>> looked_up = Proposal("who is x's boss?", ("boss", "x"), ("x's boss is y",))
    >>> QuestionRules(words=3).refuses(looked_up, "y"), QuestionRules().refuses(looked_up, "y")
    (None, <Refused.TOO_SHORT: 'too_short'>)
    """

    slot = "rules"
    words: Count = 10
    characters: Count = 1000
    queries: WholeNumber = 2

    def refuses(self, proposal: Proposal, answer: str) -> Refused | None:
        """Why a question with this answer is not asked; None if it is."""
        question = proposal.question
        told = {
            Refused.NO_QUESTION: not question,
            Refused.TOO_SHORT: len(question.split()) < self.words,
            Refused.TOO_LONG: len(question) > self.characters,
            Refused.TELLS: answer in question,
            Refused.UNINFORMED: not proposal.documents,
            Refused.FEW_QUERIES: len(proposal.queries) < self.queries,
            Refused.REPEATED_QUERY: len({*proposal.queries}) < len(proposal.queries),
        }
        return next((why for why, holds in told.items() if holds), None)


class SelfPlay(Groups):
    """One question is posed for each problem's answer; those that hold are solved, `size` times each.

    Of a problem only its answer is used. A question holds if the rules let it pass, and if it has that answer for
    whoever reads the documents that its proposer found, mixed with those of `noise` others of the step, without a
    search. In place of one that does not hold, an earlier one is solved, from a pool that is emptied every `renewed`
    steps. `info` of a proposer's episode: `valid`, and, of questions that hold, `solved`, the mean of what its solvers
    earned; proposers' rows are `auxiliary`. Counted in the metrics: `proposals/valid`, `proposals/pooled`, and the
    others by reason.

    Args:
        size: solvers of each question.
        rules: the rule filter.
        verified: whether questions are verified by their documents.
        noise: how many proposers' documents are mixed with a question's own.
        renewed: steps between two times that the pool is emptied.
        patience: steps in a row without a question, be it of the pool, before the run stops.

    Raises: DataError when there was no question to solve for so long.

    >>> SelfPlay(size=5).rows_per_problem, SelfPlay().players
    (6, ('proposer', 'solver'))
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    size: Count = 5
    rules: QuestionRules = QuestionRules()
    verified: bool = True
    noise: WholeNumber = 4
    renewed: Count = 10
    patience: Count = 5

    @property
    def players(self) -> tuple[str, ...]:
        return PROPOSER, SOLVER

    @property
    def rows_per_problem(self) -> int:
        return self.size + 1

    def lacks(self, task: Task) -> str | None:
        if not all(hasattr(task, name) for name in ("proposal", "posed", "read")):
            return (
                f"SelfPlay has questions posed of answers, and task {task.id!r} does not say how (`proposal`, `posed`, "
                "`read`): choose task=kb-search."
            )
        if getattr(task, "tools", None) is None:
            return f"SelfPlay is for players that search, and task {task.id!r} has no tools: set task.tools=tag-search."
        return super().lacks(task)

    def initial_state(self) -> dict[str, Any]:
        return {"pool": [], "without": 0}

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        if context.step % self.renewed == 0:
            self.state["pool"] = []
        proposed = self._proposed(problems, context)
        posed = self._posed(proposed, context)
        asked = self._filled(posed, len(problems), context)
        self._watch(asked)
        solved = self._solved(asked, context)
        for slot, proposal in enumerate(proposed):
            earned = [answer_reward(e) for e in solved if e.group == slot and e.stop is not StopReason.FAULT]
            proposal.info["valid"] = slot in posed
            if slot in posed and earned:
                proposal.info["solved"] = sum(earned) / len(earned)
        self.state["pool"] += [stored_problem(problem) for problem in posed.values()]
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
        """The questions that hold, by the number of their proposer."""
        task: Any = context.task
        found, held = [proposal_of(e) for e in proposed], dict[int, Problem]()
        for number, (episode, proposal) in enumerate(zip(proposed, found)):
            random = context.stream.split("noise", number).numpy
            others = [n for n in range(len(found)) if n != number]
            mixed = [number, *random.permutation(others)[: self.noise]] if others else [number]
            documents = [text for n in random.permutation(mixed) for text in found[n].documents]
            answer, why = str(episode.problem.answer), self.rules.refuses(proposal, str(episode.problem.answer))
            if why is None and self.verified and not same_words(task.read(proposal.question, documents), [answer]):
                why = Refused.WRONG
            problem = task.posed(episode.problem, proposal.question) if why is None else None
            if problem is not None:
                held[number] = dataclasses.replace(problem, id=f"{problem.id}/{context.step}")
            elif episode.stop is not StopReason.FAULT:
                context.policy.work[f"proposals/{why or Refused.HELD_OUT}"] += 1
        context.policy.work["proposals/valid"] += len(held)
        return held

    def _filled(self, posed: dict[int, Problem], places: int, context: Context) -> dict[int, Problem]:
        """A question for each place, those of the pool where none holds, as long as there are some."""
        pool, slots = self.state["pool"], context.stream.split("pool").numpy
        empty = [n for n in range(places) if n not in posed]
        drawn = slots.permutation(len(pool))[: len(empty)]
        pooled = {n: Problem(**pool[k]) for n, k in zip(empty, drawn.astype(np.int64).tolist())}
        context.policy.work["proposals/pooled"] += len(pooled)
        return dict(sorted({**posed, **pooled}.items()))

    def _solved(self, asked: dict[int, Problem], context: Context) -> list[Episode]:
        """The solvers' episodes; their group is the place of the question."""
        numbers = list(asked)
        starts = fresh(list(asked.values()), self.size, context.stream.split("solve"))
        own = [s._replace(player=SOLVER, group=numbers[s.group]) for s in starts]
        return rollout(own, context, self.sampling(context), self.view) if own else []

    def _watch(self, asked: dict[int, Problem]) -> None:
        """Count steps in a row that have no question."""
        self.state["without"] = 0 if asked else self.state["without"] + 1
        if self.state["without"] >= self.patience:
            raise DataError(
                f"In {self.patience} steps in a row no question held, and the pool is empty: the policy has to be "
                "taught first how to pose them (a start by sft, as task.proposals=0.5 shows them), or the rules are "
                "too strict (experience.rules)."
            )


def answer_reward(episode: Episode) -> float:
    """What the environment paid for the last answer, a quarter of it where more than ten were printed."""
    printed = episode.completion.count("<answer>")
    return episode.reward / 4 if printed > MOST_ANSWERS else episode.reward


class SearchAnswer(Reward):
    """r = 1 if the last answer is right, a quarter of that where more than ten were printed, else 0.

    >>> from etude.core.episodes import Segment
    >>> said = Episode(Problem("1", "?"), [Segment("assistant", "<answer>a</answer>" * 11, reward=1.0)])
    >>> SearchAnswer().score([said], Context(None, None, None))
    [0.25]
    """

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float]:
        return [answer_reward(e) for e in episodes]


class Unsolved(Reward):
    """What a question is worth to its proposer: 1 - m, where its solvers earned m on average; 0 if it does not hold.

    >>> asked = Episode(Problem("1", "?"), info={"valid": True, "solved": 0.2})
    >>> Unsolved().score([asked, Episode(Problem("2", "?"), info={"valid": False})], Context(None, None, None))
    [0.8, 0.0]
    """

    def score(self, episodes: Sequence[Episode], context: Context) -> list[float | None]:
        return [self._of(e) for e in episodes]

    def _of(self, episode: Episode) -> float | None:
        """None where a question holds and nobody could try it: every solver's environment failed."""
        if not episode.info["valid"]:
            return 0.0
        return self.worth(episode.info["solved"]) if "solved" in episode.info else None

    def worth(self, solved: float) -> float:
        """Of a question that holds."""
        return 1.0 - solved


class HalfSolved(Unsolved):
    """The same with 4 m (1 - m), most where half of the solvers are right.

    >>> [round(HalfSolved().worth(m), 2) for m in (0.0, 0.2, 0.5, 1.0)]
    [0.0, 0.64, 1.0, 0.0]
    """

    def worth(self, solved: float) -> float:
        return 4 * solved * (1 - solved)
