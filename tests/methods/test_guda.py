"""GuDA: what is moved would have gone so, what is kept makes progress, and nothing else is added."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from etude.core.errors import ConfigError
from etude.core.registry import get_method
from etude.experience.logs.table import Logs, Spaces
from etude.experiments.offline.guda import demonstrations
from etude.methods.offline.guda import (
    AnyWay,
    Augment,
    MazeMoves,
    ProgressGuide,
    Segments,
    Symmetries,
    TowardsGoal,
    turned,
)
from etude.tasks.control._pointmaze import PointMazeArrays
from log_toys import random_logs

METHOD: Any = get_method("guda")


@pytest.fixture(scope="module")
def logs() -> Logs:
    columns = demonstrations(3)
    spaces = Spaces(Box(-9.0, 9.0, (4,)), Box(-1.0, 1.0, (2,)), "me")
    names = ("observations", "actions", "rewards")
    return Logs(
        Path("maze"), spaces, *(columns[k].astype(np.float32) for k in names), columns["terminals"],
        columns["timeouts"], columns["next_observations"],
    )  # fmt: skip


class AsTheyAre(Symmetries):
    """Every segment as it was."""

    def moved(self, segments: Segments, rng: np.random.Generator) -> tuple[Segments, Any]:
        return segments, np.ones(len(segments.there), bool)


class Nothing(ProgressGuide):
    """None of them."""

    def progress(self, segments: Segments) -> Any:
        return np.zeros(len(segments.there), bool)


@pytest.mark.parametrize("guide", [AnyWay(), TowardsGoal()])
@pytest.mark.slow
def test_what_is_added_are_steps_of_the_simulator(logs: Logs, guide: ProgressGuide) -> None:
    """Set to what is seen and given what is done, it goes where the row says, pays that and ends so."""
    found = Augment(guide=guide, rows=3000, longest=8, seed=2)(logs, METHOD)
    assert found.rows == logs.rows + 3000 and (found.observations[: logs.rows] == logs.observations).all()
    new = slice(logs.rows, None)
    arrays = PointMazeArrays([0], 1, "check", "umaze")
    seen = found.observations[new].astype(np.float64)
    goal = np.broadcast_to(arrays.maze.middles[arrays.maze.goal], (3000, 2))
    states = np.concatenate([seen[:, :2] + arrays.centre, seen[:, 2:], goal], 1)
    went, paid, ended = arrays.advance(states, found.actions[new])
    led = np.concatenate([went[:, :2] - arrays.centre, went[:, 2:4]], 1)
    assert np.abs(led - found.next_observations[new]).max() < 1e-6
    assert (paid == found.rewards[new]).all() and (ended == found.terminated[new]).all()
    # pieces go on from row to row, and each ends with a last row
    last = (found.terminated | found.truncated)[new]
    on = ~last[:-1]
    assert np.abs(found.next_observations[new][:-1][on] - found.observations[new][1:][on]).max() < 1e-4 and last[-1]
    assert not (found.terminated & found.truncated).any() and found.episodes > logs.episodes + 300


@pytest.mark.slow
def test_what_is_kept_goes_to_the_goal(logs: Logs) -> None:
    found, chance = (Augment(guide=g, rows=2000, longest=8)(logs, METHOD) for g in (TowardsGoal(), AnyWay()))
    maze = PointMazeArrays([0], 1, "check", "umaze").maze
    centre = np.array([2.5, 2.5])

    def share(after: Logs) -> float:
        ends = after.ends[after.ends >= logs.rows]
        starts = np.concatenate([[logs.rows], ends[:-1] + 1])
        begun, gone = after.observations[starts, :2] + centre, after.next_observations[ends, :2] + centre
        way = maze.middles[maze.onward[maze.cell(begun), maze.goal]] - begun
        angle = ((gone - begun) * way).sum(1) / (np.linalg.norm(gone - begun, axis=1) * np.linalg.norm(way, axis=1))
        return float(((angle > np.cos(np.radians(46))) | after.terminated[ends])[:-1].mean())

    assert share(found) == 1.0 and share(chance) < 0.5
    assert found.terminated[logs.rows :].mean() > chance.terminated[logs.rows :].mean()


def test_segments_as_they_are_are_the_logs(logs: Logs) -> None:
    """Every row of the logs comes, in its order, with what it was paid and whether it ended; nothing else does."""
    first = np.arange(logs.rows) == logs.ends[0]  # a limit stops the first episode, and the second terminates
    logs = replace(logs, terminated=logs.terminated & ~first, truncated=first)
    found = Augment(symmetries=AsTheyAre(), guide=AnyWay(), rows=6000, longest=6)(logs, METHOD)
    names = ("observations", "actions", "next_observations", "rewards", "terminated")

    def rows_of(some: Logs, first: int) -> list[tuple[float, ...]]:
        columns = [getattr(some, name)[first:].reshape(some.rows - first, -1) for name in names]
        return [tuple(x) for x in np.concatenate(columns, 1).tolist()]

    place = {row: k for k, row in enumerate(rows_of(logs, 0))}
    at = np.array([place[row] for row in rows_of(found, logs.rows)])
    assert len(place) == logs.rows == len(np.unique(at)) and logs.episodes == 2
    terminated, truncated = found.terminated[logs.rows :], found.truncated[logs.rows :]
    segments = np.split(at, np.flatnonzero(terminated | truncated)[:-1] + 1)
    assert sum(map(len, segments)) == 6000 and {len(x) for x in segments} == {1, 2, 3, 4, 5, 6}
    assert all((np.diff(x) == 1).all() and logs.ends[0] not in x[:-1] for x in segments)
    assert set(at[terminated]) == {logs.ends[1]} and not (terminated & truncated).any()
    said = Augment(rows=6000).sentence(logs, found)
    assert said == f"6,000 of them are moved by maze-moves, kept by towards-goal, in {len(segments):,} segments; seed 0"


@pytest.mark.slow
def test_the_same_seed_adds_the_same_rows(logs: Logs) -> None:
    one, again, other = (Augment(rows=100, seed=s)(logs, METHOD).observations for s in (1, 1, 2))
    assert (one == again).all() and (one != other).any()


def test_turns_and_mirrors_are_undone() -> None:
    x = np.random.default_rng(0).normal(size=(50, 2))
    quarters, mirrored = np.arange(50) % 4, np.arange(50) % 3 == 0
    plain = np.zeros(50, bool)
    assert (turned(x, 0 * quarters, plain) == x).all()
    assert (turned(turned(x, 0 * quarters, ~plain), 0 * quarters, ~plain) == x).all()
    assert (turned(turned(x, quarters, plain), -quarters, plain) == x).all()
    back = turned(turned(turned(x, quarters, mirrored), -quarters, plain), 0 * quarters, mirrored)
    assert (back == x).all()
    np.testing.assert_allclose(np.linalg.norm(turned(x, quarters, mirrored), axis=1), np.linalg.norm(x, axis=1))


@pytest.mark.slow
def test_what_cannot_be_is_said(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.methods.offline.guda.TRIES", 3)
    with pytest.raises(ConfigError, match=r"tried 3,072 segments in a row, and MazeMoves and Nothing kept none"):
        Augment(guide=Nothing(), rows=10)(logs, METHOD)
    with pytest.raises(ConfigError, match=r"MazeMoves is for a point maze .* has \[3\] and \[2\]"):
        Augment(rows=10)(random_logs(), METHOD)
    assert MazeMoves(dense=True).dense
    still = replace(logs, next_observations=logs.observations + 0.5)  # no dynamics that there are
    with pytest.raises(ConfigError, match="kept none: give shorter ones"):
        Augment(rows=10)(still, METHOD)
