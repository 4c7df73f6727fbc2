"""Rows without actions: hidden on purpose, left out, or labelled by what an inverse model says was done."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Positive, PositiveProbability, WholeNumber
from etude.core.log_slots import LogTransform
from etude.core.population import PerMember
from etude.experience.fitting import perceptron, standardized
from etude.experience.logs.table import Logs, Numbers

if TYPE_CHECKING:
    from etude.core.method import Method

LEAST, MOST = -5.0, 2.0
"""Between which the logarithm of the deviation is kept."""
LOOK, HELD = 10, 0.1
"""Steps between two looks at the labelled episodes that are held out, and their share."""


def known(logs: Logs) -> Numbers:
    """[N] which rows have actions."""
    return np.asarray(np.isfinite(logs.actions.reshape(logs.rows, -1)).all(axis=1))


def episode_of(logs: Logs) -> Numbers:
    """[N] the number of each row's episode."""
    return np.repeat(np.arange(logs.episodes), np.diff(logs.ends, prepend=-1))


class HideActions(LogTransform):
    """Actions are forgotten but in a share of the episodes, drawn of those that earned least.

    Args:
        share: of all episodes, whose actions stay, one at least. below: the share of episodes, worst first, that they
            are drawn of. seed: of which.

    Shapes: actions [N, A] -> the same, NaN where they are hidden.

    >>> from types import SimpleNamespace as Rows
    >>> HideActions(share=0.5, below=0.5).labelled(np.array([4.0, 1.0, 3.0, 2.0])).tolist()  # the two worst
    [1, 3]
    """

    share: PositiveProbability = 0.1
    below: PositiveProbability = 0.5
    seed: WholeNumber = 0

    def objection(self, method: Method) -> str | None:
        if not any(isinstance(part, LabelActions | KnownActions) for part in method.slots()["transforms"]):
            return "leaves rows without actions: set transforms=hide-actions,label-actions, or known-actions after it."
        return None

    def labelled(self, returns: Numbers) -> Numbers:
        """Numbers of the episodes whose actions stay, in order."""
        worst = np.argsort(returns, kind="stable")[: max(1, int(len(returns) * self.below))]
        count = min(len(worst), max(1, int(len(returns) * self.share)))
        return np.sort(np.random.default_rng(self.seed).choice(worst, count, replace=False))

    def __call__(self, logs: Logs, method: Method) -> Logs:
        if isinstance(self.share, PerMember) or isinstance(self.below, PerMember):
            raise ConfigError("HideActions hides what all members share, and their shares differ: compare runs.")
        actions = logs.actions.astype(np.float32)
        actions[~np.isin(episode_of(logs), self.labelled(logs.returns))] = np.nan
        return replace(logs, actions=actions)

    def sentence(self, before: Logs, after: Logs) -> str:
        kept = before.returns[self.labelled(before.returns)]
        return (
            f"actions of {len(kept)} of {before.episodes} episodes stay, which earned {kept.min():.4g} to "
            f"{kept.max():.4g}; seed {self.seed}"
        )


class KnownActions(LogTransform):
    """Episodes without actions are left out, and those that have only some.

    Shapes: rows [N, ...] -> [K, ...].

    >>> ends = dict(terminated=np.array([False, True, False, True]), truncated=np.zeros(4, bool))
    >>> columns = dict(observations=np.zeros((4, 1)), next_observations=np.zeros((4, 1)), rewards=np.zeros(4))
    >>> logs = Logs("here", None, actions=np.array([[1.0], [2.0], [np.nan], [4.0]]), **columns, **ends)
    >>> KnownActions()(logs, None).actions.flatten().tolist()
    [1.0, 2.0]
    """

    def __call__(self, logs: Logs, method: Method) -> Logs:
        number = episode_of(logs)
        kept = ~np.isin(number, np.unique(number[~known(logs)]))
        return logs.only(kept)

    def sentence(self, before: Logs, after: Logs) -> str:
        return f"{after.episodes} of {before.episodes} episodes have actions, and the others are out"


