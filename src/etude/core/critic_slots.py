"""What a critic of stored rows is made of: one abstract part per slot, with the signature that a loop calls.

Q values lead with the members and have the critics next, [P, M, N]; shapes and units are as in `core/replay_slots.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from etude.core.part import Part
from etude.core.replay_slots import ReplayReading
from etude.core.step_slots import Initializer

if TYPE_CHECKING:
    from gymnasium import Space
    from torch import Tensor, nn

    from etude.core.method import Method
    from etude.core.population import Population

Said = Literal["numbers", "probabilities", "quantiles"]
"""What the K numbers of a critic's head are."""


class Reduction(Part, abstract=True):
    """One value from those of M critics."""

    slot = "reduce"
    first: ClassVar[bool] = False
    """Whether only the first critic is asked."""

    def __call__(self, values: Tensor, read: ReplayReading) -> Tensor:
        """[P, M, ...] -> [P, ...]."""
        raise NotImplementedError


class ErrorScale(Part, abstract=True):
    """What a critic's errors are divided by."""

    slot = "scale"

    def __call__(self, read: ReplayReading) -> Tensor:
        """[P], above 0, without gradient; learns from the rows."""
        raise NotImplementedError


class Error(Part, abstract=True):
    """How far a prediction is from its target."""

    slot = "error"
    compares: ClassVar[Said] = "numbers"

    def __init_subclass__(cls, abstract: bool = False, **options: object) -> None:
        super().__init_subclass__(abstract, **options)
        if "__call__" in cls.__dict__ and "slope" not in cls.__dict__:
            cls.slope = Error.slope  # type: ignore[method-assign]  # another error has not that of what it is made of

    def __call__(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Of each of the K numbers, [..., K] both; their sum is what is minimised."""
        raise NotImplementedError

    def slope(self, prediction: Tensor, target: Tensor) -> Tensor | None:
        """How much each changes with its prediction, [..., K], to the bits of autograd; None: it must be asked."""
        return None

    def least(self, target: Tensor) -> Tensor:
        """What it is at least against this target, [..., K]."""
        return 0.0 * target


class QHead(Part, abstract=True):
    """How a critic says a value: as K numbers."""

    slot = "head"
    says: ClassVar[Said] = "numbers"
    bounded_by: ClassVar[tuple[str, ...]] = ("low", "high")
    """Its fields on which `bounds` rest."""

    def layer(self, population: Population, name: str, width: int, choices: int, start: Initializer) -> nn.Module:
        """The last layer, [P, N, width] to K numbers of each choice, `choices` of 0 meaning one value."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """K."""
        raise NotImplementedError

    def bounds(self) -> Tensor | None:
        """The least and the largest value that it can say, [1, 2], or of each member, [P, 2]; None: it says any."""
        return None

    def mean(self, outputs: Tensor) -> Tensor:
        """[..., K] -> [...]: the values."""
        raise NotImplementedError

    def target(self, rewards: Tensor, discounts: Tensor, outputs: Tensor) -> Tensor:
        """What r + discount * (what is said of what follows) is, as K numbers: [P, N] and [P, N, K] -> [P, N, K]."""
        raise NotImplementedError


class Following(NamedTuple):
    """What a critic says of what is done next, [P, M, N, K], and the log-probability of that, [P, N].

    Where the chances [P, N, A] of A choices are known, outputs are of all of them, [P, M, N, A, K].
    """

    outputs: Tensor
    logp: Tensor | None = None
    chances: Tensor | None = None


class Rule(Part, abstract=True):
    """What is done at the next observation, of which the critic's slow copy says what it is worth."""

    slot = "rule"

    def strays(self, read: ReplayReading) -> Tensor | None:
        """[P, N] where what was done here is not what the rule does, so that traces end there; None: nowhere."""
        return None

    def __call__(self, read: ReplayReading) -> Following:
        raise NotImplementedError


class Backup(Part, abstract=True):
    """What a critic learns."""

    slot = "backup"

    def strays(self, read: ReplayReading) -> Tensor | None:
        """As of a rule."""
        return None

    def target(self, read: ReplayReading, head: QHead) -> Tensor:
        """[P, N, K], without gradient."""
        raise NotImplementedError

    def followed(self, store: Any) -> None:
        """See all that is stored: the critic's slow copy has just moved."""

    def counts(self, largest: Tensor, read: ReplayReading) -> Tensor:
        """The most that a step counts in the target, [P], where rewards were `largest` at most."""
        return largest


class Weighed(NamedTuple):
    """What a critic says of C actions at each of N rows, with gradient, and how likely it was to ask about them.

    values: [P, M, N, C]. logp: [P, 1, N, C], logarithms of the densities that actions were drawn from; 0 where all that
    there are stand here. chosen: [C], where it is the policy that chose the action; None: nobody drew any.
    """

    values: Tensor
    logp: Tensor
    chosen: Tensor | None


class WeighedActions(Part, abstract=True):
    """Actions at rows over which a penalty adds up exp(Q)."""

    slot = "actions"

    def __call__(self, read: ReplayReading) -> Weighed:
        raise NotImplementedError


class PenaltyFloor(Part, abstract=True):
    """What values of the policy's actions count at least in a penalty."""

    slot = "floor"

    def __call__(self, read: ReplayReading) -> Tensor:
        """[P, N], without gradient."""
        raise NotImplementedError


class CriticPenalty(Part, abstract=True):
    """What a critic minimises beside its error."""

    slot = "penalties"

    def __call__(self, read: ReplayReading, outputs: Tensor) -> Tensor:
        """[P, N], added up over the critics, weight included.

        Args:
            outputs: [P, M, N, K] what the critic says of what was done, with gradient.
        """
        raise NotImplementedError


class TargetNoise(Part, abstract=True):
    """What is added to the actions of a backup."""

    slot = "noise"

    def __call__(self, actions: Tensor, read: ReplayReading) -> Tensor:
        """Actions [P, N, A] in units."""
        raise NotImplementedError


class ParameterNoise(Part, abstract=True):
    """Random numbers in the weights of a network, which are drawn anew for every update and every step that it acts."""

    slot = "parameter_noise"

    def put(self, network: nn.Module, members: int) -> Any:
        """Make layers of a network noisy, where they stand; returns what they read (`policies/control/noise.py`)."""
        raise NotImplementedError


class EntropyTarget(Part, abstract=True):
    """The entropy that a temperature holds a policy to, in nats."""

    slot = "entropy"

    def of(self, actions: Space[Any]) -> float:
        """For a Gymnasium space of actions."""
        raise NotImplementedError


def entropy_objection(method: Method) -> str | None:
    """Why a method's policy has no entropy that counts at a temperature, as the rest of a sentence."""
    if not any(hasattr(part, "offers_temperature") for part in method.slots()["learners"]):
        return "counts the policy's entropy, and no learner offers a temperature: set learners=temperature."
    return unscored(method)


def unscored(method: Method) -> str | None:
    """Why a method's policy has no entropy, as the rest of a sentence."""
    policy = method.slots()["policy"]
    if policy is None or policy.scores:
        return None
    return (
        f"asks for the policy's entropy, and {type(policy).__name__} has no log-probabilities of what it does: leave "
        "it out, or set policy=squashed-policy."
    )
