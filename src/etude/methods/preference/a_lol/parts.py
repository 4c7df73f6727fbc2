"""Which answers of data are drawn how often, what each has over the value of its prompt, and how that is learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.episodes import Problem
from etude.core.errors import DataError
from etude.core.fields import Count, Fraction
from etude.core.part import Need, Part
from etude.core.slots import Context, Curriculum, TokenAdvantages, TokenObjective
from etude.core.streams import Stream
from etude.experience.scored import ANSWERS, WrittenAnswers, worth
from etude.objectives.sequence import sequence_sum

VALUE, DRAWN = "value", "drawn"
"""Column: what the reference is worth on a prompt. Of a problem that was drawn for one of its answers: which."""


def leftovers(problem: Problem, baseline: bool = True) -> list[float]:
    """R(x, y) - V(x) of each of a problem's answers, or R(x, y) alone.

    Raises: DataError for a problem without scores or, where it is asked for, without a value.

    >>> leftovers(Problem("p/1", "?", info={"responses": ["a", "b"], "scores": [3.0, 0.0], "value": 1.0}))
    [2.0, -1.0]
    """
    scores, value = worth(problem.info), problem.info.get(VALUE) if baseline else 0.0
    if scores is None or not isinstance(value, (int, float)):
        lacks = "scores" if scores is None else f"{VALUE!r}, what the reference is worth on its prompt"
        raise DataError(
            f"Problem {problem.id!r} has no {lacks}: train the recipe a-lol, which appraises prompts first, or give "
            "data files that column."
        )
    return [float(score) - float(value) for score in scores]


class PriorityDraws(Curriculum):
    """Single answers of data, those with a positive advantage R(x, y) - V(x), as often as it is large (A-LoL, 3.2).

    Args:
        by: 'advantage': with a probability in proportion to it; 'random': all above 0 alike.
        size: how many of the pool's problems are drawn from.

    Raises: DataError for a problem without scores or value, and where no answer has a positive advantage.

    >>> answers = {"responses": ["a", "b"], "scores": [3.0, 0.0], "value": 1.0}
    >>> part = PriorityDraws().bind()
    >>> [p.info["drawn"] for p in part.choose([Problem("p/1", "?", info=answers)], 3, Stream(0))]
    [0, 0, 0]
    """

    chooses_ahead: ClassVar[bool] = True
    by: Literal["advantage", "random"] = "advantage"
    size: Count = 100_000

    def choose(self, pool: Sequence[Problem], count: int, stream: Stream) -> list[Problem]:
        pairs, chances = self._pairs(pool)
        drawn = stream.split("priority").numpy.choice(len(pairs), count, p=chances)
        return [_drawn(pool[pairs[k][0]], pairs[k][1]) for k in drawn]

    def _pairs(self, pool: Sequence[Problem]) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Numbers of problems and of their answers that may be drawn, and with which chances; read once."""
        if self.made.get("pool") is not pool:
            every = [(i, k, a) for i in range(min(self.size, len(pool))) for k, a in enumerate(leftovers(pool[i]))]
            kept = [(i, k, a) for i, k, a in every if a > 0]
            if not kept:
                raise DataError(
                    f"None of {len(every)} answers is worth more than its prompt: there is nothing to learn."
                )
            weight = np.array([a if self.by == "advantage" else 1.0 for *_, a in kept])
            self.made.update(pool=pool, pairs=[(i, k) for i, k, _ in kept], chances=weight / weight.sum())
        return self.made["pairs"], self.made["chances"]


def _drawn(problem: Problem, answer: int) -> Problem:
    """The problem, for one of its answers."""
    return Problem(problem.id, problem.prompt, problem.answer, problem.level, {**problem.info, DRAWN: answer})


class OneScoredAnswer(WrittenAnswers):
    """A row for one of a problem's scored answers: the one that the curriculum drew, else whichever.

    >>> asked = Problem("sum/1", "1+1=", info={"responses": ["2", "3"], "scores": [1.0, 0.0]})
    >>> OneScoredAnswer().missing(asked, None), OneScoredAnswer().rows_per_problem
    (None, 1)
    """

    fewest: ClassVar[int] = 1

    def _chosen(self, problem: Problem, number: int, context: Context) -> list[int]:
        if (answer := problem.info.get(DRAWN)) is not None:
            return [int(answer)]
        draw = context.stream.split("answers", problem.id, number).numpy
        return [int(draw.integers(len(problem.info[ANSWERS])))]


