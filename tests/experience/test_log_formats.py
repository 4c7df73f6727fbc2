"""Logs in every format that is read come to the same rows; what each row led to; where episodes end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etude
from etude.core.errors import ConfigError, DataError, UnknownNameError
from etude.experience.logs.reading import check_unchanged, open_logs
from etude.experience.logs.table import Logs
from etude.experience.logs.tables import parse_columns
from etude.tasks.control.logged import LoggedTask
from log_toys import Columns, cartpole_columns, pendulum_columns, written

NAMED = "obs=x0,x1,x2 action=u reward=r done=end timeout=over"


def same(one: Logs, other: Logs) -> bool:
    return one.fingerprint == other.fingerprint


@pytest.fixture
def columns() -> Columns:
    return pendulum_columns(episodes=3, length=20)


def table_of(columns: Columns) -> dict[str, Any]:
    seen = {f"x{k}": columns["observations"][:, k].astype(np.float64) for k in range(3)}
    episode = np.repeat(np.arange(3), 20)
    return {
        **seen, "u": columns["actions"][:, 0].astype(np.float64), "r": columns["rewards"].astype(np.float64),
        "end": columns["terminals"].astype(int), "over": columns["timeouts"].astype(int), "id": episode,
    }  # fmt: skip


def test_the_last_row_of_an_episode_that_a_limit_ended_is_left_out(tmp_path: Path, columns: Columns) -> None:
    logs = open_logs(written(tmp_path / "a.npz", columns))
    assert (logs.rows, logs.episodes, logs.dropped) == (
        57, 3, {"the last of episodes that a limit ended, whose outcome nobody saw": 3},
    )  # fmt: skip
    assert not logs.terminated.any() and np.flatnonzero(logs.truncated).tolist() == [18, 37, 56]
    place = np.flatnonzero(~logs.truncated)
    np.testing.assert_array_equal(logs.next_observations[place], logs.observations[place + 1])
    np.testing.assert_array_equal(logs.next_observations[18], columns["observations"][19])


def test_with_what_followed_no_row_is_lost(tmp_path: Path) -> None:
    columns = pendulum_columns(episodes=3, length=20, following=True)
    logs = open_logs(written(tmp_path / "a.npz", columns))
    assert (logs.rows, logs.episodes, logs.dropped) == (60, 3, {})
    np.testing.assert_array_equal(logs.next_observations, columns["next_observations"])


def test_terminals_end_a_value_and_are_kept(tmp_path: Path) -> None:
    columns = cartpole_columns(following=False)
    logs = open_logs(written(tmp_path / "a.npz", columns), allow=("constant-rewards",))
    assert logs.terminated.sum() == columns["terminals"].sum() > 3
    assert str(logs.spaces.action_space) == "Discrete(2)" and logs.spaces.said_by == "the data"
    assert logs.returns.sum() == logs.rows


def test_spaces_come_from_the_data(tmp_path: Path, columns: Columns) -> None:
    logs = open_logs(written(tmp_path / "a.npz", columns))
    low, high = columns["actions"].min(), columns["actions"].max()
    assert (logs.spaces.action_space.low, logs.spaces.action_space.high) == (low, high)
    assert "as the data says" in logs.sentence() and "57 steps of 3 episodes" in logs.sentence()


def test_hdf5_as_d4rl_has_it(tmp_path: Path, columns: Columns) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, values in columns.items():
            file[name] = values
        file["infos/qpos"] = np.zeros((60, 2))
        file["metadata/algorithm"] = "SAC"
    assert same(open_logs(tmp_path / "a.hdf5"), open_logs(written(tmp_path / "a.npz", columns)))


def write_minari(folder: Path, columns: Columns, h5py: Any) -> Path:
    """A folder as Minari 0.5 writes it."""
    (folder / "data").mkdir(parents=True)
    box = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-1, -1, -8], "high": [1, 1, 8]}
    act = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [2.0]}
    spaces = {"observation_space": json.dumps(box), "action_space": json.dumps(act)}
    about = {"total_episodes": 12, "total_steps": 60, "data_format": "hdf5", "minari_version": "0.5.3", **spaces}
    (folder / "data" / "metadata.json").write_text(json.dumps(about))
    with h5py.File(folder / "data" / "main_data.hdf5", "w") as file:
        for n in range(12):  # so that 10 comes after 9
            rows = slice(5 * n, 5 * n + 5)
            group = file.create_group(f"episode_{n}")
            seen = np.concatenate([columns["observations"][rows], columns["next_observations"][rows][-1:]])
            group["observations"], group["actions"] = seen, columns["actions"][rows]
            group["rewards"] = columns["rewards"][rows]
            group["terminations"] = np.zeros(5, bool)
            group["truncations"] = np.arange(5) == 4
            group["infos/power"] = np.zeros(6)
    return folder


def test_a_minari_folder(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    columns = pendulum_columns(episodes=12, length=5, following=True)
    logs = open_logs(write_minari(tmp_path / "pendulum" / "random-v0", columns, h5py))
    assert logs.fingerprint == open_logs(written(tmp_path / "a.npz", columns)).fingerprint
    assert logs.spaces.action_space.high.tolist() == [2.0] and logs.rows == 60


def test_a_minari_dataset_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Minari keeps what it downloaded; a path that is there wins."""
    h5py = pytest.importorskip("h5py")
    columns = pendulum_columns(episodes=12, length=5, following=True)
    folder = write_minari(tmp_path / "kept" / "pendulum" / "random-v0", columns, h5py)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "kept"))
    for name in ("pendulum/random-v0", "minari:pendulum/random-v0"):
        logs = LoggedTask(data=name).logs()
        assert logs.where == folder and logs.fingerprint == open_logs(folder).fingerprint
    with pytest.raises(DataError, match=r"nothing is downloaded.*minari download pendulum/expert-v0"):
        LoggedTask(data="pendulum/expert-v0").logs()
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".minari").mkdir()
    (tmp_path / "kept").rename(tmp_path / ".minari" / "datasets")
    assert LoggedTask(data="pendulum/random-v0").logs().rows == 60


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
@pytest.mark.parametrize("ends", ["done=end timeout=over", "done=end episode=id", "episode=id"])
def test_tables(tmp_path: Path, columns: Columns, name: str, ends: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    table = pyarrow.table(table_of(columns))
    (parquet.write_table if name.endswith("parquet") else csv.write_csv)(table, tmp_path / name)
    logs = open_logs(tmp_path / name, columns=f"obs=x0,x1,x2 action=u reward=r {ends}")
    other = open_logs(written(tmp_path / "a.npz", columns))
    np.testing.assert_allclose(logs.observations, other.observations, atol=1e-6)
    np.testing.assert_array_equal(logs.truncated, other.truncated)
    np.testing.assert_allclose(logs.next_observations, other.next_observations, atol=1e-6)


def test_columns_are_said_in_one_text_or_in_python() -> None:
    found = {"obs": ("x0", "x1", "x2"), "action": ("u",), "reward": ("r",), "done": ("end",), "timeout": ("over",)}
    assert parse_columns(NAMED) == found
    assert parse_columns('["obs=[\\"x0\\", \\"x1\\"]", "action=u"]') == {"obs": ("x0", "x1"), "action": ("u",)}
    with pytest.raises(UnknownNameError, match=r"no role of a column named 'rewrad'.*'reward'"):
        parse_columns("rewrad=r")
    with pytest.raises(ConfigError, match=r"takes ROLE=NAME,NAME.*got 'obs'"):
        parse_columns("obs")


@pytest.mark.slow
def test_the_replay_of_a_run(tmp_path: Path) -> None:
    """What two members of sac did in two environments each, rolled over once."""
    small = {
        "experience.environments": 2, "experience.capacity": 60, "experience.warmup": 20, "experience.random": 20,
        "policy.network.hidden": "4,4", "critic.network.hidden": "4,4", "sampling.batch": 4,
    }  # fmt: skip
    etude.train("sac", "pendulum", set=small, steps=250, seeds=2, out=tmp_path / "run", evaluate=0, quiet=True)
    from etude.tasks.control.logged import LoggedTask

    logs = LoggedTask(data=str(tmp_path / "run")).logs()
    assert logs.rows == 2 * 60 and abs(logs.actions).max() <= 2.0 == logs.spaces.action_space.high[0]
    inside = np.flatnonzero(~logs.truncated)
    np.testing.assert_array_equal(logs.next_observations[inside], logs.observations[inside + 1])
    speed = logs.observations[:, 2]  # the pendulum's own dynamics: actions are in its units
    angle = np.arctan2(logs.observations[:, 1], logs.observations[:, 0])
    expected = np.clip(speed + (15 * np.sin(angle) + 3 * logs.actions[:, 0]) * 0.05, -8, 8)
    np.testing.assert_allclose(logs.next_observations[:, 2], expected, atol=1e-4)


def test_a_file_that_changes_is_noticed(tmp_path: Path, columns: Columns) -> None:
    logs = open_logs(written(tmp_path / "a.npz", columns))
    check_unchanged(logs)
    written(tmp_path / "a.npz", pendulum_columns(episodes=2, length=20))
    with pytest.raises(DataError, match=r"a\.npz changed while it was learned from"):
        check_unchanged(logs)


def test_log_probabilities_of_what_was_done(tmp_path: Path, columns: Columns) -> None:
    h5py = pytest.importorskip("h5py")
    logp = np.linspace(-3, -1, 60)
    logs = open_logs(written(tmp_path / "a.npz", {**columns, "behavior_logp": logp}))
    assert logs.behaviour_logp is not None and logs.behaviour_logp[[0, 18, 19]] == pytest.approx(logp[[0, 18, 20]])
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, values in {**columns, "behaviour_logp": logp}.items():
            file[name] = values
    np.testing.assert_array_equal(open_logs(tmp_path / "a.hdf5").behaviour_logp, logs.behaviour_logp)
    assert open_logs(written(tmp_path / "b.npz", columns)).behaviour_logp is None
    bad = {**columns, "behaviour_logp": np.where(np.arange(60) == 3, -np.inf, logp)}
    with pytest.raises(DataError, match=r"behaviour_logp hold NaN or infinity in row 3 \(episode 0\)"):
        open_logs(written(tmp_path / "c.npz", bad))
    with pytest.raises(DataError, match="different lengths"):
        open_logs(written(tmp_path / "d.npz", {**columns, "behaviour_logp": logp[:9]}))
