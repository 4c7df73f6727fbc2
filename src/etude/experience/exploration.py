"""What is done while data is gathered: the policy's action, or something near it, in units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.fields import Count, NonNegative, Probability
from etude.core.sampling_slots import Drawing, Exploration
from etude.policies.control.any_units import EndlessBox
from etude.policies.control.units import Bounded, in_units

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.policies.control.actor import Actor


class Greedy(Exploration):
    """What the policy does without chance.

    Shapes: actions [P, E, A].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.policies.control.units import Point
    >>> Greedy().act(Rows(distribution=Point((-1.0,), (1.0,))), torch.zeros(1, 1, 1), None, 0).item()
    0.0
    """

    def act(self, actor: Actor, said: Tensor, draw: Drawing, acted: int) -> Tensor:
        return in_units(actor).middle(said)


class Sampled(Exploration):
    """What the policy does by chance.

    Shapes: actions [P, E, A].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.policies.control.units import SquashedBox
    >>> actor = Rows(distribution=SquashedBox((-1.0,), (1.0,), -20.0, 2.0))
    >>> draw = lambda name, of: torch.zeros(1, 1, 1)
    >>> Sampled().act(actor, torch.tensor([[[0.5, 0.0]]]), draw, 0).item() == torch.tanh(torch.tensor(0.5)).item()
    True
    """

    def act(self, actor: Actor, said: Tensor, draw: Drawing, acted: int) -> Tensor:
        return in_units(actor).chosen(said, self.noise(actor, said.shape[1], draw)).actions

    def noise(self, actor: Actor, count: int, draw: Drawing) -> Tensor:
        spread = in_units(actor)
        return draw("actions", lambda generator, times: spread.noise((times, count), generator))


class _OfBoxes(Exploration, abstract=True):
    """Noise that is added to actions of a Box."""

    def objection(self, method: Method) -> str | None:
        if getattr(method.slots()["policy"], "made_of_critic", False):
            return "adds numbers to actions, and choices are no numbers: set exploration=epsilon-greedy."
        return None

    def accepts(self, spread: Any) -> None:
        if not isinstance(spread, Bounded) or isinstance(spread, EndlessBox):
            what = "some of these actions have none" if isinstance(spread, EndlessBox) else "there are choices in these"
            raise ConfigError(
                f"{type(self).__name__} adds numbers to actions and keeps them within their bounds, and {what}: set "
                "exploration=sampled."
            )


class GaussianNoise(_OfBoxes):
    """The policy's action and a normal of deviation `scale`, kept within [-1, 1].

    Shapes: actions [P, E, A].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.policies.control.units import Point
    >>> draw = lambda name, of: torch.full((1, 1, 1), 2.0)
    >>> GaussianNoise(scale=0.1).act(Rows(distribution=Point((-1.0,), (1.0,))), torch.zeros(1, 1, 1), draw, 0).item()
    0.20000000298023224
    """

    scale: NonNegative = 0.1

    def act(self, actor: Actor, said: Tensor, draw: Drawing, acted: int) -> Tensor:
        mean = in_units(actor).middle(said)
        shape = mean.shape[1:]
        noise = draw("noise", lambda generator, count: torch.randn(count, *shape, generator=generator))
        return (mean + noise * self.scale).clamp(-1.0, 1.0)


class OrnsteinUhlenbeck(_OfBoxes):
    """The policy's action and noise that returns to 0 slowly (arXiv:1509.02971), from 0 where an episode begins.

        x <- x - rate x + scale n,   n standard normal

    Shapes: actions [P, E, A].

    >>> from types import SimpleNamespace as Rows
    >>> from etude.policies.control.units import Point
    >>> part, actor = OrnsteinUhlenbeck(rate=0.5, scale=0.2).bind(), Rows(distribution=Point((-1.0,), (1.0,)))
    >>> draw = lambda name, of: torch.ones(1, 1, 1)
    >>> [round(part.act(actor, torch.zeros(1, 1, 1), draw, t).item(), 3) for t in range(3)]
    [0.2, 0.3, 0.35]
    """

    rate: Probability = 0.15
    scale: NonNegative = 0.2

    def act(self, actor: Actor, said: Tensor, draw: Drawing, acted: int) -> Tensor:
        mean = in_units(actor).middle(said)
        shape = mean.shape[1:]
        normal = draw("noise", lambda generator, count: torch.randn(count, *shape, generator=generator))
        before: Tensor = self.state.get("noise", torch.zeros_like(mean))
        noise = before - before * self.rate + normal * self.scale
        self.state["noise"] = noise
        return (mean + noise).clamp(-1.0, 1.0)

    def ended(self, done: Tensor) -> None:
        if "noise" in self.state:
            self.state["noise"] = self.state["noise"].masked_fill(done[..., None].to(self.state["noise"].device), 0.0)


class _OfChoices(Exploration, abstract=True):
    """Any choice, with some chance, instead of the best."""

    def chance(self, acted: int) -> Any:
        """Of any choice, after so many environment steps; one, one per member, or one per environment [P, E, 1]."""
        raise NotImplementedError

    def act(self, actor: Actor, said: Tensor, draw: Drawing, acted: int) -> Tensor:
        return in_units(actor).middle(said)

    def instead(self, actor: Actor, count: int, draw: Drawing, acted: int) -> tuple[Tensor, Tensor]:
        spread = in_units(actor)
        chances = draw("chances", lambda generator, n: torch.rand(n, count, 1, generator=generator))
        anything = draw("choices", lambda generator, n: spread.anything((n, count), generator))
        return chances < self.chance(acted), anything


class EpsilonGreedy(_OfChoices):
    """With a chance that falls from `start` to `end` any choice, else the best (doi:10.1038/nature14236).

    Args:
        over: environment steps of each member over which the chance falls, linearly.

    Shapes: choices [P, E, 1].

    >>> [round(EpsilonGreedy(start=1.0, end=0.1, over=100).chance(n), 3) for n in (0, 50, 100, 900)]
    [1.0, 0.55, 0.1, 0.1]
    """

    start: Probability = 1.0
    end: Probability = 0.05
    over: Count = 10_000

    def chance(self, acted: int) -> Any:
        return self.start + (self.end - self.start) * min(1.0, acted / self.over)


class DrawnEpsilon(_OfChoices):
    """`EpsilonGreedy` where every environment draws once to which chance it falls (arXiv:1602.01783, section 5.1).

    Some go on trying, some nearly do the best. What was drawn is kept: a resumed run goes on with it.

    Args:
        ends: chances to end with. shares: how likely each is to be drawn; they sum to 1.
        over: environment steps of each member, all workers together, over which the chance falls, linearly.

    Shapes: choices and chances [P, E, 1].

    >>> part = DrawnEpsilon(ends=(0.1, 0.01, 0.5), shares=(0.4, 0.3, 0.3), over=100).bind()
    >>> part.begin(torch.tensor([0.39, 0.41, 0.71]).view(1, 3, 1))
    >>> [[round(x, 3) for x in part.chance(n).flatten().tolist()] for n in (0, 50, 900)]
    [[1.0, 1.0, 1.0], [0.55, 0.505, 0.75], [0.1, 0.01, 0.5]]
    """

    ends: tuple[Probability, ...] = (0.1, 0.01, 0.5)
    shares: tuple[Probability, ...] = (0.4, 0.3, 0.3)
    start: Probability = 1.0
    over: Count = 10_000

    def check(self) -> None:
        if len(self.ends) != len(self.shares) or not self.ends or abs(sum(self.shares) - 1) > 1e-6:
            raise ConfigError(
                f"DrawnEpsilon draws one of ends={self.ends} by shares={self.shares}: there must be as many of these, "
                "and they must sum to 1."
            )

    def begin(self, drawn: Tensor) -> None:
        """Choose by uniform numbers, [P, E, 1]."""
        last = torch.tensor(self.shares, dtype=torch.float64).cumsum(0)[:-1].to(drawn)
        self.state["ends"] = torch.tensor(self.ends).to(drawn)[torch.bucketize(drawn.contiguous(), last, right=True)]

    def chance(self, acted: int) -> Any:
        return self.start + (self.state["ends"] - self.start) * min(1.0, acted / self.over)

    def instead(self, actor: Actor, count: int, draw: Drawing, acted: int) -> tuple[Tensor, Tensor]:
        if "ends" not in self.state:
            self.begin(draw("ends", lambda generator, n: torch.rand(n, count, 1, generator=generator)))
        return super().instead(actor, count, draw, acted)
