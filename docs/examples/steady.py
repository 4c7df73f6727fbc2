"""Steady: TD3 whose policy keeps near its slow copy.

Changes TD3 in one place: what the policy minimises has w |mu(s) - mu'(s)|^2 added, mu' its slow copy and actions in
units, so that it does not run ahead of the values of what the copy does.
"""

from torch import Tensor

from etude.core.claims import Claim, Measure
from etude.core.fields import NonNegative
from etude.core.method import Method
from etude.core.replay_slots import ActorTerm, ReplayReading
from etude.methods.value.td3 import SIZES, td3


class NearCopy(ActorTerm):
    """w |mu(s) - mu'(s)|^2."""

    weight: NonNegative = 1.0

    def objection(self, method: Method) -> str | None:
        learning = method.slots()["policy"].learning
        if learning is None or learning.target is None:
            return "compares the policy with its slow copy, and it has none: set policy.learning.target."
        return None

    def __call__(self, read: ReplayReading) -> Tensor:
        here, slow = read.policy().actions, read.policy(copy=True).actions
        return self.weight * (here - slow.detach()).square().sum(-1)


steady = td3.replace(
    id="steady",
    actor=(*td3.actor, NearCopy()),
    claim=Claim(
        statement="A policy that keeps near its slow copy earns more than TD3's from as many steps.",
        bed="control/pendulum",
        baseline="td3",
        changes=SIZES,
        baseline_changes=SIZES,
        measures=(Measure(name="area"), Measure(name="end", role="mechanism")),
        equal=("steps",),
    ),
)
