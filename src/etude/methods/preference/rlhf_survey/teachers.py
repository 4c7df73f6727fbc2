"""Who answers where people would: a script that knows what was paid, and errs as people do."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from etude.core.fields import Interval, NonNegative, Positive, PositiveProbability
from etude.core.part import Part
from etude.methods.preference.rlhf_survey.feedback import Answers, Feedback


class Teacher(Part, abstract=True):
    """Who answers questions."""

    slot = "teacher"

    def answer(self, feedback: Feedback, paid: Tensor, live: Tensor, numbers: Tensor) -> Answers:
        """What is said of segments.

        Args:
            paid: [..., C, L] what the environment paid. live: 0 after the end of an episode, where nothing was done.
            numbers: [..., S, O + 2] uniform ones to answer by.
        """
        raise NotImplementedError


class SimulatedTeacher(Teacher):
    """A script that answers by what the environment paid, in the ways of B-Pref (arXiv:2111.03026, section 3).

        w_t = gamma^(L - t) (r_t - zero) / unit
        P(option o) = (1 - mistakes) softmax_o(beta worth_o) + mistakes (1 - softmax_o(beta worth_o)) / (options - 1)

    Args:
        beta: how sharply it tells apart; None: it always names the best (the oracle).
        gamma: of what came earlier; below 1 it is myopic.
        skip: it says nothing where no segment is worth so much; None: it always answers.
        equal: options that are within this of the best are alike to it.
        mistakes: how often it names another option than it would.
        zero: of a step, what is neither good nor bad. unit: of a step, what it calls 1. Both matter to what says more
            than which is better: ratings, critiques, stops.

    Shapes: paid [..., C, L].

    >>> from etude.methods.preference.rlhf_survey.feedback import Comparison
    >>> paid, live, numbers = torch.tensor([[3.0, 0.0], [0.0, 2.0]]), torch.ones(2, 2), torch.full((1, 4), 0.5)
    >>> errors = {}, {"gamma": 0.5}, {"equal": 1.5}, {"skip": 9.0}
    >>> teachers = [SimulatedTeacher(**x) for x in errors]
    >>> [t.answer(Comparison(), paid, live, numbers).chosen.tolist() for t in teachers]
    [[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]], [[0.0, 0.0]]]
    """

    beta: Positive | None = None
    gamma: PositiveProbability = 1.0
    skip: float | None = None
    equal: NonNegative = 0.0
    mistakes: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0
    zero: float = 0.0
    unit: Positive = 1.0

    def answer(self, feedback: Feedback, paid: Tensor, live: Tensor, numbers: Tensor) -> Answers:
        worth = self.worth(paid, live)
        draws = iter(numbers.unbind(-2))
        found = feedback.ask(feedback.worths(worth), lambda worths, among: self._choose(worths, among, next(draws)))
        if self.skip is None:
            return found
        heard = (worth.sum(-1) >= self.skip).any(-1)
        return Answers(found.chosen * heard[..., None, None], found.among)

    def worth(self, paid: Tensor, live: Tensor) -> Tensor:
        """[..., C, L] what steps are worth to it; the last one that was done is not discounted."""
        later = live.flip(-1).cumsum(-1).flip(-1) - live
        return live * self.gamma**later * (paid - self.zero) / self.unit

    def _choose(self, worths: Tensor, among: Tensor, numbers: Tensor) -> Tensor:
        there = partial(torch.masked_fill, mask=among == 0, value=-torch.inf)
        best = there(worths).amax(-1, keepdim=True)
        alike = (there(worths) == best) | (best - there(worths) < self.equal)
        gumbel = -(-numbers[..., :-2].clamp(min=1e-30).log()).log()
        named = there(worths if self.beta is None else self.beta * worths + gumbel).argmax(-1, keepdim=True)
        taken = torch.zeros_like(worths).scatter(-1, named, 1.0)
        others = among - taken
        place = (numbers[..., -1:] * others.sum(-1, keepdim=True)).floor()
        other = ((others.cumsum(-1) - others == place) & (others > 0)).to(worths)
        wrong = (numbers[..., -2:-1] < self.mistakes) & (others.sum(-1, keepdim=True) > 0)
        shared = alike.to(worths) / alike.sum(-1, keepdim=True)
        several = alike.sum(-1, keepdim=True) > 1
        if self.beta is not None:
            several = several & (torch.zeros_like(best) < self.equal)
        return torch.where(wrong, other, torch.where(several, shared, taken))
