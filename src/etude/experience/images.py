"""What a population has stored of images: every frame once, of which stacks and what follows are made when read.

What is seen at a row is the newest frame of its step, which lies in the row's place, and those of the steps before it
in the same episode, the first of which stands in for what would lie before that (`FrameStack`). What the row led to is
the frame of the next row of its environment; where an episode ended, its true last frame, kept apart with the row. The
frames of a few steps before the oldest row are kept too, so that its stack is whole. Stacks of four take an eighth of
what they would, seen and what they led to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from etude.core.population import CPU
from etude.experience.store import BYTES, Column, Rows, Store
from etude.runtime import checkpoints

FIRST = 8
"""Last frames of episodes of a member that there is room for at first; each time that it is too little it doubles."""
NONE = -1
"""In the place of a last frame, where an episode went on."""
EDGE = "edge.safetensors"
"""What a checkpoint has of the frames that are no row's: before the oldest, and after the newest."""
FILE = 16
"""A file of images is so many times as large as one of vectors."""


class ImageRows:
    """Rows [...] of an `ImageStore`; images [..., C, H, W] are put together when they are asked for.

    Args:
        place: [P, ...] of the rows. rows: their numbers, of which the first column is `before`.
    """

    def __init__(self, store: ImageStore, place: Tensor, rows: Rows, end: Tensor) -> None:
        self.store, self.place, self.before = store, place, rows.observations.squeeze(-1)
        self.actions, self.rewards, self.live, self.end = rows.actions, rows.rewards, rows.live, end

    @cached_property
    def frames(self) -> Tensor:
        """[..., K, c, H, W], the oldest first."""
        return self.store.stacks(self.place, self.before)

    @property
    def observations(self) -> Tensor:
        return self.frames.flatten(-4, -3)

    @cached_property
    def next_observations(self) -> Tensor:
        led = self.store.led(self.place).unsqueeze(-4)
        return torch.cat([self.frames[..., 1:, :, :, :], led], -4).flatten(-4, -3)


