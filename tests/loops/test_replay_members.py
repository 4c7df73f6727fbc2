"""Every real number of every part of the methods that learn from a replay: each member's own, or refused."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_origin

import pytest
import torch
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.fields import check
from etude.core.part import hints, part_types
from etude.core.population import Member
from etude.loops.off_policy import OffPolicyLoop
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, acts_in_boxes, small
from solo_runs import alike

torch.set_num_threads(1)
CANDIDATES = (0.3, 0.7, 0.9, 1.3, 2.0)
REFUSED = {
    "Replay.updates",
    "Adam.beta1",
    "Adam.beta2",
    "AdaptiveSGLD.beta1",
    "AdaptiveSGLD.beta2",
    "AdamW.beta1",
    "AdamW.beta2",
}
"""Numbers that shape the work, or that one kernel takes for all."""


def real(hint: Any) -> bool:
    return hint is float or any(real(arg) for arg in get_args(hint) if not isinstance(arg, (str, float)))


def cases() -> dict[str, tuple[str, str]]:
    """For each number, by its part's name and its own: a method that has it, and the path to it."""
    found: dict[str, tuple[str, str]] = {}
    for name, method in REPLAY.items():
        for path, part in method.parts().items():
            for field, hint in hints(type(part)).items():
                if real(hint) and get_origin(hint) is not tuple and not part_types(hint)[0]:
                    found.setdefault(f"{type(part).__name__}.{field}", (name, f"{path}.{field}"))
    return found


CASES = cases()
TOGETHER = 9
"""Members of a population beside the first: together as many as the probe of `solo_runs` tries."""


def allowed(name: str, path: str) -> list[float]:
    """Values that the field may have, the method's own left out."""
    where, _, field = path.rpartition(".")
    part, found = small(REPLAY[name]).parts()[where], list[float]()
    for value in CANDIDATES:
        try:
            check(field, hints(type(part))[field], value)
            part.replace(**{field: value})
        except ConfigError:
            continue
        found += [value] if value != getattr(part, field) else []
    return found


def trained(name: str, members: list[Member]) -> dict[str, Tensor]:
    """All tensors of the policy, one member after the other, after two steps."""
    task: Any = pendulum if acts_in_boxes(REPLAY[name]) else cartpole
    loop = OffPolicyLoop(small(REPLAY[name]), task, members, 2, 24)
    loop.step(), loop.step()
    return loop.policy_tensors()


def mates(label: str) -> list[str]:
    """Numbers of the same method, each of them another member's own: those that are in one population."""
    name = CASES[label][0]
    own = [other for other in CASES if CASES[other][0] == name and other not in REFUSED]
    first = own.index(label) // TOGETHER * TOGETHER
    return own[first : first + TOGETHER]


@cache
def population(*labels: str) -> tuple[list[Member], dict[str, Tensor]]:
    """A member with the method's numbers, then one for each label, with another value there, trained together.

    A number that the method leaves out is everybody's.
    """
    name = CASES[labels[0]][0]
    parts, everybody = small(REPLAY[name]).parts(), dict[str, float]()
    for _, path in (CASES[label] for label in labels):
        where, _, field = path.rpartition(".")
        if getattr(parts[where], field) is None:
            everybody[path] = allowed(name, path)[1]
    paths = [CASES[label][1] for label in labels]
    own = [Member(k, {**everybody, path: allowed(name, path)[0]}) for k, path in enumerate(paths, 1)]
    members = [Member(0, everybody), *own]
    return members, trained(name, members)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* episodes that ended in this step")  # bounds that are too narrow
@pytest.mark.parametrize("label", CASES)
@pytest.mark.filterwarnings("ignore:Values grow")  # with rates as high as these
def test_a_number_differs_between_members_or_is_refused(label: str) -> None:
    name, path = CASES[label]
    values = allowed(name, path)
    if label in REFUSED:
        with pytest.raises(ConfigError, match="cannot differ between the members"):
            trained(name, [Member(k, {path: v}) for k, v in enumerate(values[:2])])
        return
    members, together = population(*mates(label))
    k = 1 + mates(label).index(label)
    for key, value in trained(name, [members[k]]).items():
        size = len(value)
        assert alike(together[key][k * size : (k + 1) * size], value), key
