"""What formulas ask about stored rows: each thing is computed once, until a learner stepped that it rests on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Generator, Tensor, nn

from etude.core.errors import ConfigError
from etude.core.population import Number
from etude.core.replay_slots import ActorTerm, At, Choice, Estimate, ReplayCritic, ReplayLearner, ReplayPolicy, Traced
from etude.core.sampling_slots import Drawing, Sampling
from etude.core.transitions import Transitions
from etude.loops.chosen import of_choices, traced_choices
from etude.loops.replay_features import StoredFeatures
from etude.policies.control.noise import noisy
from etude.policies.control.units import SquashedBox, in_units

if TYPE_CHECKING:
    from etude.experience.store import Store
    from etude.loops.replay_update import ReplayUpdater


class StoredReading(StoredFeatures):
    """Rows as the learners of an update read them: `core.replay_slots.ReplayReading`.

    Args:
        sampling: what drew them, of what is `stored`. draw: the random numbers of this update.
    """

    def __init__(
        self, updater: ReplayUpdater, sampling: Sampling, batch: Transitions, draw: Drawing, stored: Store | None = None
    ) -> None:
        super().__init__(updater, batch)
        self.sampling, self.draw, self.stored = sampling, draw, stored
        self.reader, self.errors, self.noted = "", cast("Tensor | None", None), dict[str, Tensor]()

    @property
    def wants_errors(self) -> bool:
        return self.sampling.reads_errors

    def tell(self, errors: Tensor) -> None:
        self.errors = errors

    def beside(self, name: str) -> nn.Module:
        return self.updater.module(name, slow=False, frozen=True)

    def copied(self, name: str) -> nn.Module:
        return self.updater.module(name, slow=True)

    def note(self, name: str, values: Tensor) -> None:
        self.noted[name] = values.detach()

    def finish(self) -> None:
        """Let what drew the rows know how far the critic was off on them."""
        if self.errors is not None:
            self.sampling.learn(self.batch, self.errors)

    @property
    def network(self) -> nn.Module:
        return self.updater.trainers[self.reader].network

    @property
    def slow(self) -> nn.Module:
        return self.updater.module(self.reader, slow=True)

    def parameters(self, at: At = "here", copy: bool = False) -> Tensor:
        slow = copy and self.updater.slow("policy")

        def said() -> Tensor:
            self.updater.passes["policy"] += 1
            found: Tensor = self.updater.module("policy", slow)(self.features(at, slow))
            return found

        parameters: Tensor = self._once(("parameters", at, slow), self._rests_on("policy", slow), said)
        return parameters

    def moved(self, actions: Tensor, noise: Tensor) -> Tensor:
        return in_units(self.updater.actor).moved(actions, noise)

    def policy(self, at: At = "here", copy: bool = False) -> Choice:
        slow = copy and self.updater.slow("policy")

        def chosen() -> Choice:
            spread, said = in_units(self.updater.actor), self.parameters(at, copy)
            count = said.shape[1]

            def noise(generator: Generator, times: int) -> Tensor:
                return spread.noise((times, count), generator)

            made_of = self.batch.noise if at == "here" else None
            return spread.chosen(said, self.draw(f"policy {at}", noise) if made_of is None else made_of)

        choice: Choice = self._once(("policy", at, slow), self._rests_on("policy", slow), chosen)
        return choice

    @torch.no_grad()
    def several(self, count: int, at: At = "here", copy: bool = False) -> Choice:
        slow = copy and self.updater.slow("policy")

        def chosen() -> Choice:
            spread, said = in_units(self.updater.actor), self.parameters(at, copy)

            def noise(generator: Generator, times: int) -> Tensor:
                return spread.noise((times, said.shape[1], count), generator)

            return spread.chosen(said[:, :, None], self.draw(f"policy {at} {count} times", noise))

        choice: Choice = self._once(("several", at, count, slow), self._rests_on("policy", slow), chosen)
        return choice

    def before_tanh(self, count: int) -> Tensor:
        def drawn() -> Tensor:
            spread, said = cast(SquashedBox, self.updater.actor.distribution), self.parameters()
            noise = self.normal("before tanh", said.new_empty(*said.shape[:2], count, spread.actions))
            return spread.drawn(said[:, :, None], noise)

        found: Tensor = self._once(("before tanh", count), self._rests_on("policy", False), drawn)
        return found

    def anything(self, count: int) -> Choice:
        spread, rows = in_units(self.updater.actor), self.batch.rewards.shape[1]

        def uniform(generator: Generator, times: int) -> Tensor:
            return spread.anything((times, rows, count), generator)

        actions = self.draw(f"anything {count} times", uniform)
        return Choice(actions, torch.full_like(actions[..., 0], spread.anything_logp))

    @property
    def terms(self) -> tuple[ActorTerm, ...]:
        return self.updater.method.actor

    def after_step(self, loss: Tensor, rate: Number, seen: Tensor) -> Tensor:
        module = self.updater.module("policy", slow=False)
        own = dict(module.named_parameters())
        slopes = torch.autograd.grad(loss.sum(), list(own.values()), create_graph=True, materialize_grads=True)
        stepped = {name: own[name].detach() - rate * slope for name, slope in zip(own, slopes, strict=True)}
        return in_units(self.updater.actor).middle(torch.func.functional_call(module, stepped, (seen,)))

    def logp(self, actions: Tensor) -> Tensor:
        return in_units(self.updater.actor).logp(self.parameters(), actions)

    def entropy(self) -> Tensor:
        return in_units(self.updater.actor).entropy(self.parameters())

    def state_outputs(self, at: At = "here", copy: bool = False) -> Tensor:
        name = "critic" if self.updater.method.value is None else "value"
        slow = copy and self.updater.slow(name)
        said: Tensor = self._once(
            ("states", at, slow), self._rests_on(name, slow),
            lambda: self._pass(self.updater.module(name, slow), at, slow, None, not slow),
        )  # fmt: skip
        return said

    def worth(self, at: At = "here") -> Tensor:
        value = self.updater.method.value
        assert value is not None
        return value.worth(self.state_outputs(at))

    def outputs(
        self, at: At = "here", actions: Tensor | None = None, copy: bool = False, frozen: bool = False,
        first: bool = False,
    ) -> Tensor:  # fmt: skip
        slow = copy and self.updater.slow("critic")
        network, learns = self.updater.module("critic", slow, frozen, first), not (slow or frozen)
        if getattr(network, "choices", 0):
            said = self._once(
                ("outputs", at, slow, frozen, first), self._rests_on("critic", slow),
                lambda: self._pass(network, at, slow, None, learns),
            )  # fmt: skip
            return said if actions is None else of_choices(said, actions)
        if actions is None:
            raise ConfigError(
                "The values of all choices are asked for, and this critic says that of one action: set another "
                "critic.backup.rule, or another policy."
            )
        if slow and actions is self.batch.actions:  # value and policy both ask what the slow copies say of these
            recorded: Tensor = self._once(
                ("recorded", at, first), self._rests_on("critic", slow),
                lambda: self._pass(network, at, slow, actions, learns),
            )  # fmt: skip
            return recorded
        return self._pass(network, at, slow, actions, learns)

    def traced(self, actions: Tensor) -> Traced | None:
        network = self.updater.module("critic", slow=False)
        trace = getattr(network, "traced", None)
        if trace is None or self.updater.encoder is not None:  # whose gradient goes through what the critic reads
            return None
        choices = getattr(network, "choices", 0)
        traced: Traced | None = trace(self.seen("here"), None if choices else actions)
        if traced is not None:
            self.updater.passes["critic"] += 1
        return traced_choices(traced, actions) if traced is not None and choices else traced

    @torch.no_grad()
    def passes(self, count: int, at: At) -> Tensor:
        network = self.updater.module("critic", slow=True)
        each = [self._pass(network, at, True, None, False, f"noise {at} copy {k}") for k in range(count)]
        return torch.cat(each, 1)

    def _pass(
        self, network: nn.Module, at: At, slow: bool, actions: Tensor | None, learns: bool, noise: str = ""
    ) -> Tensor:
        self.updater.passes["critic"] += 1
        features = self.features(at, slow, learns)
        several = actions is not None and actions.dim() == 4
        if several:
            assert actions is not None
            features = features[:, :, None].expand(-1, -1, actions.shape[2], -1).flatten(1, 2)
            count, actions = actions.shape[2], actions.flatten(1, 2)
        if self.updater.encoder is not None and actions is not None:
            features, actions = self._encoding(slow, learns).join(features, actions), None
        if getattr(network, "noise", None) is None:
            said: Tensor = network(features, actions)
        else:
            with noisy(network, self.draw, noise or f"noise {at}{' copy' if slow else ''}"):
                said = network(features, actions)
        return said.unflatten(2, (-1, count)) if several else said

    def slopes(self) -> Tensor:
        network, features = self.updater.module("critic", slow=False), self.features("here", copy=False, learns=True)
        count, members = self._critic.count, features.shape[0]
        actions = self.batch.actions[:, None].expand(members, count, -1, -1).clone().requires_grad_()
        self.updater.passes["critic"] += 1
        with noisy(network, self.draw, "noise here"):
            values = self.values(network(features, actions))
        (found,) = torch.autograd.grad(values.sum(), actions, create_graph=True)
        return found

    def values(self, outputs: Tensor) -> Tensor:
        found: Tensor = cast(Any, self._critic).head.mean(outputs)
        return found

    @property
    def _everybody(self) -> tuple[str, ...]:
        return (*self.updater.trainers, "targets")

    def critic_loss(self) -> Tensor:
        loss: Tensor = self._once(("critic loss",), self._everybody, lambda: self._critic.loss(self))
        return loss

    @property
    def _critic(self) -> ReplayCritic:
        critic = self.updater.method.critic
        assert critic is not None
        return critic

    def estimate(self) -> Estimate:
        found: Estimate = self._once(("estimate",), self._everybody, lambda: self._critic.estimate(self))
        return found

    def minimised(self, part: ReplayLearner | ReplayPolicy) -> Tensor:
        """[P] what a learner minimises on these rows, or the policy."""
        if isinstance(part, ReplayCritic):
            return self.critic_loss()
        if isinstance(part, ReplayLearner):
            return part.loss(self)
        return _sum([term(self) for term in self.updater.method.actor]).mean(1)

    def estimated(self, part: ReplayLearner | ReplayPolicy) -> Estimate:
        """What a learner estimates of the one row of each member, or the policy, whose error is the critic's; [P]."""
        if isinstance(part, ReplayLearner):
            found = self.estimate() if isinstance(part, ReplayCritic) else part.estimate(self)
        else:
            along = _sum([term.along(self) for term in self.updater.method.actor])
            found = self.estimate()._replace(value=along)
        return Estimate(*(x[:, 0] for x in found))

    def offered(self, name: str) -> Tensor:
        for learner, part in self.updater.offering.items():
            found = self._once(("offers", learner), (learner,), partial(self.updater.offers, part, learner))
            if name in found:
                value: Tensor = found[name].detach()
                return value
        raise KeyError(f"No learner offers {name}.")

    def normal(self, purpose: str, like: Tensor) -> Tensor:
        shape = like.shape[1:]
        return self.draw(purpose, lambda generator, times: torch.randn(times, *shape, generator=generator))


def _sum(terms: list[Tensor]) -> Tensor:
    return sum(terms[1:], terms[0])
