"""Every real number of every part of the methods that learn from a replay: each member's own, or refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

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


def cases() -> list[Any]:
    found: dict[str, Any] = {}
    for name, method in REPLAY.items():
        for path, part in method.parts().items():
            for field, hint in hints(type(part)).items():
                if real(hint) and not part_types(hint)[0]:
                    label = f"{type(part).__name__}.{field}"
                    found.setdefault(label, pytest.param(name, f"{path}.{field}", label, id=label))
    return list(found.values())


@pytest.mark.filterwarnings("ignore:.* episodes that ended in this step")  # bounds that are too narrow
@pytest.mark.parametrize(("name", "path", "label"), cases())
@pytest.mark.filterwarnings("ignore:Values grow")  # with rates as high as these
def test_a_number_differs_between_members_or_is_refused(name: str, path: str, label: str) -> None:
    method: Any = small(REPLAY[name])
    task: Any = pendulum if acts_in_boxes(method) else cartpole
    parts, (where, _, field) = method.parts(), path.rpartition(".")
    values: list[float] = []
    for value in CANDIDATES:
        try:
            check(field, hints(type(parts[where]))[field], value)
            parts[where].replace(**{field: value})
            values.append(value)
        except ConfigError:
            continue
    members = [Member(k, {path: v}) for k, v in enumerate(values[:2])]

    def trained(who: list[Member]) -> OffPolicyLoop:
        loop = OffPolicyLoop(method, task, who, 2, 24)
        loop.step(), loop.step()
        return loop

    if label in REFUSED:
        with pytest.raises(ConfigError, match="cannot differ between the members"):
            trained(members)
        return
    assert len(members) == 2
    both = trained(members).policy_tensors()
    for k, member in enumerate(members):
        for key, value in trained([member]).policy_tensors().items():
            size = len(value)
            assert alike(both[key][k * size : (k + 1) * size], value), key
