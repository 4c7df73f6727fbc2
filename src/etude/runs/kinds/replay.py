"""Runs of methods that learn from what is stored: a budget is environment steps of each member."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar, cast

from etude.core import stages
from etude.core.control import ControlTask
from etude.core.errors import ConfigError
from etude.core.kinds import ReplayMethod
from etude.core.task import Task
from etude.experience.beside_logs import LogsCollector
from etude.experience.logged import LoggedReader
from etude.runs import hogwild
from etude.runs.kinds import MAKING, RunOfKind
from etude.runs.training import Options
from etude.runs.worlds import world_of
from etude.tasks.control.logged import LoggedTask

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
        for experience, acted in given(method, self.training_steps(method, budget)):
            if not experience.due(0, acted):
                where = "experience.warmup" if experience == method.experience else "stages.handover.warmup"
                raise ConfigError(
                    f"{method.id} would make no update in {acted:,} environment steps: lower {where} "
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

    def counts(self, method: ReplayMethod, usual: str) -> str:
        """Updates, where nothing is acted; and what a method does that acts later."""
        if self.samples(method):
            return usual
        later = any(cast(Any, own).experience.acts for _, own in stages.applied(method))
        return f"updates, then {usual}" if later else "updates of each member"

    def training_steps(self, method: ReplayMethod, budget: int) -> int:
        """Blocks that make at least this many environment steps of each member."""
        return math.ceil(budget / _block(method))

    def build(self, method: ReplayMethod, task: Task, options: Options) -> OffPolicyLoop:
        assert options.steps is not None
        check_copies(method, self.training_steps(method, options.steps))
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
        beside = self._beside(loop.collector) if isinstance(loop.collector, LogsCollector) else ""
        store = loop.collector.store
        experience = cast(Any, loop.method.experience)
        where = f", in a file in {place()}" if store.on_disk else f", on {store.device}" * (store.device.type != "cpu")
        return (
            f"{world_of(task).size(loop, method, task)}, {experience.environments} environments of {task.id} for each, "
            f"{loop.steps * loop.block:,} environment steps; what is stored takes up to {store.account}{where}.{beside}"
        )

    def _beside(self, collector: LogsCollector) -> str:
        """Which logs are read beside what is acted, and what was done to them."""
        return f" {collector.logs.sentence()}" + "".join(f" {line}." for line in collector.lines)

    def _of_logs(self, loop: OffPolicyLoop, reader: LoggedReader, method: ReplayMethod, task: Task) -> str:
        """Who is trained from which logs, what was done to them, and where the rest of it is played."""
        changed = "".join(f" {line}." for line in reader.lines)
        ends = [stages.span(loop.stages, k, loop.steps).stop * loop.block for k in range(len(loop.stages))]
        acts = next((k for k, (_, own) in enumerate(loop.stages) if own.experience.acts), None)
        learned = ends[-1] if acts is None else ends[acts - 1]
        then = "" if acts is None else f", then {ends[-1] - learned:,} environment steps of each"
        return (
            f"{world_of(task).size(loop, method, task)}, {learned:,} updates{then}. {reader.logs.sentence()}"
            f"{changed} They take {reader.store.account}. {cast(LoggedTask, task).judged_by()}"
        )

    def promises(self, loop: OffPolicyLoop) -> dict[str, Any]:
        """`backend`: who steps the environments. `data`: which logs are learned from, and what was done to them."""
        found: dict[str, Any] = {"backend": loop.task.runs_on, **hogwild.promises(loop)}
        if isinstance(reader := loop.collector, LoggedReader | LogsCollector):
            logs = reader.logs
            found["data"] = {
                "path": str(logs.where.resolve()), "fingerprint": logs.fingerprint, "rows": logs.rows,
                "episodes": logs.episodes, "transforms": reader.lines, "left_out": dict(logs.dropped),
            }  # fmt: skip
        return found


def given(method: ReplayMethod, blocks: int) -> list[tuple[Any, int]]:
    """Every experience of a run of so many training steps, and how many steps of each member it is given."""
    found, own = list[tuple[Any, int]](), stages.applied(method)
    for number, (_, stage) in enumerate(own):
        stage = cast(ReplayMethod, stage)
        count = len(stages.span(own, number, blocks)) * _block(stage)
        if found and "experience" not in stages.resets(method, number):
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((stage.experience, count))
    return found


def check_copies(method: ReplayMethod, blocks: int) -> None:
    """Raise ConfigError for a slow copy that so many training steps would never move."""
    parts = given(method, blocks)
    updates, transitions = sum(part.due(0, count) for part, count in parts), sum(count for _, count in parts)
    for name, part in method.trained.items():
        target = None if part.learning is None else part.learning.target
        if target is not None and 0 < updates < target.every:
            where = name if name in ("critic", "policy") else f"learners.{name}"
            raise ConfigError(
                f"The slow copy of the {name} moves every {target.every} updates, and {transitions:,} environment "
                f"steps make {updates}: it would never move. Lower {where}.learning.target.every, or raise --steps."
            )
