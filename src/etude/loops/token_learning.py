"""Networks that learn beside a model of tokens: heads on its states, and learners with steps of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from etude.core.batches import TokenBatch, TokenLogProbs
from etude.core.errors import ConfigError
from etude.core.learners import TokenHead, TokenLearner, TokenReading
from etude.core.method import Method
from etude.core.optimizer_slots import TokenOptimizer
from etude.core.part import Need
from etude.core.rows import split_groups
from etude.core.streams import Stream
from etude.loops.critic_learning import CriticTrainer
from etude.loops.states import below
from etude.loops.trainer import Reader, Trainer
from etude.optimizers.model import ModelStepper
from etude.optimizers.population import Metrics
from etude.policies.language import LanguagePolicy
from etude.policies.micro_batches import micro_batches
from etude.runtime.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod


@dataclass
class Rows(Reader):
    """Rows as a learner of tokens reads them: `TokenReading`, each quantity computed once."""

    batch: TokenBatch

    @cached_property
    def says(self) -> Tensor:
        assert self.batch.hidden is not None, f"{self.name} reads states, and does not say so in `needs`."
        return _said(self.network, self.batch.hidden)


class TokenLearners:
    """All learners of a token method beside one policy.

    Args:
        stream: of the networks' first weights.
        steps: training steps in total, for the learners' schedules.
        ranks: who takes the policy's and the critic's steps too. Those of other learners are the first rank's alone,
            since nobody else reads them.
    """

    critic: CriticTrainer | None

    def __init__(
        self, method: CompleteTokenMethod, policy: LanguagePolicy, stream: Stream, steps: int, ranks: Ranks = ALONE
    ) -> None:
        self.ranks = ranks
        self.steps, parts = steps, {part.name: part for part in method.slots()["learners"]}
        self.networks: dict[str, nn.Module] = {}
        for name, part in parts.items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(stream.split(name).key)
                made = part.build(policy.width) if isinstance(part, TokenHead) else part.build_beside(policy)
                self.networks[name] = made.to(policy.device, policy.head_dtype)
        self.heads = {name: self.networks[name] for name, part in parts.items() if part.joint}
        self.trainers = {k: TokenTrainer(p, k, self.networks[k]) for k, p in parts.items() if not p.joint}
        self.targets = {k: t.target for k, t in self.trainers.items() if t.target is not None}
        self.begin_critic(method, policy)

    def begin_critic(self, method: CompleteTokenMethod, policy: LanguagePolicy) -> None:
        """Take the critic of this method, if it is a network of its own, as it begins."""
        part = method.own_critic
        self.critic = None if part is None else CriticTrainer(part, policy, self.steps, self.ranks)

    # Heads

    def parameters(self) -> list[nn.Parameter]:
        """What the policy's step trains beside the policy."""
        return [p for head in self.heads.values() for p in head.parameters()]

    def said(self, policy: TokenLogProbs) -> TokenLogProbs:
        """What the policy says, with what the heads on it say."""
        for name, head in self.heads.items():
            assert policy.hidden is not None
            policy.said[name] = _said(head, policy.hidden)
        return policy

    # Learners with steps of their own

    def read(self, name: str, batch: TokenBatch) -> Rows:
        """Rows as the learner of this name reads them now."""
        return Rows(self.networks, self.targets, name, batch)

    @torch.no_grad()
    def offer(self, batch: TokenBatch) -> None:
        """Put into `batch.offers` what learners say of new rows before they are rewarded."""
        for name, trainer in self.trainers.items():
            batch.offers.update(trainer.part.offers(self.read(name, batch)))

    def tilt(self) -> Any:
        """What the policy's logits are tilted by where it is sampled from; None: by nothing."""
        tilting = [name for name, trainer in self.trainers.items() if trainer.part.tilts]
        return self.trainers[tilting[0]].part.tilt(self.networks[tilting[0]]) if tilting else None

    def run(self, batch: TokenBatch, number: int, order: str, stream: Stream, budget: int) -> dict[str, float]:
        """Let those learn from credited rows that are due 'before' or 'after' the policy's update.

        Args:
            budget: padded tokens of a micro-batch, for those that read rows by a model of their own.
        """
        found: Metrics = {}
        if self.critic is not None and self.critic.part.learning.order == order:
            found |= self.critic.learn(batch, number, stream, budget)
        for trainer in self.trainers.values() if self.ranks.rank == 0 else ():
            if trainer.part.learning.order == order:
                found |= trainer.learn(self, batch, number, stream, budget)
        return {k: float(v) for k, v in found.items()}

    # Checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Weights, slow copies, and all that the next steps depend on; heads' moments are the policy's stepper's."""
        weights = {f"{name}.network.{k}": v for name, net in self.networks.items() for k, v in net.state_dict().items()}
        steps = {f"{name}.{k}": v for name, trainer in self.trainers.items() for k, v in trainer.tensors().items()}
        own = {} if self.critic is None else {f"critic.{k}": v for k, v in self.critic.tensors().items()}
        return {f"learners.{k}": v.detach() for k, v in (weights | steps | own).items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo `tensors`."""
        for name, network in self.networks.items():
            network.load_state_dict(below(tensors, f"learners.{name}.network."))
        for name, trainer in self.trainers.items():
            trainer.load(below(tensors, f"learners.{name}."))
        if self.critic is not None:
            self.critic.load(below(tensors, "learners.critic."))


class TokenTrainer(Trainer):
    """Trains one learner of tokens by torch's steps."""

    part: TokenLearner
    stepper: ModelStepper

    def __init__(self, part: TokenLearner, name: str, network: nn.Module) -> None:
        assert isinstance(part.learning.optimizer, TokenOptimizer)
        self.network = network
        trained = [p for p in network.parameters() if p.requires_grad]
        super().__init__(part, name, network, ModelStepper(part.learning.optimizer, trained))

    def learn(
        self, learners: TokenLearners, batch: TokenBatch, number: int, stream: Stream, budget: int
    ) -> Metrics:  # fmt: skip
        """Learn from rows, if it is time; returns means over the last epoch, [1] each."""
        self.stepper.begin(number, f"{number} of {self.name}")
        rate = self.part.learning.optimizer.rate(number, learners.steps)

        def lessons(epoch: int) -> Iterator[Lesson]:
            for rows in self._pieces(batch, stream.split(self.name, epoch)):
                kind = TokenLesson if self.part.per_token else Lesson
                yield kind(self, learners, rows, budget)

        return self.run(number, rate, lessons)

    def _pieces(self, batch: TokenBatch, stream: Stream) -> Iterator[TokenBatch]:
        """An epoch's minibatches, of whole groups."""
        count = self.part.learning.minibatches
        if count == 1:
            yield batch
            return
        yield from (batch.rows(rows) for rows in split_groups(batch, count, stream.numpy))

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        return [] if self.target is None else list(zip(self.target.parameters(), self.network.parameters()))

    def tensors(self) -> dict[str, Tensor]:
        slow = {} if self.target is None else self.target.state_dict()
        stepper = {f"stepper.{k}": v for k, v in self.stepper.tensors().items()}
        return {**stepper, **{f"target.{k}": v for k, v in slow.items()}}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.stepper.load(below(tensors, "stepper."))
        if self.target is not None:
            self.target.load_state_dict(below(tensors, "target."))


class Lesson:
    """One minibatch of a learner of tokens, as what takes its steps sees it (`optimizers/model.py`).

    Args:
        budget: padded tokens of a micro-batch, where it is cut into some.
    """

    def __init__(self, trainer: TokenTrainer, learners: TokenLearners, batch: TokenBatch, budget: int) -> None:
        self.trainer, self.learners, self.batch, self.budget = trainer, learners, batch, budget

    def read(self, batch: TokenBatch | None = None) -> TokenReading:
        """The minibatch, or some rows of it, as the learner reads them."""
        return self.learners.read(self.trainer.name, self.batch if batch is None else batch)

    def gradient(self) -> Metrics:
        loss, parameters = self.trainer.part.loss(self.read()), self.trainer.stepper.parameters
        found = torch.autograd.grad(loss, parameters, materialize_grads=True)
        for parameter, gradient in zip(parameters, found):
            parameter.grad = gradient
        return {"loss": loss.detach().view(1)}

    def halves(self) -> None:
        return None


class TokenLesson(Lesson):
    """A minibatch whose loss is a mean over its action tokens, added up micro-batch by micro-batch."""

    def gradient(self) -> Metrics:
        mask, network = self.batch.action_mask, self.trainer.network
        shares = mask.to(self.batch.rewards.dtype) * self.batch.weights[:, None]
        whole, total = self.batch.replace(shares=shares / shares.sum().clamp(min=1e-12)), 0.0
        for piece in micro_batches(network.policy, whole, self.budget):  # type: ignore[arg-type]  # of all `per_token`
            loss = self.trainer.part.loss(self.read(whole.rows(piece, trim=True)))
            loss.backward()
            total += float(loss.detach())
        return {"loss": torch.tensor([total], dtype=torch.float64)}


def let_tilt(
    policy: LanguagePolicy, methods: Iterable[CompleteTokenMethod], learners: Callable[[], TokenLearners], bound: int
) -> None:  # fmt: skip
    """Let a policy be sampled from with what learners say, where a method has some that say it.

    Args:
        learners: those of now: a stage or a checkpoint may bring others.
        bound: how many training steps samplers are ahead.

    Raises: ConfigError where samplers are ahead, which do not have the learners.
    """
    tilting = [part for m in methods for part in m.learners if isinstance(part, TokenLearner) and part.tilts]
    if not tilting:
        return
    if bound:
        raise ConfigError(
            f"The policy is sampled from with what {tilting[0].name} says, and samplers that are {bound} steps ahead "
            "do not have it: leave out --bound."
        )
    policy.tilting = lambda: learners().tilt()


def own_needs(method: Method) -> frozenset[Need]:
    """What learners with steps of their own need."""
    return frozenset[Need]().union(*(part.needs for part in method.slots()["learners"] if not part.joint))


def _said(network: nn.Module, hidden: Tensor) -> Tensor:
    """What a network says of states, in the network's own dtype."""
    first = next(network.parameters(), hidden)
    said: Tensor = network(hidden.to(first.dtype))
    return said
