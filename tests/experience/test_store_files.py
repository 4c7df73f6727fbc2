"""The store in files: exact whatever was stored, changed, pruned; what is new is written, the rest is linked to."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.core.errors import CheckpointError
from etude.experience import store as storing
from etude.experience.store import Store
from etude.runtime import checkpoints, disk

WIDTH = 2 + 1 + 2 + 3


class Run:
    """A store with the checkpoints of a run, and the ring as it was at each."""

    def __init__(
        self, root: Path, members: int = 1, environments: int = 1, capacity: int = 64, stretch: int = 8
    ) -> None:
        self.root, self.made = root, (members, environments, capacity, (2,), 1)
        self.step, self.number, self.rings = 0, 0.0, dict[int, Tensor]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storing, "STRETCH", stretch * members * WIDTH * 4)
            self.store, self.empty = Store(*self.made), Store(*self.made)

    def push(self, steps: int) -> None:
        grid = (self.made[0], self.made[1])
        for _ in range(steps):
            self.number += 1
            x = self.number + torch.rand(*grid, 2)
            self.store.push(x, x[..., :1], x + 1, x[..., 0], torch.ones(grid), torch.zeros(grid))

    def ring(self, store: Store) -> Tensor:
        return store.grid[:, : store.size].clone()

    def save(self) -> Path:
        self.step += 1
        self.rings[self.step] = self.ring(self.store)

        def save(folder: Path) -> None:
            self.store.save(folder / checkpoints.STORED)
            checkpoints.save_json(folder / "pushed.json", self.store.pushed)

        return checkpoints.write(self.root, self.step, save)

    def load(self, folder: Path, into: Store) -> None:
        into.load(folder / checkpoints.STORED, checkpoints.load_json(folder / "pushed.json"))
        assert torch.equal(self.ring(into), self.rings[checkpoints.step_of(folder)])

    def resume(self) -> None:
        """Go back to the newest checkpoint, as another process would."""
        newest = checkpoints.newest(self.root)[0]
        self.store, self.empty = self.empty, self.store
        self.store.rows.fill_(-1.0)
        self.load(newest, self.store)


def files(folder: Path) -> dict[str, int]:
    """Inodes of what a checkpoint has stored."""
    return {p.name: p.stat().st_ino for p in (folder / checkpoints.STORED).iterdir()}


def fresh(folder: Path) -> int:
    """Bytes in files that no other checkpoint has."""
    found = [p.stat() for p in (folder / checkpoints.STORED).iterdir()]
    return sum(s.st_size for s in found if s.st_nlink == 1)


ACTIONS = st.one_of(
    st.tuples(st.just("push"), st.integers(1, 30)),
    st.tuples(st.just("copy"), st.tuples(st.integers(0, 10**6), st.integers(0, 10**6))),
    st.tuples(st.sampled_from(["save", "resume"]), st.none()),
    st.tuples(st.just("prune"), st.integers(1, 2)),
)


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.lists(ACTIONS, min_size=3, max_size=25), st.integers(1, 2), st.integers(1, 3), st.integers(4, 40),
    st.integers(1, 16),
)  # fmt: skip
def test_every_checkpoint_has_the_ring_as_it_was(
    actions: list[tuple[str, object]], members: int, environments: int, capacity: int, stretch: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        run = Run(Path(root), members, environments, capacity, stretch)
        run.push(1)
        run.save()
        for action, what in actions:
            if action == "push":
                run.push(int(str(what)))
            elif action == "copy" and isinstance(what, tuple):
                run.store.copy_row(members - 1, what[0] % run.store.size, what[1] % run.store.size)
            elif action == "prune":
                checkpoints.prune(run.root, int(str(what)))
            else:
                getattr(run, action)()
        run.save()
        for folder in checkpoints.steps(run.root):
            assert not checkpoints.verify(folder)
            run.load(folder, run.empty)


def test_a_checkpoint_costs_what_is_new(tmp_path: Path) -> None:
    run = Run(tmp_path, capacity=800)
    run.push(800)
    first = fresh(run.save())
    run.push(20)  # stretches 0 and 1, and half of 2
    second = run.save()
    assert first > 800 * WIDTH * 4 and fresh(second) / first == pytest.approx(3 / 100, rel=0.01)
    run.push(80)
    assert fresh(run.save()) / first == pytest.approx(11 / 100, rel=0.01)
    run.save()
    assert fresh(checkpoints.steps(tmp_path)[-1]) == 0


def test_only_what_is_new_is_hashed_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, hashed, synced = Run(tmp_path), list[str](), list[str]()
    run.push(40)
    run.save()
    real, sync = checkpoints._sha256, disk.sync
    monkeypatch.setattr(checkpoints, "_sha256", lambda path: (hashed.append(path.name), real(path))[1])
    monkeypatch.setattr(disk, "sync", lambda path: (synced.append(path.name), sync(path))[1])
    run.push(3)
    second = run.save()
    assert hashed == ["pushed.json", "000005.safetensors"]
    assert [name for name in synced if name.endswith("safetensors")] == ["000005.safetensors"]
    monkeypatch.undo()
    assert not checkpoints.verify(second)
    assert len(checkpoints.load_json(second / checkpoints.COMPLETE)["files"]) == 7


def test_a_changed_row_is_written_anew_and_the_checkpoint_before_keeps_the_old(tmp_path: Path) -> None:
    run = Run(tmp_path, members=2)
    run.push(64)
    first = run.save()
    run.store.copy_row(1, 3, 30)
    second = run.save()
    assert [n for n in files(first) if files(first)[n] != files(second)[n]] == ["000003.safetensors"]
    for folder in (first, second):
        run.load(folder, run.empty)


def test_pruning_frees_what_no_other_checkpoint_holds(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.push(64)
    run.save()
    run.push(9)
    second = run.save()
    shared = [p for p in (second / checkpoints.STORED).iterdir() if p.stat().st_nlink == 2]
    checkpoints.prune(tmp_path, keep=1)
    assert len(shared) == 6 and all(p.stat().st_nlink == 1 for p in shared)
    run.resume()


def test_where_a_file_has_one_name_only_it_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(disk, "link", refused)
    run = Run(tmp_path)
    run.push(20)
    first = run.save()
    run.push(1)
    second = run.save()
    assert not set(files(first).values()) & set(files(second).values())
    checkpoints.prune(tmp_path, keep=1)
    run.resume()


def spoil(path: Path, later: int = 0) -> None:
    """Change a byte of a file in its place, `later` nanoseconds after it was written."""
    before = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.seek(-1, 2)
        byte = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(before, before + later))


def test_a_file_that_changed_under_the_run_is_not_linked_to(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.push(30)
    spoil(run.save() / checkpoints.STORED / "000001.safetensors", later=1000)
    run.push(1)
    second = run.save()
    assert not checkpoints.verify(second)
    run.load(second, run.empty)
    assert "the SHA-256 of replay/000001.safetensors is not the one recorded" in checkpoints.verify(tmp_path / "step-1")


def test_a_file_that_changed_is_found_when_it_is_read(tmp_path: Path) -> None:
    """The newest has it alone, so the run goes on from the one before; where both have it, none is whole."""
    run = Run(tmp_path)
    run.push(30)
    run.save()
    run.push(6)
    second = run.save()
    spoil(second / checkpoints.STORED / "000004.safetensors")
    found, said = checkpoints.newest(tmp_path)
    assert found.name == "step-1" and "the SHA-256 of replay/000004.safetensors is not the one recorded" in said[0]
    spoil(second / checkpoints.STORED / "000001.safetensors")
    with pytest.raises(CheckpointError, match=r"No checkpoint in .* is whole.*replay/000001\.safetensors"):
        checkpoints.newest(tmp_path)
    assert checkpoints.newest(tmp_path, stored=False) == (second, [])  # who only acts reads none of it


def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    run, other = Run(tmp_path), Store(1, 1, 64, (3,), 1)
    run.push(5)
    with pytest.raises(CheckpointError, match=r"has rows \[1, 5, 8\], and \[1, 5, 10\] fit"):
        other.load(run.save() / checkpoints.STORED, 5)
