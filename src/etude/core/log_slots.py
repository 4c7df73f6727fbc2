"""The vocabulary of learning from logs: one abstract part per slot, with the signature that a loop calls.

Shapes and units are those of `core/replay_slots.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from etude.core.critic_slots import Reduction
from etude.core.part import Part
from etude.core.replay_slots import ReplayLearner, ReplayReading

if TYPE_CHECKING:
    from torch import Tensor, nn

    from etude.core.method import Method


class LogTransform(Part, abstract=True):
    """What is done to logs once, before anything is learned from them, in the order in which a method names them.

    One that is `Observations` too makes a module that everybody sees through who learns or acts: it is part of the
    policy, of its checkpoints and its export.
    """

    slot = "transforms"
    adds: ClassVar[str] = ""
    """The column that it adds to every row, by its name in `Transitions.offers`; empty: none."""

    def __call__(self, logs: Any, method: Method) -> Any:
        """The logs to learn from (`experience/logs/table.py`) in the place of these."""
        return logs

    def of_episode(self, rewards: Any, method: Method) -> Any:
        """The column that it adds [n, ...] of an episode that was acted, of rewards [n] float64; None: nobody knows."""
        return None

    def fit(self, module: nn.Module, logs: Any) -> None:
        """Give the module that it made what it needs of the logs."""

    def sentence(self, before: Any, after: Any) -> str:
        """What it changed, for people; rows in and rows out are said beside it."""
        raise NotImplementedError


def has_column(method: Method, name: str) -> bool:
    """Whether a transform adds a column of this name to rows that are learned from."""
    slots = method.slots()
    kept = slots["experience"] is None or slots["experience"].keeps_logs
    return kept and any(part.adds == name for part in slots["transforms"])


class ReplayValue(ReplayLearner, abstract=True):
    """A critic of states beside one of actions: `ReplayReading.state_outputs` is what it says."""

    slot = "value"

    def worth(self, outputs: Tensor) -> Tensor:
        """[P, M, N, K] what it said -> values [P, N]."""
        raise NotImplementedError


class Towards(Part, abstract=True):
    """Which actions a policy is drawn to at the rows that it reads."""

    slot = "towards"

    def __call__(self, read: ReplayReading) -> Tensor:
        """Actions [P, N, A] in units, or choices, without gradient."""
        raise NotImplementedError


class CloneWeight(Part, abstract=True):
    """How much the row counts to whose action a policy is drawn."""

    slot = "clone_weight"

    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        """[P, N], at least 0, without gradient, for actions [P, N, A]."""
        raise NotImplementedError


class Baseline(Part, abstract=True):
    """What an action's value is held against."""

    slot = "baseline"

    def __call__(self, read: ReplayReading, over: Reduction) -> Tensor:
        """[P, N], without gradient; `over` makes one value of those of several critics."""
        raise NotImplementedError


class CloneError(Part, abstract=True):
    """How far a policy is from actions."""

    slot = "clone_error"
    of_chance: ClassVar[bool] = False
    """Whether it asks how likely they are."""

    def __call__(self, read: ReplayReading, actions: Tensor) -> Tensor:
        """[P, N] for actions [P, N, A], with gradient to the policy."""
        raise NotImplementedError

    def objection(self, method: Method) -> str | None:
        policy = method.slots()["policy"]
        if self.of_chance and policy is not None and not policy.scores:
            return (
                f"asks how likely actions are, which {type(policy).__name__} cannot say: set policy=squashed-policy or "
                "another that has chances."
            )
        return None


class EpisodeScore(Part, abstract=True):
    """How good an episode of logs is, beside the others."""

    slot = "by"

    def __call__(self, returns: Any, first: Any) -> Any:
        """[E] of every episode, which earned `returns` [E] and began with the observations `first` [E, D]."""
        raise NotImplementedError


class QScale(Part, abstract=True):
    """What values are multiplied by where a policy climbs them, beside other terms."""

    slot = "q_scale"

    def __call__(self, values: Tensor) -> Tensor:
        """[P, 1] for values [P, N], without gradient."""
        raise NotImplementedError
