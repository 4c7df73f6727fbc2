"""Every real number of every part that a method of control can have: each member's own, or refused in a sentence."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from etude.core import fit
from etude.core.errors import ConfigError
from etude.core.fields import check
from etude.core.kinds import RolloutMethod
from etude.core.part import Part, hints, part_types
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.replay_slots import ReplayPolicy
from etude.methods.agents.words_as_beacons import words_as_beacons
from etude.policies.control.networks import MLP
from etude.tasks.control.minigrid_subgoals import minigrid_subgoals
from etude.tasks.control.pendulum import pendulum
from every_part import every_part
from solo_runs import assert_members_are_alone

torch.set_num_threads(1)
CANDIDATES = (0.3, 0.7, 0.9, 1.3, 2.0)
REFUSED = {
    **{
        f"{cls}.beta{i}": "cannot differ between the members"
        for cls in ("AdamW", "Adam", "AdaptiveSGLD", "LangevinAdam")
        for i in (1, 2)
    },
    "NaturalGradient.lr": "has no learning rate", "TrustRegion.lr": "has no learning rate",
}  # fmt: skip
"""Numbers that a member cannot have of its own, and what is said."""
ELSEWHERE = {
    "ModelRewards": "there are none: set learners=rollout-preferences",
    "OffPolicyMaxAtK": "is for tasks of enumerable and language, and a RolloutMethod is for those of control",
    "TurnSurrogate": "is for tasks of language, and a RolloutMethod is for those of control",
    "TrajectorySurrogate": "is for tasks of enumerable and language, and a RolloutMethod is for those of control",
    "GaussNewton": "is for learners of values",
    "ObGD": "needs estimate, which the loop of a RolloutMethod does not compute",
    "AdaptiveObGD": "needs estimate, which the loop of a RolloutMethod does not compute",
}
"""Parts that no policy of control can have there, and what is said."""
GROUNDS = {"SubgoalBonus": minigrid_subgoals.replace(level="MiniGrid-Empty-5x5-v0")}
"""Where a part learns that asks for what the pendulum does not say, with networks that see it."""


def method() -> Any:
    found: Any = get_method("ppo", "control")
    return found.replace(
        policy=found.policy.replace(network=MLP(hidden=(4,))),
        experience=found.experience.replace(environments=2, steps=16), minibatches=2, epochs=1,
    )  # fmt: skip


def real(hint: Any) -> bool:
    return hint is float or any(real(arg) for arg in get_args(hint) if not isinstance(arg, (str, float)))


def accepted(cls: type[Part], field: str) -> list[float]:
    """Two values in the field's range."""
    found = []
    for value in CANDIDATES:
        try:
            check(field, hints(cls)[field], value)
            found.append(value)
        except ConfigError:
            continue
    return found[:2]


def made(cls: type[Part]) -> bool:
    try:
        cls()
    except (TypeError, ConfigError):
        return False
    return True


SLOTS = {k: part_types(hint) for k, hint in hints(RolloutMethod).items()}
FIELDS = [
    (slot, cls, field)
    for slot, (bases, _many) in SLOTS.items()
    for cls in every_part().values()
    if bases
    and issubclass(cls, bases)
    and not issubclass(cls, ReplayPolicy)
    and slot not in ("stages", "learners", "experience")
    and made(cls)
    for field, hint in hints(cls).items()
    if real(hint) and not part_types(hint)[0]
]


@pytest.mark.first("ClippedSurrogate.high", "AdamW.beta1", "GAE.lam")
@pytest.mark.parametrize(("slot", "cls", "field"), FIELDS, ids=[f"{c.__name__}.{f}" for _, c, f in FIELDS])
def test_a_field_differs_between_members_or_is_refused(slot: str, cls: type[Part], field: str) -> None:
    many, values = SLOTS[slot][1], accepted(cls, field)
    assert len(values) == 2
    whole = method()
    part = cls() if slot != "policy" else whole.policy
    filled = whole.replace(**{slot: (part,) if many else part})
    if sentence := ELSEWHERE.get(cls.__name__):
        with pytest.raises(ConfigError, match=sentence):
            fit.check(filled, pendulum)
        return
    path = f"{next(p for p in filled.parts() if p.partition('.')[0] == slot)}.{field}"
    members = [Member(0, {path: values[0]}), Member(1, {path: values[1]})]
    task = GROUNDS.get(cls.__name__, pendulum)
    if task is not pendulum:
        filled = filled.replace(policy=words_as_beacons.policy, critic=words_as_beacons.critic)
    if sentence := REFUSED.get(f"{cls.__name__}.{field}"):
        with pytest.raises(ConfigError, match=sentence):
            assert_members_are_alone(filled, pendulum, members, [2], steps=2)
        return
    assert_members_are_alone(filled, task, members, [2], steps=2)
