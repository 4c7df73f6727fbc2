"""`etude data info`: what is said of logs, and by which others they are measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command import Cli

from log_toys import cartpole_columns, pendulum_columns, written

pytestmark = pytest.mark.slow


@pytest.fixture
def swings(tmp_path: Path) -> Path:
    return written(tmp_path / "swing.npz", pendulum_columns(episodes=6, length=30, following=True))


def test_for_people_and_as_json(cli: Cli, swings: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    told = cli("data", "info", str(swings), "--picture", str(tmp_path / "a.png"))
    assert told.code == 0, told.err
    assert "180 steps of 6 episodes" in told.out and "0 terminated, 6 stopped by a limit" in told.out
    assert "not known: give --worst and --best" in told.out and (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"
    found = json.loads(cli("data", "info", str(swings), "--json").out)
    assert sum(found["histogram"]["counts"]) == 6 and found["tq"] is None and found["saco"] is None
    assert (
        found["imitation"]["low"] < found["return"]["mean"] == found["imitation"]["value"] < found["imitation"]["high"]
    )
    assert found["length"] == {"least": 30, "mean": 30.0, "most": 30} and not found["behaviour_logp"]


def test_measured_by_others(cli: Cli, swings: Path, tmp_path: Path) -> None:
    columns = pendulum_columns(episodes=6, length=30, following=True)
    better = written(tmp_path / "better.npz", {**columns, "rewards": columns["rewards"] + 1})
    flags = ("--worst", str(swings), "--best", str(better), "--reference", str(swings), "--json")
    found = [json.loads(cli("data", "info", str(path), *flags).out) for path in (swings, better)]
    assert [one["tq"] for one in found] == pytest.approx([0.0, 1.0], abs=1e-6)
    assert [(one["saco"], one["lsaco"]) for one in found] == [(1.0, 1.0)] * 2
    pole = written(tmp_path / "pole.npz", cartpole_columns())
    answer = cli("data", "info", str(swings), "--reference", str(pole))
    assert answer.code == 2 and "has other observations or actions" in answer.sentence


def test_where_imitation_is_optimal_that_is_said(cli: Cli, swings: Path, tmp_path: Path) -> None:
    """All episodes earn the same, or what the best policy known earns; nothing is said where some are better."""
    columns = pendulum_columns(episodes=6, length=30, following=True)
    alike = written(tmp_path / "alike.npz", {**columns, "rewards": np.tile(columns["rewards"][:30], 6)})
    assert "All episodes earn the same: imitation is as good as any" in cli("data", "info", str(alike)).out
    worse = written(tmp_path / "worse.npz", {**columns, "rewards": columns["rewards"] - 1})
    between = written(tmp_path / "between.npz", {**columns, "rewards": columns["rewards"] - 0.1})
    flags = ("--worst", str(worse), "--best", str(swings))
    said = {path: cli("data", "info", str(path), *flags).out for path in (swings, between, worse)}
    assert ["imitation is optimal already" in said[path] for path in (swings, between, worse)] == [True, False, False]


def test_the_order_of_episodes_changes_the_fingerprint_alone(cli: Cli, swings: Path, tmp_path: Path) -> None:
    """Eight episodes of 6 to 30 steps, of which two terminate, one after another and in another order."""
    columns = pendulum_columns(episodes=6, length=30, following=True)
    columns["terminals"][[12, 95]] = True
    columns["rewards"] = columns["rewards"] * np.linspace(0.2, 3.0, 180)
    ends = np.flatnonzero(columns["terminals"] | columns["timeouts"])
    episodes = np.split(np.arange(180), ends[:-1] + 1)
    order = np.concatenate([episodes[k] for k in (5, 2, 7, 0, 3, 6, 1, 4)])
    moved = {name: column[order] for name, column in columns.items()}
    paths = written(tmp_path / "one.npz", columns), written(tmp_path / "other.npz", moved)
    better = written(tmp_path / "better.npz", {**columns, "rewards": columns["rewards"] + 9})
    flags = ("--worst", str(swings), "--best", str(better), "--reference", str(swings), "--json")
    one, other = (json.loads(cli("data", "info", str(path), *flags).out, parse_float=nine_digits) for path in paths)
    changed = {name for name in one if one[name] != other[name]}
    assert changed == {"path", "fingerprint"} and one.keys() == other.keys()
    returns = [columns["rewards"][rows].sum() for rows in episodes]
    assert one["return"]["mean"] == pytest.approx(np.mean(returns), rel=1e-6) and one["ends"]["terminated"] == 2
    assert one["length"] == {"least": 6, "mean": 22.5, "most": 30} and None not in (one["tq"], one["saco"])


def nine_digits(number: str) -> float:
    """Sums in another order differ in the last ones."""
    return float(f"{float(number):.9g}")


def test_what_can_be_meant_is_told_and_what_cannot_is_refused(cli: Cli, swings: Path, tmp_path: Path) -> None:
    pole = written(tmp_path / "pole.npz", cartpole_columns())
    told = cli("data", "info", str(pole))
    assert told.code == 0 and "All rewards are 1: there is nothing to prefer." in told.out
    columns = pendulum_columns(episodes=6, length=30)
    columns["rewards"][7] = np.nan
    answer = cli("data", "info", str(written(tmp_path / "bad.npz", columns)))
    assert answer.code == 2 and "NaN or infinity" in answer.sentence


def test_data_sets_of_a_folder(cli: Cli, tmp_path: Path) -> None:
    """The layout of `etude data make`: random, expert and replay stand beside each other."""
    h5py = pytest.importorskip("h5py")
    columns = pendulum_columns(episodes=6, length=30, following=True)
    for level, more in {"random": 0.0, "expert": 2.0, "replay": 1.0}.items():
        place = tmp_path / level / "data"
        place.mkdir(parents=True)
        box = {"type": "Box", "dtype": "float32", "low": [-2.0], "high": [2.0], "shape": [1]}
        seen = {"type": "Box", "dtype": "float32", "low": [-9.0] * 3, "high": [9.0] * 3, "shape": [3]}
        (place / "metadata.json").write_text(json.dumps({"observation_space": seen, "action_space": box}))
        with h5py.File(place / "main_data.hdf5", "w") as file:
            for k in range(6):
                part, group = slice(30 * k, 30 * k + 30), file.create_group(f"episode_{k}")
                last = columns["next_observations"][part][-1:]
                group["observations"] = np.concatenate([columns["observations"][part], last])
                group["actions"], group["rewards"] = columns["actions"][part], columns["rewards"][part] + more
                group["terminations"], group["truncations"] = columns["terminals"][part], columns["timeouts"][part]
                group["infos/behaviour_logp"] = np.full(30, -0.5)
    found = json.loads(cli("data", "info", str(tmp_path), "--json").out)
    assert [Path(k).name for k in found] == ["expert", "random", "replay"]
    assert [one["tq"] for one in found.values()] == pytest.approx([1.0, 0.0, 0.5], abs=1e-6)
    assert all(one["saco"] == 1.0 and one["behaviour_logp"] for one in found.values())
    answer = cli("data", "info", str(tmp_path), "--picture", "a.png")
    assert answer.code == 2 and "--picture is of one data set" in answer.sentence
