"""Methods that learn from a replay, made small, and rows to fill a store with: what tests of several rooms share."""

from __future__ import annotations

from typing import Any

import torch

from etude.core.edit import set_values
from etude.core.kinds import ReplayMethod
from etude.core.method import Method
from etude.core.registry import compositions, files
from etude.experience.store import Store
from etude.methods.preference.rlhf_survey.models import PreferenceModels
from etude.methods.value.hyperl.hypernetwork import HyperQFunctions, ResidualNetwork
from etude.methods.value.mrq.encoder import Encoder
from etude.policies.control.initializers import Sparse
from etude.policies.control.networks import MLP

KIND = {m.id: m for name in sorted(files("methods")) for m in compositions(name) if isinstance(m, ReplayMethod)}
REPLAY = {name: m for name, m in KIND.items() if m.experience is None or not m.experience.reads_logs}
"""Every method of this kind that acts alone; those that learn from logs are in `log_toys.py`."""


def acts_in_boxes(method: Method) -> bool:
    """Whether its actions are numbers, and not choices."""
    return not method.slots()["policy"].of_choices


def narrow(part: Any, *hidden: int) -> Any:
    """The part, and all parts inside, with perceptrons of these widths, and not so sparse that nothing is left."""
    if isinstance(part, Sparse):
        return part.replace(share=0.3)
    if isinstance(part, MLP | ResidualNetwork):
        start = None if part.initializer is None else narrow(part.initializer)
        return part.replace(hidden=hidden, initializer=start)
    if isinstance(part, Encoder):
        part = part.replace(actions=4, joined=5)
    if isinstance(part, PreferenceModels):
        part = part.replace(length=3, first=4, batch=4, pool=2)
    if isinstance(part, HyperQFunctions):
        part = part.replace(dynamic=4)
    inside = {k: v for k, v in part.fields().items() if hasattr(v, "fields")}
    return part.replace(**{k: narrow(v, *hidden) for k, v in inside.items()})


def counted(head: Any, count: int) -> Any:
    """The head with so many numbers, where it says more than one; also the one that it holds."""
    if "head" in head.fields():
        return head.replace(head=counted(head.head, count))
    return head.replace(count=count) if "count" in head.fields() else head


def small(method: Any, heads: bool = True, **experience: Any) -> Any:
    """The method with networks of 8 and 5, batches of 6, and a ring of 40 rows that begins to learn after 12.

    Args:
        heads: whether values are said in seven numbers, where it is more than one.

    What learns from its last step has no ring and no batches, and keeps its one environment.
    """
    chosen = {"capacity": 40, "random": 8, "warmup": 12, "every": 2, "updates": 1.0, "environments": 1, **experience}
    critic = narrow(method.critic, 8, 5)
    if heads:
        critic = critic.replace(head=counted(critic.head, 7))
    changes = {
        "policy": narrow(method.policy, 8, 5), "critic": critic,
        "learners": tuple(narrow(part, 8, 5) for part in method.learners),
    }  # fmt: skip
    if not method.sampling.newest:
        changes |= {"experience": method.experience.replace(**chosen), "sampling": method.sampling.replace(batch=6)}
    return sooner(method.replace(**changes))


def sooner(method: Any, every: int = 4, epochs: int = 2) -> Any:
    """A method that learns in bursts, with short ones that begin soon; its slow copies move as often."""
    if all(part.learning.epochs == 1 for part in method.trained.values()):
        return method
    changes: dict[str, Any] = {}
    for name, part in method.trained.items():
        path = f"learners.{name}" if part in method.learners else name
        if part.learning.target is not None:
            changes[f"{path}.learning.target.every"] = every
        if part.learning.epochs > 1:
            changes |= {f"{path}.learning.every": every, f"{path}.learning.epochs": epochs}
    return set_values(method, changes)


def fill(store: Store, seed: int = 0) -> None:
    """Random rows of every member: a fifth of them ends, half of these terminate."""
    g = torch.Generator().manual_seed(seed)
    d, a = store.widths[:2]
    for _ in range(store.capacity // store.environments):
        grid = (store.members, store.environments)
        end = (torch.rand(grid, generator=g) < 0.2).double()
        live = 1 - end * (torch.rand(grid, generator=g) < 0.5).double()
        numbers = torch.randn(*grid, 2 * d + 1, generator=g, dtype=torch.float64)
        actions = torch.rand(*grid, a, generator=g, dtype=torch.float64) * 2 - 1
        columns = (numbers[..., :d], actions, numbers[..., d:-1], numbers[..., -1], live, end)
        store.push(*(x.to(store.rows.dtype) for x in columns))
