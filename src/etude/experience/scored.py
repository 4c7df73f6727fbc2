"""Answers that come with scores: several to a prompt, by whomever, and what each is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeGuard

from etude.core.episodes import Episode, Problem, Segment, StopReason, occurrences
from etude.core.errors import DataError
from etude.core.fields import Ge
from etude.core.slots import Context, TokenExperience
from etude.core.task import SingleTurn, Task
from etude.policies.showing import shown
from etude.policies.written import written

ANSWERS, SCORES, RANKS, LOGPS = "responses", "scores", "ranks", "behaviour_logps"
"""Columns: texts; what they are worth, or their ranks, of which 1 is the best; log-probabilities of their tokens."""


class WrittenAnswers(TokenExperience, abstract=True):
    """Rows for answers that come with a problem, in one group: `info['responses']`, paid `info['scores']`.

    Where there are `info['ranks']` in place of scores, an answer is paid minus its rank.

    Args of all of them: `behaviour`, whether the data say how likely each answer was where it came from, and parts may
    ask: `info['behaviour_logps']`, for each answer a list with the log-probability of every token, that of the token
    that ends it included.

    Raises: DataError for a problem with fewer than `fewest` answers, without as many scores, or whose log-probabilities
    are not those of the answers' tokens.
    """

    samples: ClassVar[bool] = False
    fewest: ClassVar[int] = 2
    """Answers that a problem must have, and rows without which it is left out."""
    behaviour: bool = False

    @property
    def knows_behaviour(self) -> bool:
        return self.behaviour

    def lacks(self, task: Task) -> str | None:
        return self.missing(task.problems("train")[0], task)

    def missing(self, problem: Problem, task: Task | None) -> str | None:
        """What the problem would have to have, as a sentence; None if nothing is missing."""
        where = f"Problem {problem.id!r} of task {getattr(task, 'id', '')!r}"
        answers, scores = problem.info.get(ANSWERS), worth(problem.info)
        if not _is_list(answers) or len(answers) < self.fewest:
            return (
                f"{where} has no {'two answers' if self.fewest > 1 else 'answer'} with scores: give data files the "
                f"columns {ANSWERS!r} and {SCORES!r}, a list each, or choose a task that has them, like 'preferences'."
            )
        if scores is None or len(scores) != len(answers):
            have = "no" if scores is None else str(len(scores))
            return f"{where} has {len(answers)} answers and {have} {SCORES!r} or {RANKS!r}: give one number for each."
        if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in scores):
            return f"{where} has a score that is no finite number, in {scores!r:.80}."
        if not self.behaviour:
            return None
        said = problem.info.get(LOGPS)
        if not _is_list(said) or len(said) != len(answers):
            return (
                f"{where} does not say how likely its answers were: give {LOGPS!r}, for each answer a list with the "
                "log-probability of every token, or set experience.behaviour=false and no part that asks."
            )
        return None

    def collect(self, problems: Sequence[Problem], context: Context) -> list[Episode]:
        episodes = []
        for group, (problem, number) in enumerate(zip(problems, occurrences(problems))):
            if sentence := self.missing(problem, context.task):
                raise DataError(sentence)
            rows = [self._row(problem, k, group, context) for k in self._chosen(problem, number, context)]
            whole = [e for e in rows if e.action_count]
            lost = Episode(problem, group=group, stop=StopReason.CONTEXT_OVERFLOW)
            episodes += whole if len(whole) >= self.fewest else [lost] * len(rows)
        return episodes

    def _chosen(self, problem: Problem, number: int, context: Context) -> list[int]:
        """Numbers of the answers that make rows, the `number`-th time that the problem comes in a step."""
        raise NotImplementedError

    def _row(self, problem: Problem, k: int, group: int, context: Context) -> Episode:
        """An answer as an episode; empty where it does not fit the model's context."""
        scores = worth(problem.info)
        assert scores is not None
        row = answered(problem, str(problem.info[ANSWERS][k]), float(scores[k]), group, context)
        if self.behaviour and row.action_count:
            answer = row.segments[-1]
            said = [float(x) for x in problem.info[LOGPS][k]]
            if len(said) != row.action_count:
                raise DataError(
                    f"Answer {k} to problem {problem.id!r} has {row.action_count} tokens to learn, the one that ends "
                    f"it included, and {len(said)} {LOGPS!r}: they are another tokenizer's, or lack the last."
                )
            answer.behaviour_logp[: len(said)] = said
        return row


class ScoredAnswers(WrittenAnswers):
    """A row for each of a problem's answers, in one group: `problem.info['responses']`, paid `info['scores']`.

    Where there are `info['ranks']` in place of scores, an answer is paid minus its rank.

    Args:
        most: answers of a problem at most; of more, so many are drawn anew each time, in their order.
        behaviour: whether the data say how likely each answer was where it came from, and parts may ask:
            `info['behaviour_logps']`, for each answer a list with the log-probability of every token, that of the token
            that ends it included.

    Raises: DataError for a problem with less than two answers, without as many scores, or whose log-probabilities are
    not those of the answers' tokens.

    >>> asked = Problem("sum/1", "1+1=", info={"responses": ["2", "3", "4"], "scores": [1.0, 0.5, 0.0]})
    >>> ScoredAnswers().missing(asked, None), ScoredAnswers(most=4).rows_per_problem
    (None, 4)
    """

    most: Annotated[int, Ge(2)] = 8

    @property
    def rows_per_problem(self) -> int:
        return self.most

    def _chosen(self, problem: Problem, number: int, context: Context) -> list[int]:
        count = len(problem.info[ANSWERS])
        if count <= self.most:
            return list(range(count))
        draw = context.stream.split("answers", problem.id, number).numpy
        return sorted(draw.choice(count, self.most, replace=False).tolist())


def answered(problem: Problem, text: str, score: float, group: int, context: Context) -> Episode:
    """A text as an answer to a problem of one turn, paid so; empty where it does not fit the model's context."""
    opened = shown(SingleTurn(context.task).reset(problem, 0), context.task, context.policy)
    answer = Segment("assistant", text, reward=score)
    return written(problem, [*opened, answer], group, context.policy, context.task.add_bos)


def worth(info: Mapping[str, Any]) -> Sequence[float] | None:
    """What a problem's answers are worth, by their scores or else by their ranks; None where neither is there.

    >>> worth({"ranks": [2, 1]})
    [-2.0, -1.0]
    """
    scores, ranks = info.get(SCORES), info.get(RANKS)
    if _is_list(scores):
        return list(scores)
    if _is_list(ranks) and all(isinstance(r, (int, float)) for r in ranks):
        return [-float(r) for r in ranks]
    return None


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)
