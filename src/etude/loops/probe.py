"""Whether member k of this population equals its own run here, bit for bit: tried at the start, in a few milliseconds.

The promise is the processor's as much as ours: which kernel computes a product may depend on how many there are and on
where they lie. So the first and the last member compute alone what they computed among all, in this run's shapes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from etude.core.transitions import Transitions
from etude.experience.vector import FINAL_ROWS
from etude.loops.control_update import ControlUpdater, Minibatch
from etude.policies.control.actor import Player
from etude.policies.control.memory import Past

if TYPE_CHECKING:
    from etude.loops.on_policy import OnPolicyLoop

NUMBERS = 1 << 20
"""Most numbers in a member's observations that are tried: fewer rows than a minibatch has, for images."""


def members_are_exact(loop: OnPolicyLoop) -> bool:
    """Whether acting, valuing and a step on random numbers are the same alone; leaves the loop as it was.

    Args:
        loop: one that has not taken a step.
    """
    acting, batch = loop.collector.observations.shape[1], _random(loop)
    together = _computed(loop.updater, batch, acting)
    for k in {0, loop.population.size - 1}:
        alone = loop.alone(k)
        own = batch._map(partial(_member, k))
        if not all(torch.equal(a[k], b[0]) for a, b in zip(together, _computed(alone, own, acting), strict=True)):
            return False
    return True


def _member(k: int, x: Tensor) -> Tensor:
    return x[k : k + 1].clone()


def _random(loop: OnPolicyLoop) -> Transitions:
    """A minibatch [P, N] of random numbers, of this run's size."""
    g, space = torch.Generator().manual_seed(0), loop.actor.distribution
    method, shown = loop.method, torch.from_numpy(loop.collector.observations)
    count, sequences = method.experience.environments, method.experience.environments // method.minibatches
    rows = max(1, count * method.experience.steps // method.minibatches)
    if loop.actor.memory is not None:
        rows = sequences * method.experience.steps
    elif rows * shown[0, 0].numel() > NUMBERS:
        rows = max(FINAL_ROWS, NUMBERS // shown[0, 0].numel())
    shape = (len(shown), rows)
    observations = torch.randn(*shape, *shown.shape[2:], generator=g)
    if shown.dtype == torch.uint8:
        observations = observations.mul(64).clamp(0, 255).to(torch.uint8)
    if loop.actor.leaves is not None and loop.actor.leaves.masked:
        observations[..., -loop.actor.leaves.masked :] = 1
    parameters = torch.randn(*shape, space.parameters, generator=g)
    actions = space.sample(parameters, space.noise(shape, g))
    rewards, values, advantages, returns = torch.randn(4, *shape, generator=g)
    off, memory = torch.zeros(shape, dtype=torch.bool), None
    if loop.actor.memory is not None:
        memory = torch.randn(*shape, Player(loop.actor, 1, 1).memory.shape[-1], generator=g)
    return Transitions(
        observations, actions, rewards, off, off, parameters, space.logp(parameters, actions), values, values,
        advantages, returns, memory=memory, begins=None if memory is None else rewards > 1,
    )  # fmt: skip


def _computed(updater: ControlUpdater, batch: Transitions, acting: int) -> list[Tensor]:
    """[P, ...] each: parameters of the next actions, values, and the weights after a step, which is then undone."""
    actor, critic, weights = updater.actor, updater.critic, updater.parameters.values
    with torch.no_grad():
        seen, past = actor.see(batch.observations[:, :acting]), None
        if batch.memory is not None and batch.begins is not None:
            past = Past(batch.memory[:, :acting], batch.begins[:, None, :acting])
        features, _ = actor.features(seen, past)
        tensors = [actor.say(features)]
    if critic is not None:
        read = features if updater.shared else actor.see(batch.observations[:, :FINAL_ROWS])
        value = critic(read)
        trainer = updater.learners.trainers.get("critic")
        parameters = updater.parameters if trainer is None else trainer.parameters
        parameters.differentiate((value * value).mean(1))
        tensors += [value.detach(), parameters.gradient.clone()]
    before, kept = weights.clone(), {k: v.clone() for k, v in updater.tensors().items()}
    updater.optimizer.step(Minibatch(updater, batch, fresh=False, reports=False), 1.0)
    tensors.append(weights.clone())
    weights.copy_(before)
    updater.load(kept)
    return tensors
