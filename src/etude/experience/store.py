"""What a population has stored: a ring of transitions for each member, all columns of one side by side.

A row is [observation | action | what it led to | reward | live | end]: `live` is 0 where the episode terminated, `end`
1 where it ended, terminated or truncated, so that nothing is read across a reset. What a step led to is the true last
observation where an episode ended. The rows of E environments alternate: E rows further on is the next step of the
same one. A batch is one gather, of which the columns are views: 2,560 rows of 31 numbers take 10 us, six columns 56.

On disk the ring is cut into stretches of rows, a file of all members each. One that was not written to since the last
checkpoint is linked to; the cursor stands in one, which has new rows and, behind them, those of the last lap.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from etude.core.errors import CheckpointError, ConfigError
from etude.experience import mapped
from etude.runtime import checkpoints, disk, memory

BYTES = 4
"""Of a number."""
STRETCH = 1 << 20
"""Bytes, about, of the rows that a checkpoint has in one file."""


class Rows(NamedTuple):
    """Columns of rows [..., W]: views."""

    observations: Tensor
    actions: Tensor
    next_observations: Tensor
    rewards: Tensor
    live: Tensor
    end: Tensor


class Store:
    """Transitions of P members in E environments each, the oldest overwritten once there are `capacity` of a member.

    Args:
        shape: of an observation; a vector.
        actions: A, numbers of an action.
        on_disk: whether the ring lives in a file that is mapped into memory, which goes with the process.

    Raises: ConfigError for images, and for a ring that there is no room for: before any of it is there.

    >>> store = Store(members=1, environments=1, capacity=4, shape=(1,), actions=1)
    >>> for t in range(6):
    ...     one = torch.full((1, 1, 1), float(t))
    ...     store.push(one, one, one + 1, torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1))
    >>> store.size, store.read(torch.tensor([[0, 1, 2, 3]])).observations.flatten().tolist()
    (4, [4.0, 5.0, 2.0, 3.0])
    """

    def __init__(
        self, members: int, environments: int, capacity: int, shape: tuple[int, ...], actions: int,
        on_disk: bool = False,
    ) -> None:  # fmt: skip
        if len(shape) != 1:
            raise ConfigError(
                f"Observations are images {list(shape)}, and what is stored are vectors: methods that learn from a "
                "replay read no images yet, ppo does."
            )
        self.members, self.environments = members, environments
        self.capacity = capacity - capacity % environments
        self.widths, self.on_disk = (shape[0], actions, shape[0], 1, 1, 1), on_disk
        self._check_room()
        size = members * self.capacity, sum(self.widths)
        self.rows = mapped.numbers(*size) if on_disk else torch.empty(size)
        self.first = torch.arange(members)[:, None] * self.capacity
        self.cursor, self.size, self.pushed = 0, 0, 0
        step = members * environments * sum(self.widths) * BYTES
        self.stretch = min(max(1, STRETCH // step) * environments, self.capacity)
        self.written: dict[int, checkpoints.Mark] = {}
        self.noise: Tensor | None = None  # that the actions of all rows were made of, where somebody keeps it

    @property
    def grid(self) -> Tensor:
        """[P, capacity, W]: every member's rows."""
        return self.rows.view(self.members, self.capacity, -1)

    @property
    def rewards(self) -> Tensor:
        """[P, size] of all rows."""
        return self.grid[:, : self.size, -3]

    @property
    def live(self) -> Tensor:
        """[P, size] of all rows, 0 where one terminated."""
        return self.grid[:, : self.size, -2]

    def push(
        self, observations: Tensor, actions: Tensor, following: Tensor, rewards: Tensor, live: Tensor, end: Tensor
    ) -> None:
        """Store one step in every environment, [P, E, ...], where `cursor` is."""
        self.written.pop(self.cursor // self.stretch, None)
        place = slice(self.cursor, self.cursor + self.environments)
        numbers = (x.unsqueeze(-1) for x in (rewards, live, end))
        torch.cat([observations, actions, following, *numbers], -1, out=self.grid[:, place])
        self.cursor = (self.cursor + self.environments) % self.capacity
        self.size = min(self.size + self.environments, self.capacity)
        self.pushed += self.environments

    def read(self, index: Tensor) -> Rows:
        """The rows at `index` [P, ...] of every member."""
        place = index + self.first.view(-1, *[1] * (index.dim() - 1))
        found = self.rows.index_select(0, place.flatten()).view(*index.shape, -1)
        observations, actions, following, *numbers = found.split(self.widths, -1)
        return Rows(observations, actions, following, *(x.squeeze(-1) for x in numbers))

    def ahead(self, index: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Places of the same environments `steps` later, and whether that is stored yet: [P, N] each."""
        start = self.cursor if self.size == self.capacity else 0
        age = (index - start) % self.capacity
        return (index + steps * self.environments) % self.capacity, age + steps * self.environments < self.size

    def copy_row(self, member: int, source: int, place: int) -> None:
        """Put one of a member's rows in the place of another, as an end, since what stands beside it is not its own."""
        own = self.grid[member]
        own[place] = own[source]
        own[place, -1] = 1.0
        self.written.pop(place // self.stretch, None)

    # Room

    @property
    def bytes(self) -> int:
        """What it takes once it is full."""
        return self.members * self.capacity * sum(self.widths) * BYTES

    @property
    def account(self) -> str:
        """What it takes, for people, and why."""
        rows = f"{self.members} members x {self.capacity:,} rows of {sum(self.widths)} numbers of {BYTES} bytes"
        return f"{memory.shown(self.bytes)} ({rows})"

    def _check_room(self) -> None:
        """Raises ConfigError if what it takes is more than there is."""
        free = mapped.free() if self.on_disk else memory.available()
        if free is None or self.bytes <= free:
            return
        if self.on_disk:
            raise ConfigError(
                f"What is stored takes {self.account}, and {memory.shown(free)} are free in {mapped.place()}: lower "
                "experience.capacity, or name a folder with more room in TMPDIR."
            )
        raise ConfigError(
            f"What is stored takes {self.account}, and {memory.shown(free)} of memory are free: lower "
            "experience.capacity, or keep it in a file with experience.on_disk=true."
        )

    # Files

    def _stretches(self) -> Iterator[tuple[int, str, Tensor]]:
        """Every stretch of rows: its number, its file's name, its rows so far [P, n, W]."""
        for number, start in enumerate(range(0, self.size, self.stretch)):
            yield number, f"{number:06d}.safetensors", self.grid[:, start : min(start + self.stretch, self.size)]

    def save(self, folder: Path) -> None:
        """Write a file for each stretch of rows, in the folder of this name of a checkpoint.

        Of a stretch that is as the checkpoint before has it, that file gets a second name: so a checkpoint costs what
        is new, and at most one stretch more.
        """
        older = checkpoints.before(folder.parent)
        disk.make_folder(folder)
        for number, name, rows in self._stretches():
            mark = self.written.get(number)
            if older and mark and checkpoints.link(older / folder.name / name, folder / name, mark):
                continue
            checkpoints.save_tensors(folder / name, {"rows": rows})
            self.written[number] = checkpoints.Mark.of(folder / name)

    def load(self, folder: Path, pushed: int) -> None:
        """Undo `save`, after so many rows of each member. Raises CheckpointError for rows of another shape."""
        self.size, self.cursor, self.pushed = min(pushed, self.capacity), pushed % self.capacity, pushed
        for number, name, rows in self._stretches():
            found = checkpoints.load_tensors(folder / name)["rows"]
            if found.shape != rows.shape:
                raise CheckpointError(f"{folder / name} has rows {list(found.shape)}, and {list(rows.shape)} fit.")
            rows.copy_(found)
            self.written[number] = checkpoints.Mark.of(folder / name)
