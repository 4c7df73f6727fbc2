"""Which of two segments of logs is better: who says so, and rewards that are learned from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Positive, Probability, WholeNumber
from etude.core.log_slots import LogTransform
from etude.experience.fitting import fitted, perceptron, standardized
from etude.experience.logs.table import Compared, Logs, Numbers
from etude.experience.transforms import for_all_alike

if TYPE_CHECKING:
    from etude.core.method import Method

TRIES = 100
"""Times that as many pairs as are wanted are drawn, before it is given up."""


class ScriptedPreferences(LogTransform):
    """Pairs of segments that are drawn from the logs, of which who knows the rewards says which is better.

    The second is preferred where it was paid more, without discount. A judge who errs says the other one; pairs that
    are too close to tell are not asked about.

    Args:
        pairs: K. length: steps of each segment, of one episode; 1: states are compared.
        wrong: the chance of every answer to be the other one; at 1/2 it says nothing.
        band: how far the two sums have to be apart.
        apart: whether the two are of different episodes.
        seed: of segments and errors.

    Shapes: rewards [N] -> `Logs.compared`. Raises: ConfigError where no such pairs are.

    >>> ends = dict(terminated=np.array([False, True, False, True]), truncated=np.zeros(4, bool))
    >>> columns = dict(observations=np.zeros((4, 1)), actions=np.zeros((4, 1)), next_observations=np.zeros((4, 1)))
    >>> logs = Logs("here", None, rewards=np.array([1.0, 1.0, 5.0, 0.0]), **columns, **ends)
    >>> found = ScriptedPreferences(pairs=3, length=2, apart=True)(logs, None).compared
    >>> bool(((found.second == 2) == (found.preferred == 1)).all())  # the second episode earned 5
    True
    """

    pairs: Count = 500
    length: Count = 25
    wrong: Probability = 0.0
    band: NonNegative = 0.0
    apart: bool = False
    seed: WholeNumber = 0

    def __call__(self, logs: Logs, method: Method) -> Logs:
        for_all_alike(self)
        starts = beginnings(logs, self.length)
        if not len(starts):
            raise ConfigError(f"ScriptedPreferences compares segments of {self.length} steps, and no episode has them.")
        rng, sums = np.random.default_rng(self.seed), np.concatenate([[0.0], logs.rewards.astype(np.float64).cumsum()])
        earned = sums[starts + self.length] - sums[starts]
        drawn = np.concatenate(list(self._drawn(rng, earned, np.searchsorted(logs.ends, starts))))[: self.pairs]
        better = earned[drawn[:, 1]] > earned[drawn[:, 0]]
        preferred = better ^ (rng.random(self.pairs) < self.wrong)
        first, second = starts[drawn].T
        return replace(logs, compared=Compared(first, second, preferred.astype(np.float32), self.length))

    def _drawn(self, rng: np.random.Generator, earned: Numbers, episode: Numbers) -> Iterator[Numbers]:
        """Places of two segments each, [n, 2], until there are as many as are wanted."""
        count = 0
        for _ in range(TRIES):
            two = rng.integers(0, len(earned), (self.pairs, 2))
            far = np.abs(np.subtract(*earned[two].T))
            two = two[(far > self.band) & (not self.apart or np.not_equal(*episode[two].T))]
            count += len(two)
            yield two
            if count >= self.pairs:
                return
        raise ConfigError(
            f"ScriptedPreferences found {count} of {self.pairs} pairs of segments whose rewards are more than "
            f"{self.band:g} apart in {TRIES * self.pairs:,} draws: lower band, or look at the rewards."
        )

    def sentence(self, before: Logs, after: Logs) -> str:
        return (
            f"{self.pairs} pairs of segments of {self.length} are compared by what they were paid, a share of "
            f"{self.wrong:g} of them wrongly; seed {self.seed}"
        )


def beginnings(logs: Logs, length: int) -> Numbers:
    """The rows that so many rows of one episode begin with.

    >>> ends = dict(terminated=np.array([False, False, True, True]), truncated=np.zeros(4, bool))
    >>> columns = dict(observations=np.zeros((4, 1)), actions=np.zeros((4, 1)), next_observations=np.zeros((4, 1)))
    >>> beginnings(Logs("here", None, rewards=np.zeros(4), **columns, **ends), 2).tolist()
    [0, 1]
    """
    rows = np.arange(logs.rows)
    found: Numbers = rows[logs.ends[np.searchsorted(logs.ends, rows)] - rows >= length - 1]
    return found


def compared_steps(compared: Compared) -> Numbers:
    """[K, 2, L] rows of the steps of both segments of each pair."""
    starts = np.stack([compared.first, compared.second], -1)
    found: Numbers = starts[..., None] + np.arange(compared.length)
    return found


class RewardsFromPreferences(LogTransform):
    """Rewards in the logs are what a model says that learned from which segments were preferred (Bradley and Terry).

        P(second preferred) = sigmoid(sum_t r(second_t) - sum_t r(first_t))

    The models end with a tanh; the reward is their mean, with mean 0 and deviation 1 over the logs. What the logs were
    paid is told nobody.

    Args:
        actions: whether it reads what was done, beside what was seen.
        ensemble: models, each of weights and batches of its own. hidden, lr, batch, updates: of each.
        seed: of weights and batches.

    Shapes: rewards [N] -> the same. Raises: ConfigError where nobody compared any.

    >>> RewardsFromPreferences(actions=False).ensemble
    3
    """

    actions: bool = True
    ensemble: Count = 3
    hidden: tuple[Count, ...] = (256, 256)
    lr: Positive = 3e-4
    batch: Count = 32
    updates: Count = 2000
    seed: WholeNumber = 0

    def objection(self, method: Method) -> str | None:
        before = []
        for part in method.slots()["transforms"]:
            if part == self:
                break
            before.append(part)
        return uncompared(before)

    def __call__(self, logs: Logs, method: Method) -> Logs:
        for_all_alike(self)
        if logs.compared is None:
            raise ConfigError("RewardsFromPreferences learns from pairs, and rows were left out since they were drawn.")
        said = torch.cat([standardized(x)(torch.from_numpy(x)) for x in self._read(logs)], -1)
        steps = torch.from_numpy(compared_steps(logs.compared))
        preferred = torch.from_numpy(logs.compared.preferred).double()
        models = [self._model(said, steps, preferred, k) for k in range(self.ensemble)]
        with torch.no_grad():
            reward = torch.stack([model(said)[:, 0] for model in models]).mean(0)
        reward = (reward - reward.mean()) / reward.std(correction=0).clamp(min=1e-8)
        right = (margins(reward, steps) > 0) == (preferred > 0.5)
        self.made["agreement"] = float(right.double().mean())
        return replace(logs, rewards=reward.numpy().astype(np.float32))

    def _read(self, logs: Logs) -> Iterator[Numbers]:
        yield logs.observations.reshape(logs.rows, -1)
        if self.actions:
            yield logs.actions.reshape(logs.rows, -1)

    def _model(self, said: Tensor, steps: Tensor, preferred: Tensor, k: int) -> nn.Module:
        generator = torch.Generator().manual_seed(1000 * self.seed + k)
        model = nn.Sequential(perceptron((said.shape[1], *self.hidden, 1), generator), nn.Tanh())

        def loss(rows: Tensor) -> Tensor:
            return preference_loss(model(said[steps[rows]])[..., 0], preferred[rows])

        fitted(model, loss, len(steps), self.updates, self.batch, generator, self.lr)
        return model

    def sentence(self, before: Logs, after: Logs) -> str:
        return (
            f"rewards are those of {self.ensemble} models, which agree with {100 * self.made['agreement']:.0f}% of the "
            f"preferences that they learned from; seed {self.seed}"
        )


def uncompared(transforms: list[LogTransform]) -> str | None:
    """What is wrong where none of these has pairs of segments compared, as the rest of a sentence."""
    if any(isinstance(part, ScriptedPreferences) for part in transforms):
        return None
    return "learns from pairs of segments, and nobody has compared any: set transforms=scripted-preferences first."


def margins(rewards: Tensor, steps: Tensor) -> Tensor:
    """How much more the second segment of each pair was paid, [K], for rewards [N] and steps [K, 2, L]."""
    sums = rewards[steps].sum(-1)
    return sums[:, 1] - sums[:, 0]


def preference_loss(rewards: Tensor, preferred: Tensor) -> Tensor:
    """-log likelihood of Bradley and Terry's model, the mean over K pairs: rewards [K, 2, L], preferred [K].

    >>> rewards = torch.tensor([[[0.0, 1.0], [1.0, 2.0]]])
    >>> round(preference_loss(rewards, torch.tensor([1.0])).item(), 4)  # -log sigmoid(3 - 1)
    0.1269
    """
    sums = rewards.sum(-1)
    return functional.binary_cross_entropy_with_logits(sums[:, 1] - sums[:, 0], preferred)
