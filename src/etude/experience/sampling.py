"""Which stored rows are learned from, and how far rewards are summed before a value follows."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Generator, Tensor

from etude.core.fields import Count
from etude.core.sampling_slots import Augmentation, Drawing, Horizon, Sampling
from etude.core.transitions import Transitions
from etude.experience.store import Store, Stored

WORDS = 1 << 62
"""Whole numbers are drawn below this; their remainder by the size of a store is as good as uniform."""


class OneStep(Horizon):
    """The reward of the step itself, then a value: discounts are gamma, 0 where the episode terminated.

    Shapes: rows [P, N].

    >>> OneStep(gamma=0.9).length
    1
    """

    @property
    def length(self) -> int:
        return 1

    def read(self, store: Store, index: Tensor) -> Transitions:
        rows = store.read(index)
        return _transitions(rows, rows.rewards, self.gamma * rows.live, rows.next_observations, rows, index)


class TimeAware(OneStep):
    """One step whose value is 0 wherever the episode ended, at its time limit too (arXiv:1712.00378, section 3).

    Right where the limit belongs to the task and a state shows the time (`policy.observations=time-feature`); else
    states near the limit and early ones look alike, and their values are between.

    Shapes: rows [P, N].

    >>> TimeAware(gamma=0.9).length
    1
    """

    def read(self, store: Store, index: Tensor) -> Transitions:
        found = super().read(store, index)
        assert found.discounts is not None
        return found.replace(discounts=found.discounts.masked_fill(found.truncated, 0.0))


class NStep(Horizon):
    """n rewards, discounted, then a value: sum gamma^k r_k up to the end of the episode, or of what is stored.

        discounts = gamma^m (1 - terminated) after the m <= n steps that are there

    Shapes: rows [P, N].

    >>> store = Store(members=1, environments=1, capacity=8, shape=(1,), actions=1)
    >>> for t, end in enumerate((0.0, 0.0, 1.0, 0.0)):  # the third step terminates
    ...     one = torch.full((1, 1, 1), float(t))
    ...     store.push(one, one, one + 1, torch.ones(1, 1), torch.tensor([[1 - end]]), torch.tensor([[end]]))
    >>> batch = NStep(gamma=0.5, n=2).read(store, torch.tensor([[0, 1, 2, 3]]))
    >>> batch.rewards.tolist(), batch.discounts.tolist(), batch.next_observations.flatten().tolist()
    ([[1.5, 1.5, 1.0, 1.0]], [[0.25, 0.0, 0.0, 0.5]], [2.0, 3.0, 3.0, 4.0])
    """

    n: Count = 3

    @property
    def length(self) -> int:
        return self.n

    def read(self, store: Store, index: Tensor) -> Transitions:
        first = store.read(index)
        rewards, last = first.rewards, index
        discounts = self.gamma * first.live
        going = first.end == 0
        for k in range(1, self.n):
            place, stored = store.ahead(index, k)
            going = going & stored
            last = torch.where(going, place, last)
            step = store.read(last)
            rewards = rewards + torch.where(going, self.gamma**k * step.rewards, 0.0)
            discounts = torch.where(going, self.gamma ** (k + 1) * step.live, discounts)
            going = going & (step.end == 0)
        end = store.read(last) if self.n > 1 else first
        return _transitions(first, rewards, discounts, end.next_observations, end, index)


class Quintuple(OneStep):
    """One step, and what was done after it: (s, a, r, s', a'), for `backup.rule=taken` (Sarsa).

    `offers["next_actions"]` [P, N, A] are the actions that followed, NaN where none did: an episode ended there, or
    what followed is not stored.

    Shapes: rows [P, N].

    >>> store = Store(members=1, environments=1, capacity=4, shape=(1,), actions=1)
    >>> for t, end in enumerate((0.0, 1.0, 0.0, 0.0)):  # the second step ends an episode
    ...     one = torch.full((1, 1, 1), float(t))
    ...     store.push(one, one, one + 1, torch.ones(1, 1), torch.ones(1, 1), torch.tensor([[end]]))
    >>> Quintuple().read(store, torch.tensor([[0, 1, 2]])).offers["next_actions"].flatten().tolist()
    [1.0, nan, 3.0]
    """

    beyond: ClassVar[int] = 1

    def read(self, store: Store, index: Tensor) -> Transitions:
        found = super().read(store, index)
        place, stored = store.ahead(index, 1)
        none = found.terminated | found.truncated | ~stored
        return found.replace(offers={"next_actions": store.read(place).actions.masked_fill(none[..., None], torch.nan)})


class Window(Horizon):
    """So many steps one after another, for who unrolls a model along them; nothing is summed.

    `weights` are 1 on the steps of the row's own episode that are stored, the one that ends it included, and 0 after
    them, where the last of these stands again. `discounts` are gamma (1 - terminated) of each step.

    Shapes: rows [P, N, T, ...], `index` [P, N] of where they begin.

    >>> store = Store(members=1, environments=1, capacity=8, shape=(1,), actions=1)
    >>> for t, end in enumerate((0.0, 1.0, 0.0)):  # the second step terminates
    ...     one = torch.full((1, 1, 1), float(t))
    ...     store.push(one, one, one + 1, torch.ones(1, 1), torch.tensor([[1 - end]]), torch.tensor([[end]]))
    >>> batch = Window(length=3).read(store, torch.tensor([[0, 2]]))
    >>> batch.weights.tolist(), batch.observations.squeeze(-1).tolist()
    ([[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]], [[[0.0, 1.0, 1.0], [2.0, 2.0, 2.0]]])
    """

    windows: ClassVar[bool] = True
    length: Count = 5

    def read(self, store: Store, index: Tensor) -> Transitions:
        ahead = [store.ahead(index, k) for k in range(self.length)]
        places = torch.stack([place for place, _ in ahead], -1)
        going = torch.stack([stored for _, stored in ahead], -1)
        ends = store.read(torch.where(going, places, index[..., None]).flatten(1)).end.view(places.shape)
        going[..., 1:] &= ends[..., :-1].cumsum(-1) == 0
        last = going.sum(-1, keepdim=True) - 1
        held = places.gather(-1, torch.minimum(torch.arange(self.length, device=places.device).expand_as(places), last))
        rows = store.read(held)
        found = _transitions(rows, rows.rewards, self.gamma * rows.live, rows.next_observations, rows, index)
        return found.replace(weights=going.to(rows.rewards.dtype))


def _transitions(
    first: Stored, rewards: Tensor, discounts: Tensor, following: Tensor, last: Stored, index: Tensor
) -> Transitions:
    ended, dead = last.end > 0, last.live == 0
    return Transitions(
        first.observations, first.actions, rewards, terminated=dead, truncated=ended > dead,  # and not terminated
        next_observations=following, discounts=discounts, index=index,
    )  # fmt: skip


class UniformRows(Sampling):
    """Every stored row of a member is as likely as another, drawn with replacement.

    Args:
        augment: what is done to what a row saw, and to what it led to, each time that it is drawn.

    Shapes: rows [P, N], N the batch.

    >>> UniformRows(batch=64, horizon=OneStep(gamma=0.98)).horizon.gamma
    0.98
    """

    batch: Count = 256
    horizon: Horizon = OneStep()
    augment: Augmentation | None = None

    def accepts(self, shape: tuple[int, ...]) -> None:
        if self.augment is not None:
            self.augment.accepts(shape)

    def draw(self, store: Store, draw: Drawing) -> Transitions:
        def words(generator: Generator, count: int) -> Tensor:
            return torch.randint(WORDS, (count, self.batch), generator=generator)

        return self.at(draw("rows", words).to(store.device) % store.size, store, draw)

    def at(self, index: Tensor, store: Store, draw: Drawing) -> Transitions:
        """The rows at `index` [P, N] as they are learned from."""
        found = self.horizon.read(store, index)
        if offers := store.offers(index):
            found = found.replace(offers={**offers, **found.offers})
        return self.augmented(found, draw)

    def augmented(self, batch: Transitions, draw: Drawing) -> Transitions:
        if self.augment is None:
            return batch
        assert batch.next_observations is not None
        return batch.replace(
            observations=self.augment(batch.observations, draw, "augment here"),
            next_observations=self.augment(batch.next_observations, draw, "augment next"),
        )
