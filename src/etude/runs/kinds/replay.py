"""Runs of methods that learn from what is stored: a budget is environment steps of each member."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, cast

from etude.core.control import ControlTask
from etude.core.errors import ConfigError
from etude.core.kinds import ReplayMethod
from etude.core.task import Task
from etude.experience.logged import LoggedReader
from etude.runs import hogwild
from etude.runs.kinds import MAKING, RunOfKind
from etude.runs.training import Options
from etude.runs.worlds import world_of

if TYPE_CHECKING:
    from etude.loops.off_policy import OffPolicyLoop


LOOKS = 10
"""Evaluations of a run that learns from logs, where nobody says how many."""


def _block(method: ReplayMethod) -> int:
    """Environment steps of each member in a training step."""
    from etude.loops.off_policy import BLOCK

    assert method.experience is not None
    step = method.experience.environments
    return math.ceil(BLOCK / step) * step


class ReplayRun(RunOfKind[ReplayMethod, "OffPolicyLoop"]):
    """A run of a `ReplayMethod`."""

    READS: ClassVar[frozenset[str]] = MAKING | {"population", "on"}

    def prepare(self, method: ReplayMethod, task: Task, options: Options) -> None:
        """Raises ConfigError for a run that ends before its first update, or for workers of what cannot have them."""
        hogwild.check(method, cast(ControlTask, task), options)
        budget = options.steps or world_of(task).budget(task)
        acted, experience = self.training_steps(method, budget) * _block(method), cast(Any, method.experience)
        if not experience.due(0, acted):
            raise ConfigError(
                f"{method.id} would make no update in {acted:,} environment steps: lower experience.warmup "
                f"({experience.warmup:,}) or raise the steps of the run."
            )

    def timed(self, method: ReplayMethod, task: Task, options: Options) -> Options:
        """Returns of logs are played after every tenth of the steps: there is no training return."""
        assert options.steps is not None
        played = method.experience is not None and not method.experience.acts and task.needs_reward() is None
        if not played or options.evaluate_every is not None or options.evaluate == 0:
            return options
        return dataclasses.replace(options, evaluate_every=max(1, options.steps // LOOKS))

    def samples(self, method: ReplayMethod) -> bool:
        """Logs are of others."""
        return method.experience is not None and method.experience.acts

    def training_steps(self, method: ReplayMethod, budget: int) -> int:
        """Blocks that make at least this many environment steps of each member."""
        return math.ceil(budget / _block(method))

    def build(self, method: ReplayMethod, task: Task, options: Options) -> OffPolicyLoop:
        from etude.loops.off_policy import BLOCK

        assert options.steps is not None
        check_copies(method, self.training_steps(method, options.steps) * BLOCK)
        loop = super().build(method, task, options)
        return cast("OffPolicyLoop", hogwild.around(loop, method, task, options))

    def end(self, loop: OffPolicyLoop) -> None:
        """End the workers."""
        hogwild.end(loop)

    def sentence(self, loop: OffPolicyLoop, method: ReplayMethod, task: Task) -> str:
        """Who is trained, on what, and what is stored."""
        from etude.experience.mapped import place

        if isinstance(loop.collector, LoggedReader):
            return self._of_logs(loop, loop.collector, method, task)
        store, experience = loop.collector.store, cast(Any, method.experience)
        where = f", in a file in {place()}" if store.on_disk else f", on {store.device}" * (store.device.type != "cpu")
        return (
            f"{world_of(task).size(loop, method, task)}, {experience.environments} environments of {task.id} for each, "
            f"{loop.steps * loop.block:,} environment steps; what is stored takes up to {store.account}{where}."
        )

    def _of_logs(self, loop: OffPolicyLoop, reader: LoggedReader, method: ReplayMethod, task: Task) -> str:
        """Who is trained from which logs, what was done to them, and where the rest of it is played."""
        changed = "".join(f" {line}." for line in reader.lines)
        return (
            f"{world_of(task).size(loop, method, task)}, {loop.steps * loop.block:,} updates. {reader.logs.sentence()}"
            f"{changed} They take {reader.store.account}. {task.needs_reward() or f'Returns are played in {task.id}.'}"
        )

    def promises(self, loop: OffPolicyLoop) -> dict[str, Any]:
        """`backend`: who steps the environments. `data`: which logs are learned from, and what was done to them."""
        found: dict[str, Any] = {"backend": loop.task.runs_on, **hogwild.promises(loop)}
        if isinstance(reader := loop.collector, LoggedReader):
            logs = reader.logs
            found["data"] = {
                "path": str(logs.where.resolve()), "fingerprint": logs.fingerprint, "rows": logs.rows,
                "episodes": logs.episodes, "transforms": reader.lines, "left_out": dict(logs.dropped),
            }  # fmt: skip
        return found


def check_copies(method: ReplayMethod, transitions: int) -> None:
    """Raise ConfigError for a slow copy that so many transitions of each member would never move."""
    experience = cast(Any, method.experience)
    updates = experience.due(0, transitions)
    for name, part in method.trained.items():
        target = None if part.learning is None else part.learning.target
        if target is not None and 0 < updates < target.every:
            where = name if name in ("critic", "policy") else f"learners.{name}"
            raise ConfigError(
                f"The slow copy of the {name} moves every {target.every} updates, and {transitions:,} environment "
                f"steps make {updates}: it would never move. Lower {where}.learning.target.every, or raise --steps."
            )
