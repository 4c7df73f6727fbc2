"""An update from stored rows: what is due learns in the method's order, then slow copies follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etude.core.encoder_slots import encoder_of
from etude.core.errors import InvariantError
from etude.core.population import Number, PerMember, Population, per_member
from etude.core.replay_slots import ReplayLearner, ReplayPolicy
from etude.core.sampling_slots import Horizon, Sampling
from etude.experience.stretches import Stretches
from etude.loops.replay_reading import StoredReading
from etude.loops.replay_trainer import ReplayTrainer
from etude.optimizers.population import Metrics
from etude.policies.control.actor import Actor

if TYPE_CHECKING:
    from etude.core.complete import CompleteReplayMethod
    from etude.experience.store import Store


class ReplayUpdater:
    """Networks of a population, and how they learn from a store.

    Args:
        actor: the policy's module; networks: of the critic and the learners, by name.

    `passes` counts forward passes of policy and critic, for tests and for a table of where the time goes.
    """

    def __init__(
        self, method: CompleteReplayMethod, population: Population, actor: Actor, networks: Mapping[str, nn.Module]
    ) -> None:
        self.population, self.actor, self.device = population, actor, actor.device
        self.networks = {"policy": actor.without_others(), **networks}
        encoder = encoder_of(method)
        self.encoder = None if encoder is None else encoder.name
        self.trainers: dict[str, ReplayTrainer] = {}
        self.stretches, self.own = Stretches(population, "learn", self.device), dict[str, Stretches]()
        self.follow(method)
        for name, part in method.trained.items():
            inside = {self.encoder: "policy.encoder", "critic": "policy.body" if method.policy.made_of_critic else name}
            prefix = f"policy.held.{name}" if name in actor.held else inside.get(name, name)
            assert part.learning is not None
            count = part.count if isinstance(part, ReplayLearner) else 1
            self.trainers[name] = ReplayTrainer(name, prefix, self.networks[name], part.learning, count, population)
        self._separate()
        self.updates = 0
        self.passes: Counter[str] = Counter()

    def follow(self, method: CompleteReplayMethod) -> None:
        """Learn as this method says, which has the same learners."""
        self.method, self.groups = method, method.groups()
        self.offering = {part.name: part for part in method.learners}
        self.parts: dict[str, ReplayLearner | ReplayPolicy] = {
            "policy": method.policy, **self.offering,
        }  # fmt: skip
        self.parts |= {k: part for k, part in (("critic", method.critic), ("value", method.value)) if part is not None}
        for name, trainer in self.trainers.items():
            learning = method.trained[name].learning
            assert learning is not None
            trainer.learning, trainer.batch = learning, None
        self._separate()

    def _separate(self) -> None:
        """Random numbers of those learners' own whose rows are drawn for them alone; none in the shape of before."""
        self.stretches.drawn.clear()
        self.own = {
            name: Stretches(self.population, f"learn {name}", self.device)
            for name in self.trainers if self._draws(name)
        }  # fmt: skip

    # What a reading asks

    def slow(self, name: str) -> bool:
        """Whether a learner has a slow copy."""
        return name in self.trainers and self.trainers[name].target is not None

    def module(self, name: str, slow: bool, frozen: bool = False, first: bool = False) -> nn.Module:
        """A learner's network, its slow copy, the network without gradient, or the first of M of these."""
        if name not in self.trainers:
            return self.networks[name]
        trainer = self.trainers[name]
        if slow:
            assert trainer.target is not None
            return trainer.slow_first if first else trainer.target
        if frozen:
            return trainer.first if first else trainer.frozen
        return trainer.network

    def offers(self, part: ReplayLearner, name: str) -> Mapping[str, Tensor]:
        """What a learner offers now."""
        return part.offers(self.networks[name])

    # An update

    def run(self, store: Store, rates: Mapping[str, Number]) -> list[tuple[str, Metrics]]:
        """One update; returns what each learner reports of each of its steps, [P] each.

        Args:
            rates: of each learner, the schedule's factor on its learning rate.
        """
        self.updates += 1
        reports: list[tuple[str, Metrics]] = []
        reads: dict[str, StoredReading] = {}
        for group in self.groups:
            if group == ("targets",):
                self._follow(store, reads)
                continue
            learning = [name for name in group if self.trainers[name].due(self.updates)]
            for turn in range(self.trainers[learning[0]].learning.epochs if learning else 0):
                reports += self._step(learning, turn, store, rates, reads)
        if ("targets",) not in self.groups:
            self._follow(store, reads)
        for read in reads.values():
            read.finish()
        return reports

    def _step(
        self, learning: list[str], turn: int, store: Store, rates: Mapping[str, Number],
        reads: dict[str, StoredReading],
    ) -> list[tuple[str, Metrics]]:  # fmt: skip
        """A step of each of these, whose losses are all computed first."""
        for i, name in enumerate(learning):
            key = name if name in self.own else ""
            if key not in reads:
                reads[key] = self._drawn(name, turn, store)
            self._differentiate(name, reads[key], again=i < len(learning) - 1)
        reports = []
        for name in learning:
            reports.append((name, self.trainers[name].stepper.step(self.trainers[name], rates[name])))
            if name in self.own:
                reads.pop(name).finish()
            for read in reads.values():
                read.forget(name)
        return reports

    def _draws(self, name: str) -> bool:
        """Whether a learner reads rows that are drawn for it alone."""
        part = self.parts[name]
        return self.trainers[name].learning.epochs > 1 or getattr(part, "sampling", None) is not None

    def _drawn(self, name: str, turn: int, store: Store) -> StoredReading:
        """Rows for a learner: those of the whole update, or for the `turn` of its own."""
        part, learning = self.parts[name], self.trainers[name].learning
        own = part.sampling if isinstance(part, ReplayLearner) and name in self.own else None
        sampling = own if isinstance(own, Sampling) else self.method.sampling
        if name in self.own:
            draw = self.own[name].at(self.updates // learning.every * learning.epochs + turn)
        else:
            draw = self.stretches.at(self.updates - 1)
        batch = sampling.draw(store, draw)
        if isinstance(own, Horizon):
            assert batch.index is not None
            read = sampling.augmented(own.read(store, batch.index), draw)
            batch = read.replace(offers={**batch.offers, **read.offers})
        if store.device != self.device:
            batch = batch.to(self.device)
        return StoredReading(self, sampling, batch, draw, store)

    def _differentiate(self, name: str, read: StoredReading, again: bool) -> None:
        trainer, part = self.trainers[name], self.parts[name]
        read.reader, read.noted = name, {}
        trainer.batch = read.batch
        if trainer.estimates:
            found = trainer.estimate = read.estimated(part)
            trainer.parameters.differentiate(found.value, again)
            trainer.report = {"error": found.error.abs()}
            return
        closed = part.differentiated(read) if isinstance(part, ReplayLearner) and not again else None
        if closed is None:
            loss = read.minimised(part)
            trainer.parameters.differentiate(loss, again)
        else:
            loss = closed.loss
            trainer.parameters.put(closed.gradients)
        trainer.report = {"loss": loss.detach(), **read.noted}

    def _follow(self, store: Store, reads: Mapping[str, StoredReading]) -> None:
        moved = False
        for name, trainer in self.trainers.items():
            target, part = trainer.learning.target, self.parts[name]
            if target is not None and self.updates % target.every == 0:
                trainer.follow()
                moved = True
                if isinstance(part, ReplayLearner):
                    part.followed(store)
        for read in reads.values() if moved else ():
            read.forget("targets")

    def rates(self, share: int, whole: int) -> dict[str, Number]:
        """The method's factor times those of the schedules at `share` of `whole`."""
        return {
            name: self.method.rate * per_member(trainer.learning.optimizer, lambda part: part.rate(share, whole))
            for name, trainer in self.trainers.items()
        }

    def check_moved(self, before: Mapping[str, Tensor], stepped: Mapping[str, Tensor], rates: Any) -> None:
        """Invariant 2: steps with a gradient changed the weights. Raises InvariantError."""
        for name, trainer in self.trainers.items():
            if name not in stepped:
                continue
            rate = rates[name]
            on = (rate.values[:, 0] > 0).to(self.actor.device) if isinstance(rate, PerMember) else float(rate) > 0
            stuck = (stepped[name] > 0) & on & (before[name] == trainer.parameters.values).all(1)
            if bool(stuck.any()):
                raise InvariantError(
                    f"The updates had gradients but left every weight of the {name} of member "
                    f"{int(stuck.nonzero()[0, 0])} as it was: the learning rate is too small for float32."
                )

    def check_followed(
        self, before: Mapping[str, Tensor], slow: Mapping[str, Tensor], updates: int, others: bool = False
    ) -> None:
        """Invariant 2, of slow copies: one that was to follow moved, and is not the network itself; others stayed.

        Args:
            before, slow: the networks and their slow copies as they were after so many `updates`.
            others: whether other workers may have moved them meanwhile.

        Raises: InvariantError.
        """
        for name, was in slow.items():
            trainer = self.trainers[name]
            target, fast, now = trainer.learning.target, trainer.parameters.values, trainer.slow.values
            assert target is not None
            if self.updates // target.every == updates // target.every:
                early = (now != was).any(1) & (not others)
                faults = [(early, "moved, and in none of these updates it was to")]
            else:
                of = target.rate
                rate = (of.values[:, 0] if isinstance(of, PerMember) else torch.tensor(float(of))).to(now.device)
                still = (rate > 0) & (before[name] != was).any(1) & (now == was).all(1)
                tied = (rate < 1) & (fast != before[name]).any(1) & (now == fast).all(1)
                faults = [(still, "did not follow it"), (tied, f"is the {name} itself, to the last bit")]
            for wrong, what in faults:
                if bool(wrong.any()):
                    raise InvariantError(
                        f"The slow copy of the {name} of member {int(wrong.nonzero()[0, 0])} {what}, where it follows "
                        f"every {target.every} updates: targets come from the wrong network."
                    )

    def check_stored(self, store: Store) -> None:
        """Batches had rows that were stored. Raises InvariantError for one from where nothing was written yet."""
        for name, trainer in self.trainers.items():
            index = None if trainer.batch is None else trainer.batch.index
            if index is not None and bool(((index < 0) | (index >= store.size)).any()):
                raise InvariantError(
                    f"The {name} learned from a row that is not stored yet: places {int(index.min())} to "
                    f"{int(index.max())} were drawn, and {store.size} rows of each member are there. What draws rows "
                    "must keep below the store's size."
                )

    # Checkpoints

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter [P, ...] of what learns, by name."""
        for trainer in self.trainers.values():
            yield from trainer.parameters.named()

    def load_networks(self, tensors: Mapping[str, Tensor]) -> None:
        """Set every parameter."""
        for trainer in self.trainers.values():
            trainer.parameters.load(tensors)

    def tensors(self) -> dict[str, Tensor]:
        """What the next update depends on besides the networks."""
        return {f"{name}.{k}": v for name, t in self.trainers.items() for k, v in t.tensors().items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo `tensors`."""
        for name, trainer in self.trainers.items():
            start = f"{name}."
            trainer.load({k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)})
