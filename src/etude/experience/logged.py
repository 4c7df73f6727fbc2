"""Learning from logs: what others did is all there is, and nobody acts while it is learned from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from etude.core.errors import CheckpointError, ConfigError
from etude.core.log_slots import LogTransform
from etude.core.method import Method
from etude.core.population import CPU
from etude.core.replay_slots import ReplayExperience
from etude.core.sampling_slots import Sampling
from etude.core.step_slots import Observations
from etude.experience.logs.columns import as_tensor, is_mapped
from etude.experience.logs.reading import check_unchanged
from etude.experience.logs.table import Logs
from etude.experience.store import Rows, Store
from etude.policies.control.actor import Actor
from etude.policies.control.observations import NormalizeObservations
from etude.policies.control.units import Units, in_units
from etude.runtime import memory

if TYPE_CHECKING:
    from etude.core.task import Task


class Logged(ReplayExperience):
    """Steps from logs (`--data PATH`): one table that all members draw from, and an update for each step of a budget.

    Nothing acts while it is learned from. A budget is updates of each member.

    Shapes: rows [N, ...] that all P members share; what they draw [P, B, ...].

    >>> Logged().due(10, 14)
    4
    """

    acts: ClassVar[bool] = False
    reads_logs: ClassVar[bool] = True
    environments: ClassVar[int] = 1  # type: ignore[misc]  # nobody steps any

    def objection(self, method: Method) -> str | None:
        slots = method.slots()
        for part in getattr(slots["policy"], "observations", ()):
            if isinstance(part, NormalizeObservations) or type(part).watch is not Observations.watch:
                return (
                    f"never acts, and {type(part).__name__} learns from what is acted: leave it out "
                    "(transforms=standardize-observations takes its moments from the logs)."
                )
        return no_place_of_each(method, "one table for all members, of which {} cannot draw: set uniform-rows.")

    def lacks(self, task: Task) -> str | None:
        return without_data(self, task)

    def due(self, before: int, after: int) -> int:
        """Updates that are due once a member has come to `after` of its budget, from `before`."""
        return after - before

    def reader(self, logs: Logs, actor: Actor, members: int, method: Method) -> LoggedReader:
        """What is learned from, once the method's transforms are through with it; they also learn what the policy sees
        through.

        Raises: ConfigError if nothing is left.
        """
        found, lines = changed(logs, actor, method)
        kind = MappedStore if is_mapped(found.observations) else LoggedStore
        return LoggedReader(logs, kind(found, in_units(actor), members, actor.device), lines)


def without_data(part: ReplayExperience, task: Task) -> str | None:
    """What a task lacks that has no logs, as a sentence."""
    if getattr(task, "data", ""):
        return None
    return f"{type(part).__name__} learns from logs, and there are none for {task.id}: give --data PATH."


def no_place_of_each(method: Method, sentence: str) -> str | None:
    """What is wrong with what draws rows in a method, if it needs every member's own rows in one ring."""
    slots = method.slots()
    for part in (slots["sampling"], *(p.sampling for p in (slots["critic"], slots["value"]) if p is not None)):
        if isinstance(part, Sampling) and (part.newest or part.reads_errors):
            return f"has {sentence.format(type(part).__name__)}"
    return None


def changed(logs: Logs, actor: Actor, method: Method) -> tuple[Logs, list[str]]:
    """Logs as a method's transforms leave them, and what each did, for people.

    Those that the policy sees through learn what they need of the logs. Raises ConfigError if nothing is left.
    """
    modules: Iterator[Any] = iter(actor.transforms)
    lines = list[str]()
    transforms: Sequence[LogTransform] = method.slots()["transforms"]
    for part in transforms:
        before, logs = logs, part(logs, method)
        if isinstance(part, Observations):
            part.fit(next(modules), logs)
        lines.append(f"{before.rows:,} rows -> {logs.rows:,}: {part.sentence(before, logs)}")
        if not logs.rows:
            raise ConfigError("Nothing is left of the logs: " + "; ".join(lines))
    return logs, lines


