"""A population's optimizer steps on one rollout: every member has its own minibatches, losses and norms."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from etude.core.errors import InvariantError
from etude.core.learners import Joint, StepHead
from etude.core.method import Method
from etude.core.part import Need
from etude.core.population import FlatParameters, Number, Numbers, PerMember, Population
from etude.core.step_slots import LEAST, StepRegularizer
from etude.core.transitions import ActionLogProbs, Transitions, per_step
from etude.loops.halting import Halting
from etude.loops.learning import Learners
from etude.loops.noise import Noise
from etude.policies.control.actor import Actor
from etude.policies.control.memory import Past
from etude.policies.fingerprint import fingerprint

if TYPE_CHECKING:
    from etude.core.complete import CompleteRolloutMethod


class ControlUpdater:
    """Learns from flat rollouts [P, N, ...].

    Args:
        parameters: those that the policy's step trains: its own, and its critic's if that is `Joint`.
        learners: those that take steps of their own; none if not given.
    """

    def __init__(
        self, method: CompleteRolloutMethod, population: Population, parameters: FlatParameters, actor: Actor,
        critic: nn.Module | None, learners: Learners | None = None,
    ) -> None:  # fmt: skip
        self.method, self.population, self.parameters = method, population, parameters
        self.actor, self.critic, self.needs = actor, critic, method.needs()
        self.joint: Joint | None = method.critic if isinstance(method.critic, Joint) else None
        self.shared = method.critic is not None and method.critic.shared
        self.heads, self.multipliers = _heads(method), {m.name: parameters.of(m.name) for m in method.lagrangians}
        self.length = 1 if actor.memory is None else method.experience.steps
        self.optimizer = method.optimizer.population(parameters)
        self.learners = learners or Learners({}, {}, actor, population, 0)
        self.noise, self.agreement = Noise(population.size), dict[str, Tensor]()
        self.noise.sums = self.noise.sums.to(parameters.values.device)
        self.halts, self.seen_with = _halts(method), tuple[float, ...]()

    def follow(self, method: CompleteRolloutMethod) -> None:
        """Go on as the next stage says, whose critic and optimizer are the same."""
        self.method, self.needs, self.heads = method, method.needs(), _heads(method)
        self.halts = _halts(method)
        self.length = 1 if self.actor.memory is None else method.experience.steps

    def run(self, batch: Transitions, number: int, rate: Number) -> dict[str, Tensor]:
        """All epochs on a rollout; returns means over the last epoch, [P] each. `rate`: one, or one per member."""
        acted_with, self.seen_with = self.seen_with, ()
        if acted_with and acted_with != fingerprint(self.actor.transforms.buffers()):
            raise InvariantError(
                f"The moments of the normaliser changed while rollout {number} was collected: its actions were drawn "
                "for other numbers than are learned from. Observe a rollout after it was learned from. The policy "
                "learned nothing from this rollout."
            )
        method, first, before = self.method, self.learners.run(batch, number, "before"), self.parameters.values.clone()
        metrics = self._halting(batch, number, rate) if self.halts else self._epochs(batch, number, rate)
        self._check_moved(before, metrics, rate)
        if "kl" in self.needs and "kl" not in metrics:
            metrics["kl"] = self._divergence(batch)
        for part in method.regularizers:
            part.observe(metrics)
        metrics |= self._multipliers()
        return first | metrics | self.agreement | self.learners.run(batch, number, "after")

    def _epochs(self, batch: Transitions, number: int, rate: Number) -> dict[str, Tensor]:
        """All epochs; means over the last one."""
        for epoch in range(self.method.epochs):
            reports: list[dict[str, Tensor]] = []
            for i, piece in enumerate(self._pieces(batch, number, epoch)):
                surrogate = Minibatch(self, piece, fresh=epoch == i == 0, reports=epoch == self.method.epochs - 1)
                reports.append(self.optimizer.step(surrogate, rate))
                self._bring_back()
        return {k: torch.stack([m[k] for m in reports], 1).mean(1) for k in reports[0]}

    def _halting(self, batch: Transitions, number: int, rate: Number) -> dict[str, Tensor]:
        """Epochs until every member has enough; means over the last one of each."""
        halting = Halting(self.population.size, batch.rewards.device)
        for epoch in range(self.method.epochs):
            halting.begin()
            for i, piece in enumerate(self._pieces(batch, number, epoch)):
                surrogate = Minibatch(self, piece, fresh=epoch == i == 0, reports=True)
                take = partial(self.optimizer.step, surrogate, rate)
                halting.step(self.parameters, self.optimizer, take, surrogate.enough)
                self._bring_back()
                if not bool(halting.going.any()):
                    return halting.metrics()
        return halting.metrics()

    def _bring_back(self) -> None:
        """Lagrange multipliers to where they may be."""
        for columns in self.multipliers.values():
            self.parameters.values[:, columns].clamp_(min=LEAST)

    def _multipliers(self) -> dict[str, Tensor]:
        """[P] each multiplier as the update left it."""
        found = dict[str, Tensor]()
        for name, columns in self.multipliers.items():
            names = cast(Numbers, self.parameters.modules[name]).names
            found |= {f"multiplier/{k}": v.clone() for k, v in zip(names, self.parameters.values[:, columns].unbind(1))}
        return found

    def _pieces(self, batch: Transitions, number: int, epoch: int) -> Iterator[Transitions]:
        """An epoch's minibatches, each member in an order of its own; of whole sequences if the policy has a memory."""
        count = self.method.minibatches
        if count == 1:
            yield batch
            return
        units, device = batch.rewards.shape[1] // self.length, batch.rewards.device
        drawn = self.population.draw("minibatches", number, epoch, of=lambda g: torch.randperm(units, generator=g))
        order, steps = drawn.to(device), units * torch.arange(self.length, device=device)[:, None]
        bounds = [i * units // count for i in range(count + 1)]
        index = [(steps + order[:, None, a:b]).flatten(1) for a, b in itertools.pairwise(bounds)]
        shuffled = batch.rows(torch.cat(index, 1))
        for a, b in itertools.pairwise(bounds):
            yield shuffled.slice(a * self.length, b * self.length)

    def check_acting(self, actor: nn.Module, number: int) -> None:
        """Invariant 2: what acts in step `number` has the trained weights and moments. Raises InvariantError.

        The moments are remembered: those of the rollout to come must be what it is learned from with.
        """
        self.seen_with = fingerprint(self.actor.transforms.buffers())
        if actor is self.actor:
            return
        acting, learning = (fingerprint([*x.parameters(), *x.buffers()]) for x in (actor, self.actor))
        if acting != learning:
            raise InvariantError(
                f"What acts does not hold the policy's weights and moments after {number} updates: it would collect "
                "with an older policy than the one being trained. Nothing was updated; resume from the last checkpoint."
            )

    def _check_moved(self, before: Tensor, means: dict[str, Tensor], rate: Number) -> None:
        """Invariant 2: a gradient changed the weights."""
        stuck = (before == self.parameters.values).all(1)
        if not bool(stuck.any()):
            return
        norms = means["gradient_norm"]
        stuck &= (norms > 0) & (rate.values[:, 0].to(norms.device) > 0 if isinstance(rate, PerMember) else rate > 0)
        for name in ("accepted", "optimizer_steps"):
            if name in means:
                stuck &= means[name] > 0
        stuck &= ~(means["skipped_steps"] > 0)
        if bool(stuck.any()):
            raise InvariantError(
                f"The update had a gradient but left every weight of member {int(stuck.nonzero()[0, 0])} as it was: "
                "the learning rate is too small for float32."
            )

    @torch.no_grad()
    def _divergence(self, batch: Transitions) -> Tensor:
        """[P] mean KL(behaviour || pi) over the rollout, as the update left the policy."""
        whole = Minibatch(self, batch, fresh=False, reports=False)
        kl = whole.evaluate().kl
        assert kl is not None
        return whole.mean(kl)

    def past(self, batch: Transitions) -> Past | None:
        """What the policy remembered before these rows, time first; None if it has no memory."""
        if self.actor.memory is None:
            return None
        assert batch.memory is not None and batch.begins is not None
        begins = batch.begins.unflatten(1, (self.length, -1))
        return Past(batch.memory[:, : begins.shape[2]], begins)

    def tensors(self) -> dict[str, Tensor]:
        """What the next update depends on besides the weights."""
        own = {f"optimizer.{k}": v for k, v in self.optimizer.tensors().items()}
        return {**own, "noise": self.noise.sums, **self.learners.tensors()}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Undo `tensors`."""
        self.optimizer.load({k.removeprefix("optimizer."): v for k, v in tensors.items() if k.startswith("optimizer.")})
        self.noise.sums = tensors["noise"]
        self.learners.load(tensors)


def _heads(method: Method) -> dict[str, StepHead]:
    """The learners that the policy's step trains, by name."""
    return {part.name: part for part in method.slots()["learners"] if part.joint}


def _halts(method: Method) -> bool:
    """Whether a part may end an update early."""
    return any(type(part).enough is not StepRegularizer.enough for part in method.slots()["regularizers"])


class Minibatch:
    """One minibatch as an optimizer sees it: its loss, gradient and divergence from what acted."""

    def __init__(self, updater: ControlUpdater, batch: Transitions, fresh: bool, reports: bool) -> None:
        self.updater, self.fresh, self.reports = updater, fresh, reports
        assert batch.advantages is not None
        self.batch = batch.replace(advantages=updater.method.advantages.of_minibatch(batch.advantages, batch.weights))
        self.halted = torch.zeros(len(batch.actions), dtype=torch.bool, device=batch.actions.device)
        self.seen, self.past = updater.actor.see(batch.observations), updater.past(batch)

    def evaluate(self) -> ActionLogProbs:
        """The current policy on the minibatch, with gradient."""
        updater, space = self.updater, self.updater.actor.distribution
        features, _ = updater.actor.features(self.seen, self.past)
        parameters = updater.actor.say(features, updater.actor.allowed(self.batch.observations))
        if "entropy" in updater.needs:
            out = ActionLogProbs(*space.logp_and_entropy(parameters, self.batch.actions), parameters=parameters)
        else:
            out = ActionLogProbs(space.logp(parameters, self.batch.actions), parameters=parameters)
        if updater.joint is not None and updater.critic is not None:
            out.values = updater.critic(features if updater.shared else self.seen)
        for name, part in updater.heads.items():
            out.said[name] = updater.parameters.modules[name](features if part.shared else self.seen)
        out.said |= {name: updater.parameters.modules[name]() for name in updater.multipliers}
        if Need.KL in updater.needs:
            out.kl = space.kl(self.batch.behaviour, parameters)
        if Need.KL_PARTS in updater.needs:
            out.kl_parts = torch.stack(space.kl_parts(self.batch.behaviour, parameters), -1)
        if self.fresh:
            self._check(out.logp.detach())
        return out

    def loss(self, policy: ActionLogProbs) -> tuple[Tensor, dict[str, Tensor]]:
        """[P] losses, and what to report, [P] each."""
        method, batch = self.updater.method, self.batch
        each, reported = per_step(method.objective(batch, policy)), dict[str, Tensor]()
        for part in method.regularizers:
            reported[f"regularizer/{part.name}"] = term = per_step(part(batch, policy))
            each = each + term
        if self.updater.joint is not None:
            reported["value_loss"] = error = self.updater.joint.loss(batch, policy)
            each = each + error
        for head in self.updater.heads.values():
            reported[f"{head.label}_loss"] = term = head.loss(batch, policy)
            each = each + per_step(term)
        total = self.mean(each)
        if not self.reports:
            return total, {}
        with torch.no_grad():
            reported |= method.objective.metrics(batch, policy)
            if policy.entropy is not None:
                reported["entropy"] = policy.entropy
            return total, {**{k: self.mean(v) for k, v in reported.items()}, "loss": total.detach()}

    def mean(self, values: Tensor) -> Tensor:
        """[P, N] -> [P] over the steps that count."""
        return self.batch.mean(values)

    def gradient(self) -> dict[str, Tensor]:
        """Put the gradient of the members' losses into `FlatParameters.gradient`."""
        policy = self.evaluate()
        for part in self.updater.method.regularizers if self.updater.halts else ():
            if (found := part.enough(self.batch, policy)) is not None:
                self.halted = self.halted | found
        total, report = self.loss(policy)
        self.updater.parameters.differentiate(total)
        return report

    def enough(self) -> Tensor:
        """[P] which members take no more steps, as the gradient was computed."""
        return self.halted

    def _check(self, logp: Tensor) -> None:
        """Invariant 1: what acted is what learns, but for the rounding measured so far."""
        updater, noise = self.updater, self.updater.noise
        sums = noise.measured(per_step((logp.double() - self.batch.behaviour_logp).abs()), self.batch.weights)
        counts, totals, _ = zip(*sums.tolist(), strict=True)
        gaps, bounds = [t / max(1, n) for t, n in zip(totals, counts)], noise.bounds(counts, logp.dtype)
        wrong = [member for member, (gap, bound) in enumerate(zip(gaps, bounds)) if not gap <= bound]
        if wrong:
            raise InvariantError(
                f"Fresh actions of member {wrong[0]} have log-probabilities that differ by {gaps[wrong[0]]:.3g} nats "
                f"on average between acting and learning; at most {bounds[wrong[0]]:.3g} is rounding. The "
                "observations, the normaliser or the weights changed in between. The policy learned nothing from this "
                "rollout."
            )
        noise.take(sums)  # what acted carried the right fingerprint
        gap, bound = torch.tensor((gaps, bounds), dtype=sums.dtype, device=sums.device)
        updater.agreement = {"logp_gap": gap, "logp_gap_bound": bound}
