"""What happens in which order."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from etude.core.errors import ConfigError
from etude.core.fields import PositiveProbability
from etude.core.registry import compositions
from etude.core.stage_slots import SomeMethod, Stage

if TYPE_CHECKING:
    from etude.core.method import Method

OWN = ("stages", "policy")
"""Slots that are the method's in every phase: the phases themselves, and what is trained."""


def like(method: SomeMethod, name: str, kept: Collection[str]) -> SomeMethod:
    """The method with the slots of another one, but for what is trained and those that are kept.

    Raises: ConfigError if the other one is of another kind.
    """
    other = next((m for m in compositions(name) if type(m) is type(method)), None)
    if other is None:
        raise ConfigError(f"{method.id}: a phase cannot be like {name}, which is of another kind.")
    return method.replace(**{k: v for k, v in other.slots().items() if k not in {*OWN, *kept}})


class Timed(Stage, abstract=True):
    """A stage that lasts until `end` of all steps, and says what starts anew with it."""

    def until(self) -> float:
        end: float = self.fields()["end"]
        return end

    def resets(self) -> frozenset[str]:
        return frozenset(slot for slot in ("optimizer", "reference") if self.fields()[slot] == "reset")

    def objection(self, method: Method) -> str | None:
        ends = [s.until() for s in method.slots()["stages"] if isinstance(s, Timed)]
        if ends != sorted(set(ends)):
            return f"must end after the phase before it; the ends are {', '.join(map(str, ends))}."
        if max(ends) < 1.0:
            raise ConfigError(f"{method.id}: the last phase ends at {max(ends)} of the steps; give it end=1.")
        return None


class Phase(Timed):
    """Until `end` of all steps, learn as another method does: a supervised warm start, say, before reinforcement.

    `stages=(Phase(like="sft", end=0.3), Phase())` is thirty percent of supervised steps, then the method itself.
    The policy's weights go on from phase to phase, and so does what a part has learned or counted, if the next phase
    has the same part. Every slot is the other method's, but for what is trained and what is kept.

    Args:
        like: id of the method to follow; empty for the method itself.
        end: fraction of the training steps at which the phase ends.
        optimizer: 'keep' goes on with the optimizer before, its moments and its schedule; 'reset' begins with a fresh
            one, that of the method which the phase follows.
        reference: 'keep' goes on with the reference before; 'reset' takes the policy as it is when the phase begins,
            refreshed as the method says which the phase follows.

    >>> [phase.until() for phase in (Phase(like="sft", end=0.3), Phase())]
    [0.3, 1.0]
    """

    like: str = ""
    end: PositiveProbability = 1.0
    optimizer: Literal["keep", "reset"] = "keep"
    reference: Literal["keep", "reset"] = "keep"

    def apply(self, method: SomeMethod) -> SomeMethod:
        return like(method, self.like, {"optimizer", "reference"} - self.resets()) if self.like else method
