"""Small parts that change scores before anything is learned from them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.advantages.group import GroupMean, GroupStd, group_sum, of_episodes
from etude.core.batches import TokenBatch
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative
from etude.core.rows import last_action
from etude.core.slots import GroupReward, TokenReward

ROUNDING = 1e-9
"""Deviation, as a share of the mean, up to which scores are all equal."""


class MissingEnd(TokenReward):
    """A completion that was cut before its end is worth `value`, whatever the parts before paid (arXiv:2404.16767).

    Shapes: [B, T]; the difference stands on the last action token of an episode's last row.

    >>> from types import SimpleNamespace as Rows
    >>> from etude.core.episodes import Episode, Problem, StopReason
    >>> reasons = StopReason.MAX_TOKENS, StopReason.TERMINATED
    >>> cut, whole = (Episode(Problem("p", "?"), [], stop=why) for why in reasons)
    >>> rows = Rows(rewards=torch.tensor([[0.0, 0.5], [0.0, 0.5]]), scores=torch.tensor([0.5, 0.5]))
    >>> rows.episodes, rows.action_mask, rows.ends = [cut, whole], torch.ones(2, 2), lambda: torch.ones(2) > 0
    >>> (rows.rewards + MissingEnd(value=-1.0).shape(rows)).tolist()
    [[0.0, -1.0], [0.0, 0.5]]
    """

    judges: ClassVar[bool] = False
    value: float = -1.0

    def shape(self, batch: TokenBatch) -> Tensor:
        cut = torch.tensor([e.stop.cut for e in batch.episodes], device=batch.scores.device)
        missing = torch.where(cut & batch.ends(), self.value - batch.scores, 0.0).to(batch.rewards)
        return torch.zeros_like(batch.rewards).scatter(1, last_action(batch)[:, None], missing[:, None])


class WhitenedScores(GroupReward):
    """(r - mean) / sqrt(var + 1e-8) over all completions of a step, with the population's variance.

    Where differences alone are learned from, as by pair losses, only the division matters: a gap is then one in
    standard deviations.

    Shapes: [B].

    >>> from types import SimpleNamespace as Rows
    >>> [round(x, 4) for x in WhitenedScores().rescore(Rows(scores=torch.tensor([1.0, 5.0]))).tolist()]
    [-1.0, 1.0]
    """

    def rescore(self, batch: TokenBatch) -> Tensor:
        away = batch.scores - batch.scores.mean()
        return away * (away.square().mean() + 1e-8).rsqrt()


class PromptZScores(GroupReward):
    """(r - mean) / (std + epsilon) over the completions of a problem in this step, with the population's deviation.

    What is paid for a prompt as such changes nothing. 0 where all completions of a problem are worth the same.

    Shapes: [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 5.0, 7.0, 7.0]), group=torch.tensor([0, 0, 1, 1]), once=lambda: None)
    >>> [round(x, 3) for x in PromptZScores().rescore(rows).tolist()]
    [-1.0, 1.0, 0.0, 0.0]
    """

    epsilon: NonNegative = 1e-4

    def rescore(self, batch: TokenBatch) -> Tensor:
        return of_episodes(self._scored, batch, batch.scores)

    def _scored(self, scores: Tensor, group: Tensor) -> Tensor:
        exact = scores.double()
        return GroupStd(epsilon=self.epsilon).scaled(GroupMean().centred(exact, group), exact, group)


class BaselineCalibratedScores(GroupReward):
    """sigmoid(r - r_baseline): how likely an answer is better than its problem's written one (arXiv:2409.20370, eq. 5).

    The written answer is a row of the problem, as `groups-and-demonstrations` gives it, is scored as all others are,
    and comes to 1/2; of several their mean counts. What is paid for a prompt as such changes nothing. r_baseline is 0
    where a problem has no written answer.

    Shapes: [B], in [0, 1].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([-3.0, -5.0, -4.0]), group=torch.zeros(3), once=lambda: None)
    >>> rows.sampled = torch.tensor([True, True, False])
    >>> [round(x, 3) for x in BaselineCalibratedScores().rescore(rows).tolist()]
    [0.731, 0.269, 0.5]
    """

    def rescore(self, batch: TokenBatch) -> Tensor:
        return of_episodes(_calibrated, batch, batch.scores, batch.sampled)


def _calibrated(scores: Tensor, sampled: Tensor, group: Tensor) -> Tensor:
    """[N] chances over the mean of what was written; compared in float64, where one number is taken from another."""
    written = (~sampled).double()
    exact = scores.double()
    baseline = group_sum(exact * written, group) / group_sum(written, group).clamp(min=1)
    return (exact - baseline).sigmoid().to(scores)


class AffineScores(GroupReward):
    """scale * r + shift, of the scores so far.

    Shapes: [B].

    >>> from types import SimpleNamespace as Rows
    >>> AffineScores(scale=0.5, shift=-1.0).rescore(Rows(scores=torch.tensor([2.0, 6.0]))).tolist()
    [0.0, 2.0]
    """

    scale: float = 1.0
    shift: float = 0.0

    def rescore(self, batch: TokenBatch) -> Tensor:
        return self.scale * batch.scores + self.shift


class ClippedScores(GroupReward):
    """The scores so far, cut at `low` and `high`.

    Shapes: [B].

    >>> from types import SimpleNamespace as Rows
    >>> ClippedScores(low=-1.0, high=2.0).rescore(Rows(scores=torch.tensor([-3.0, 0.5, 6.0]))).tolist()
    [-1.0, 0.5, 2.0]

    Raises: ConfigError unless `low` is below `high`.
    """

    low: float = -10.0
    high: float = 10.0

    def check(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"ClippedScores.low must be below high, got {self.low:g} and {self.high:g}.")

    def rescore(self, batch: TokenBatch) -> Tensor:
        return batch.scores.clamp(self.low, self.high)


class RunningScores(GroupReward, abstract=True):
    """Scores on a scale that is measured over all completions of the run so far, those of this step among them.

    An episode of several rows counts once; rows that go on in a later step have no score yet. Its state is the number
    of scores, their mean, and the sum of squared distances from it.
    """

    def initial_state(self) -> dict[str, Any]:
        return {"count": 0, "mean": 0.0, "squares": 0.0}

    def rescore(self, batch: TokenBatch) -> Tensor:
        self._see(batch)
        mean, deviation = self.state["mean"], math.sqrt(self.state["squares"] / max(1, self.state["count"]))
        scores = self.rescaled(batch.scores.double(), mean, deviation if deviation > ROUNDING * abs(mean) else None)
        return torch.where(batch.finished, scores, batch.scores.double())

    def rescaled(self, scores: Tensor, mean: float, deviation: float | None) -> Tensor:
        """[B] by the mean and the standard deviation so far, None where all have been equal."""
        raise NotImplementedError

    def _see(self, batch: TokenBatch) -> None:
        """Take new scores into mean and squares (Chan, Golub and LeVeque, 1979)."""
        once, counts = batch.once(), batch.finished
        scores = batch.scores[counts] if once is None else batch.scores[once[0]][counts[once[0]]]
        if not len(scores):
            return
        new, own, state = scores.double(), len(scores), self.state
        mean, squares = float(new.mean()), float((new - new.mean()).square().sum())
        count, away = state["count"] + own, mean - state["mean"]
        state["squares"] += squares + away**2 * state["count"] * own / count
        state["mean"] += away * own / count
        state["count"] = count


class NormalizedScores(RunningScores):
    """(r - mean) / std with the mean and the standard deviation of all scores so far; 0 while all have been equal.

    Positive affine changes of all rewards change nothing. `clipped-scores` behind it bounds what an outlier is worth
    (arXiv:2307.04964, eq. 17). Released code differs in what is counted: a step's scores alone, or all so far.

    Shapes: [B].

    >>> from types import SimpleNamespace as Rows
    >>> part = NormalizedScores().bind()
    >>> batches = torch.tensor([[1.0, 5.0], [3.0, 7.0]])
    >>> rows = [Rows(scores=scores, finished=torch.ones(2).bool(), once=lambda: None) for scores in batches]
    >>> part.rescore(rows[0]).tolist()
    [-1.0, 1.0]
    >>> [round(x, 3) for x in part.rescore(rows[1]).tolist()]  # of 1, 5, 3 and 7 the mean is 4, the variance 5
    [-0.447, 1.342]
    """

    def rescaled(self, scores: Tensor, mean: float, deviation: float | None) -> Tensor:
        return torch.zeros_like(scores) if deviation is None else (scores - mean) / deviation


class ScaledScores(RunningScores):
    """r / std with the standard deviation of all scores so far; as they are while all have been equal.

    What is good and what is bad keep their signs, which a mean that moves with the policy would take away.

    Shapes: [B].

    >>> from types import SimpleNamespace as Rows
    >>> rows = Rows(scores=torch.tensor([1.0, 5.0]), finished=torch.ones(2).bool(), once=lambda: None)
    >>> ScaledScores().bind().rescore(rows).tolist()
    [0.5, 2.5]
    """

    def rescaled(self, scores: Tensor, mean: float, deviation: float | None) -> Tensor:
        return scores if deviation is None else scores / deviation