class ImageStore(Store):
    """Transitions of images [K c, H, W], K frames of c channels each, of which every one is stored once.

    `frames` [P, S, c H W] has the rows', then those of K - 1 steps before the oldest row, then those that act next.

    Args:
        shape: of an observation. depth: K, frames in it.

    Raises: ConfigError as `Store`.

    >>> store = ImageStore(members=1, environments=1, capacity=4, shape=(2, 1, 1), actions=1, depth=2)
    >>> one = torch.ones(1, 1)
    >>> for t in range(6):
    ...     seen, led = (torch.tensor([max(0, x - 1), x], dtype=torch.uint8).view(1, 1, 2, 1, 1) for x in (t, t + 1))
    ...     store.push(seen, one[..., None], led, one, one, 0 * one)
    >>> rows = store.read(torch.tensor([[2, 1]]))
    >>> rows.observations.flatten().tolist(), rows.next_observations.flatten().tolist()
    ([1, 2, 4, 5], [2, 3, 5, 6])
    """

    def __init__(
        self, members: int, environments: int, capacity: int, shape: tuple[int, ...], actions: int,
        on_disk: bool = False, device: torch.device = CPU, depth: int = 1, dtype: torch.dtype = torch.uint8,
    ) -> None:  # fmt: skip
        self.depth, self.dtype, self.frame = depth, dtype, (shape[0] // depth, *shape[1:])
        super().__init__(members, environments, capacity, shape, actions, on_disk, device)
        edge = depth * environments
        self.frames = self._numbers(members * (self.capacity + edge), math.prod(self.frame), dtype)
        self.frames = self.frames.view(members, self.capacity + edge, -1)
        self.frames[:, self.capacity :] = 0
        self.before = torch.zeros(members, environments)  # frames of its episode before the one that acts next
        self.lasts = self._lasts(FIRST)
        self.last = torch.full((members, self.capacity), NONE, device=self.device)  # where among them a row's own is
        self.free = [list(range(FIRST)) for _ in range(members)]
        self.stands: Tensor | None = None  # [P, capacity] which row is read in a row's place, once one is gone

    def _columns(self, actions: int) -> tuple[int, int, int, int, int, int]:
        return 1, actions, 0, 1, 1, 1

    def _lasts(self, count: int) -> Tensor:
        numbers = self._numbers(self.members * count, math.prod(self.frame), self.dtype)
        return numbers.view(self.members, count, -1)

    @property
    def steps(self) -> int:
        """Of every environment so far."""
        return self.pushed // self.environments

    # Storing

    def push(
        self, observations: Column, actions: Column, following: Column, rewards: Column, live: Column, end: Column
    ) -> None:
        observations, following, end = map(torch.as_tensor, (observations, following, end))
        place, count = slice(self.cursor, self.cursor + self.environments), self.environments
        if self.size == self.capacity:
            self._give_way(place)
        newest = following[:, :, -self.frame[0] :].flatten(2)
        self.frames[:, place].copy_(observations[:, :, -self.frame[0] :].flatten(2))
        self.frames[:, -count:].copy_(newest)
        before, nothing = self.before[..., None], torch.empty(*self.before.shape, 0)
        super().push(before, actions, nothing, rewards, live, end)
        self.before = torch.where(end > 0, 0.0, (self.before + 1).clamp(max=self.depth - 1))
        for m, e in end.nonzero().tolist():
            self._keep_last(m, place.start + e, newest[m, e])

    def _give_way(self, place: slice) -> None:
        """Keep what is still needed of the oldest step, whose rows come next."""
        if self.depth > 1:
            older = self.capacity + (self.steps - self.capacity // self.environments) % (self.depth - 1) * (
                self.environments
            )
            self.frames[:, older : older + self.environments] = self.frames[:, place]
        for m, own in enumerate(self.last[:, place].tolist()):
            self.free[m] += [x for x in own if x != NONE]
        self.last[:, place] = NONE
        if self.stands is not None:
            self.stands[:, place] = torch.arange(place.start, place.stop, device=self.device)

    def _keep_last(self, member: int, place: int, frame: Tensor) -> None:
        """Keep the frame that a row led to, which no row has."""
        if not self.free[member]:
            count = self.lasts.shape[1]
            wider = self._lasts(2 * count)
            wider[:, :count] = self.lasts
            self.lasts = wider
            for free in self.free:
                free += range(count, 2 * count)
        where = self.free[member].pop()
        self.lasts[member, where].copy_(frame)
        self.last[member, place] = where

    def has(self, member: int, place: int) -> bool:
        return self.stands is None or int(self.stands[member, place]) == place

    def copy_row(self, member: int, source: int, place: int) -> None:
        """Read one of a member's rows in the place of another from now on, and of those that were read there."""
        super().copy_row(member, source, place)
        if self.stands is None:
            self.stands = self._alone()
        moved = (self.stands[member] == place).nonzero()[:, 0].tolist()
        for row in (*moved, place):
            self.stands[member, row] = source
            self.written.pop(row // self.stretch, None)

    def _alone(self) -> Tensor:
        """Every row in its own place."""
        return torch.arange(self.capacity, device=self.device).repeat(self.members, 1)

    # Reading

    def read(self, index: Tensor) -> ImageRows:
        if self.stands is None:
            rows = self._columns_of(index)
            return ImageRows(self, index, rows, rows.end)
        place = self.stands.gather(1, index.flatten(1)).view_as(index)
        rows = self._columns_of(place)
        return ImageRows(self, place, rows, torch.where(place == index, rows.end, 1.0))

    def stacks(self, place: Tensor, before: Tensor) -> Tensor:
        """Frames [P, ..., K, c, H, W] that were seen at rows, `before` of whose episode come before the newest."""
        count, back = self.environments, torch.arange(self.depth - 1, -1, -1, device=self.device)
        back = torch.minimum(back.expand(*place.shape, -1), before[..., None].long())
        place = place[..., None]
        if self.depth == 1:
            return self._gather(self.frames, place)
        oldest = self.steps - self.size // count
        step = (place - self.oldest) % self.capacity // count - back
        older = self.capacity + (oldest + step) % (self.depth - 1) * count + place % count
        return self._gather(self.frames, torch.where(step < 0, older, (place - back * count) % self.capacity))

    def led(self, place: Tensor) -> Tensor:
        """Frames [P, ..., c, H, W] that rows led to: the true last one where an episode ended."""
        ahead, stored = self.ahead(place, 1)
        acting = self.frames.shape[1] - self.environments + place % self.environments
        last = self.last.gather(1, place.flatten(1)).view_as(place)
        found = self._gather(self.frames, torch.where(stored, ahead, acting))
        ended = (last != NONE).view(*last.shape, 1, 1, 1)
        return torch.where(ended, self._gather(self.lasts, last.clamp(min=0)), found)

    def _gather(self, frames: Tensor, where: Tensor) -> Tensor:
        members = torch.arange(self.members, device=self.device)
        first = members.view(-1, *[1] * (where.dim() - 1)) * frames.shape[1]
        found = frames.flatten(0, 1).index_select(0, (first + where).flatten())
        return found.view(*where.shape, *self.frame)

    # Room

    @property
    def row(self) -> int:
        return super().row + math.prod(self.frame) * self.dtype.itemsize

    @property
    def file(self) -> int:
        return FILE * super().file

    def _each(self) -> str:
        shape = " x ".join(map(str, self.frame))
        return (
            f"a frame of {shape} in {self.dtype.itemsize} bytes and {sum(self.widths)} numbers of {BYTES} bytes, "
            "without the last frames of episodes"
        )

    # Files

    def _written(self, places: slice) -> dict[str, Tensor]:
        last, own = self.last[:, places], self.lasts.flatten(0, 1)
        first = torch.arange(self.members, device=self.device)[:, None] * self.lasts.shape[1]
        found = {
            **super()._written(places), "frames": self.frames[:, places],
            "ended": (last != NONE).to(torch.uint8), "lasts": own[(last + first)[last != NONE]],
        }  # fmt: skip
        return found if self.stands is None else {**found, "stands": self.stands[:, places]}

    def _read(self, places: slice, found: Mapping[str, Tensor], file: Path) -> None:
        super()._read(places, found, file)
        self.frames[:, places].copy_(found["frames"])
        for (m, row), frame in zip(found["ended"].nonzero().tolist(), found["lasts"], strict=True):
            self._keep_last(m, places.start + row, frame)
        if "stands" in found:
            if self.stands is None:
                self.stands = self._alone()
            self.stands[:, places].copy_(found["stands"])

    def save(self, folder: Path) -> None:
        super().save(folder)
        checkpoints.save_tensors(folder / EDGE, {"frames": self.frames[:, self.capacity :], "before": self.before})

    def load(self, folder: Path, pushed: int) -> None:
        self.last.fill_(NONE)
        self.free, self.stands = [list(range(self.lasts.shape[1])) for _ in self.free], None
        super().load(folder, pushed)
        found = checkpoints.load_tensors(folder / EDGE)
        self.frames[:, self.capacity :].copy_(found["frames"])
        self.before = found["before"]
