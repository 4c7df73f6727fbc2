"""Who plays a method's episodes, what each player follows, and what contradicts between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from etude.core.episodes import FIRST
from etude.core.errors import UnknownNameError

if TYPE_CHECKING:
    from etude.core.complete import CompleteTokenMethod
    from etude.core.kinds import TokenMethod
    from etude.core.player_slots import Role
    from etude.core.task import Task


@dataclass(frozen=True)
class Player:
    """One of several players, or the only one.

    Args:
        method: what it follows: its rewards, filters, advantages, objective.
        role: what makes this of the run's method; None: it follows that as it stands.
        model: the name of the weights that it speaks with.
    """

    name: str
    method: CompleteTokenMethod
    role: Role | None = None
    model: str = FIRST

    @property
    def trained(self) -> bool:
        """Whether anything is learned from what it says."""
        return self.role is None or self.role.trained

    @property
    def apart(self) -> bool:
        """Whether steps are taken on its rows alone."""
        return self.role is not None and self.role.apart


def names_of(method: TokenMethod, task: Task) -> tuple[str, ...]:
    """Who plays: as the experience says, else the task."""
    told = () if method.experience is None else method.experience.players
    return told or getattr(task, "players", ()) or (FIRST,)


def players_of(method: TokenMethod, task: Task) -> tuple[Player, ...]:
    """All players, in the order of `TokenBatch.player`."""
    roles, whole = {role.player: role for role in method.roles}, cast("CompleteTokenMethod", method)
    if not roles:
        return tuple(Player(name, whole) for name in names_of(method, task))
    plain = cast("CompleteTokenMethod", method.replace(roles=()))
    return tuple(
        Player(name, cast("CompleteTokenMethod", role.follows(method)), role, role.model)
        if (role := roles.get(name)) is not None
        else Player(name, plain)
        for name in names_of(method, task)
    )


def contradictions(method: TokenMethod) -> Iterator[str]:
    """What contradicts among a method's roles, whatever the task, as sentences."""
    roles = method.roles
    for name in _twice([role.player for role in roles]):
        yield f"two roles are for the player {name!r}: leave one of them out."
    models = {role.model: (role.start, role.follows(method).optimizer) for role in roles}
    for role in roles:
        if models[role.model] != (role.start, role.follows(method).optimizer):
            yield (
                f"roles share the model {role.model!r}, which would have to begin, or to learn, in two ways: give them "
                "the same weights, or models of two names."
            )
    by_itself = method.replace(stages=())
    for role in roles:
        for sentence in role.follows(by_itself).objections():
            yield f"for the player {role.player!r}, {sentence}"


def misfits(method: TokenMethod, task: Task) -> Iterator[str]:
    """What contradicts between the roles and who plays this task, as sentences."""
    names = names_of(method, task)
    for role in method.roles:
        if role.player not in names:
            what = f"player of task {task.id!r}" if not _says(method) else "player of the experience"
            yield str(UnknownNameError(what, role.player, names, f"roles has a role for it; {_listed(names)}."))
    players = [p for p in players_of(method, task) if p.trained]
    if not players:
        yield f"{method.id}: no player is trained (roles.{names[0]}.trained=false, and so on): train one of them."
    if len(names) == 1:
        return
    several = _twice([p.model for p in players])
    if several and (method.own_critic is not None or any(not part.joint for part in method.learners)):
        yield (
            f"{method.id}: a learner takes steps of its own, and the model {several[0]!r}, which it learns beside, has "
            "several players: give each weights of its own, or train one of them."
        )
    if several and method.optimizer is not None and method.optimizer.halves:
        yield (
            f"{method.id}: {type(method.optimizer).__name__} asks for minibatches in halves, and those of several "
            "players have none: choose optimizer=adam-w, or give each player weights of its own."
        )


def _says(method: TokenMethod) -> bool:
    return method.experience is not None and bool(method.experience.players)


def _listed(names: Sequence[str]) -> str:
    return f"there {'is' if len(names) == 1 else 'are'} {' and '.join(names)}"


def _twice(names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