class LabelActions(LogTransform):
    """Where rows have no actions (NaN), what an inverse model says was done (arXiv:2210.06518, section 4).

    Args:
        past: states before the row's own that the model reads; 0: the row's own and the next one.
        ensemble: models, a mixture of equal parts.
        hidden, dropout, lr, batch, updates: of each.
        seed: of episodes that are held out, of weights and batches.

    Shapes: actions [N, A] -> the same. Raises: ConfigError for choices, images, and where nothing has actions.

    Two normals of deviation 1 with means 0 and 2:

    >>> [x.tolist() for x in mixed(torch.tensor([[0.0], [2.0]]), torch.ones(2, 1))]
    [[1.0], [2.0]]
    """

    past: WholeNumber = 1
    ensemble: Count = 1
    hidden: tuple[Count, ...] = (1024, 1024)
    dropout: NonNegative = 0.1
    lr: Positive = 1e-4
    batch: Count = 1024
    updates: Count = 100
    seed: WholeNumber = 0

    def check(self) -> None:
        if not isinstance(self.dropout, PerMember) and self.dropout >= 1:
            raise ConfigError(f"LabelActions.dropout must be below 1, got {self.dropout:g}.")

    def __call__(self, logs: Logs, method: Method) -> Logs:
        there = known(logs)
        if there.all():
            return logs
        if isinstance(self.dropout, PerMember) or isinstance(self.lr, PerMember):
            raise ConfigError("LabelActions labels what all members share, and theirs differ: compare runs instead.")
        if isinstance(logs.spaces.action_space, spaces.Discrete) or logs.observations.ndim != 2:
            raise ConfigError("LabelActions is for vectors and actions that are numbers.")
        if not there.any():
            raise ConfigError("LabelActions learns from rows that have actions, and none has.")
        middle, half = bounds(logs.spaces.action_space)
        read = torch.from_numpy(windows(logs, self.past))
        units = torch.from_numpy((logs.actions - middle) / half).float()
        means, deviations = zip(*(self._said(logs, read, units, there, k) for k in range(self.ensemble)), strict=True)
        mean, variance = mixed(torch.stack(means), torch.stack(deviations))
        actions = logs.actions.astype(np.float32)
        actions[~there] = (mean.clamp(-1, 1).numpy() * half + middle)[~there]
        self.made["uncertainty"] = float(variance.mean(1).numpy()[~there].mean())
        return replace(logs, actions=actions)

    def _said(self, logs: Logs, read: Tensor, units: Tensor, there: Numbers, k: int) -> tuple[Tensor, Tensor]:
        """Means and deviations [N, A] of one model for every row."""
        generator = torch.Generator().manual_seed(1000 * self.seed + k)
        number = episode_of(logs)
        labelled = torch.from_numpy(np.unique(number[there]))
        order = labelled[torch.randperm(len(labelled), generator=generator)].numpy()
        out = np.isin(number, order[: int(HELD * len(order))]) & there
        network = perceptron((read.shape[1], *self.hidden, 2 * units.shape[1]), generator).float()
        fit = torch.from_numpy(np.flatnonzero(there & ~out))
        held = torch.from_numpy(np.flatnonzero(out)) if out.any() else fit
        model = best(network, read, units, fit, held, self, generator)
        with torch.no_grad():
            return normal(model(read))

    def sentence(self, before: Logs, after: Logs) -> str:
        missing = int((~known(before)).sum())
        if not missing:
            return "every row has an action"
        unsure = self.made["uncertainty"] ** 0.5
        return f"{missing:,} rows got an action, which a model is unsure of by {unsure:.3g} in units; seed {self.seed}"


def best(
    network: nn.Sequential, read: Tensor, units: Tensor, fit: Tensor, held: Tensor, part: LabelActions,
    generator: torch.Generator,
) -> Callable[[Tensor], Tensor]:  # fmt: skip
    """The network after the step that was best on the rows `held`, learned from the rows `fit`."""
    adam, least, kept = torch.optim.Adam(network.parameters(), part.lr), float("inf"), copy.deepcopy(network)
    for step in range(1, part.updates + 1):
        rows = fit[torch.randint(len(fit), (min(part.batch, len(fit)),), generator=generator)]
        adam.zero_grad()
        surprise(dropped(network, read[rows], part.dropout, generator), units[rows]).backward()
        adam.step()
        if step == 1 or step % LOOK == 0:
            with torch.no_grad():
                now = surprise(network(read[held]), units[held]).item()
            if now < least:
                least, kept = now, copy.deepcopy(network)
    return kept


def dropped(network: nn.Sequential, x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """What the network says with a share of its hidden units off."""
    for layer in network:
        x = layer(x)
        if isinstance(layer, nn.ReLU) and share > 0:
            x = x * (torch.rand(x.shape, generator=generator) >= share) / (1 - share)
    return x


def normal(said: Tensor) -> tuple[Tensor, Tensor]:
    """Means and deviations [N, A] of what a network says, [N, 2 A]."""
    mean, log_std = said.chunk(2, -1)
    return mean, log_std.clamp(LEAST, MOST).exp()


def surprise(said: Tensor, units: Tensor) -> Tensor:
    """-log density of actions [N, A] in units, the mean over rows."""
    density: Tensor = torch.distributions.Normal(*normal(said)).log_prob(units)
    return -density.sum(-1).mean()


def mixed(means: Tensor, deviations: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance [...] of M normals of equal parts, [M, ...] each."""
    mean = means.mean(0)
    return mean, (deviations.square() + means.square()).mean(0) - mean.square()


def windows(logs: Logs, past: int) -> Numbers:
    """[N, (past + 2) D] of each row: states before it, zeros before the episode, its own, the next; standardised."""
    starts = np.concatenate([[0], logs.ends[:-1] + 1])[episode_of(logs)]
    look = standardized(logs.observations)
    columns: list[Numbers] = []
    for back in range(past, 0, -1):
        at = np.arange(logs.rows) - back
        columns.append(np.where((at >= starts)[:, None], logs.observations[at.clip(min=0)], 0.0))
    columns += [logs.observations, logs.next_observations]
    return torch.cat([look(torch.from_numpy(column)) for column in columns], -1).float().numpy()


def bounds(space: Any) -> tuple[Numbers, Numbers]:
    """Middles and half widths [A] of a Box."""
    low, high = np.asarray(space.low, np.float64).reshape(-1), np.asarray(space.high, np.float64).reshape(-1)
    return (low + high) / 2, (high - low) / 2
