"""Steps of another method between a method's own, and what says which come next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from etude.core.errors import UnknownNameError
from etude.core.fields import Count, PositiveProbability, Probability
from etude.core.optimizer_slots import TokenOptimizer
from etude.core.part import Part
from etude.core.stage_slots import Chooser, SomeMethod, Turn
from etude.core.streams import Stream
from etude.core.worlds import World
from etude.curricula.kept import HardProblems
from etude.stages.phases import Timed, like


class Like(Turn):
    """Steps as a registered method takes them, in every slot but what is trained, and the reference.

    Args:
        id: the method to follow.
        keep: slots that stay the method's own, beside these.
        optimizer: takes these steps, with moments of its own that begin with the stage; empty: the method's own
            optimizer takes them all, one after another.

    Raises: UnknownNameError for a method or a slot that does not exist; ConfigError for a method of another kind.

    >>> from etude.optimizers.adam import AdamW
    >>> Like(id="sft", keep=("regularizers",), optimizer=AdamW(clip_norm=0.7)).optimizer.clip_norm
    0.7
    """

    id: str = "sft"
    keep: tuple[str, ...] = ()
    optimizer: TokenOptimizer | None = None

    def apply(self, method: SomeMethod) -> SomeMethod:
        for slot in self.keep:
            if slot not in method.slot_names():
                raise UnknownNameError(f"slot of {method.id}", slot, method.slot_names())
        other = like(method, self.id, {"optimizer", "reference", *self.keep})
        return other if self.optimizer is None else other.replace(optimizer=self.optimizer)


class AfterSteps(Chooser):
    """The other method's steps first, `steps` of them, then the method's own.

    >>> chooser = AfterSteps(steps=2)
    >>> [chooser.chooses_other(taken, 4, Stream(0)) for taken in range(4)]
    [True, True, False, False]
    """

    steps: Count = 1

    def chooses_other(self, taken: int, count: int, stream: Stream) -> bool:
        return taken < self.steps


# By chance


class Chance(Part, abstract=True):
    """How likely the next step is the other method's."""

    slot = "chance"

    def at(self, taken: int, count: int) -> float:
        """The probability, `taken` steps of the stage's `count` being done."""
        raise NotImplementedError

    def told(self, other: bool, metrics: Mapping[str, float]) -> None:
        """As of `Chooser`."""


class ConstantChance(Chance):
    """The same in every step.

    >>> ConstantChance(p=0.25).at(3, 10)
    0.25
    """

    p: Probability = 0.5

    def at(self, taken: int, count: int) -> float:
        return self.p


class CosineChance(Chance):
    """From `first` to `last` over the stage, in half a wave: last + (first - last) (1 + cos(pi taken / count)) / 2.

    >>> [round(CosineChance().at(taken, 4), 4) for taken in range(4)]
    [1.0, 0.8536, 0.5, 0.1464]
    """

    first: Probability = 1.0
    last: Probability = 0.0

    def at(self, taken: int, count: int) -> float:
        return self.last + (self.first - self.last) * (1 + math.cos(math.pi * taken / count)) / 2


class ByChance(Chooser):
    """Each step is the other method's with a probability of its own; `chance` is reported.

    >>> sure = ByChance(chance=ConstantChance(p=1.0)).bind()
    >>> sure.chooses_other(0, 10, Stream(0)), sure.metrics()
    (True, {'chance': 1.0})
    """

    chance: Chance = ConstantChance()

    def initial_state(self) -> dict[str, Any]:
        return {"chance": 0.0}

    def chooses_other(self, taken: int, count: int, stream: Stream) -> bool:
        self.state["chance"] = self.chance.at(taken, count)
        return bool(stream.numpy.random() < self.state["chance"])

    def told(self, other: bool, metrics: Mapping[str, float]) -> None:
        self.chance.told(other, metrics)

    def metrics(self) -> dict[str, float]:
        return {"chance": self.state["chance"]}


# On an event


class WhenFull(Chooser):
    """The other method's step, on `size` of the problems that a buffer keeps, once it has as many.

    After such a step comes one of the method's own, however many are left. `kept` is how many there were.

    Args:
        size: problems of a step.
        buffer: keeps problems of all steps of the method.

    >>> chooser = WhenFull(size=2).bind()
    >>> chooser.chooses_other(0, 10, Stream(0)), chooser.metrics()
    (False, {'kept': 0.0})
    """

    size: Count = 16
    buffer: HardProblems = HardProblems()

    def initial_state(self) -> dict[str, Any]:
        return {"last": False, "kept": 0}

    def applied(self, other: SomeMethod) -> SomeMethod:
        return other.replace(curriculum=self.buffer, problems=self.size)

    def chooses_other(self, taken: int, count: int, stream: Stream) -> bool:
        self.state["kept"] = len(self.buffer.kept)
        return self.state["kept"] >= self.size and not self.state["last"]

    def told(self, other: bool, metrics: Mapping[str, float]) -> None:
        self.state["last"] = other

    def metrics(self) -> dict[str, float]:
        return {"kept": float(self.state["kept"])}


# The stage


class Interleaved(Timed):
    """Until `end` of all steps, each step is the method's own or another method's, as the chooser says.

    Both train the same policy, against the same reference. Steps count alike, and schedules go by all of them.
    Parts that both methods have are one part with one state.

    Args:
        turn: what the other steps are like.
        chooser: which come next.
        end: fraction of the training steps at which the stage ends.
        optimizer, reference: what begins anew with the stage, as in `Phase`.

    >>> Interleaved(turn=Like(id="sft"), chooser=ByChance(chance=ConstantChance(p=0.2)), end=0.5).until()
    0.5
    """

    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})
    turn: Turn = Like()
    chooser: Chooser = ByChance()
    end: PositiveProbability = 1.0
    optimizer: Literal["keep", "reset"] = "keep"
    reference: Literal["keep", "reset"] = "keep"

    @property
    def own_optimizer(self) -> bool:
        return self.turn.optimizer is not None

    def apply(self, method: SomeMethod) -> SomeMethod:
        return method

    def other(self, method: SomeMethod) -> SomeMethod:
        return self.chooser.applied(self.turn.apply(method)).replace(stages=())
