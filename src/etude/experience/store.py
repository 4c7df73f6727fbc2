"""What a population has stored: a ring of transitions for each member, all columns of one side by side.

A row is [observation | action | what it led to | reward | live | end]: `live` is 0 where the episode terminated, `end`
1 where it ended, terminated or truncated, so that nothing is read across a reset. What a step led to is the true last
observation where an episode ended. The rows of E environments alternate: E rows further on is the next step of the
same one. A batch is one gather, of which the columns are views: 2,560 rows of 31 numbers take 10 us, six columns 56.

On disk the ring is cut into stretches of rows, a file of all members each. One that was not written to since the last
checkpoint is linked to; the cursor stands in one, which has new rows and, behind them, those of the last lap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from etude.core.errors import CheckpointError, ConfigError
from etude.core.population import CPU
from etude.experience import mapped
from etude.runtime import checkpoints, disk, memory

BYTES = 4
"""Of a number."""
STRETCH = 1 << 20
"""Bytes, about, of the rows that a checkpoint has in one file."""


Column = Tensor | np.ndarray
"""Numbers of a step on the CPU."""


class Stored(Protocol):
    """Rows that were read, [...] each: what was seen, done and paid, and how it went on."""

    @property
    def observations(self) -> Tensor: ...

    @property
    def actions(self) -> Tensor: ...

    @property
    def next_observations(self) -> Tensor: ...

    @property
    def rewards(self) -> Tensor: ...

    @property
    def live(self) -> Tensor: ...

    @property
    def end(self) -> Tensor: ...


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
        shape: of an observation; a vector (`ImageStore` has images).
        actions: A, numbers of an action.
        on_disk: whether the ring lives in a file that is mapped into memory, which goes with the process.
        device: where it is to be; if there is no room it stays in memory (`device`), and batches of it go there.

    Raises: ConfigError for a ring that there is no room for: before any of it is there.

    >>> store = Store(members=1, environments=1, capacity=4, shape=(1,), actions=1)
    >>> for t in range(6):
    ...     one = torch.full((1, 1, 1), float(t))
    ...     store.push(one, one, one + 1, torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1))
    >>> store.size, store.read(torch.tensor([[0, 1, 2, 3]])).observations.flatten().tolist()
    (4, [4.0, 5.0, 2.0, 3.0])
    """

    def __init__(
        self, members: int, environments: int, capacity: int, shape: tuple[int, ...], actions: int,
        on_disk: bool = False, device: torch.device = CPU,
    ) -> None:  # fmt: skip
        self.members, self.environments, self.shape = members, environments, tuple(shape)
        self.capacity = capacity - capacity % environments
        self.widths, self.on_disk = self._columns(actions), on_disk
        self.device = device if self._fits(device) else CPU
        if self.device.type != "cuda":
            self._check_room()
        self.rows = self._numbers(members * self.capacity, sum(self.widths))
        self.grid = self.rows.view(members, self.capacity, -1)  # [P, capacity, W]: every member's rows
        self.table = self.grid.numpy() if self.device.type == "cpu" else None  # the same numbers
        self.first = torch.arange(members, device=self.device)[:, None] * self.capacity
        self.cursor, self.size, self.pushed = 0, 0, 0
        self.stretch = min(max(1, self.file // (members * environments * self.row)) * environments, self.capacity)
        self.written: dict[int, checkpoints.Mark] = {}
        self.noise: Tensor | None = None  # that the actions of all rows were made of, where somebody keeps it

    def _columns(self, actions: int) -> tuple[int, int, int, int, int, int]:
        """How many numbers of a row each column is."""
        return self.shape[0], actions, self.shape[0], 1, 1, 1

    def _numbers(self, rows: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
        """Numbers [rows, width], in memory or in a file."""
        dtype = dtype or torch.get_default_dtype()
        if self.on_disk:
            return mapped.numbers(rows, width, dtype)
        return torch.empty(rows, width, dtype=dtype, device=self.device)

    @property
    def own(self) -> Store:
        """What was stored of those who learn; others may stand beside it (`experience/beside_logs.py`)."""
        return self

    @property
    def rewards(self) -> Tensor:
        """[P, size] of all rows."""
        return self.grid[:, : self.size, -3]

    @property
    def live(self) -> Tensor:
        """[P, size] of all rows, 0 where one terminated."""
        return self.grid[:, : self.size, -2]

    def push(
        self, observations: Column, actions: Column, following: Column, rewards: Column, live: Column, end: Column
    ) -> None:
        """Store one step in every environment, [P, E, ...] on the CPU, where `cursor` is."""
        self.written.pop(self.cursor // self.stretch, None)
        place = slice(self.cursor, self.cursor + self.environments)
        columns = (observations, actions, following, rewards[..., None], live[..., None], end[..., None])
        if self.table is not None:  # past torch, whose calls for the numbers of one row take longer than to copy them
            np.concatenate(columns, -1, out=self.table[:, place])
        else:
            self.grid[:, place] = torch.from_numpy(np.concatenate(columns, -1))
        self.cursor = (self.cursor + self.environments) % self.capacity
        self.size = min(self.size + self.environments, self.capacity)
        self.pushed += self.environments

    def read(self, index: Tensor) -> Stored:
        """The rows at `index` [P, ...] of every member."""
        return self._columns_of(index)

    def offers(self, index: Tensor) -> dict[str, Tensor]:
        """What else is known of the rows at `index` [P, N], by name."""
        return {}

    def _columns_of(self, index: Tensor) -> Rows:
        found = self.rows.index_select(0, self._place(index).flatten()).view(*index.shape, -1)
        observations, actions, following, *numbers = torch.split_with_sizes(found, self.widths, -1)
        return Rows(observations, actions, following, *(x.squeeze(-1) for x in numbers))

    def _place(self, index: Tensor) -> Tensor:
        """Where in `rows` the rows at `index` [P, ...] are."""
        return index + self.first.view(-1, *[1] * (index.dim() - 1)) if self.members > 1 else index

    def ahead(self, index: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        """Places of the same environments `steps` later, and whether that is stored yet: [P, N] each."""
        age = (index - self.oldest) % self.capacity
        return (index + steps * self.environments) % self.capacity, age + steps * self.environments < self.size

    @property
    def oldest(self) -> int:
        """Where the oldest row is."""
        return self.cursor if self.size == self.capacity else 0

    def has(self, member: int, place: int) -> bool:
        """Whether a row has what it says, and is no copy of one that may be overwritten."""
        return True

    def copy_row(self, member: int, source: int, place: int) -> None:
        """Put one of a member's rows in the place of another, as an end, since what stands beside it is not its own."""
        own = self.grid[member]
        own[place] = own[source]
        own[place, -1] = 1.0
        self.written.pop(place // self.stretch, None)

    # Room

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return sum(self.widths) * BYTES

    @property
    def file(self) -> int:
        """Bytes, about, that a checkpoint has in one file."""
        return STRETCH

    @property
    def bytes(self) -> int:
        """What it takes once it is full."""
        return self.members * self.capacity * self.row

    @property
    def account(self) -> str:
        """What it takes, for people, and why."""
        return f"{memory.shown(self.bytes)} ({self.members} members x {self.capacity:,} rows of {self._each()})"

    def _each(self) -> str:
        """What a row is made of, for people."""
        return f"{sum(self.widths)} numbers of {BYTES} bytes"

    def _fits(self, device: torch.device) -> bool:
        """Whether a device has room for it and as much again as a third of it."""
        if self.on_disk or device.type != "cuda":
            return not self.on_disk
        return self.bytes <= 0.75 * torch.cuda.mem_get_info(device)[0]

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

    def _stretches(self) -> Iterator[tuple[int, str, slice]]:
        """Every stretch of rows: its number, its file's name, the places of its rows so far."""
        for number, start in enumerate(range(0, self.size, self.stretch)):
            yield number, f"{number:06d}.safetensors", slice(start, min(start + self.stretch, self.size))

    def _written(self, places: slice) -> dict[str, Tensor]:
        """What a file has of the rows in these places, [P, n, ...]."""
        return {"rows": self.grid[:, places]}

    def _read(self, places: slice, found: Mapping[str, Tensor], file: Path) -> None:
        """Undo `_written`. Raises CheckpointError for rows of another shape."""
        rows = self.grid[:, places]
        if found["rows"].shape != rows.shape:
            raise CheckpointError(f"{file} has rows {list(found['rows'].shape)}, and {list(rows.shape)} fit.")
        rows.copy_(found["rows"])

    def save(self, folder: Path) -> None:
        """Write a file for each stretch of rows, in the folder of this name of a checkpoint.

        Of a stretch that is as the checkpoint before has it, that file gets a second name: so a checkpoint costs what
        is new, and at most one stretch more.
        """
        older = checkpoints.before(folder.parent)
        disk.make_folder(folder)
        for number, name, places in self._stretches():
            mark = self.written.get(number)
            if older and mark and checkpoints.link(older / folder.name / name, folder / name, mark):
                continue
            checkpoints.save_tensors(folder / name, self._written(places))
            self.written[number] = checkpoints.Mark.of(folder / name)

    def load(self, folder: Path, pushed: int) -> None:
        """Undo `save`, after so many rows of each member. Raises CheckpointError for rows of another shape."""
        self.size, self.cursor, self.pushed = min(pushed, self.capacity), pushed % self.capacity, pushed
        for number, name, places in self._stretches():
            self._read(places, checkpoints.load_tensors(folder / name), folder / name)
            self.written[number] = checkpoints.Mark.of(folder / name)