class OverPromptValue(TokenAdvantages):
    """A = max(0, R(x, y) - V(x)) on every token of y, V(x) what the reference is worth on the prompt (A-LoL, eq. 5).

    Shapes: scores [B] -> advantages [B, T].

    Args:
        baseline: whether V is subtracted; else R is what counts (R-LoL, and weighted behaviour cloning).
        clamp: whether A is at least 0, as in the authors' code.

    Raises: DataError for a problem without a value.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> asked = Rows(problem=Problem("p/1", "?", info={"responses": ["a"], "scores": [3.0], "value": 1.0}))
    >>> rows = Rows(scores=torch.tensor([3.0, 0.5]), action_mask=torch.ones(2, 1), episodes=[asked, asked])
    >>> OverPromptValue()(rows).tolist(), OverPromptValue(clamp=False)(rows).tolist()
    ([[2.0], [0.0]], [[2.0], [-0.5]])
    """

    baseline: bool = True
    clamp: bool = True

    def __call__(self, batch: TokenBatch) -> Tensor:
        gained = batch.scores
        if self.baseline:
            gained = gained - gained.new_tensor([value_of(e.problem) for e in batch.episodes])
        return (gained.clamp(min=0) if self.clamp else gained)[:, None] * batch.action_mask


def value_of(problem: Problem) -> float:
    """V(x) of a problem. Raises DataError where it has none."""
    if not isinstance(value := problem.info.get(VALUE), (int, float)):
        leftovers(problem)
        raise DataError(f"Problem {problem.id!r} has no {VALUE!r}.")
    return float(value)


class LikelihoodFactor(Part, abstract=True):
    """What grad log pi of a token is multiplied by besides the advantage; without gradient."""

    slot = "factor"

    def __call__(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """[B, T] or [B, 1], of log pi [B, T] without gradient."""
        raise NotImplementedError


class AnswerRatio(LikelihoodFactor):
    """clip(pi(y) / ref(y), 1 - epsilon, 1 + epsilon) of the whole answer (A-LoL).

    Shapes: logp [B, T] -> [B, 1].

    Args:
        epsilon: of the clip; None: none.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(reference_logp=torch.tensor([[-1.0, -1.0]]), action_mask=torch.ones(1, 2))
    >>> round(AnswerRatio()(rows, torch.zeros(1, 2)).item(), 4), AnswerRatio()(rows, rows.reference_logp).item()
    (1.9, 1.0)
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE_LOGP})
    epsilon: Fraction | None = 0.9

    def __call__(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        assert batch.reference_logp is not None
        ratio = self._log_ratio(batch, logp - batch.reference_logp).exp()
        return ratio if self.epsilon is None else ratio.clamp(1 - self.epsilon, 1 + self.epsilon)

    def _log_ratio(self, batch: TokenBatch, log_ratio: Tensor) -> Tensor:
        return sequence_sum(log_ratio, batch)[:, None]


class TokenRatio(AnswerRatio):
    """The same of each token by itself (A-LoL sequence, which takes an answer for a sequence of actions).

    Shapes: logp [B, T] -> [B, T].

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(reference_logp=torch.tensor([[-1.0, -9.0]]), action_mask=torch.ones(1, 2))
    >>> [round(x, 2) for x in TokenRatio()(rows, torch.tensor([[-1.0, 0.0]]))[0].tolist()]
    [1.0, 1.9]
    """

    def _log_ratio(self, batch: TokenBatch, log_ratio: Tensor) -> Tensor:
        return log_ratio


class OwnLikelihood(LikelihoodFactor):
    """max(pi(token), least): GOLD's (arXiv:2009.07839), as the authors' code has it.

    Shapes: logp [B, T] -> [B, T].

    >>> import torch
    >>> [round(x, 2) for x in OwnLikelihood()(None, torch.tensor([0.5, 0.01]).log()).tolist()]
    [0.5, 0.1]
    """

    least: Fraction = 0.1

    def __call__(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        return logp.exp().clamp(min=self.least)


class LeftoverLikelihood(TokenObjective):
    """loss[b,t] = -factor A log pi: the answers that are better than expected become likelier.

    Shapes: [B, T].

    Args:
        factor: what A is multiplied by; None: 1, the variant without a reference.

    >>> import torch
    >>> from types import SimpleNamespace as Rows
    >>> logp = torch.tensor([[-1.0, -1.0]])
    >>> rows = Rows(advantages=torch.full((1, 2), 2.0), reference_logp=logp, action_mask=torch.ones(1, 2))
    >>> LeftoverLikelihood()(rows, TokenLogProbs(logp)).tolist()
    [[2.0, 2.0]]
    """

    vanishes_with_advantage: ClassVar[bool] = True
    factor: LikelihoodFactor | None = AnswerRatio()

    def __call__(self, batch: TokenBatch, policy: TokenLogProbs) -> Tensor:
        assert batch.advantages is not None
        factor = 1.0 if self.factor is None else self.factor(batch, policy.logp.detach())
        return -factor * batch.advantages * policy.logp
