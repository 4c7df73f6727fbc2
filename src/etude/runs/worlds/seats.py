"""Where the players of a run sit when it is looked at again: its models, each with its prompt and view."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.core.episodes import FIRST
from etude.core.learners import TokenLearner
from etude.core.method import Method
from etude.core.player_slots import Seat
from etude.runtime.checkpoints import load_json, load_tensors

if TYPE_CHECKING:
    from etude.policies.language import LanguagePolicy


def method_of(checkpoint: str) -> Method | None:
    """The method of the run whose checkpoint this is, in a recipe's of the run that it comes from; None: no run's."""
    for file in (Path(checkpoint) / "method.json", Path(checkpoint).parent.parent / "method.json"):
        if file.is_file():
            return Method.from_json(load_json(file))
    return None


def tilting_of(checkpoint: str, policy: LanguagePolicy) -> Callable[[], Any] | None:
    """What a run's policy is tilted by where it is sampled from, as its learners were; None: by nothing.

    Of what is no checkpoint of a run, as of an exported model, nobody knows the learners.
    """
    from etude.loops.states import below

    method, file = method_of(checkpoint), Path(checkpoint) / "state.safetensors"
    own = [] if method is None else method.slots().get("learners", ())
    parts = [part for part in own if isinstance(part, TokenLearner) and part.tilts]
    if not parts or not file.is_file():
        return None
    network = parts[0].build_beside(policy).to(policy.device, policy.head_dtype)
    network.load_state_dict(below(load_tensors(file), f"learners.{parts[0].name}.network."))
    return lambda: parts[0].tilt(network)


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
