"""Images are stored once a frame, and read as they were seen: nothing crosses a reset, whatever ended, ring wrapped."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.core.errors import ConfigError
from etude.core.sampling_slots import Horizon
from etude.experience import mapped
from etude.experience import store as storing
from etude.experience.images import ImageStore
from etude.experience.sampling import NStep, OneStep, Window
from etude.experience.store import Store
from etude.runtime import checkpoints, disk, memory

CONTINUES, TERMINATED, TRUNCATED = 0, 1, 2
FRAME = (2, 1, 3)
ENDS = st.lists(st.sampled_from([CONTINUES] * 3 + [TERMINATED, TRUNCATED]), min_size=6, max_size=36)


class Played:
    """Two members' environments whose frames all differ, told to an image store and, whole, to a naive one.

    The naive store is a list of every step: what was seen, and what it led to, as stacks that the test makes itself.
    """

    def __init__(self, environments: int, capacity: int, depth: int, on_disk: bool = False) -> None:
        self.environments, self.depth, self.number = environments, depth, 0
        shape = (depth * FRAME[0], *FRAME[1:])
        self.store = ImageStore(2, environments, capacity, shape, 1, on_disk, depth=depth, dtype=torch.int32)
        self.naive: list[list[tuple[Tensor, float, Tensor, int]]] = [[], []]
        self.stacks = [[[self.frame()] * depth for _ in range(environments)] for _ in range(2)]

    def frame(self) -> Tensor:
        self.number += 1
        return torch.full(FRAME, self.number, dtype=torch.int32) + torch.arange(6).view(FRAME) * 100_000

    def step(self, ends: Sequence[int]) -> None:
        """One step everywhere; `ends` of each environment of the first member, of the second the other way round."""
        seen, led, paid = [], [], []
        each = [list(ends), list(ends)[::-1]]
        for m in range(2):
            for e in range(self.environments):
                stack, new = self.stacks[m][e], self.frame()
                after = [*stack[1:], new]
                self.naive[m].append((torch.cat(stack), float(self.number), torch.cat(after), each[m][e]))
                seen.append(torch.cat(stack))
                led.append(torch.cat(after))
                paid.append(float(self.number))
                self.stacks[m][e] = after if each[m][e] == CONTINUES else [self.frame()] * self.depth
        grid = (2, self.environments)
        shape = (*grid, *seen[0].shape)
        numbers = torch.tensor(paid).view(grid)
        end = torch.tensor(each)
        self.store.push(
            torch.stack(seen).view(shape), numbers[..., None], torch.stack(led).view(shape), numbers,
            (end != TERMINATED).float(), (end != CONTINUES).float(),
        )  # fmt: skip

    def play(self, ends: Sequence[int]) -> Played:
        for i in range(0, len(ends) - self.environments + 1, self.environments):
            self.step(ends[i : i + self.environments])
        return self

    def kept(self, member: int) -> list[tuple[Tensor, float, Tensor, int]]:
        return self.naive[member][-self.store.size :]


def whole(played: Played) -> Store:
    """A store of vectors that was told all that is kept, with the stacks as they are."""
    store = played.store
    size = played.depth * 6
    naive = Store(2, store.environments, store.capacity, (size,), 1)
    for t in range(0, len(played.naive[0]), store.environments):
        rows = [own[t : t + store.environments] for own in played.naive]
        column = lambda of: torch.stack([torch.stack([of(r) for r in own]) for own in rows])  # noqa: E731, B023
        paid = column(lambda r: torch.tensor(r[1]))
        live, end = (column(lambda r, x=x: torch.tensor(float(r[3] != x))) for x in (TERMINATED, CONTINUES))
        flat = [column(lambda r, i=i: r[i].flatten().float()) for i in (0, 2)]
        naive.push(flat[0], paid[..., None], flat[1], paid, live, end)
    return naive


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(ends=ENDS, environments=st.integers(1, 3), capacity=st.integers(3, 20), depth=st.integers(1, 4))
def test_what_is_read_is_what_was_seen(ends: list[int], environments: int, capacity: int, depth: int) -> None:
    played = Played(environments, capacity, depth).play(ends)
    store = played.store
    rows = store.read(torch.arange(store.size).expand(2, -1))
    for m in range(2):
        kept = {paid: (seen, led, end) for seen, paid, led, end in played.kept(m)}
        assert sorted(rows.rewards[m].tolist()) == sorted(kept)  # all that is kept, nothing else
        for r, paid in enumerate(rows.rewards[m].tolist()):
            seen, led, end = kept[paid]
            assert torch.equal(rows.observations[m, r], seen) and torch.equal(rows.next_observations[m, r], led)
            assert float(rows.end[m, r]) == (end != CONTINUES) and float(rows.live[m, r]) == (end != TERMINATED)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    ends=ENDS, environments=st.integers(1, 3), capacity=st.integers(12, 24), depth=st.integers(1, 3),
    horizon=st.sampled_from([OneStep(), NStep(n=2), NStep(n=4), Window(length=1), Window(length=4)]),
)  # fmt: skip
def test_every_horizon_reads_what_it_reads_of_vectors(
    ends: list[int], environments: int, capacity: int, depth: int, horizon: Horizon
) -> None:
    played = Played(environments, capacity, depth).play(ends)
    index = torch.arange(played.store.size).expand(2, -1)
    found, wanted = horizon.read(played.store, index), horizon.read(whole(played), index)
    assert found.next_observations is not None and wanted.next_observations is not None
    axes = found.rewards.dim()
    assert torch.equal(found.observations.flatten(axes).float(), wanted.observations)
    assert torch.equal(found.next_observations.flatten(axes).float(), wanted.next_observations)
    for name in ("actions", "rewards", "discounts", "terminated", "truncated"):
        assert torch.equal(getattr(found, name), getattr(wanted, name)), name


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(ends=ENDS, environments=st.integers(1, 2), capacity=st.integers(8, 20), failed=st.integers(1, 3))
def test_nothing_of_a_failed_episode_is_read(ends: list[int], environments: int, capacity: int, failed: int) -> None:
    """Its rows are others of the member from then on, whole, and ends; also once these have been overwritten."""
    played = Played(environments, capacity, depth=3).play(ends)
    store, gone = played.store, [(played.store.cursor - (k + 1) * environments) for k in range(failed)]
    gone = [g % store.capacity for g in gone if store.size > failed * environments]
    lost = {float(store.grid[0, g, -3]) for g in gone}
    source = next((r for r in range(store.size) if r not in gone and store.has(0, r)), None)
    for place in gone if source is not None else ():
        store.copy_row(0, source, place)
    for more in range(3):
        rows = store.read(torch.arange(store.size).expand(2, -1))
        told = {paid: (seen, led) for seen, paid, led, _ in played.naive[0]}
        for r, paid in enumerate(rows.rewards[0].tolist()):
            assert source is None or paid not in lost
            assert torch.equal(rows.observations[0, r], told[paid][0])
            assert torch.equal(rows.next_observations[0, r], told[paid][1])
        if source is not None and more == 0:
            assert rows.end[0, gone].tolist() == [1.0] * len(gone)
        played.play([CONTINUES, TERMINATED] * (capacity // 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "environments", "capacity", "depth", "fails"),
    [(5, 1, 20, 3, False), (30, 1, 13, 4, True), (31, 2, 9, 1, True), (41, 3, 20, 2, False), (40, 1, 6, 4, False)],
)
def test_a_checkpoint_has_it_as_it_was(count: int, environments: int, capacity: int, depth: int, fails: bool) -> None:
    """Who goes on from one reads the same, and writes the very files that who never stopped writes."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(storing, "STRETCH", 50)  # several files
        patch.setattr(disk, "sync", lambda path: None)
        draws = torch.randint(5, (2, count), generator=torch.Generator().manual_seed(count)).sub(2).clamp(min=0)
        first, second = draws.tolist()
        played = Played(environments, capacity, depth).play(first)
        store = played.store
        if fails and store.size > 1:
            store.copy_row(1, 0, store.size - 1)
        saved = checkpoints.write(Path(root) / "a", 1, lambda folder: store.save(folder / checkpoints.STORED))
        again = Played(environments, capacity, depth).store
        again.load(saved / checkpoints.STORED, store.pushed)
        index = torch.arange(store.size).expand(2, -1)
        agree(store, again, index)
        pushed, push = [], store.push
        patch.setattr(store, "push", lambda *step: (pushed.append(step), push(*step)))
        played.play(second)
        for step in pushed:
            again.push(*step)
        agree(store, again, torch.arange(store.size).expand(2, -1))
        other = checkpoints.write(Path(root) / "b", 2, lambda folder: again.save(folder / checkpoints.STORED))
        one = checkpoints.write(Path(root) / "a", 2, lambda folder: store.save(folder / checkpoints.STORED))
        assert contents(one) == contents(other) and len(contents(one)) > 1


