"""The losses of the methods for control, written out from their equations and from nothing of the library.

Each formula takes `Steps` and gives the members' losses [P] on one minibatch that is the whole rollout, and the values'
targets [P, T, E].
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

MEMBERS, TIME, ENVIRONMENTS = 2, 6, 2


class Steps:
    """A rollout of two members in two environments, with an end and a cut in it."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(7)

        def noise() -> Tensor:
            return torch.randn(MEMBERS, TIME, ENVIRONMENTS, generator=random, dtype=torch.float64)

        self.rewards, self.values = 1 + noise(), noise()
        self.terminated = torch.zeros_like(self.rewards, dtype=torch.bool)
        self.truncated = self.terminated.clone()
        self.terminated[0, 2, 1] = self.terminated[1, 4, 0] = True
        self.truncated[:, -1] = True
        self.truncated[0, 3, 0] = True
        self.next_values = torch.cat([self.values[:, 1:], noise()[:, :1]], 1)
        self.next_values[0, 3, 0] = 0.7  # of the true last observation, not of the one after the reset
        self.old = -1 + 0.3 * noise()
        self.new = (self.old + 0.4 * noise()).requires_grad_(True)
        self.entropy = noise().abs()
        self.values_now = self.values + 0.4 * noise()
        self.kl_parts = 0.02 * torch.stack((noise().abs(), noise().abs()), -1)
        self.multipliers = {
            "top-advantages": torch.tensor([[0.6], [1.5]], dtype=torch.float64, requires_grad=True),
            "behaviour-kl-constraint": torch.tensor([[0.5, 2.0], [3.0, 0.1]], dtype=torch.float64, requires_grad=True),
        }
        self.progress = (noise() - 0.5).clamp(0, 0.99)  # mostly nothing was completed
        self.models = torch.stack([2 * noise() - 1, noise(), noise() + 3], -1)  # what models of rewards say


def scaled(steps: Steps) -> Tensor:
    """Rewards over the deviation of the discounted sums of rewards, cut at 10."""
    found = torch.zeros_like(steps.rewards)
    for p in range(MEMBERS):
        sums = []
        for e in range(ENVIRONMENTS):
            running = 0.0
            for t in range(TIME):
                running = 0.99 * running + float(steps.rewards[p, t, e])
                sums.append(running)
                if steps.terminated[p, t, e] or steps.truncated[p, t, e]:
                    running = 0.0
        mean = sum(sums) / len(sums)
        size = math.sqrt(sum((s - mean) ** 2 for s in sums) / len(sums) + 1e-8)
        found[p] = (steps.rewards[p] / size).clamp(-10, 10)
    return found


def gae(steps: Steps, rewards: Tensor, gamma: float, lam: float) -> Tensor:
    found = torch.zeros_like(rewards)
    for p in range(MEMBERS):
        for e in range(ENVIRONMENTS):
            ahead = 0.0
            for t in reversed(range(TIME)):
                end, cut = bool(steps.terminated[p, t, e]), bool(steps.truncated[p, t, e])
                after = 0.0 if end else float(steps.next_values[p, t, e])
                delta = float(rewards[p, t, e]) + gamma * after - float(steps.values[p, t, e])
                ahead = delta + (0.0 if end or cut else gamma * lam * ahead)
                found[p, t, e] = ahead
    return found


def standardised(advantages: Tensor) -> Tensor:
    """Each member by its mean and sample deviation."""
    found = torch.zeros_like(advantages)
    for p in range(MEMBERS):
        every = advantages[p].flatten().tolist()
        mean = sum(every) / len(every)
        size = math.sqrt(sum((a - mean) ** 2 for a in every) / (len(every) - 1))
        found[p] = (advantages[p] - mean) / (size + 1e-8)
    return found


def loss(
    steps: Steps, each: Tensor, targets: Tensor, *, critic: bool, entropy: float = 0.0, clip: float = 0.0
) -> Tensor:
    """[P] means of losses per step, half of half the critic's squared error and less the entropy bonus."""
    error = (steps.values_now - targets) ** 2
    if clip:
        near = steps.values + (steps.values_now - steps.values).clamp(-clip, clip)
        error = torch.maximum(error, (near - targets) ** 2)
    return (each + (0.25 * error if critic else 0.0) - entropy * steps.entropy).flatten(1).mean(1)


def clipped(steps: Steps, a: Tensor) -> Tensor:
    rho = (steps.new - steps.old).exp()
    stopped = ((a > 0) & (rho > 1.2)) | ((a < 0) & (rho < 0.8))
    edge = torch.where(a > 0, a.new_tensor(1.2), a.new_tensor(0.8))
    return -a * torch.where(stopped, edge, rho)


def reinforce(steps: Steps) -> tuple[Tensor, Tensor]:
    raw = gae(steps, steps.rewards, 0.99, 1.0)
    targets = raw + steps.values
    return loss(steps, -standardised(raw) * steps.new, targets, critic=True), targets


def a2c(steps: Steps) -> tuple[Tensor, Tensor]:
    raw = gae(steps, scaled(steps), 0.99, 0.95)
    targets = raw + steps.values
    return loss(steps, -standardised(raw) * steps.new, targets, critic=True, entropy=0.01), targets


