"""What a method is for one of several players: what it sees, what it is paid, what it learns, with which weights."""

from __future__ import annotations

from typing import Any

from etude.core.episodes import FIRST
from etude.core.errors import ConfigError
from etude.core.optimizer_slots import TokenOptimizer
from etude.core.part import Part
from etude.core.player_slots import Role, Seat
from etude.core.slots import Filter, GroupReward, Reward, TokenAdvantages, TokenObjective, TokenRegularizer, TokenReward
from etude.core.stage_slots import SomeMethod
from etude.experience.views import View

OWN = ("rewards", "filters", "advantages", "objective", "regularizers")
"""Slots of a method that a player may have in its own way."""


class OwnWeights(Part):
    """Weights beside those that the run begins with: a model with an optimizer and a sampler of its own.

    Where the run trains an adapter this is another adapter over the same base, whose tensors both share.

    Args:
        called: its name; roles with weights of one name share them.
        start: what it begins as, a name or a folder; '' for a copy of what the run begins with. Its tokens must be
            those of the run's model.
        optimizer: what takes its steps; None: one like the method's, with a state of its own.

    Two roles that name the same weights share one model, which the checkpoint has beside the first:

    >>> roles = [Plays(name, weights=OwnWeights(called="critic")) for name in ("critic", "judge")]
    >>> len({"policy", *(role.model for role in roles)})
    2
    """

    slot = "weights"
    called: str = "second"
    start: str = ""
    optimizer: TokenOptimizer | None = None

    def check(self) -> None:
        if self.called == FIRST or not self.called.replace("_", "").replace("-", "").isalnum():
            raise ConfigError(
                f"OwnWeights.called must be a word other than {FIRST!r}, which is the run's own model, got "
                f"{self.called!r}."
            )


class Plays(Role):
    """A player's prompt and view, and what it has in a way of its own: rewards, filters, advantages, objective.

    What is None is the method's. Rows of a player are paid, compared and learned from among themselves; on weights that
    several players share, an optimizer step goes along the sum of their gradients, each of a loss with a denominator of
    its own.

    Args:
        player: whose role it is, as the task or the experience calls it.
        prompt: text that it is shown before all else; the system's message in a conversation.
        view: what it sees before each turn.
        trained: whether anything is learned from what it says.
        apart: whether steps are taken on its rows alone, after those on the rows of all others.
        weights: a model of its own; None: the run's.

    The objective is the solver's own, the rewards are the method's:

    >>> from etude import method
    >>> from etude.objectives.policy_gradient import ClippedSurrogate
    >>> own = Plays("solver", objective=ClippedSurrogate(high=0.28)).follows(method("grpo"))
    >>> own.objective.high, own.rewards == method("grpo").rewards
    (0.28, True)
    """

    player: str = FIRST
    prompt: str = ""
    view: View | None = None
    rewards: tuple[Reward | TokenReward | GroupReward, ...] | None = None
    filters: tuple[Filter, ...] | None = None
    advantages: TokenAdvantages | None = None
    objective: TokenObjective | None = None
    regularizers: tuple[TokenRegularizer, ...] | None = None
    trained: bool = True
    apart: bool = False
    weights: OwnWeights | None = None

    @property
    def model(self) -> str:
        return FIRST if self.weights is None else self.weights.called

    @property
    def start(self) -> str:
        return "" if self.weights is None else self.weights.start

    def seat(self, policy: Any) -> Seat:
        return Seat(policy, self.prompt, self.view)

    def follows(self, method: SomeMethod) -> SomeMethod:
        own = {slot: value for slot in OWN if (value := getattr(self, slot)) is not None}
        if self.weights is not None and self.weights.optimizer is not None:
            own["optimizer"] = self.weights.optimizer
        return method.replace(roles=(), **own)
