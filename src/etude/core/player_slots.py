"""The vocabulary of several players: what a role says of one of them, and where a player sits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from etude.core.episodes import FIRST
from etude.core.part import Part
from etude.core.worlds import World

if TYPE_CHECKING:
    from etude.core.method import Method

SomeMethod = TypeVar("SomeMethod", bound="Method")


@dataclass(frozen=True)
class Seat:
    """Where a player sits.

    Args:
        policy: the model that it speaks with (an `etude.policies.language.LanguagePolicy`).
        prompt: text before all else that it is shown.
        view: what it sees before each turn (an `etude.experience.views.View`); None: what the experience says.
    """

    policy: Any
    prompt: str = ""
    view: Any = None


class Role(Part, abstract=True):
    """What a method is for one of several players; a player without a role follows the method as it stands."""

    slot = "roles"
    worlds: ClassVar[frozenset[World]] = frozenset({World.LANGUAGE})

    @property
    def trained(self) -> bool:
        """Whether anything is learned from what it says."""
        return True

    @property
    def apart(self) -> bool:
        """Whether its rows are learned from in optimizer steps of their own, after those on the others' rows."""
        return False

    @property
    def player(self) -> str:
        """Whose it is; fields of this name take its place."""
        return FIRST

    @property
    def called(self) -> str:
        """What `--set roles.NAME...` calls it."""
        return self.player

    @property
    def model(self) -> str:
        """The name of the model that it speaks with; roles of one name share its weights, and its optimizer."""
        return FIRST

    @property
    def start(self) -> str:
        """What that model begins as: '' for a copy of the one that the run begins with, else a name or a folder."""
        return ""

    def lasting(self) -> Any:
        """What of it goes on from stage to stage."""
        return self.player, self.model, self.start

    def seat(self, policy: Any) -> Seat:
        """Where it sits, with this model."""
        return Seat(policy)

    def follows(self, method: SomeMethod) -> SomeMethod:
        """The method as this player follows it."""
        return method.replace(roles=())