def a3c(steps: Steps) -> tuple[Tensor, Tensor]:
    """R backwards from 0 behind an end and V behind a cut; half of the squared error, policy and value."""
    returns = torch.zeros_like(steps.rewards)
    for p, e in itertools.product(range(MEMBERS), range(ENVIRONMENTS)):
        ahead = 0.0
        for t in reversed(range(TIME)):
            if steps.terminated[p, t, e]:
                ahead = 0.0
            elif steps.truncated[p, t, e]:
                ahead = float(steps.next_values[p, t, e])
            returns[p, t, e] = ahead = float(steps.rewards[p, t, e]) + 0.99 * ahead
    each = -(returns - steps.values) * steps.new + 0.5 * (returns - steps.values_now) ** 2 - 0.01 * steps.entropy
    return each.flatten(1).mean(1), returns


def ppo(steps: Steps) -> tuple[Tensor, Tensor]:
    raw = gae(steps, steps.rewards, 0.98, 0.9)
    targets = raw + steps.values
    return loss(steps, clipped(steps, standardised(raw)), targets, critic=True, entropy=0.01), targets


def words_as_beacons(steps: Steps) -> tuple[Tensor, Tensor]:
    raw = gae(steps, steps.rewards + 0.2 * steps.progress, 0.99, 0.95)
    targets = raw + steps.values
    return loss(steps, clipped(steps, standardised(raw)), targets, critic=True, entropy=5e-4), targets


def asked(steps: Steps) -> tuple[Tensor, Tensor]:
    """PPO, paid the mean of what models say, each with mean 0 and deviation 1."""
    rewards = torch.zeros_like(steps.rewards)
    for p, m in itertools.product(range(MEMBERS), range(3)):
        said = steps.models[p, ..., m]
        mean = float(said.mean())
        deviation = math.sqrt(float((said - mean).square().mean()))
        rewards[p] += (said - mean) / deviation / 3
    raw = gae(steps, rewards, 0.98, 0.9)
    targets = raw + steps.values
    return loss(steps, clipped(steps, standardised(raw)), targets, critic=True, entropy=0.01), targets


def ppo_continuous(steps: Steps) -> tuple[Tensor, Tensor]:
    raw = gae(steps, scaled(steps), 0.99, 0.95)
    targets = raw + steps.values
    return loss(steps, clipped(steps, standardised(raw)), targets, critic=True, clip=0.2), targets


def policy_gradient_guide(steps: Steps) -> tuple[Tensor, Tensor]:
    raw = gae(steps, scaled(steps), 0.99, 0.95)
    targets = raw + steps.values
    return loss(steps, clipped(steps, standardised(raw)), targets, critic=True), targets


def natural(steps: Steps) -> tuple[Tensor, Tensor]:
    """What NPG and TRPO climb: the mean of rho A; their critics are fitted apart."""
    raw = gae(steps, scaled(steps), 0.99, 0.95)
    each = -(steps.new - steps.old).exp() * standardised(raw)
    return loss(steps, each, raw, critic=False), raw + steps.values


def with_returns(steps: Steps) -> tuple[Tensor, Tensor]:
    """The paper of GAE: lambda 0.97, and values learn from discounted returns."""
    rewards = scaled(steps)
    each = -(steps.new - steps.old).exp() * standardised(gae(steps, rewards, 0.99, 0.97))
    targets = gae(steps, rewards, 0.99, 1.0) + steps.values
    return loss(steps, each, targets, critic=False), targets


def v_mpo(steps: Steps) -> tuple[Tensor, Tensor]:
    """The better half by its weights, the temperature's loss, and a multiplier for means and one for deviations."""
    raw = gae(steps, scaled(steps), 0.99, 0.95)
    targets, losses = raw + steps.values, []
    for p in range(MEMBERS):
        eta = steps.multipliers["top-advantages"][p, 0]
        places = sorted(itertools.product(range(TIME), range(ENVIRONMENTS)), key=lambda at: -float(raw[p][at]))
        best = places[: len(places) // 2]
        weights = {at: math.exp(float(raw[p][at]) / eta.item()) for at in best}
        fit = sum(-weight / sum(weights.values()) * steps.new[p][at] for at, weight in weights.items())
        mean = sum((raw[p][at] / eta).exp() for at in best) / len(best)
        losses.append(fit + eta * 0.01 + eta * mean.log())
        for k, bound in enumerate((0.01, 5e-5)):
            kl, alpha = steps.kl_parts[p, :, :, k].mean(), steps.multipliers["behaviour-kl-constraint"][p, k]
            losses[p] = losses[p] + alpha * (bound - kl) + alpha.item() * kl
    return torch.stack(losses) + 0.5 * ((steps.values_now - targets) ** 2).flatten(1).mean(1), targets


CONTROL: dict[str, Callable[[Steps], tuple[Tensor, Tensor]]] = {
    "a2c": a2c,
    "a3c": a3c,
    "gae": with_returns,
    "npg": natural,
    "policy-gradient-guide": policy_gradient_guide,
    "ppo": ppo,
    "ppo-continuous": ppo_continuous,
    "reinforce": reinforce,
    "rlhf-survey-ppo": asked,
    "trpo": natural,
    "v-mpo": v_mpo,
    "words-as-beacons": words_as_beacons,
}
"""By method."""
