"""Logs beside a replay: what others did and what the policy does now, in one store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from etude.core.errors import ConfigError
from etude.core.fields import Probability
from etude.core.method import Method
from etude.core.population import PerMember, Population
from etude.core.sampling_slots import Drawing
from etude.core.streams import Stream
from etude.core.transitions import Transitions
from etude.experience.logged import LoggedStore, changed, check_same, no_place_of_each, without_data
from etude.experience.logs.reading import check_unchanged
from etude.experience.logs.table import Logs
from etude.experience.replay import Keeping, Replay, ReplayCollector
from etude.experience.sampling import WORDS, UniformRows
from etude.experience.store import Column, Rows, Store
from etude.policies.control.units import in_units

if TYPE_CHECKING:
    from etude.core.control import Step, VectorEnvironment
    from etude.core.task import Task
    from etude.policies.control.actor import Actor


class LogsAndReplay(Replay):
    """Logs (`--data PATH`), and beside them a ring of each member's own steps, which fills while it is learned from.

    The ring is that of `replay`: `random` and `warmup` count the member's own steps.

    Args:
        keep: share of the logs' rows that are there, in whole episodes drawn by the logs' fingerprint: the same for
            every seed. 0: none of them.

    Shapes: observations [P, E, ...]; rows of the logs [N, ...], which all members share.

    >>> part = LogsAndReplay(keep=0.5, random=0, warmup=500)
    >>> part.due(499, 500), part.due(500, 501)
    (0, 1)
    """

    reads_logs: ClassVar[bool] = True
    keep: Probability = 1.0

    @property
    def keeps_logs(self) -> bool:
        return bool(self.keep)

    def objection(self, method: Method) -> str | None:
        sentence = (
            "rows of logs, which are nobody's own, beside the ring, and {} cannot draw of both: set uniform-rows."
        )
        return no_place_of_each(method, sentence) or super().objection(method)

    def lacks(self, task: Task) -> str | None:
        if sentence := without_data(self, task):
            return sentence
        return f"{type(self).__name__} acts. {alone}" if (alone := task.needs_reward()) else None

    def beside(
        self, logs: Logs, environment: VectorEnvironment, actor: Actor, population: Population, method: Method
    ) -> LogsCollector:
        """What acts, and stores beside the logs. Raises ConfigError for shares that differ between members."""
        if isinstance(self.keep, PerMember) or isinstance(self.updates, PerMember):
            raise ConfigError(
                "experience.keep and experience.updates cannot differ between the members of one run: compare runs "
                "instead."
            )
        return LogsCollector(self, logs, environment, actor, population, method)


class LogsCollector(ReplayCollector):
    """A `ReplayCollector` whose store has logs beside what is stored.

    Args:
        logs: as they were before any transform.

    `lines` say what each transform did, and what is kept, for people.
    """

    def __init__(
        self, part: LogsAndReplay, logs: Logs, environment: VectorEnvironment, actor: Actor, population: Population,
        method: Method,
    ) -> None:  # fmt: skip
        self.logs, self.lines, self.kept = logs, list[str](), None
        found, self.lines = changed(logs, actor, method)
        if part.keep > 0:
            some = share_of(found, float(part.keep), logs.fingerprint)
            self.lines.append(f"{some.rows:,} of {found.rows:,} rows are kept")
            self.kept = LoggedStore(some, in_units(actor), population.size, actor.device)
        slots, self.method = method.slots(), method
        super().__init__(part, environment, actor, population, slots["exploration"], slots["rewards"])

    part: Keeping

    def _store(self) -> Store:
        ring = super()._store()
        if ring.shape != (self.logs.observations.shape[1],):
            raise ConfigError(f"Logs have vectors, and what is seen here is {list(ring.shape)}.")
        return ring if self.kept is None else TwoStores(ring, self.kept)

    def _end(self, place: int, step: Step, done: np.ndarray) -> None:
        """Note the columns that transforms add to steps of episodes that ended, as they do to logs."""
        if isinstance(self.store, TwoStores):
            for m, e in np.argwhere(done):
                if step.faulty is None or not step.faulty[m, e]:
                    self._know(self.store, int(m), place + int(e), int(self.lengths[m, e]))
        super()._end(place, step, done)

    def _know(self, store: TwoStores, member: int, last: int, length: int) -> None:
        count = min(length, store.capacity // store.environments)
        places = (last - torch.arange(count - 1, -1, -1) * store.environments) % store.capacity
        rewards = store.ring.grid[member, places.to(store.device), -3].cpu().double().numpy()
        for part in self.method.slots()["transforms"]:
            found = part.of_episode(rewards, self.method) if part.adds else None
            if found is not None:
                column = store.columns[part.adds]
                column[member, places.to(column.device)] = torch.from_numpy(found).to(column)

    def state(self) -> dict[str, Any]:
        """Where every environment and episode stands, and of which logs. Raises DataError for a file written to."""
        check_unchanged(self.logs)
        known = self.store.columns if isinstance(self.store, TwoStores) else {}
        columns = {name: column[:, : self.store.own.size].clone() for name, column in known.items()}
        return {**super().state(), "fingerprint": self.logs.fingerprint, "columns": columns}

    def restore(self, state: dict[str, Any]) -> None:
        """Undo `state`. Raises CheckpointError for other logs."""
        check_same(self.logs, state["fingerprint"])
        super().restore(state)
        for name, column in state["columns"].items():
            assert isinstance(self.store, TwoStores)
            self.store.columns[name][:, : column.shape[1]] = column.to(self.store.device)


def share_of(logs: Logs, share: float, fingerprint: str) -> Logs:
    """Whole episodes of logs, drawn by their fingerprint until there are this share of the rows, one at least."""
    if share == 1:
        return logs
    starts = np.concatenate([[0], logs.ends[:-1] + 1])
    lengths = logs.ends + 1 - starts
    order = Stream(int(fingerprint[:15], 16)).split("kept").numpy.permutation(logs.episodes)
    count = int(np.searchsorted(lengths[order].cumsum(), share * logs.rows)) + 1
    rows = np.concatenate([np.arange(starts[e], logs.ends[e] + 1) for e in np.sort(order[:count])])
    columns = {k: v for k, v in vars(logs).items() if isinstance(v, np.ndarray) and len(v) == logs.rows}
    names = {name for name in logs.__dataclass_fields__}
    return replace(logs, **{k: v[rows] for k, v in columns.items() if k in names})


class TwoStores(Store):
    """A ring, and rows of logs after those that are in it: an index below `own.size` is the ring's.

    Where what is seen is written down it is the ring alone: places, the cursor, capacity and files are the ring's.

    Args:
        own: what is stored. logs: what stands beside it.

    `columns` are those that the logs have besides, of the ring's rows [P, capacity, ...]: NaN where nobody knows yet.

    Shapes: index [P, ...] below `size`, which is that of both.
    """

    def __init__(self, own: Store, logs: LoggedStore) -> None:
        self.ring, self.logs = own, logs
        self.members, self.environments, self.shape = own.members, own.environments, own.shape
        self.capacity, self.widths, self.on_disk, self.device = own.capacity, own.widths, own.on_disk, own.device
        self.rows = own.rows
        self.noise = None
        self.columns = {
            name: column.new_full((self.members, self.capacity, *column.shape[1:]), torch.nan, device=self.device)
            for name, column in logs.beside.items()
        }

    @property
    def own(self) -> Store:
        return self.ring

    @property
    def cursor(self) -> int:  # type: ignore[override]  # the ring's
        """Where the next row will stand."""
        return self.ring.cursor

    @property
    def pushed(self) -> int:  # type: ignore[override]  # the ring's
        """Rows of each member that were stored."""
        return self.ring.pushed

    @property
    def size(self) -> int:  # type: ignore[override]  # of both
        """Rows of each member in both."""
        return self.ring.size + self.logs.size

    @property
    def rewards(self) -> Tensor:
        return torch.cat([self.ring.rewards, self.logs.rewards.to(self.device)], 1)

    @property
    def live(self) -> Tensor:
        return torch.cat([self.ring.live, self.logs.live.to(self.device)], 1)

    def push(
        self, observations: Column, actions: Column, following: Column, rewards: Column, live: Column, end: Column
    ) -> None:
        for column in self.columns.values():
            column[:, self.ring.cursor : self.ring.cursor + self.environments] = torch.nan
        self.ring.push(observations, actions, following, rewards, live, end)

    def _places(self, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which of these are the ring's, and where they are in the ring, and in the logs; any place for the others."""
        size = self.ring.size
        return index < size, index.clamp(max=max(0, size - 1)), (index - size).clamp(min=0)

    def _columns_of(self, index: Tensor) -> Rows:
        own, here, there = self._places(index)
        one, other = self.ring.read(here), self.logs.read(there.to(self.logs.device))
        return Rows(*(torch.where(own[..., None] if x.dim() > own.dim() else own, x, y.to(x.device))
                      for x, y in zip(one, other, strict=True)))  # type: ignore[call-overload]  # fmt: skip

    def offers(self, index: Tensor) -> dict[str, Tensor]:
        """Which rows are the logs', 1 or 0; columns that these have besides, and the ring's where they are known, else
        NaN."""
        own, here, there = self._places(index)
        found, member = {"logged": (~own).to(self.rows.dtype)}, torch.arange(len(index), device=index.device)[:, None]
        for name, logged in self.logs.offers(there.to(self.logs.device)).items():
            mine = self.columns[name][member, here]
            found[name] = torch.where(own.view(*own.shape, *[1] * (mine.dim() - 2)), mine, logged.to(self.device))
        return found

    def ahead(self, index: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        own, here, there = self._places(index)
        (place, stored), (later, logged) = self.ring.ahead(here, steps), self.logs.ahead(there, steps)
        return torch.where(own, place, later + self.ring.size), torch.where(own, stored, logged)

    def has(self, member: int, place: int) -> bool:
        return place < self.ring.size and self.ring.has(member, place)

    def copy_row(self, member: int, source: int, place: int) -> None:
        self.ring.copy_row(member, source, place)
        for column in self.columns.values():
            column[member, place] = column[member, source]

    @property
    def bytes(self) -> int:
        return self.ring.bytes + self.logs.bytes

    @property
    def account(self) -> str:
        return f"{self.ring.account} beside {self.logs.account}"

    def save(self, folder: Path) -> None:
        """Write the ring; the logs stay where they are."""
        self.ring.save(folder)

    def load(self, folder: Path, pushed: int) -> None:
        self.ring.load(folder, pushed)


class Symmetric(UniformRows):
    """A share of every batch from the logs, the rest from the member's own steps, each uniformly (arXiv:2302.02948).

    Args:
        share: of the rows that are the logs'; 1/2 is symmetric.

    Shapes: rows [P, N], the logs' last.

    >>> Symmetric(batch=256, share=0.5).counts
    (128, 128)
    """

    share: Probability = 0.5

    @property
    def counts(self) -> tuple[int, int]:
        """Rows of a batch that are the member's own, and the logs'."""
        there = round(self.batch * self.share)
        return self.batch - there, there

    def objection(self, method: Method) -> str | None:
        experience = method.slots()["experience"]
        if experience is not None and not (experience.acts and experience.keeps_logs):
            return (
                f"draws of logs and of steps that are acted beside them, and {type(experience).__name__} does not have "
                "both: set experience=logs-and-replay, or sampling=uniform-rows."
            )
        return None

    def draw(self, store: Store, draw: Drawing) -> Transitions:
        if isinstance(self.share, PerMember):
            raise ConfigError("sampling.share cannot differ between the members of one run: compare runs instead.")
        own, first = self.counts[0], store.own.size

        def words(generator: Generator, count: int) -> Tensor:
            return torch.randint(WORDS, (count, self.batch), generator=generator)

        drawn = draw("rows", words).to(store.device)
        index = torch.cat([drawn[:, :own] % max(1, first), first + drawn[:, own:] % (store.size - first)], 1)
        return self.at(index, store, draw)
