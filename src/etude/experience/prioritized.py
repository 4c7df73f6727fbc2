"""Rows that surprised are drawn more often: a tree of sums for every member, all of them walked at once."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from etude.core.fields import Count, NonNegative, Positive, Probability, WholeNumber
from etude.core.population import CPU
from etude.core.sampling_slots import Drawing, Horizon, Sampling
from etude.core.transitions import Transitions
from etude.experience.sampling import OneStep
from etude.experience.store import Store


class SumTree:
    """Masses of every member's rows [P, leaves], and their sums, two by two, up to the root.

    Node 1 is the root, and 2 n and 2 n + 1 are below n: setting and finding take a few operations for each level,
    however many members and rows there are.

    >>> tree = SumTree(members=1, leaves=4)
    >>> tree.set(torch.tensor([[0, 2]]), torch.tensor([[1.0, 3.0]]))
    >>> tree.total.tolist(), tree.find(torch.tensor([[0.5, 1.5, 3.9]])).tolist()
    ([4.0], [[0, 2, 2]])
    """

    def __init__(self, members: int, leaves: int, device: torch.device = CPU) -> None:
        self.levels = max(1, (leaves - 1).bit_length())
        self.size = 1 << self.levels
        self.nodes = torch.zeros(members, 2 * self.size, dtype=torch.float64, device=device)

    @property
    def total(self) -> Tensor:
        """[P]."""
        return self.nodes[:, 1]

    def set(self, index: Tensor, masses: Tensor) -> None:
        """Give rows [P, K] these masses; of a row that is there twice the last counts."""
        place = index + self.size
        self.nodes.scatter_(1, place, masses.to(self.nodes.dtype))
        for _ in range(self.levels):
            place = place // 2
            left, right = self.nodes.gather(1, 2 * place), self.nodes.gather(1, 2 * place + 1)
            self.nodes.scatter_(1, place, left + right)

    def find(self, mass: Tensor) -> Tensor:
        """The rows [P, N] at which the sum of all masses up to them first exceeds `mass` [P, N]."""
        node = torch.ones_like(mass, dtype=torch.int64)
        for _ in range(self.levels):
            left = self.nodes.gather(1, 2 * node)
            beyond = mass >= left
            mass = torch.where(beyond, mass - left, mass)
            node = 2 * node + beyond.long()
        return node - self.size

    def masses(self, index: Tensor) -> Tensor:
        """Of rows [P, K]."""
        return self.nodes.gather(1, index + self.size)


class Surprising(Sampling, abstract=True):
    """What the ways to draw by surprise share: masses by the last error of a row, the largest so far for a new one.

    Args:
        alpha: mass = (what `strength` makes of the error)^alpha; 0 draws uniformly.
    """

    reads_errors: ClassVar[bool] = True
    batch: Count = 256
    horizon: Horizon = OneStep()
    alpha: Probability = 0.6

    def strength(self, errors: Tensor) -> Tensor:
        """Of absolute errors [P, N], before alpha."""
        raise NotImplementedError

    def weights(self, chances: Tensor, size: int, pushed: int) -> Tensor | None:
        """[P, N] how much each row counts in the loss, given the chance that it was drawn; None: all alike.

        Args:
            size: rows that are stored. pushed: transitions of a member so far.
        """
        return None

    def initial_state(self) -> dict[str, Any]:
        return {"seen": 0}

    def _tree(self, store: Store) -> SumTree:
        """The tree, made when it is first asked for; a resumed run has its masses in `state`."""
        if "masses" not in self.state or self.state["masses"] is not self.made.get("masses"):
            tree = self.made["tree"] = SumTree(store.members, store.capacity, store.device)
            largest = torch.ones(store.members, 1, dtype=torch.float64)
            self.state["largest"] = self.state.get("largest", largest).to(store.device)
            if "masses" in self.state:
                kept: Tensor = self.state["masses"].to(store.device)
                tree.set(torch.arange(kept.shape[1], device=store.device).expand(len(kept), -1), kept)
            self.state["masses"] = self.made["masses"] = tree.nodes[:, tree.size : tree.size + store.capacity]
        found: SumTree = self.made["tree"]
        return found

    def draw(self, store: Store, draw: Drawing) -> Transitions:
        tree = self._tree(store)
        new = min(store.pushed - self.state["seen"], store.size)
        if new:
            index = (store.cursor - new + torch.arange(new, device=store.device)) % store.capacity
            tree.set(index.expand(store.members, -1), self.state["largest"].pow(self.alpha).expand(-1, new))
            self.state["seen"] = store.pushed
        chance = draw("rows", lambda generator, count: torch.rand(count, self.batch, generator=generator).double())
        total = tree.total[:, None]
        chance = chance.to(store.device)
        mass = (torch.arange(self.batch, device=store.device) + chance) / self.batch * total
        index = tree.find(mass).clamp(max=store.size - 1)
        batch = self.horizon.read(store, index)
        weights = self.weights(tree.masses(index) / total, store.size, store.pushed)
        if weights is not None:
            batch.offers["importance"] = weights.to(batch.rewards.dtype)
        return batch

    def learn(self, batch: Transitions, errors: Tensor) -> None:
        """Take down how far the critic was off on rows [P, N]."""
        assert batch.index is not None
        masses = self.state["masses"]
        strength = self.strength(errors.to(masses.device).double())
        self.state["largest"] = torch.maximum(self.state["largest"], strength.amax(1, keepdim=True))
        self.made["tree"].set(batch.index.to(masses.device), strength.pow(self.alpha))


class PrioritizedRows(Surprising):
    """Rows by their last error, with weights that undo a part of the bias (PER, arXiv:1511.05952).

        chance_i = (|error_i| + epsilon)^alpha / sum,   weight_i = (N chance_i)^-beta / max_j weight_j

    The batch is stratified: one row from each of `batch` equal shares of the mass.

    Args:
        beta: 1 undoes all of it.
        over: transitions of a member over which beta rises to 1, linearly; 0: it stays.

    Shapes: rows [P, N], errors [P, N].

    >>> PrioritizedRows(beta=1.0).weights(torch.tensor([[0.5, 0.25]]), 4, 0).tolist()
    [[0.5, 1.0]]
    >>> [round(PrioritizedRows(beta=0.4, over=100).exponent(n), 3) for n in (0, 50, 100, 900)]
    [0.4, 0.7, 1.0, 1.0]
    """

    beta: Probability = 0.4
    over: WholeNumber = 0
    epsilon: Positive = 1e-6

    def strength(self, errors: Tensor) -> Tensor:
        return errors + self.epsilon

    def exponent(self, pushed: int) -> Any:
        """Beta after so many transitions of each member; one, or one per member."""
        share = min(1.0, pushed / self.over) if self.over else 0.0
        return self.beta + (1 - self.beta) * share

    def weights(self, chances: Tensor, size: int, pushed: int) -> Tensor | None:
        weights = (size * chances).pow(-self.exponent(pushed))
        return weights / weights.amax(1, keepdim=True)


class LossAdjustedRows(Surprising):
    """Rows by max(|error|, least)^alpha without weights, which a Huber error makes up for (LAP, arXiv:2007.06049).

    Shapes: rows [P, N], errors [P, N].

    >>> LossAdjustedRows(alpha=0.4).strength(torch.tensor([[0.2, 3.0]])).tolist()
    [[1.0, 3.0]]
    """

    alpha: Probability = 0.4
    least: NonNegative = 1.0

    def strength(self, errors: Tensor) -> Tensor:
        return errors.clamp(min=self.least)
