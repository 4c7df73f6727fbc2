"""What is earned for how far a policy goes: scores against the KL divergence from the start, over several settings.

Two methods that are held near their start by penalties of some strength end at other divergences, so that neither two
single runs nor the best of each can be compared: more divergence mostly earns more. Each is run with several strengths,
and the curves through their ends are compared where both have been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from etude.core.errors import DataError

if TYPE_CHECKING:
    from etude.evaluation.language import Evaluation
    from etude.policies.language import LanguagePolicy


@dataclass(frozen=True)
class Frontier:
    """Ends of runs with one seed, from one start.

    Args:
        kl: [n] of each run, in nats per completion: KL(policy || start).
        score: [n].
        start: the score before, at a divergence of 0, where an infinite penalty would end.

    Raises: DataError for lists of other lengths, no run, or a divergence below 0.
    """

    kl: Sequence[float]
    score: Sequence[float]
    start: float

    def __post_init__(self) -> None:
        if len(self.kl) != len(self.score) or not len(self.kl):
            raise DataError(f"A frontier has a score for each run, got {len(self.kl)} and {len(self.score)}.")
        if not all(np.isfinite([*self.kl, *self.score, self.start])) or min(self.kl) < 0:
            raise DataError(f"Divergences are numbers from 0 on, and scores are finite, got {list(self.kl)}.")

    @property
    def reach(self) -> float:
        """The largest divergence."""
        return max(self.kl)

    def corners(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Divergences in order, from 0 on, and the mean score at each."""
        kl, score = np.array([0.0, *self.kl]), np.array([self.start, *self.score])
        at = np.unique(kl)
        return at, np.array([score[kl == k].mean() for k in at])

    def height(self, limit: float) -> float:
        """The mean score over divergences from 0 to `limit`, straight lines between runs.

        >>> Frontier(kl=[1.0, 2.0], score=[4.0, 4.0], start=0.0).height(2.0)
        3.0
        """
        at, _ = self.corners()
        inside = np.unique([*at[at < limit], limit])
        return float(np.trapezoid(self.at(inside), inside) / limit)

    def at(self, kl: NDArray[np.float64]) -> NDArray[np.float64]:
        """The score at divergences up to `reach`, on straight lines between runs."""
        return np.asarray(np.interp(kl, *self.corners()))


def matched(*frontiers: Frontier) -> list[float]:
    """Mean scores over the divergences that all reach; a difference is the area between two curves by its width.

    Raises: DataError if one of them has not left the start.

    >>> matched(Frontier([1.0], [2.0], 0.0), Frontier([2.0], [2.0], 0.0))  # at 1 the other has earned 1
    [1.0, 0.5]
    """
    limit = min(frontier.reach for frontier in frontiers)
    if limit == 0:
        raise DataError("A frontier has no run that left the start: there is no divergence that all reach.")
    return [frontier.height(limit) for frontier in frontiers]


def divergence(policy: LanguagePolicy, start: LanguagePolicy, found: Evaluation) -> float:
    """KL(policy || start) in nats per completion, from completions that the policy was tested on.

    Estimates of tokens (exp(d) - d - 1 with d = log start - log policy, http://joschu.net/blog/kl-approx.html) summed
    over each completion, of all that was sampled in it where it has several turns or views: without bias, and never
    below 0.
    """
    from etude.core.rows import to_batch
    from etude.policies.texts.likelihood import rows_logp
    from etude.policies.texts.models import CurrentPolicy
    from etude.regularizers.kl import kl_estimate

    episodes = [episode for samples in found.episodes for episode in samples]
    batch = to_batch(episodes, policy.tokenizer.pad_token_id, 1.0, policy.device)
    own, before = (rows_logp(CurrentPolicy(), who, batch) for who in (policy, start))
    each = kl_estimate(own, before.to(own), "k3").masked_fill(~batch.action_mask, 0.0).sum(1)
    return float(each.double().sum()) / len(episodes)
