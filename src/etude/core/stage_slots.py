"""The slots of stages: what happens in which order, and which steps are another method's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from etude.core.part import Part
from etude.core.streams import Stream

if TYPE_CHECKING:
    from etude.core.method import Method
    from etude.core.optimizer_slots import TokenOptimizer

SomeMethod = TypeVar("SomeMethod", bound="Method")


class Stage(Part, abstract=True):
    """What happens in which order: `changes` replace slots of the method until `until` of all steps are done."""

    slot = "stages"

    def until(self) -> float:
        """Fraction of the training steps at which this stage ends."""
        raise NotImplementedError

    def apply(self, method: SomeMethod) -> SomeMethod:
        """The method as it is during this stage: any slot may be another's but what is trained (`Method.stays`)."""
        raise NotImplementedError

    def resets(self) -> frozenset[str]:
        """The slots that start anew when this stage begins: 'optimizer', 'reference'. All others go on."""
        return frozenset()

    @property
    def chooser(self) -> Chooser | None:
        """What says which of its steps are another method's; fields of this name take its place."""
        return None

    def other(self, method: SomeMethod) -> SomeMethod | None:
        """The method that steps follow which the chooser gives to another one; None: there are none."""
        return None

    @property
    def own_optimizer(self) -> bool:
        """Whether these steps have an optimizer of their own, with a state of its own while the stage lasts."""
        return False


class Chooser(Part, abstract=True):
    """Which steps of a stage are another method's."""

    slot = "chooser"

    def applied(self, other: SomeMethod) -> SomeMethod:
        """The other method, with what the choice itself settles: which problems it was made for, say."""
        return other

    def chooses_other(self, taken: int, count: int, stream: Stream) -> bool:
        """Whether the next step is the other method's, `taken` steps of the stage's `count` being done."""
        raise NotImplementedError

    def told(self, other: bool, metrics: Mapping[str, float]) -> None:
        """What a step came to, of this stage or of another; `other`: whether it was like the other method's."""

    def metrics(self) -> dict[str, float]:
        """What it went by in the last choice, to be reported."""
        return {}


class Turn(Part, abstract=True):
    """What steps are like that a stage gives to another method."""

    slot = "turn"

    @property
    def optimizer(self) -> TokenOptimizer | None:
        """What takes their steps; None: the method's own; fields of this name take its place."""
        return None

    def apply(self, method: SomeMethod) -> SomeMethod:
        """The other method."""
        raise NotImplementedError
