"""What people are asked, and how likely what they say is: each answer is a choice from a set (arXiv:2002.04833).

Rewards of steps stand as [..., C, L]: C segments of L steps that are shown together, 0 after the end of an episode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from etude.core.fields import Count, Interval, Positive
from etude.core.part import Part
from etude.core.population import per_member

NEVER = -1e30
"""Logit of an option that could not be taken, whose gradient is 0 and not undefined."""
Several = Annotated[int, Interval(ge=2)]


class Answers(NamedTuple):
    """S choices among O options, [..., S, O] both.

    chosen: the share of each option, 1 of one that was taken; all 0 where nothing was said.
    among: 1 where an option could have been taken.
    """

    chosen: Tensor
    among: Tensor


Choose = Callable[[Tensor, Tensor], Tensor]
"""Who answers: of what options are worth and which there are, [..., O] both, the share of each, [..., O]."""


class Feedback(Part, abstract=True):
    """A type of question, and the likelihood of its answers under rewards r.

        P(option o) = (1 - slips) softmax_o(beta worth_o) + slips / (number of options)

    Args of all of them: `beta`, how rational answers are taken to be; `slips`, how often they are taken to be anything
    at all, 0.1 as people of whom a tenth of the answers says nothing (arXiv:1706.03741, 2.2.3).
    """

    slot = "feedback"
    choices: ClassVar[int] = 1
    beta: Positive = 1.0
    slips: Annotated[float, Interval(ge=0, lt=1)] = 0.1

    @property
    def segments(self) -> int:
        """C, how many segments are shown together."""
        raise NotImplementedError

    def worths(self, rewards: Tensor) -> Tensor:
        """What each option is worth, [..., O], of rewards [..., C, L]."""
        return rewards.sum(-1)

    def ask(self, worths: Tensor, choose: Choose) -> Answers:
        """What somebody says to whom options are worth so much, [..., O]."""
        among = torch.ones_like(worths)
        return Answers(choose(worths, among)[..., None, :], among[..., None, :])

    def logp(self, worths: Tensor, among: Tensor) -> Tensor:
        """Log-probabilities of options, [..., S, O], of what they are worth, [..., O], and which there are."""
        sure = (self.beta * worths[..., None, :]).masked_fill(among == 0, NEVER).log_softmax(-1)
        anything = per_member(self, lambda own: math.log(own.slips) if own.slips else NEVER)
        unheard = anything - among.sum(-1, keepdim=True).clamp(min=1).log()
        return torch.logaddexp(sure + per_member(self, lambda own: math.log1p(-own.slips)), unheard.expand_as(sure))

    def unlikely(self, rewards: Tensor, answers: Answers) -> Tensor:
        """-log likelihood of answers, [...], under rewards [..., C, L]; 0 where nothing was said."""
        return -(answers.chosen * self.logp(self.worths(rewards), answers.among)).sum((-1, -2))


class Comparison(Feedback):
    """Which of two segments is better.

        P(first) = (1 - slips) sigmoid(beta (sum_t r(first_t) - sum_t r(second_t))) + slips / 2

    Shapes: rewards [..., 2, L].

    >>> answers = Answers(torch.tensor([[1.0, 0.0]]), torch.ones(1, 2))
    >>> round(Comparison(slips=0.0).unlikely(torch.tensor([[1.0, 2.0], [0.0, 1.0]]), answers).item(), 4)  # of 3 and 1
    0.1269
    """

    @property
    def segments(self) -> int:
        return 2


class BestSegment(Feedback):
    """Which of `count` segments is best.

    Shapes: rewards [..., count, L].

    >>> answers = Answers(torch.tensor([[0.0, 0.0, 1.0]]), torch.ones(1, 3))
    >>> round(BestSegment(count=3, slips=0.0).unlikely(torch.zeros(3, 1), answers).item(), 4)  # log 3
    1.0986
    """

    count: Several = 4

    @property
    def segments(self) -> int:
        return self.count


class Demonstration(BestSegment):
    """What was shown to be done: a choice among itself and what else was done (arXiv:2002.04833, table 1).

    A script shows the best of `count` segments; what it could do beyond these nobody sees.

    Shapes: rewards [..., count, L].

    >>> Demonstration().count
    8
    """

    count: Several = 8


class Ranking(Feedback):
    """`count` segments in order: the best, the best of the others, and so on (Plackett and Luce).

    Shapes: rewards [..., count, L].

    >>> order = lambda worths, among: torch.nn.functional.one_hot((worths + 9 * among).argmax(-1), 3).float()
    >>> answers = Ranking(count=3).ask(torch.tensor([1.0, 3.0, 2.0]), order)
    >>> answers.chosen.argmax(-1).tolist(), answers.among.sum(-1).tolist()
    ([1, 2], [3.0, 2.0])
    """

    count: Several = 4

    @property
    def segments(self) -> int:
        return self.count

    def ask(self, worths: Tensor, choose: Choose) -> Answers:
        among, taken, left = torch.ones_like(worths), list[Tensor](), list[Tensor]()
        for _ in range(self.count - 1):
            taken.append(choose(worths, among))
            left.append(among)
            among = among * (taken[-1] == 0)  # of several that are alike none is ranked again
        chosen, there = torch.stack(taken, -2), torch.stack(left, -2)
        return Answers(chosen * (there.sum(-1, keepdim=True) > 1), there)


class Rating(Feedback):
    """How good a segment is, on a scale of `levels`: neighbours on it are compared (Andrich's rating scale).

        P(level k) in proportion to exp(beta sum_{j <= k} (R - tau_j)),   tau_j = spacing (j - levels / 2), j from 1 on

    R is the sum of its rewards, which are 0 in the middle of the scale. Other scales, a regression on numbers among
    them, say R itself; this one says it through choices, as all feedback here.

    Shapes: rewards [..., 1, L].

    >>> Rating(levels=3, spacing=2.0).worths(torch.tensor([[1.0, 3.0]])).tolist()  # R is 4, above both -1 and 1
    [0.0, 5.0, 8.0]
    """

    levels: Several = 5
    spacing: Positive = 1.0

    @property
    def segments(self) -> int:
        return 1

    def worths(self, rewards: Tensor) -> Tensor:
        level = torch.arange(self.levels, device=rewards.device)
        tau = self.spacing * (level.to(rewards.dtype) - self.levels / 2) * (level > 0)
        return level * rewards.sum(-1) - tau.cumsum(0)


class Critique(Rating):
    """Whether a segment is good or bad: a rating of two levels, P(good) = sigmoid(beta R) but for slips.

    Shapes: rewards [..., 1, L].

    >>> Critique().worths(torch.tensor([[1.0, 3.0]])).tolist()  # bad, good
    [0.0, 4.0]
    """

    levels: Several = 2


class Correction(Feedback):
    """A better segment than the one that was shown first, of `count` others: it is preferred to that one.

    Where none of the others is taken for better nothing is said.

    Shapes: rewards [..., 1 + count, L].

    >>> best = lambda worths, among: torch.nn.functional.one_hot((worths + 9 * among).argmax(-1), 3).float()
    >>> Correction(count=2).ask(torch.tensor([1.0, 0.0, 3.0]), best).among.tolist()
    [[1.0, 0.0, 1.0]]
    """

    count: Count = 3

    @property
    def segments(self) -> int:
        return 1 + self.count

    def ask(self, worths: Tensor, choose: Choose) -> Answers:
        shown = torch.zeros_like(worths)
        shown[..., 0] = 1
        chosen = choose(worths, 1 - shown)
        better = (chosen * worths).sum(-1, keepdim=True) > worths[..., :1]
        return Answers((chosen * better)[..., None, :], torch.maximum(shown, (chosen > 0).to(shown))[..., None, :])


class Stop(Feedback):
    """When a segment was stopped, from before its first step to never: a choice among its beginnings.

    Shapes: rewards [..., 1, L], options [..., L + 1].

    >>> Stop().worths(torch.tensor([[1.0, 3.0, -2.0]])).tolist()
    [0.0, 1.0, 4.0, 2.0]
    """

    @property
    def segments(self) -> int:
        return 1

    def worths(self, rewards: Tensor) -> Tensor:
        return torch.nn.functional.pad(rewards[..., 0, :].cumsum(-1), (1, 0))
