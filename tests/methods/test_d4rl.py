"""D4RL's kinds of data and its score: who wanders, what a reader leaves out, what 0 and 100 are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.control import Ways
from etude.core.errors import ConfigError
from etude.evaluation.behaviours import NoisyController, Wanderer
from etude.evaluation.data_measures import trajectory_quality
from etude.experience.logs.reading import open_logs
from etude.experiments.offline.d4rl import wanderings
from etude.runs import data_make
from etude.runs.data_make import make_data
from etude.tasks.control._pointmaze import maze_of
from etude.tasks.control.pointmaze_medium import PointMazeMedium
from etude.tasks.control.pointmaze_umaze import PointMazeU
from log_toys import cartpole_columns, written


def test_the_score_of_chance_is_0_of_the_expert_100_and_the_map_is_affine() -> None:
    scores = [100 * trajectory_quality(x, -20.0, 60.0) for x in (-20.0, 60.0, 20.0, 100.0)]
    assert scores == [0.0, 100.0, 50.0, 150.0]


def test_no_row_goes_from_one_episode_into_the_next(tmp_path: Path) -> None:
    """Rows are steps without the ends of time limits; terminal rows stay."""
    columns = cartpole_columns(steps=300, following=False)
    columns["timeouts"][np.flatnonzero(columns["terminals"])[2] + 3] = True
    path = written(tmp_path / "logs.npz", columns)
    logs = open_logs(path, allow=("constant-rewards", "one-step-episodes"))
    cut = int((columns["timeouts"] & ~columns["terminals"]).sum())
    assert cut == 2 and logs.rows == 300 - cut and logs.dropped
    inside = ~columns["terminals"] & ~columns["timeouts"]
    steps = np.flatnonzero(inside)[np.flatnonzero(inside) < 299]
    pairs = {(*a, *b) for a, b in zip(columns["observations"][steps], columns["observations"][steps + 1], strict=True)}
    kept = ~logs.terminated
    assert {(*a, *b) for a, b in zip(logs.observations[kept], logs.next_observations[kept], strict=True)} == pairs


def test_a_wanderer_goes_on_to_another_place_where_it_has_arrived_or_begun_anew() -> None:
    places = np.array([[0.0], [10.0], [20.0]])
    ways = Ways(places, lambda seen, goals: np.sign(goals - seen), lambda seen, goals: (seen == goals)[:, 0])
    from gymnasium.spaces import Box

    space: Any = Box(-1.0, 1.0, (1,))
    acts, generator = Wanderer(ways, space, 0.0), torch.Generator().manual_seed(0)
    acts.begin(900)
    seen = np.full((900, 1), 5.0, np.float32)
    actions, logp = acts.act(seen, generator)
    first = acts.goals.copy()
    assert all(200 < (first == place).sum() < 400 for place in places)
    again = NoisyController(lambda seen: np.sign(first - seen), space, 0.0)
    at = torch.Generator().manual_seed(0)
    torch.randint(3, (900,), generator=at)
    for mine, theirs in zip((actions, logp), again.act(seen, at), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    acts.act(seen, generator)
    np.testing.assert_array_equal(acts.goals, first)
    acts.act(np.full((900, 1), 10.0, np.float32), generator)
    moved = (acts.goals != first)[:, 0]
    assert not moved[first[:, 0] != 10].any() and 150 < moved.sum() < 250
    acts.ended(np.arange(900) < 450)
    before = acts.goals.copy()
    acts.act(seen, generator)
    moved = (acts.goals != before)[:, 0]
    assert not moved[450:].any() and 250 < moved[:450].sum() < 350


def test_a_wanderer_gets_where_it_goes_by_the_ways_of_a_maze() -> None:
    task, maze = PointMazeU(starts="drawn"), maze_of("umaze")
    ways, environment = task.ways(), task.make([0], 4, "test")
    seen, goals = environment.reset()[0], np.broadcast_to(maze.middles[2], (4, 2))
    reached = np.zeros(4, bool)
    for _ in range(60):
        seen = environment.step(ways.towards(seen, goals).astype(np.float32)[None]).observations[0]
        reached |= ways.arrived(seen, goals)
    assert reached.all() and ways.places is maze.middles


@pytest.mark.slow
def test_wanderings_are_the_same_twice_and_of_their_seed() -> None:
    one, again, other = (wanderings(seed, 400) for seed in (3, 3, 4))
    assert all(np.array_equal(v, again[k]) for k, v in one.items())
    assert not np.array_equal(one["actions"][:50], other["actions"][:50])
    ends = one["terminals"] | one["timeouts"]
    assert ends[-1] and len(ends) >= 400
    assert np.array_equal(one["rewards"], one["terminals"] - 1.0)
    np.testing.assert_array_equal(one["observations"][1:][~ends[:-1]], one["next_observations"][:-1][~ends[:-1]])
    assert PointMazeMedium().layout == "medium"


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_kinds_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Medium-expert is half of medium's steps and half of the expert's, whole episodes of each."""
    pytest.importorskip("h5py")
    monkeypatch.setattr(data_make, "RUNGS", 4), monkeypatch.setattr(data_make, "COMPARED", 60)
    wanted = "medium,expert,medium-expert,undirected"
    made = make_data(
        "pointmaze-umaze", levels=wanted, out=tmp_path, size=150, set="task.limit=45", quiet=True
    ).levels  # fmt: skip
    (medium,), (expert,) = (made[k]["behaviours"] for k in ("medium", "expert"))
    assert made["medium-expert"]["behaviours"] == [medium, expert]
    assert made["undirected"]["behaviours"] == ["wanderer epsilon=0.05"] and made["undirected"]["steps"] >= 150
    logs = open_logs(tmp_path / "medium-expert", allow=tuple(made["medium-expert"]["allow"]))
    lengths = np.diff(np.concatenate([[-1], logs.ends])).cumsum()
    assert any(75 <= n < 75 + 45 and logs.rows - n >= 75 for n in lengths)
    with pytest.raises(ConfigError, match="knows no ways to places of one's own"):
        make_data("CartPole-v1", levels="undirected", out=tmp_path / "none", size=60, quiet=True)
