"""What a trained policy does in the states of logs: its actions, and how likely it was to do what was done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.step_slots import Observations
from etude.evaluation.export import plain_policy
from etude.evaluation.off_policy.episodes import Numbers
from etude.evaluation.off_policy.q_rows import Acts
from etude.evaluation.restored import Acting
from etude.experience.logs.table import Logs
from etude.policies.control.actor import Actor
from etude.policies.control.distributions import Distribution
from etude.policies.control.units import Best, Units

DRAWS = 4
"""Actions that are drawn in a state, of policies that act by chance in numbers."""
AT_A_TIME = 8192
"""Rows that go through the policy together."""


@dataclass(frozen=True)
class OnLogs:
    """A policy on logs.

    Args:
        acts: what it does.
        logp: [N] log pi(a|s) of what was done, of numbers as a density of what the environment takes; None where the
            policy does one thing and numbers have no density.
    """

    acts: Acts
    logp: Numbers | None


class Judged:
    """One member's policy, asked about logs.

    Raises: ConfigError for a policy that sees more than one observation, a member that is not there, and logs of other
        observations or actions.
    """

    def __init__(self, policies: Acting, member: int) -> None:
        self.actor: Actor = plain_policy(policies, member).actor
        self.space = policies.environment.action_space
        self.size = self.actor.distribution.actions
        parts = getattr(policies.method.policy, "observations", ())
        if self.actor.memory is not None or any(type(p).watch is not Observations.watch for p in parts):
            raise ConfigError(
                f"{policies.method.id} acts by more than the last observation (a memory, frames or the time), and rows "
                "of logs hold one: it cannot be judged from them. Play it: --task without --data."
            )
        self.choices = int(self.space.n) if isinstance(self.space, spaces.Discrete) else 0
        if not self.choices and not (isinstance(self.space, spaces.Box) and self.space.is_bounded()):
            raise ConfigError(
                f"Policies are judged from logs of a Box with bounds or Discrete actions; got {self.space}."
            )

    def fits(self, logs: Logs) -> None:
        """Raise ConfigError for logs that this policy cannot have read."""
        shape, own = logs.observations.shape[1:], (int(np.prod(self.actor.shape)),)
        there = isinstance(logs.spaces.action_space, spaces.Discrete)
        most = int(logs.actions.max()) if there else 0
        if there != bool(self.choices) or (there and most >= self.choices) or logs.actions.shape[1] != self.size:
            raise ConfigError(f"{logs.where} has the actions {logs.spaces.action_space}, and the policy {self.space}.")
        if shape != own:
            raise ConfigError(
                f"{logs.where} has observations {list(shape)}, and the policy was trained on {list(own)}."
            )

    @torch.no_grad()
    def on(self, logs: Logs, generator: torch.Generator, likeliest: bool = False) -> OnLogs:
        """What it does there.

        Args:
            likeliest: always what is likeliest, instead of what it draws.
        """
        self.fits(logs)
        seen, led = (torch.as_tensor(x) for x in (logs.observations, logs.next_observations))
        done = torch.as_tensor(logs.actions)
        here, there = self._parameters(seen), self._parameters(led)
        now, then = (self._does(x, p, generator, likeliest) for x, p in ((seen, here), (led, there)))
        acts = Acts(seen, self._units(done), *now, led, *then, choices=self.choices > 0)
        return OnLogs(acts, None if likeliest else self._logp(here, done))

    def _parameters(self, seen: Tensor) -> Tensor:
        """[N, K] what the policy says."""
        parts = [self.actor(self.actor.see(part[None]))[0] for part in seen.split(AT_A_TIME)]
        return torch.cat(parts)

    def _does(
        self, seen: Tensor, parameters: Tensor, generator: torch.Generator, likeliest: bool
    ) -> tuple[Tensor, Tensor]:
        """Actions [N, S, A] and their chances [N, S]."""
        rows = len(parameters)
        if self.choices:
            every = torch.eye(self.choices).expand(rows, -1, -1)
            return every, self._chances(parameters, likeliest)
        spread = self.actor.distribution
        if likeliest or not self._has_density():
            return self._units(self._likeliest(seen, parameters))[:, None], torch.ones(rows, 1)
        drawn = [self._units(spread.sample(parameters, spread.noise((rows,), generator))) for _ in range(DRAWS)]
        return torch.stack(drawn, 1), torch.full((rows, DRAWS), 1 / DRAWS)

    def _likeliest(self, seen: Tensor, parameters: Tensor) -> Tensor:
        """[N, A] what it does without chance."""
        rows = zip(seen.split(AT_A_TIME), parameters.split(AT_A_TIME), strict=True)
        return torch.cat([self.actor.likeliest(self.actor.see(x[None]), p[None])[0] for x, p in rows])

    def _chances(self, parameters: Tensor, likeliest: bool) -> Tensor:
        """[N, n] of every choice."""
        if likeliest or isinstance(self.actor.distribution, Best):
            return torch.nn.functional.one_hot(parameters.argmax(-1), self.choices).float()
        return parameters.softmax(-1)

    def _has_density(self) -> bool:
        return type(self.actor.distribution).logp is not Distribution.logp

    def _logp(self, parameters: Tensor, done: Tensor) -> Numbers | None:
        spread = self.actor.distribution
        if self.choices:
            chance = self._chances(parameters.double(), False).gather(-1, done.long())[:, 0]
            return chance.double().log().numpy()
        if not self._has_density():
            return None
        if isinstance(spread, Units):
            low, high = self._bounds()
            found = spread.logp(parameters, self._inside(done)).double() - ((high - low) / 2).log().sum().double()
        else:
            found = spread.logp(parameters, done).double()
        return found.numpy()

    def _bounds(self) -> tuple[Tensor, Tensor]:
        space: Any = self.space
        return torch.as_tensor(space.low).reshape(-1).float(), torch.as_tensor(space.high).reshape(-1).float()

    def _inside(self, actions: Tensor) -> Tensor:
        low, high = self._bounds()
        return (actions - low) / ((high - low) / 2) - 1

    def _units(self, actions: Tensor) -> Tensor:
        """[N, A] as the environment takes them to [-1, 1], cut there as it does; choices to vectors with a single 1."""
        if self.choices:
            return torch.nn.functional.one_hot(actions[:, 0].long(), self.choices).float()
        return self._inside(actions).clamp(-1.0, 1.0)