def agree(one: ImageStore, other: ImageStore, index: Tensor) -> None:
    mine, theirs = one.read(index), other.read(index)
    for name in ("observations", "next_observations", "actions", "rewards", "live", "end"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name)), name


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / checkpoints.STORED).iterdir()}


def test_a_checkpoint_costs_what_is_new(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storing, "STRETCH", 40)
        played = Played(1, 400, 3).play([CONTINUES] * 300)
    for step in (1, 2):
        checkpoints.write(tmp_path, step, lambda folder: played.store.save(folder / checkpoints.STORED))
        played.play([CONTINUES])
    fresh = [p.name for p in (tmp_path / "step-2" / checkpoints.STORED).iterdir() if p.stat().st_nlink == 1]
    assert len(fresh) == 2 and "edge.safetensors" in fresh


# Room


def test_a_stack_of_four_takes_an_eighth_of_what_was_seen_and_followed() -> None:
    store = ImageStore(2, 1, 1000, (4, 84, 84), 1, depth=4)
    frame, numbers = 84 * 84, 5 * 4
    assert store.bytes == 2 * 1000 * (frame + numbers)
    assert store.account == (
        "14 MB (2 members x 1,000 rows of a frame of 1 x 84 x 84 in 1 bytes and 5 numbers of 4 bytes, without the "
        "last frames of episodes)"
    )
    held = sum(x.nbytes for x in (store.rows, store.frames, store.lasts, store.last))
    assert held / (2 * 1000 * 2 * 4 * frame) == pytest.approx(1 / 8, rel=0.02)


def test_images_that_memory_has_no_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "allowed", lambda: 10**6)
    with pytest.raises(ConfigError, match=r"What is stored takes 7 MB .*, and 1 MB of memory are free"):
        ImageStore(1, 1, 1000, (4, 84, 84), 1, depth=4)


def test_in_a_file_they_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tempfile.tempdir = None
    made: list[Any] = []
    numbers = mapped.numbers
    monkeypatch.setattr(mapped, "numbers", lambda *a: (made.append(a[2]), numbers(*a))[1])
    ends = [CONTINUES, TERMINATED, CONTINUES, TRUNCATED] * 12
    here, there = (Played(2, 20, 3, on_disk).play(ends).store for on_disk in (False, True))
    assert made.count(torch.int32) == 3  # frames, last frames, and these again once they were too many
    agree(here, there, torch.arange(here.size).expand(2, -1))
    tempfile.tempdir = None
