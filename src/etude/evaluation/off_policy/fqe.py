"""Fitted Q evaluation: what a policy earns by a Q that is fitted to logs of others (Le et al. 2019, arXiv:1903.08738).

    Q(s, a, t) <- r + gamma (1 - end) sum_a' pi(a'|s') Q(s', a', t + 1),   end: terminated, or t + 1 = T

A population: member 0 learns from all episodes, every other from a resample of them, and how far these differ is the
interval: what chance in the episodes and in the fit makes of it, not what a network of this size cannot say. Q is
learned as the difference to b(t), what a step of the logs is worth on average when t steps are done, and targets come
from a slow copy. A linear Q is not learned but solved for.

Where a policy does what logs never show, Q is a guess that is learned from guesses, and may grow without end. Targets
are cut far beyond what rewards like those of the logs add up to (`limits`), and an estimate of which many were cut, or
that lies there itself, says that it means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from etude.core.population import FlatParameters, Member, Population
from etude.core.step_slots import Network
from etude.core.streams import Stream
from etude.evaluation.off_policy.episodes import Episodes, Estimate, Numbers, spread
from etude.evaluation.off_policy.importance import doubly_robust, effective_sample_size
from etude.evaluation.off_policy.q_rows import Acts, Rows, baseline, limits, rows_of, worth
from etude.optimizers.adam import Adam
from etude.optimizers.schedules import Cosine
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import MLP, Linear

RUNAWAY, BEYOND = 0.01, 0.05
"""An estimate says nothing from this share of targets that were cut on, and from so far beyond what rewards add up to,
in parts of that range."""
CHUNK = 1 << 19
"""Numbers of a layer that are computed at a time."""
Progress = Callable[[int], None]
"""Told how many more updates are done."""
Counted = Callable[[int], AbstractContextManager[Progress]]
"""Shows how many of so many updates are done."""


@contextmanager
def uncounted(total: int) -> Iterator[Progress]:
    """Show nothing."""
    yield lambda more: None


class QNetwork(nn.Module):
    """Q(s, a, t) of every member, [P, N, D + 1 + A] -> [P, N]; in the units of `scale`, above `b`."""

    def __init__(self, network: Network, population: Population, inputs: int) -> None:
        super().__init__()
        self.body, self.width = network.build((inputs,), population, "fqe")
        self.head = Linear(population, "fqe.head", self.width, 1, start=FanIn())

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x)).squeeze(-1)
        return found


@dataclass(frozen=True)
class FQE:
    """How Q is fitted.

    Args:
        network: reads observations, the time and an action.
        resamples: of the episodes; with as many members and one more.
        updates, batch, rate: gradient steps of every member, their rows, and Adam's rate, which falls as a cosine.
        follow: how far the slow copy follows in an update.
        ridge: of the solution, where Q is linear in what the network makes of its inputs, in parts of the mean square
            of a feature.
    """

    network: Network = field(default_factory=lambda: MLP(hidden=(64, 64), activation="relu", initializer=FanIn()))
    resamples: int = 20
    updates: int = 3000
    batch: int = 128
    rate: float = 3e-3
    follow: float = 0.05
    ridge: float = 1e-6

    def counts(self, episodes: int, stream: Stream) -> Numbers:
        """[P, E] how often each member has each episode: all once, then resamples."""
        drawn = stream.numpy.multinomial(episodes, np.full(episodes, 1 / episodes), self.resamples)
        return np.concatenate([np.ones((1, episodes), np.int64), drawn])

    def fit(
        self, episodes: Episodes, acts: Acts, counts: Numbers, gamma: float, stream: Stream,
        progress: Progress = lambda more: None,
    ) -> FittedQ:  # fmt: skip
        """Q of every member.

        Shapes: counts [P, E], at least one episode of each member.
        """
        rows, cut = rows_of(episodes, acts, gamma, *baseline(episodes, gamma)), np.zeros(len(counts))
        members = Population([Member(stream.split("fqe", p).key) for p in range(len(counts))])
        network = QNetwork(self.network, members, rows.x.shape[1] + acts.actions.shape[1])
        if next(network.body.parameters(), None) is None:
            rows = rows_of(episodes, acts, gamma, np.zeros(episodes.horizon + 1), rows.scale)
            self._solve(network, rows, episodes, counts, gamma)
        else:
            chances = torch.as_tensor(counts[:, episodes.episode]).float()
            cut = self._learn(network, rows, chances, gamma, members, progress)
        return FittedQ(network, rows, episodes, counts, gamma, cut)

    def _learn(
        self, network: QNetwork, rows: Rows, chances: Tensor, gamma: float, members: Population, progress: Progress
    ) -> Numbers:
        """Gradient steps. Returns: [P] the share of each member's targets that were cut in the last tenth of them."""
        parameters = FlatParameters({"q": network})
        stepper = (optimizer := Adam(lr=self.rate, schedule=Cosine())).population(parameters)
        slow = parameters.shared(network)
        behind = FlatParameters({"q": slow})
        behind.values.copy_(parameters.values)
        places = chances.cumsum(1)
        streams = [s.split("rows").torch for s in members.streams]
        last, cut = self.updates - max(1, self.updates // 10), []
        for update in range(self.updates):
            drawn = torch.stack([torch.rand(2, self.batch, generator=g) for g in streams], 1)  # [2, P, B]
            index = torch.searchsorted(places, drawn[0] * places[:, -1:], right=True).clamp_(max=len(rows.x) - 1)
            fit = _Fit(parameters, network, slow, rows, index, drawn[1], gamma)
            found = stepper.step(fit, optimizer.rate(update, self.updates))
            if update >= last:
                cut.append(found["cut"])
            behind.values.lerp_(parameters.values, self.follow)
            progress(1)
        shares: Numbers = torch.stack(cut).mean(0).numpy()
        return shares

    @torch.no_grad()
    def _solve(self, network: QNetwork, rows: Rows, episodes: Episodes, counts: Numbers, gamma: float) -> None:
        """Where iterating over all rows would end, every row counting as often as a member has its episode:

        (F' W (F - gamma live F_then) + ridge) w = F' W r,   F_then the mean over what the policy does

        The features F are the same for all members, so that they are summed up by episode once.
        """
        here = _features(network, rows.x, rows.acts.actions[:, None], None, members=1)[0].double()
        then = _features(network, rows.y, rows.acts.then, rows.acts.then_chances, members=1)[0].double()
        ahead = torch.cat([here - gamma * rows.live[:, None] * then, worth(rows, gamma)[:, None]], 1)
        each = torch.zeros(episodes.count, here.shape[1], ahead.shape[1], dtype=torch.float64)
        each.index_add_(0, torch.as_tensor(episodes.episode), here[:, :, None] * ahead[:, None])
        sums = (torch.as_tensor(counts).double() @ each.flatten(1)).unflatten(1, each.shape[1:])
        width = here.shape[1]
        squares = (torch.as_tensor(counts).double() @ _by_episode(here.square(), episodes)).mean(1)
        ridge = torch.eye(width, dtype=torch.float64) * (self.ridge * squares)[:, None, None]
        found = torch.linalg.solve(sums[..., :width] + ridge, sums[..., width : width + 1]).float()
        network.head.weight.copy_(found[:, :-1])
        network.head.bias.copy_(found[:, -1:])


@dataclass(frozen=True)
class _Fit:
    """A batch of every member, [P, B] rows, and which of what the policy does there is asked about."""

    parameters: FlatParameters
    network: QNetwork
    slow: nn.Module
    rows: Rows
    index: Tensor
    chance: Tensor
    gamma: float
    batch: None = None

    def gradient(self) -> dict[str, Tensor]:
        """Put it where the optimizer reads it."""
        rows, index = self.rows, self.index
        which = (rows.acts.then_chances[index].cumsum(-1) < self.chance[..., None]).sum(-1)
        which = which.clamp_(max=rows.acts.then.shape[1] - 1)
        with torch.no_grad():
            guess = self.slow(torch.cat([rows.y[index], rows.acts.then[index, which]], -1))
            then = guess.clamp(rows.low[index], rows.high[index])
            live = rows.live[index]
            target = worth(rows, self.gamma)[index] + self.gamma * live * then
        said = self.network(torch.cat([rows.x[index], rows.acts.actions[index]], -1))
        self.parameters.differentiate((said - target).square().mean(1))
        return {"cut": ((then != guess) * live).mean(1)}


class FittedQ:
    """Q of every member, and what it says of the logs.

    Args:
        counts: [P, E] how often each member had each episode.
        cut: [P] the share of targets that lay beyond what rewards can add up to, at the end.
    """

    def __init__(
        self, network: QNetwork, rows: Rows, episodes: Episodes, counts: Numbers, gamma: float, cut: Numbers
    ) -> None:
        self.network, self.rows, self.episodes, self.counts, self.gamma = network, rows, episodes, counts, gamma
        self.cut = cut

    def starts(self) -> Numbers:
        """[P, E] V where each episode begins."""
        acts, rows, first = self.rows.acts, self.rows, torch.as_tensor(self.episodes.rows[:, 0])
        many = len(self.counts) * self.network.width * acts.now.shape[1]
        each = [self._values(rows.x, acts.now, acts.now_chances, rows.b, first[p]) for p in _parts(len(first), many)]
        return np.concatenate(each, 1)

    def estimates(self) -> Numbers:
        """[P] what the policy earns, by each member's Q at the starts of its own episodes."""
        found: Numbers = (self.starts() * self.counts).sum(1) / self.counts.sum(1)
        return found

    def estimate(self) -> Estimate:
        """Member 0's, with the interval that the other members make."""
        each = self.estimates()
        return self._over_members(float(each[0]), each)

    def each(self) -> list[tuple[float, str]]:
        """[P] the same of every member, and why it means nothing, '' where nothing says that."""
        return [(float(v), self._doubt(float(v), float(cut))) for v, cut in zip(self.estimates(), self.cut)]

    def told(self) -> tuple[Numbers, Numbers, Numbers]:
        """Q(s, a), V(s) and V of what followed, 0 where nothing did, of all rows by each member; [P, N] in float32."""
        acts, rows = self.rows.acts, self.rows
        count = len(rows.x)
        one, live = torch.ones(count, 1), rows.live.numpy()
        many = len(self.counts) * self.network.width * acts.now.shape[1]
        parts = [torch.arange(count)[part] for part in _parts(count, many)]
        asked = (
            (rows.x, acts.actions[:, None], one, rows.b),
            (rows.x, acts.now, acts.now_chances, rows.b),
            (rows.y, acts.then, acts.then_chances, rows.b_then),
        )
        q, now, then = (
            np.concatenate([self._values(*of, part).astype(np.float32) for part in parts], 1) for of in asked
        )
        return q, now, then * live

    def doubly_robust(self, weights: Numbers) -> Estimate:
        """The mean over episodes of `importance.doubly_robust`, each by those members that did not have it.

        Where all had it, by all. The interval is the spread of the other members, each with its own Q on its own
        resample: how far episodes differ around one Q leaves out what chance made of Q, and held the truth too seldom.

        Shapes: weights [E, T], of `importance.cumulative_weights`.
        """
        place, told = self.episodes.rows, self.told()
        each = np.stack(
            [
                doubly_robust(self.episodes, weights, self.gamma, *(of[place].astype(np.float64) for of in own))
                for own in zip(*told, strict=True)
            ]
        )
        without = self.counts == 0
        without[:, ~without.any(0)] = True
        own = (each * self.counts).sum(1) / self.counts.sum(1)
        value = float(((each * without).sum(0) / without.sum(0)).mean())
        return self._over_members(value, own, effective_sample_size(weights[:, -1]))

    def _over_members(self, value: float, each: Numbers, effective: float | None = None) -> Estimate:
        """An estimate, and how far members differ after the first, who had all episodes; [P]."""
        error = float(np.std(each[1:], ddof=1)) if len(each) > 2 else np.inf
        found = spread(value, error, len(each) - 1, effective)
        reason = "; ".join(x for x in (found.reason, self._doubt(value, float(self.cut.mean()))) if x)
        return replace(found, reason=reason, resamples=tuple(each[1:].tolist()))

    def _doubt(self, value: float, cut: float) -> str:
        """Why an estimate means nothing of whose targets this share was cut; '' if nothing says that."""
        low, high = limits(self.episodes, self.gamma)
        far = max(low - value, value - high) > BEYOND * (high - low or max(abs(high), 1.0))
        beyond = f"beyond what rewards like those of the logs add up to ({low:.4g} to {high:.4g})"
        if cut > RUNAWAY:
            return (
                f"{cut:.0%} of the targets of Q lay {beyond}: it fed on its own guesses, where the policy does "
                "what the logs do not show, and its number means nothing"
            )
        return f"it lies {beyond}, so its number means nothing" if far else ""

    @torch.no_grad()
    def _values(self, seen: Tensor, actions: Tensor, chances: Tensor, above: Tensor, index: Tensor) -> Numbers:
        """[P, n] means over actions [N, S, A] by their chances, in the units of rewards."""
        said = _features(self.network, seen[index], actions[index], chances[index], last=True)
        found: Numbers = (said[..., 0] + above[index]).double().numpy() * self.rows.scale
        return found


def _by_episode(numbers: Tensor, episodes: Episodes) -> Tensor:
    """[E, K] sums of numbers [N, K]."""
    found = numbers.new_zeros(episodes.count, numbers.shape[1])
    return found.index_add_(0, torch.as_tensor(episodes.episode), numbers)


def _features(
    network: QNetwork, seen: Tensor, actions: Tensor, chances: Tensor | None, last: bool = False, members: int = 0
) -> Tensor:
    """[P, n, K + 1] what the last layer reads at seen [n, D] with actions [n, S, A], means by their chances [n, S].

    Args:
        last: what the last layer says of it instead, [P, n, 1].
        members: P, where the body is the same for all of them.
    """
    rows, several = actions.shape[:2]
    x = torch.cat([seen[:, None].expand(-1, several, -1), actions], -1).flatten(0, 1)
    members = members or network.head.weight.shape[0]
    found: Tensor = network.body(x.expand(members, *x.shape)).view(members, rows, several, -1)
    mean = found[:, :, 0] if chances is None else (found * chances[..., None]).sum(2)
    if last:
        said: Tensor = network.head(mean)
        return said
    return torch.cat([mean, torch.ones_like(mean[..., :1])], -1)


def _parts(rows: int, numbers: int) -> list[slice]:
    """Slices of so many rows that no layer has more than `CHUNK` numbers."""
    size = max(1, CHUNK // max(1, numbers))
    return [slice(i, min(i + size, rows)) for i in range(0, rows, size)]