class LoggedStore(Store):
    """Rows of logs [N, W], the same for all P members: what is drawn at an index [P, B] is [P, B, W].

    Args:
        spread: of the policy, whose units actions are kept in.
        device: where the rows are to be; if there is no room they stay in memory, and batches of them go there.
    """

    def __init__(self, logs: Logs, spread: Units, members: int, device: torch.device = CPU) -> None:
        self.members, self.environments, self.on_disk = members, 1, False
        self.capacity = self.size = self.pushed = logs.rows
        self.cursor, self.noise = 0, None
        self.shape = (logs.observations.shape[1],)
        self.widths = self._columns(spread.actions)
        self._hold(logs, spread, device)
        self.largest = float(abs(logs.rewards).max())
        self.beside = {}
        if logs.returns_to_go is not None:
            self.beside["returns_to_go"] = _tensor(logs.returns_to_go).to(self.device)
        if logs.expert is not None:
            self.beside["expert"] = _tensor(logs.expert).to(self.device)
        if logs.next_actions is not None:
            self.beside["next_actions"] = spread.inside(_tensor(logs.next_actions)).to(self.device)
        self.compared = logs.compared

    def _hold(self, logs: Logs, spread: Units, device: torch.device) -> None:
        """Keep the columns, side by side."""
        columns = (logs.observations, spread.inside(_tensor(logs.actions)), logs.next_observations, logs.rewards,
                   ~logs.terminated, logs.terminated | logs.truncated)  # fmt: skip
        vectors = [_tensor(x).reshape(logs.rows, -1) for x in columns]
        self.rows = torch.cat(vectors, -1)
        self.device = device if self._fits(device) else CPU
        self.rows = self.rows.to(self.device)

    @property
    def bytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

    @property
    def account(self) -> str:
        return f"{memory.shown(self.bytes)} ({self.size:,} rows, which all members share)"

    @property
    def rewards(self) -> Tensor:
        return self.rows[:, -3].expand(self.members, -1)

    @property
    def live(self) -> Tensor:
        return self.rows[:, -2].expand(self.members, -1)

    @property
    def ends(self) -> Tensor:
        """[E] the last row of every episode."""
        return self.rows[:, -1].nonzero()[:, 0]

    def _place(self, index: Tensor) -> Tensor:
        return index

    def offers(self, index: Tensor) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.beside.items()}

    def save(self, folder: Path) -> None:
        """Nothing: the logs stay where they are."""

    def load(self, folder: Path, pushed: int) -> None:
        """Nothing."""


class MappedStore(LoggedStore):
    """Rows of logs whose columns lie in files (`etude data convert`): what is drawn is read, and nothing else.

    Several runs may read the same files. Batches go to the device.
    """

    def _hold(self, logs: Logs, spread: Units, device: torch.device) -> None:
        self.device, self.spread = CPU, spread
        ended = logs.terminated | logs.truncated
        columns = (logs.observations, logs.actions, logs.next_observations, logs.rewards, ~logs.terminated, ended)
        self.columns = [as_tensor(np.asarray(x)).reshape(logs.rows, -1) for x in columns]

    @property
    def bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.columns)

    @property
    def account(self) -> str:
        return f"none of the memory: {memory.shown(self.bytes)} are read from files where they lie ({self.size:,} rows)"

    @property
    def rewards(self) -> Tensor:
        return _tensor(self.columns[3])[:, 0].expand(self.members, -1)

    @property
    def live(self) -> Tensor:
        return _tensor(self.columns[4])[:, 0].expand(self.members, -1)

    @property
    def ends(self) -> Tensor:
        return self.columns[5].nonzero()[:, 0]

    def _columns_of(self, index: Tensor) -> Rows:
        flat = index.flatten()
        found = [_tensor(x.index_select(0, flat)).view(*index.shape, -1) for x in self.columns]
        observations, actions, following, *numbers = found
        return Rows(observations, self.spread.inside(actions), following, *(x.squeeze(-1) for x in numbers))


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(values).to(torch.get_default_dtype())


class LoggedReader:
    """What the loop asks of who gathers: here nothing is gathered.

    Args:
        logs: as they were before any transform.
        lines: what each transform did, for people.
    """

    def __init__(self, logs: Logs, store: LoggedStore, lines: list[str]) -> None:
        self.logs, self.store, self.lines = logs, store, lines
        self.acted, self.faults = 0, 0
        self.ended: list[tuple[int, float, int]] = []
        self.exploration, self.rewards = None, ()

    def begin(self) -> None:
        """Nothing ended before."""

    def step(self) -> None:
        """One of the budget."""
        self.acted += 1

    def state(self) -> dict[str, Any]:
        """How far it is, and of which numbers. Raises DataError for a file that was written to meanwhile."""
        check_unchanged(self.logs)
        return {"acted": self.acted, "fingerprint": self.logs.fingerprint}

    def restore(self, state: dict[str, Any]) -> None:
        """Undo `state`. Raises CheckpointError for other logs."""
        check_same(self.logs, state["fingerprint"])
        self.acted = state["acted"]


def check_same(logs: Logs, fingerprint: str) -> None:
    """Raise CheckpointError for other logs than a run has learned from."""
    if fingerprint != logs.fingerprint:
        raise CheckpointError(
            f"The run learned from logs with the fingerprint {fingerprint[:12]}, and {logs.where} has "
            f"{logs.fingerprint[:12]}: give it what it was trained with."
        )
