"""A population's optimizer steps on one rollout: every member has its own minibatches, losses and norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from etude.core.batches import ActionLogProbs, Transitions
from etude.core.errors import InvariantError
from etude.core.method import Method
from etude.policies.control.population import FlatParameters, Population

GAP = 2e-3
"""Largest mean |log-probability gap| between acting and learning, in nats; float32 gives about 1e-7."""


class ControlUpdater:
    """Learns from flat rollouts [P, N, ...]."""

    def __init__(
        self, method: Method, population: Population, parameters: FlatParameters, actor: Any, critic: Any
    ) -> None:
        assert method.optimizer is not None
        self.method, self.population, self.parameters = method, population, parameters
        self.actor, self.critic, self.needs = actor, critic, method.needs()
        self.part: Any = method.critic
        self.joint = self.part is not None and self.part.joint
        self.optimizer = method.optimizer.population(parameters)
        if self.part is not None:
            self.part.prepare(parameters)

    def run(self, batch: Transitions, number: int, rate: float) -> dict[str, Tensor]:
        """All epochs on a rollout; returns means over the last epoch, [P] each."""
        method, before = self.method, self.parameters.values.clone()
        size = batch.rewards.shape[1]
        for epoch in range(method.epochs):
            shuffled = batch
            if method.minibatches > 1:
                order = self.population.draw("minibatches", number, epoch, of=lambda g: torch.randperm(size, generator=g))
                shuffled = batch.rows(order)
            found: list[dict[str, Tensor]] = []
            for i in range(method.minibatches):
                piece = shuffled.slice(i * size // method.minibatches, (i + 1) * size // method.minibatches)
                surrogate = Minibatch(self, piece, fresh=epoch == i == 0, reports=epoch == method.epochs - 1)
                found.append(self.optimizer.step(surrogate, rate))
        self._check_moved(before, found, rate)
        metrics = {k: torch.stack([m[k] for m in found]).mean(0) for k in found[0]}
        if self.part is not None and not self.joint:
            metrics |= self.part.fit(Fitting(self, batch, number, rate))
        return metrics

    def _check_moved(self, before: Tensor, found: list[dict[str, Tensor]], rate: float) -> None:
        """Invariant 2: a gradient changed the weights."""
        moving = torch.stack([m["gradient_norm"] for m in found]).amax(0) > 0
        still = (before == self.parameters.values).all(1)
        accepted = torch.stack([m.get("accepted", torch.ones_like(moving).float()) for m in found]).amax(0) > 0
        if rate > 0 and bool((moving & still & accepted).any()) and not any(bool(m["skipped_steps"].any()) for m in found):
            member = int((moving & still & accepted).nonzero()[0, 0])
            raise InvariantError(
                f"The update had a gradient but left every weight of member {member} as it was: the learning rate is "
                "too small for float32."
            )

    def tensors(self) -> dict[str, Tensor]:
        """What the next update depends on besides the weights."""
        return {f"optimizer.{k}": v for k, v in self.optimizer.tensors().items()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Undo `tensors`."""
        self.optimizer.load({k.removeprefix("optimizer."): v for k, v in tensors.items() if k.startswith("optimizer.")})


class Minibatch:
    """One minibatch as an optimizer sees it: its loss, gradient and divergence from what acted."""

    def __init__(self, updater: ControlUpdater, batch: Transitions, fresh: bool, reports: bool) -> None:
        self.updater, self.fresh, self.reports = updater, fresh, reports
        assert batch.advantages is not None and updater.method.advantages is not None
        self.batch = batch.replace(advantages=updater.method.advantages.of_minibatch(batch.advantages))
        self.seen = updater.actor.see(batch.observations)

    def evaluate(self) -> ActionLogProbs:
        """The current policy on the minibatch, with gradient."""
        updater, space = self.updater, self.updater.actor.distribution
        parameters = updater.actor(self.seen)
        out = ActionLogProbs(space.logp(parameters, self.batch.actions), parameters=parameters)
        if "entropy" in updater.needs:
            out.entropy = space.entropy(parameters)
        if updater.joint:
            out.values = updater.critic(self.seen)
        if "kl" in updater.needs:
            out.kl = space.kl(self.batch.behaviour, parameters)
        if self.fresh:
            self._check(out.logp.detach())
        return out

    def loss(self, policy: ActionLogProbs) -> tuple[Tensor, dict[str, Tensor]]:
        """[P] losses, and what to report, [P] each."""
        method, batch, found = self.updater.method, self.batch, dict[str, Tensor]()
        assert method.objective is not None
        total = self.mean(method.objective(batch, policy))  # type: ignore[arg-type]
        for part in method.regularizers:
            term = self.mean(part(batch, policy))  # type: ignore[arg-type]
            total = total + term
            found[f"regularizer/{part.name}"] = term.detach()
        if self.updater.joint:
            error = self.mean(self.updater.part.loss(batch, policy))
            total = total + error
            found["value_loss"] = error.detach()
        if self.reports:
            with torch.no_grad():
                for name, value in method.objective.metrics(batch, policy).items():  # type: ignore[arg-type]
                    found[name] = self.mean(value)
                if policy.entropy is not None:
                    found["entropy"] = self.mean(policy.entropy)
        return total, {**found, "loss": total.detach()}

    def mean(self, values: Tensor) -> Tensor:
        """[P, N] -> [P], steps that count for nothing left out."""
        weights = self.batch.weights
        return values.mean(1) if weights is None else (values * weights).sum(1) / weights.sum(1).clamp(min=1)

    def gradient(self) -> dict[str, Tensor]:
        """Put the gradient of the members' losses into `FlatParameters.gradient`."""
        total, found = self.loss(self.evaluate())
        self.updater.parameters.differentiate(total)
        return found

    def _check(self, logp: Tensor) -> None:
        """Invariant 1: what acted is what learns."""
        gap = (logp - self.batch.behaviour_logp).abs().mean(1)
        if not bool((gap <= GAP).all()):
            member = int((~(gap <= GAP)).nonzero()[0, 0])
            raise InvariantError(
                f"Fresh actions of member {member} have log-probabilities that differ by {float(gap[member]):.3g} nats "
                f"on average between acting and learning; at most {GAP:g} is rounding. The observations, the "
                "normaliser or the weights changed in between. Nothing was updated with this rollout."
            )


class Fitting:
    """What a critic that learns after the policy may ask about a rollout."""

    def __init__(self, updater: ControlUpdater, batch: Transitions, number: int, rate: float) -> None:
        self.updater, self.batch, self.number, self.rate = updater, batch, number, rate
        self.critic, self.population = updater.critic, updater.population

    def values(self, rows: Transitions) -> Tensor:
        """[P, N] of the current critic, with gradient."""
        return self.critic(self.updater.actor.see(rows.observations))  # type: ignore[no-any-return]
