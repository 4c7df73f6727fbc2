"""Room for what is stored: said and refused before any of it is there; in memory or in a file, the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from etude.core.errors import ConfigError, RunFolderError
from etude.core.population import Member
from etude.experience import mapped
from etude.experience.store import Store
from etude.loops.off_policy import OffPolicyLoop
from etude.runs.kinds.replay import ReplayRun
from etude.runtime import memory
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, small

torch.set_num_threads(1)


def loop_of(**experience: Any) -> OffPolicyLoop:
    return OffPolicyLoop(small(REPLAY["td3"], **experience), pendulum, [Member(3), Member(4)], 4, block=27)


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_ring_that_is_never_filled_takes_no_memory() -> None:
    before = resident()
    store = Store(1, 1, 6_000_000, (17,), 6)
    assert store.bytes == 6_000_000 * (17 + 6 + 17 + 3) * 4 > 1e9
    assert resident() - before < 1e8


def test_what_memory_has_no_room_for_is_refused_with_the_fields_to_set() -> None:
    """10^13 rows of 10 numbers of 4 bytes, of two members: 800,000 GB."""
    account = r"takes 800000\.0 GB \(2 members x 10,000,000,000,000 rows of 10 numbers of 4 bytes\)"
    with pytest.raises(ConfigError, match=account + r", and .* of memory are free: lower experience\.capacity, or"):
        loop_of(capacity=10**13)
    with pytest.raises(ConfigError, match=account + r", and .* are free in .*: lower experience\.capacity, or name"):
        loop_of(capacity=10**13, on_disk=True)


def test_what_a_container_has_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "allowed", lambda: 2 * 40 * 10 * 4 - 1)
    with pytest.raises(ConfigError, match=r"takes 3 kB .*, and 3 kB of memory are free"):
        loop_of()
    monkeypatch.setattr(memory, "allowed", lambda: 2 * 40 * 10 * 4)
    loop_of()
    monkeypatch.setattr(memory, "allowed", lambda: 0)
    loop_of(on_disk=True)


@pytest.mark.slow
def test_in_a_file_the_numbers_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the ring wrapped, and after going on from a checkpoint; the file has no name, so it is never left behind."""
    monkeypatch.setattr(mapped, "place", lambda: tmp_path / "room")
    (tmp_path / "room").mkdir()
    plain, filed = loop_of(), loop_of(on_disk=True)
    assert not list((tmp_path / "room").iterdir())
    maps = Path("/proc/self/maps").read_text()
    assert f"{tmp_path}/room/etude-replay-" in maps and "(deleted)" in maps
    for loop in (plain, filed):
        loop.step(), loop.step()
    (tmp_path / "saved").mkdir()
    filed.save(tmp_path / "saved")
    again = loop_of(on_disk=True)
    again.load(tmp_path / "saved")
    for loop in (plain, filed, again):
        loop.step()
    for loop in (filed, again):
        assert torch.equal(loop.collector.store.grid, plain.collector.store.grid)
        assert all(torch.equal(v, loop.policy_tensors()[k]) for k, v in plain.policy_tensors().items())


def test_a_file_takes_its_room_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that filled up later would end the run by a signal, in the middle of a step."""

    def full(fd: int, start: int, length: int) -> None:
        assert (start, length) == (0, 2 * 40 * 10 * 4)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped, "place", lambda: tmp_path)
    monkeypatch.setattr(mapped.os, "posix_fallocate", full)
    with pytest.raises(RunFolderError, match=f"Disk full: {tmp_path} has no room for what is stored"):
        loop_of(on_disk=True)
    assert not list(tmp_path.iterdir())


def test_a_run_says_what_it_will_take() -> None:
    loop = loop_of(on_disk=True)
    said = ReplayRun().sentence(loop, loop.method, pendulum)
    assert "what is stored takes up to 3 kB (2 members x 40 rows of 10 numbers of 4 bytes), in a file in /" in said
