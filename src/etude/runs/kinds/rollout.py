"""Runs of rollout methods: budgets are environment steps of each member, a training step is a rollout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, cast

from etude.core.control import ControlTask
from etude.core.kinds import RolloutMethod
from etude.core.stages import applied
from etude.core.task import Task
from etude.runs import hogwild
from etude.runs.kinds import MAKING, RunOfKind
from etude.runs.training import Options
from etude.runs.worlds import world_of

if TYPE_CHECKING:
    from etude.loops.on_policy import OnPolicyLoop

PROMISES = {
    None: "",
    True: " Each member equals its own run here, bit for bit.",
    False: " Each member equals its own run here to rounding, not bit for bit.",
}
"""What the probe at the start found."""


class RolloutRun(RunOfKind[RolloutMethod, "OnPolicyLoop"]):
    """A run of a `RolloutMethod`."""

    READS: ClassVar[frozenset[str]] = MAKING | {"population", "on"}

    def prepare(self, method: RolloutMethod, task: Task, options: Options) -> None:
        """Raises ConfigError for workers of what cannot have them."""
        hogwild.check(method, cast(ControlTask, task), options)

    def training_steps(self, method: RolloutMethod, budget: int) -> int:
        """Rollouts that make at least this many environment steps of each member, each stage its share of them."""
        size, begun = 0.0, 0.0
        for end, own in applied(method):
            rollout = own.slots()["experience"]
            size, begun = size + (end - begun) * rollout.environments * rollout.steps * rollout.updates, end
        return math.ceil(budget / size)

    def build(self, method: RolloutMethod, task: Task, options: Options) -> OnPolicyLoop:
        """Population and loop; tries, on the CPU, whether its members equal their own runs here."""
        from etude.loops.probe import members_are_exact

        loop = super().build(method, task, options)
        if loop.population.size > 1 and loop.device.type == "cpu":
            loop.exact = members_are_exact(loop)
        return cast("OnPolicyLoop", hogwild.around(loop, method, task, options))

    def end(self, loop: OnPolicyLoop) -> None:
        """End the workers."""
        hogwild.end(loop)

    def sentence(self, loop: OnPolicyLoop, method: RolloutMethod, task: Task) -> str:
        """Who is trained, and on what."""
        rollout = method.experience
        assert rollout is not None
        count = loop.steps * rollout.updates
        rollouts = "1 rollout" if count == 1 else f"{count} rollouts"
        return (
            f"{world_of(task).size(loop, method, task)}, {rollout.environments} environments of {task.id} for each, "
            f"{rollouts} of {rollout.steps} steps.{PROMISES[loop.exact]}"
        )

    def promises(self, loop: OnPolicyLoop) -> dict[str, Any]:
        """`members`: whether each equals its own run, 'exact' or 'to rounding', as tried at the start; `backend`: who
        steps the environments."""
        tried = {} if loop.exact is None else {"members": "exact" if loop.exact else "to rounding"}
        return {**tried, "backend": loop.task.runs_on, **hogwild.promises(loop)}
