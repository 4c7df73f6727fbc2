"""Where the players of a run sit when it is looked at again: its models, each with its prompt and view."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from etude.core.episodes import FIRST
from etude.core.method import Method
from etude.core.player_slots import Seat
from etude.runtime.checkpoints import load_json

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


def method_of(checkpoint: str) -> Method | None:
    """The method of the run whose checkpoint this is, in a recipe's of the run that it comes from; None: no run's."""
    for file in (Path(checkpoint) / "method.json", Path(checkpoint).parent.parent / "method.json"):
        if file.is_file():
            return Method.from_json(load_json(file))
    return None


def seats_of(checkpoint: str, policy: LanguagePolicy) -> dict[str, Seat]:
    """The seats of the players that have a role in the run whose checkpoint this is; none of what is no run's.

    Args:
        policy: the checkpoint's first model.
    """
    from etude.policies.language import LanguagePolicy

    if (method := method_of(checkpoint)) is None:
        return {}
    roles = method.slots().get("roles", ())
    policies = {FIRST: policy}
    for role in roles:
        if role.model not in policies:
            policies[role.model] = LanguagePolicy.load(str(Path(checkpoint) / "models" / role.model), fold=False)
    return {role.player: role.seat(policies[role.model]) for role in roles}
