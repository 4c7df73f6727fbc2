"""What goes wrong in learning from a replay and stops nothing: it is counted, and said once with its likely causes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from etude.core.complete import critic_gamma
from etude.core.critic_slots import QHead
from etude.core.population import CPU, Number, PerMember, Population
from etude.experience.logged import LoggedStore
from etude.experience.stretches import Stretches
from etude.loops.replay_reading import StoredReading

if TYPE_CHECKING:
    from etude.core.complete import CompleteReplayMethod
    from etude.experience.store import Store
    from etude.loops.replay_update import ReplayUpdater

LARGER = 10.0
"""How many times as large as rewards and gamma allow the median of values is that is said to grow without bound."""
AHEAD = 7.0
"""Of gamma's horizon 1 / (1 - gamma): what comes later changes a return by less than a thousandth."""
LONGEST = 10_000
"""Steps of an environment that are looked at for returns, at most."""


class ReplayWatch:
    """Watches what was stored and learned in a training step: returns that a critic cannot say, values without bound.

    It changes no number of the run, and draws random numbers of its own.
    """

    def __init__(self, population: Population, device: torch.device = CPU) -> None:
        self.stretches = Stretches(population, "watch", device)
        self.largest = torch.zeros(population.size)  # reward of a step so far, its size
        self.seen, self.told = 0, set[str]()

    @torch.no_grad()
    def watch(self, updater: ReplayUpdater, store: Store) -> dict[str, float]:
        """Look at what is new in the store, and at the last batch that was learned from; returns metrics."""
        if isinstance(store, LoggedStore):
            return self._watch_logs(updater, store)
        store = store.own
        fresh = store.pushed - self.seen
        steps = min(fresh, store.size) // store.environments
        self.seen = store.pushed
        if steps == 0:
            return {}
        rewards, _ = newest(store, steps)
        self.largest = torch.maximum(self.largest, rewards.abs().amax((1, 2)))
        bounds = said_by_heads(updater.method)
        whole = fresh <= store.size  # else rewards went by that nobody saw, of what keeps the last step alone
        if whole and not bounds and "values" not in self.told:  # what is between bounds stays there
            self._watch_values(updater, store.pushed // store.environments)
        found: dict[str, float] = {}
        for path, own in bounds.items():
            found["returns_out_of_range"] = self._out_of_range(path, own, updater.method, store, steps)
        return found

    def _watch_logs(self, updater: ReplayUpdater, store: LoggedStore) -> dict[str, float]:
        """Rewards stay as they are; values may grow without bound all the more where nothing new is seen."""
        self.largest = torch.full_like(self.largest, store.largest)
        if not said_by_heads(updater.method) and "values" not in self.told:
            self._watch_values(updater, store.size)
        return {}

    def _watch_values(self, updater: ReplayUpdater, taken: int) -> None:
        """Compare the median |Q| of the last batch with (the largest reward) / (1 - gamma).

        Args:
            taken: steps of an environment so far, of which returns have no more without a discount.
        """
        method, trainer = updater.method, updater.trainers.get("critic")
        batch = None if trainer is None else trainer.batch
        if method.critic is None or batch is None or batch.rewards.dim() != 2:
            return
        read = StoredReading(updater, method.sampling, batch, self.stretches.at(updater.updates))
        sizes = read.values(read.outputs("here", batch.actions)).abs().flatten(1).median(1).values.cpu()
        gamma = each(critic_gamma(method), len(sizes))
        most = method.critic.counts(self.largest.to(batch.rewards.device), read).cpu()
        bound = most * torch.minimum(1 / (1 - gamma), torch.tensor(float(taken)))
        beyond = (sizes > LARGER * bound) & (most > 0)
        if bool(beyond.any()):
            k = int(beyond.nonzero()[0, 0])
            self.told.add("values")
            warnings.warn(
                f"Values grow without bound: the median |Q| of member {k} is {float(sizes[k]):.3g}, and steps that "
                f"count {float(most[k]):.3g} at most add up to {float(bound[k]):.3g} with gamma {float(gamma[k]):g} "
                f"({int(beyond.sum())} of {len(sizes)} members). Likely causes: the slow copy follows too fast (raise "
                "critic.learning.target.every or lower its rate), the learning rate is too high "
                "(critic.learning.optimizer.lr), or errors are not cut (critic.error=huber). The run goes on.",
                stacklevel=4,
            )

    def _out_of_range(
        self, path: str, bounds: Tensor, method: CompleteReplayMethod, store: Store, steps: int
    ) -> float:  # fmt: skip
        """Count the episodes that ended in these steps with returns beyond what the head at `path` can say."""
        gamma = each(critic_gamma(method), store.members)[:, None, None]
        ahead = min(LONGEST, AHEAD / max(1e-9, 1 - float(gamma.max())))
        rewards, end = newest(store, min(store.size // store.environments, steps + int(ahead)))
        sums, last = returns(rewards.double(), end, gamma), last_steps(end)
        low, high = (x[:, None, None].double() for x in bounds.unbind(1))
        slack = 1e-5 * (high - low)
        fresh = (last >= end.shape[1] - steps) & (last < end.shape[1])
        outside = fresh & ((sums < low - slack) | (sums > high + slack))
        marks = torch.zeros(end.shape[0], end.shape[1] + 1, end.shape[2])
        count = int((marks.scatter_add(1, last, outside.float()) > 0).sum())
        if count and path not in self.told:
            self.told.add(path)
            k, which = int(outside.nonzero()[0, 0]), sums[outside]
            low, high = low.expand_as(gamma), high.expand_as(gamma)
            fields = " and ".join(f"{path}.{field}" for field in cast(QHead, method.parts()[path]).bounded_by)
            warnings.warn(
                f"{count} of the {int(end[:, -steps:].sum())} episodes that ended in this step had discounted returns "
                f"that the critic cannot say, {float(which.min()):.4g} to {float(which.max()):.4g} where "
                f"{float(low[k]):g} to {float(high[k]):g} can be said: they are cut there. Set {fields} "
                f"to what the task can pay. Later ones are counted in the metrics as returns_out_of_range.",
                stacklevel=4,
            )
        return float(count)

    def state(self) -> dict[str, Any]:
        """What was seen and said so far."""
        return {"largest": self.largest, "seen": self.seen, "told": sorted(self.told)}

    def restore(self, state: dict[str, Any]) -> None:
        """Undo `state`."""
        self.largest, self.seen, self.told = state["largest"], state["seen"], set(state["told"])


def said_by_heads(method: CompleteReplayMethod) -> dict[str, Tensor]:
    """The bounds of those heads of the critic that have any, by path."""
    parts = {path: part for path, part in method.parts().items() if path.startswith("critic.")}
    heads = {path: part.bounds() for path, part in parts.items() if isinstance(part, QHead)}
    return {path: bounds.cpu() for path, bounds in heads.items() if bounds is not None}


def each(number: Number, members: int) -> Tensor:
    """A number of each member's, [P]."""
    return number.values[:, 0] if isinstance(number, PerMember) else torch.full((members,), number, dtype=torch.float64)


def newest(store: Store, steps: int) -> tuple[Tensor, Tensor]:
    """Rewards of the last steps of every environment, the oldest first, and where episodes ended: [P, T, E] each."""
    count = steps * store.environments
    index = (store.cursor - count + torch.arange(count, device=store.device)) % store.capacity
    rows = store.read(index.expand(store.members, -1))
    shape = (store.members, steps, store.environments)
    return rows.rewards.cpu().view(shape), rows.end.cpu().view(shape)


def returns(rewards: Tensor, end: Tensor, gamma: Tensor) -> Tensor:
    """Discounted sums from each step to the last of its episode that is there, [P, T, E]; gamma [P, 1, 1].

    In log2 T rounds: sums over 2^k steps are two of those over 2^(k - 1).

    >>> one = torch.ones(1, 1, 1)
    >>> returns(one.expand(1, 4, 1), torch.tensor([0.0, 1.0, 0.0, 0.0]).view(1, 4, 1), 0.5 * one).flatten().tolist()
    [1.5, 1.0, 1.5, 1.0]
    """
    sums, going, step = rewards, 1 - end, 1
    while step < rewards.shape[1]:
        nothing = torch.zeros_like(rewards[:, :step])
        sums = sums + gamma**step * going * torch.cat([sums[:, step:], nothing], 1)
        going = going * torch.cat([going[:, step:], nothing], 1)
        step *= 2
    return sums


def last_steps(end: Tensor) -> Tensor:
    """Where the episode of each step ends, [P, T, E]: the next place with an end, T where there is none yet."""
    count = end.shape[1]
    places = torch.where(end > 0, torch.arange(count).view(1, -1, 1), count)
    return places.flip(1).cummin(1).values.flip(1)
