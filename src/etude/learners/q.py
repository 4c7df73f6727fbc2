"""Critics of actions: M networks of every member as one batched product."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from etude.core.critic_slots import Backup, CriticPenalty, Error, ErrorScale, ParameterNoise, QHead
from etude.core.errors import ConfigError
from etude.core.fields import Count
from etude.core.learners import Learning, Target
from etude.core.part import Need
from etude.core.population import Population
from etude.core.replay_slots import Differentiated, Estimate, ReplayCritic, ReplayLearner, ReplayReading, Traced
from etude.core.step_slots import Initializer, Network
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.heads import Scalar, Squared
from etude.optimizers.adam import Adam
from etude.policies.control.chains import of_rows, rectified, traced_rows
from etude.policies.control.initializers import FanIn
from etude.policies.control.networks import Chain, Plain, chained, networks_in
from etude.policies.control.replay import WIDE

if TYPE_CHECKING:
    from gymnasium import Space

    from etude.core.method import Method


class Critics(Plain):
    """M critics of every member: what is seen [P, N, D], and actions [P, N, A] in units unless they are choices.

    Returns [P, M, N, K], or [P, M, N, A, K] of all A choices. Actions may be each critic's own, [P, M, N, A].

    How many there are follows from the rows of the weights: `FlatParameters.shared` may leave some out.

    Args:
        choices: A of Discrete actions, of which all values are said at once; 0 where actions are read.

    `noise` is what its layers read, where they are noisy (`policies/control/noise.py`).
    """

    def __init__(self, body: nn.Module, head: nn.Module, choices: int, size: int) -> None:
        super().__init__()
        self.body, self.head, self.choices, self.size = body, head, choices, size
        self.noise: Any = None
        self.links: Chain | None = None  # body and head, where `of_rows` computes both

    def chain(self) -> Chain | None:
        return chained(self.body, self.head) if self.size == 1 else None

    def traced(self, seen: Tensor, actions: Tensor | None = None) -> Traced | None:
        """What `forward` says, and its gradient in closed form; None where only autograd knows that."""
        members, rows = seen.shape[:2]
        if self.links is None or rows == 1 or not seen.is_floating_point():
            return None
        x, count = self._read(seen, actions)
        said, back = traced_rows(self.links, x)
        shape = (self.choices, self.size) if self.choices else (self.size,)
        return Traced(said.view(members, count, rows, *shape), lambda slope: back(slope.view(said.shape)))

    def _read(self, seen: Tensor, actions: Tensor | None) -> tuple[Tensor, int]:
        """What the first layers read, [P M, N, inputs], and M."""
        members = seen.size(0)
        x = seen if actions is None else torch.cat([seen, actions], -1)
        head = self._modules["head"]  # read directly: torch's way takes as long as a layer
        assert head is not None
        count = networks_in(head) // members
        return (x[:, None].expand(-1, count, *[-1] * (x.dim() - 1)).flatten(0, 1) if count > 1 else x), count

    def forward(self, seen: Tensor, actions: Tensor | None = None) -> Tensor:
        members, rows = seen.shape[:2]
        if actions is not None and actions.dim() == 4:
            count = actions.size(1)
            x = torch.cat([seen[:, None].expand(-1, count, -1, -1), actions], -1).flatten(0, 1)
        else:
            x, count = self._read(seen, actions)
        if self.links is not None and rows > 1 and not torch.compiler.is_exporting():
            said = of_rows(self.links, x)
        else:
            said = self._modules["head"](self._modules["body"](x))  # type: ignore[misc]
        shape = (self.choices, self.size) if self.choices else (self.size,)
        return said.view(members, count, rows, *shape)


class QFunctions(ReplayCritic):
    """Q(s, a) by `count` networks, each with random numbers of its own; of Discrete actions all values at once.

    Its loss is the sum over the networks of each one's mean error against the target of `backup`, and the means of the
    `penalties`.

    Args:
        head: how a value is said. error: how far it is from the target. scale: what values are divided by before.
        learning: without a slow copy in `target`, it learns from what it says itself.
        last: where the last layer starts.
        noise: in the weights of all linear layers; another for what is learned, for each value that this learns from
            and for every step that is acted, none where the critic is evaluated or exported.

    Shapes: observations [P, N, D], actions [P, N, A] in units -> [P, M, N, K]; choices -> [P, M, N, A, K].

    >>> from etude.core.population import Member
    >>> from gymnasium.spaces import Box, Discrete
    >>> two = Population([Member(0), Member(1)])
    >>> critics = QFunctions(count=2).build((3,), Box(-1.0, 1.0, (1,)), two)
    >>> critics(torch.zeros(2, 5, 3), torch.zeros(2, 5, 1)).shape
    torch.Size([2, 2, 5, 1])
    >>> QFunctions().build((3,), Discrete(4), two)(torch.zeros(2, 5, 3)).shape
    torch.Size([2, 1, 5, 4, 1])
    """

    network: Network = WIDE
    count: Count = 1  # of the part, where it is 1 in other learners
    head: QHead = Scalar()
    backup: Backup = Bootstrap(FromPolicy())
    error: Error = Squared()
    estimates: ClassVar[bool] = True
    scale: ErrorScale | None = None
    penalties: tuple[CriticPenalty, ...] = ()
    last: Initializer = FanIn()
    noise: ParameterNoise | None = None
    learning: Learning = Learning(Adam(lr=3e-4), target=Target(rate=0.005))

    def objection(self, method: Method) -> str | None:
        if self.error.compares != self.head.says:
            return (
                f"says {self.head.says} ({type(self.head).__name__}), and {type(self.error).__name__} compares "
                f"{self.error.compares}: set critic.error or critic.head."
            )
        if self.count > 1 and self.head.size > 1:
            return f"says {self.head.size} numbers, of which there is no smallest: set critic.count=1."
        if self.scale is not None and self.head.says != "numbers":
            return f"says {self.head.says}, which {type(self.scale).__name__} cannot divide: leave out critic.scale."
        if Need.ESTIMATE in self.learning.optimizer.needs and (
            self.count > 1 or self.head.size > 1 or not isinstance(self.error, Squared)
            or self.scale is not None or self.penalties
        ):  # fmt: skip
            return (
                f"has one value for {type(self.learning.optimizer).__name__}, whose error is a difference: set "
                "critic.count=1, critic.head=scalar and critic.error=squared, and leave out critic.scale and "
                "critic.penalties."
            )
        return super().objection(method)

    def about_target(self) -> str | None:
        return None

    def lasting(self) -> ReplayLearner:
        usual = {"backup": Bootstrap(FromPolicy()), "error": Squared(), "scale": None, "penalties": ()}
        return super().lasting().replace(**usual)

    def build(self, shape: tuple[int, ...], actions: Space[Any], population: Population) -> nn.Module:
        choices, size = action_sizes(actions)
        if not choices and len(shape) != 1:
            raise ConfigError(
                f"QFunctions read actions beside vectors, and observations are images {list(shape)}: let an encoder "
                "make vectors of them (learners=critic-encoder, with critic-encoder in order)."
            )
        return self._built(shape, 0 if choices else size, choices, population)

    def build_joined(self, width: int, population: Population) -> nn.Module:
        return self._built((width,), 0, 0, population)

    def _built(self, shape: tuple[int, ...], size: int, choices: int, population: Population) -> nn.Module:
        critics = self._network(shape, size, choices, population.each(self.count, "critics"))
        if self.noise is not None:
            critics.noise = self.noise.put(critics, population.size)
        elif isinstance(critics, Critics):
            critics.links = rectified(critics.chain())
        return critics

    def _network(self, shape: tuple[int, ...], size: int, choices: int, each: Population) -> nn.Module:
        """One network for each of `each`, of what is seen and `size` numbers of an action, 0 where none are read."""
        if size:
            body, width = self.network.build_with_actions(shape[0], size, each, "critic")
        else:
            body, width = self.network.build(shape, each, "critic")
        return Critics(body, self.head.layer(each, "critic.head", width, choices, self.last), choices, self.head.size)

    def followed(self, store: Any) -> None:
        self.backup.followed(store)

    def counts(self, largest: Tensor, read: ReplayReading) -> Tensor:
        return self.backup.counts(largest, read)

    def targets(self, read: ReplayReading) -> Tensor:
        """What the networks learn, [P, M, N, K], M of 1 where it is the same for all."""
        return self.backup.target(read, self.head)[:, None]

    def loss(self, read: ReplayReading) -> Tensor:
        with torch.no_grad():
            target = self.targets(read)
        outputs = said = read.outputs("here", read.batch.actions)
        if self.scale is not None:
            with torch.no_grad():
                sigma = self.scale(read).to(target.dtype).view(-1, 1, 1, 1)
            outputs, target = outputs / sigma, target / sigma
        each = self.error(outputs, target).sum(-1)
        if read.wants_errors:
            read.tell(self._errors(outputs, target, each))
        importance = self.importance(read)
        loss = (each if importance is None else each * importance[:, None]).mean(2).sum(1)
        for penalty in self.penalties:
            loss = loss + penalty(read, said).mean(1)
        return loss

    def importance(self, read: ReplayReading) -> Tensor | None:
        """How much the error on each row counts, [P, N], without gradient; None: all of them 1."""
        return read.batch.offers.get("importance")

    @torch.no_grad()
    def differentiated(self, read: ReplayReading) -> Differentiated | None:
        batch = read.batch
        if self.scale is not None or self.penalties or type(self.error).slope is Error.slope:
            return None
        traced = read.traced(batch.actions)
        if traced is None:
            return None
        outputs, target = traced.outputs, self.targets(read)
        each, slope = self.error(outputs, target), self.error.slope(outputs, target)
        each = each.sum(-1) if each.size(-1) > 1 else each.squeeze(-1)
        if read.wants_errors:
            read.tell(self._errors(outputs, target, each))
        importance, share = self.importance(read), each.new_ones(1).div_(each.size(2))
        if importance is not None:
            each, share = each * importance[:, None], (share * importance)[:, None, :, None]
        loss = each.mean(2)
        loss = loss.sum(1) if loss.size(1) > 1 else loss.squeeze(1)
        assert slope is not None
        return Differentiated(loss, traced.slopes(slope * share))

    def estimate(self, read: ReplayReading) -> Estimate:
        batch = read.batch
        value = read.values(read.outputs("here", batch.actions))[:, 0]
        assert batch.discounts is not None
        with torch.no_grad():
            target, strays = self.targets(read)[:, 0, :, 0], self.backup.strays(read)
        over = batch.terminated | batch.truncated
        carry = batch.discounts.masked_fill(over if strays is None else over | strays, 0.0)
        return Estimate(value, target - value.detach(), carry)

    @torch.no_grad()
    def _errors(self, outputs: Tensor, target: Tensor, each: Tensor) -> Tensor:
        """[P, N] how far it was off: of one number the largest distance of its
        networks, else what it can lose, their mean.

        Of chances that is the divergence from the target, by which Rainbow draws rows (arXiv:1710.02298).
        """
        if self.head.says == "numbers" and self.head.size == 1:
            return (outputs - target).abs().squeeze(-1).amax(1)
        return (each - self.error.least(target).sum(-1)).mean(1).clamp(min=0.0)


def action_sizes(space: Space[Any]) -> tuple[int, int]:
    """How many choices there are, 0 of a Box, and how many numbers an action is. Raises ConfigError for others."""
    from gymnasium import spaces

    if isinstance(space, spaces.Discrete):
        return int(space.n), 1
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return 0, int(torch.tensor(space.shape).prod())
    raise ConfigError(
        f"Critics of actions are for Discrete ones and a Box of floats, and the actions are {space}: ppo takes them."
    )
