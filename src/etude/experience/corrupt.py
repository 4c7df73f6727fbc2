"""Logs in which some rows are wrong, by chance or by an adversary: what robust methods are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from etude.core.complete import critic_gamma
from etude.core.errors import ConfigError
from etude.core.fields import NonNegative, Probability, WholeNumber
from etude.core.log_slots import LogTransform
from etude.core.population import PerMember
from etude.experience.fitting import fitted, perceptron, standardized
from etude.experience.logs.table import Logs, Numbers
from etude.experience.transforms import following

if TYPE_CHECKING:
    from etude.core.method import Method

COLUMNS = {
    "observations": "observations", "actions": "actions", "rewards": "rewards", "dynamics": "next_observations"
}  # fmt: skip
"""What may be wrong, and the column that says it."""
FALSE_REWARD = 30.0
"""The largest reward by chance, in units of `scale`."""
TRIES, SHARE = 100, 0.01
"""Steps of an adversary, and how far each goes, in units of `scale`."""
UPDATES, WIDTH, BATCH = 1000, 64, 256
"""Of the networks that an adversary learns first."""


class Corrupt(LogTransform):
    """Some rows are wrong, whichever fall below `rate` (arXiv:2310.12955, section 3.1 and appendix D).

    By chance, with the deviations of the whole column and n uniform in [-scale, scale]:

        observations, actions, what followed (dynamics):  x + n deviation
        rewards:                                          30 n

    By an adversary: -scale r in the place of rewards, and elsewhere the n in the same box at which a critic says least,
    found by a hundred steps of 0.01 scale along the sign of its gradient. Its critic learns what the recorded actions
    are worth (Sarsa on these logs), and a policy that imitates them says what would be done at a false next state.

    One column at a time: several of these in a row corrupt several, other rows each. Actions may leave their bounds.

    Args:
        what: which column. rate: the share of rows, each drawn by itself. scale: how far it is off.
        seed: of the rows and of the noise: the same rows for the same seed and column.

    Shapes: [N, ...] -> the same. Raises: ConfigError for noise on choices, and for an adversary of images or choices.

    >>> [corrupted_rows(1000, rate, seed=0, what="rewards").mean().item() for rate in (0.0, 0.3, 1.0)]
    [0.0, 0.325, 1.0]
    """

    what: Literal["observations", "actions", "rewards", "dynamics"] = "dynamics"
    rate: Probability = 0.3
    scale: NonNegative = 1.0
    adversarial: bool = False
    seed: WholeNumber = 0

    def __call__(self, logs: Logs, method: Method) -> Logs:
        if isinstance(self.rate, PerMember) or isinstance(self.scale, PerMember):
            raise ConfigError("Corrupt changes logs that all members share, and theirs differ: compare runs instead.")
        self._accept(logs)
        rows = corrupted_rows(logs.rows, self.rate, self.seed, self.what)
        if not rows.any():
            return logs
        name = COLUMNS[self.what]
        column = getattr(logs, name).copy()
        column[rows] = self._wrong(logs, column, rows, method)
        return replace(logs, **{name: column})

    def _accept(self, logs: Logs) -> None:
        discrete = isinstance(logs.spaces.action_space, spaces.Discrete)
        if self.what == "actions" and discrete:
            raise ConfigError("Corrupt adds noise to numbers, and actions here are choices: set what=observations.")
        if self.adversarial and self.what != "rewards" and (discrete or logs.observations.ndim != 2):
            raise ConfigError("An adversary of Corrupt is for vectors and actions that are numbers: leave it out.")

    def _wrong(self, logs: Logs, column: Numbers, rows: Numbers, method: Method) -> Numbers:
        """What stands in these rows instead."""
        given = column[rows].astype(np.float64)
        if self.what == "rewards" and self.adversarial:
            found: Numbers = -self.scale * given
            return found
        noise = _random(self.seed, self.what, "noise").uniform(-self.scale, self.scale, given.shape)
        if self.what == "rewards":
            return FALSE_REWARD * noise
        deviation = column.astype(np.float64).std(0)
        if self.adversarial:
            gamma = critic_gamma(method)
            if isinstance(gamma, PerMember):
                raise ConfigError("An adversary of Corrupt has one critic, and members have gammas: leave it out.")
            said = _said(Victim.learned(logs, gamma, self.seed), logs, self.what, rows)
            as_is, unit = torch.from_numpy(given), torch.from_numpy(deviation)
            noise = lowered(lambda n: said(as_is + n * unit), noise, self.scale)
        wrong: Numbers = given + noise * deviation
        return wrong

    def sentence(self, before: Logs, after: Logs) -> str:
        changed = int(corrupted_rows(before.rows, self.rate, self.seed, self.what).sum())
        by = "an adversary" if self.adversarial else "chance"
        return f"{self.what} of {changed:,} rows are wrong by {by}, at scale {self.scale:g}, seed {self.seed}"


def corrupted_rows(count: int, rate: float, seed: int, what: str) -> Numbers:
    """[count] which rows are wrong."""
    found: Numbers = _random(seed, what, "rows").random(count) < rate
    return found


def _random(seed: int, what: str, purpose: str) -> np.random.Generator:
    return np.random.default_rng([seed, list(COLUMNS).index(what), purpose == "noise"])


# The adversary


class Victim(NamedTuple):
    """What recorded actions are worth, and what imitates them; both read standardised observations and actions."""

    value: nn.Module
    policy: nn.Module
    look: Callable[[Tensor], Tensor]
    units: Callable[[Tensor], Tensor]

    @classmethod
    def learned(cls, logs: Logs, gamma: float, seed: int) -> Victim:
        """From clean logs, in `UPDATES` of each."""
        look, units = standardized(logs.observations), standardized(logs.actions)
        seen, done = look(torch.from_numpy(logs.observations)), units(torch.from_numpy(logs.actions))
        ended = logs.terminated | logs.truncated
        then = units(torch.from_numpy(following(logs.actions, ended))).nan_to_num(0.0)
        led, live = look(torch.from_numpy(logs.next_observations)), torch.from_numpy(~logs.terminated).double()
        rewards, kept = torch.from_numpy(logs.rewards).double(), torch.from_numpy(np.flatnonzero(~logs.truncated))
        generator = torch.Generator().manual_seed(seed)
        value = perceptron((seen.shape[1] + done.shape[1], WIDTH, WIDTH, 1), generator)
        policy = perceptron((seen.shape[1], WIDTH, WIDTH, done.shape[1]), generator)

        def worth(rows: Tensor) -> Tensor:
            rows = kept[rows]
            with torch.no_grad():
                after = value(torch.cat([led[rows], then[rows]], -1))[:, 0]
            said = value(torch.cat([seen[rows], done[rows]], -1))[:, 0]
            loss: Tensor = (said - rewards[rows] - gamma * live[rows] * after).square().mean()
            return loss

        fitted(value, worth, len(kept), UPDATES, BATCH, generator)
        fitted(policy, lambda rows: (policy(seen[rows]) - done[rows]).square().mean(), logs.rows, UPDATES, BATCH,
               generator)  # fmt: skip
        return cls(value, policy, look, units)

    def of(self, seen: Tensor, done: Tensor | None) -> Tensor:
        """[N] what is said of actions, as the environment takes them, or of what the policy would do."""
        looked = self.look(seen)
        both = torch.cat([looked, self.policy(looked) if done is None else self.units(done)], -1)
        found: Tensor = self.value(both)[:, 0]
        return found


def _said(victim: Victim, logs: Logs, what: str, rows: Numbers) -> Callable[[Tensor], Tensor]:
    """What the critic says of rows with something else in the column."""
    seen, done = (torch.from_numpy(x[rows]).double() for x in (logs.observations, logs.actions))
    if what == "observations":
        return lambda instead: victim.of(instead, done)
    if what == "actions":
        return lambda instead: victim.of(seen, instead)
    return lambda instead: victim.of(instead, None)


def lowered(said: Callable[[Tensor], Tensor], noise: Numbers, scale: float) -> Numbers:
    """Noise [N, D] within the box of `scale`, moved to where less is said of it, [N].

    Each step is Adam's first, since the authors' code begins another Adam at each: along the sign of the gradient.

    >>> lowered(lambda n: n.sum(-1), np.array([[0.9, -0.995]]), 1.0).round(9).tolist()
    [[-0.1, -1.0]]
    """
    found = torch.from_numpy(noise.copy())
    for _ in range(TRIES):
        asked = found.clone().requires_grad_()
        (slope,) = torch.autograd.grad(said(asked).sum(), asked)
        found = (found - SHARE * scale * slope.sign()).clamp(-scale, scale)
    return found.numpy()
