"""Loops: what trains a kind of method in a world. `LOOPS` is the list; a loop of your own adds itself to it."""

from __future__ import annotations

from etude.core.errors import ConfigError
from etude.core.kinds import ReplayMethod, RolloutMethod, TokenMethod
from etude.core.loop import Loop
from etude.core.method import Method
from etude.core.worlds import World

LOOPS: dict[tuple[type[Method], World], str] = {
    (TokenMethod, World.LANGUAGE): "etude.loops.language:LanguageLoop",
    (TokenMethod, World.ENUMERABLE): "etude.loops.enumerable:EnumerableLoop",
    (RolloutMethod, World.CONTROL): "etude.loops.on_policy:OnPolicyLoop",
    (ReplayMethod, World.CONTROL): "etude.loops.off_policy:OffPolicyLoop",
}
"""The loop of a kind of method in a world, as 'module:Class', which is imported when a run asks for it."""


def loop_class(kind: type[Method], world: World) -> type[Loop]:
    """The loop that trains a kind of method in a world. Raises ConfigError if there is none."""
    from etude.core.registry import load_attribute

    if (kind, world) not in LOOPS:
        raise ConfigError(
            f"No loop trains a {kind.__name__} in tasks of {world}: add it to LOOPS (etude.loops), as in "
            f'LOOPS[{kind.__name__}, World.{world.name}] = f"{{__name__}}:MyLoop".'
        )
    cls: type[Loop] = load_attribute(LOOPS[kind, world])
    return cls
