"""What ReCOIL is made of: how many rows of a batch are an expert's, and what critics are told of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from etude.core.critic_slots import CriticPenalty
from etude.core.errors import ConfigError
from etude.core.fields import Count, Fraction, NonNegative
from etude.core.population import PerMember
from etude.core.replay_slots import ReplayReading
from etude.core.sampling_slots import Drawing, Horizon, Sampling
from etude.core.transitions import Transitions
from etude.experience.sampling import WORDS, OneStep
from etude.experience.transforms import MarkExperts

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.experience.logged import LoggedStore


def _unmarked(method: Method) -> str | None:
    if not any(part.adds == MarkExperts.adds for part in method.slots()["transforms"]):
        return "asks whose rows are an expert's, which no row says: set transforms=mark-experts."
    return None


class ExpertShare(Sampling):
    """A share of each batch are rows of an expert's, all others are not, both drawn with replacement.

    Args:
        share: beta of arXiv:2302.08560, section 5; the expert's rows come first.

    Shapes: rows [P, N], N the batch. Raises: ConfigError where a batch would have rows of one kind alone.

    >>> ExpertShare(batch=64, share=0.25).experts
    16
    """

    batch: Count = 256
    horizon: Horizon = OneStep()
    share: Fraction = 0.5

    def check(self) -> None:
        if not isinstance(self.share, PerMember) and not 0 < self.experts < self.batch:
            raise ConfigError(f"ExpertShare takes {self.share:g} of {self.batch} rows: that leaves none of one kind.")

    @property
    def experts(self) -> int:
        """How many rows of a batch are an expert's."""
        if isinstance(self.share, PerMember):
            raise ConfigError("ExpertShare.share says how many rows of a batch there are, for all members alike.")
        return round(self.share * self.batch)

    def objection(self, method: Method) -> str | None:
        return _unmarked(method)

    def draw(self, store: LoggedStore, draw: Drawing) -> Transitions:
        mark = store.beside[MarkExperts.adds] > 0
        parts = []
        for name, kind in (("experts", mark), ("others", ~mark)):
            there = kind.nonzero()[:, 0]
            words = draw(name, partial(_words, self.experts if kind is mark else self.batch - self.experts))
            parts.append(there[words.to(store.device) % len(there)])
        index = torch.cat(parts, 1)
        found = self.horizon.read(store, index)
        return found.replace(offers={**store.offers(index), **found.offers})


def _words(count: int, generator: Generator, times: int) -> Tensor:
    return torch.randint(WORDS, (times, count), generator=generator)


class ExpertContrast(CriticPenalty):
    """What a critic says of an expert's rows goes up, what it says of the policy's actions elsewhere goes down.

        weight sum_m (mean_{s of others} Q_m(s, pi(s)) - mean_{(s, a) of an expert} Q_m(s, a))

    Its expectation is 0 where both are the same rows, and the policy does what was done there (arXiv:2302.08560,
    eq. 10).

    Shapes: outputs [P, M, N, K] -> [P, N]. One row of an expert's that is worth 5, another with a policy's worth 3:

    >>> from types import SimpleNamespace as Rows
    >>> read = Rows(batch=Rows(offers={"expert": torch.tensor([[1.0, 0.0]])}), values=lambda x: x.squeeze(-1),
    ...             policy=lambda: Rows(actions=torch.zeros(1, 2, 1)),
    ...             outputs=lambda at, actions: torch.tensor([[[[9.0], [3.0]]]]))
    >>> ExpertContrast(weight=2.0)(read, torch.tensor([[[[5.0], [7.0]]]])).mean(1).tolist()
    [-4.0]
    """

    weight: NonNegative = 2.0

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if policy is not None and policy.of_choices:
            return f"asks about one action of the policy, and {type(policy).__name__} makes choices: leave it out."
        return _unmarked(method)

    def __call__(self, read: ReplayReading, outputs: Tensor) -> Tensor:
        expert = read.batch.offers[MarkExperts.adds]
        with torch.no_grad():
            done = read.policy().actions
        others, own = read.values(read.outputs("here", done)), read.values(outputs)
        share = expert.mean(1, keepdim=True)
        each = (1 - expert) / (1 - share) * others.sum(1) - expert / share * own.sum(1)
        return self.weight * each
