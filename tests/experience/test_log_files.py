"""Files of logs that are cut short, that are not what is read, or that change while they are learned from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from etude.core.errors import DataError
from etude.core.population import Member
from etude.experience.logs.reading import check_unchanged, open_logs
from etude.experience.logs.replays import read_replay
from etude.experience.logs.table import Spaces
from etude.experience.logs.writing import LoggedEpisode, write_minari
from etude.loops.off_policy import OffPolicyLoop
from etude.runtime import checkpoints
from log_toys import Columns, logged_task, pendulum_columns, small_logged, written

torch.set_num_threads(1)
NAMED = "obs=x,y action=u reward=r episode=id"


def half(path: Path) -> Path:
    """Only the first half of its bytes."""
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


# HDF5 and Minari


def hdf5(path: Path, columns: Columns) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values
    return path


def minari(folder: Path) -> Path:
    """Two episodes of a pendulum."""
    pytest.importorskip("h5py")
    seen, steps = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32), np.arange(5)
    done = np.linspace(-2, 2, 10, dtype=np.float32).reshape(2, 5, 1)
    episodes = [
        LoggedEpisode(seen[n], done[n], seen[n, :5, 0], steps > 5, steps == 4, -np.ones(5), "me", {"seed": n})
        for n in range(2)
    ]
    write_minari(folder, episodes, Box(-9.0, 9.0, (3,)), Box(-2.0, 2.0, (1,)), {})
    return folder


def about(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """Other words in `metadata.json`."""

    def spoil(data: Path) -> None:
        found = json.loads((data / "metadata.json").read_text())
        change(found)
        (data / "metadata.json").write_text(json.dumps(found))

    return spoil


def in_episode(change: Callable[[Any], object]) -> Callable[[Path], object]:
    """Another first episode."""

    def spoil(data: Path) -> None:
        import h5py

        with h5py.File(data / "main_data.hdf5", "r+") as file:
            change(file["episode_0"])

    return spoil


def parted(group: Any) -> None:
    seen = group["observations"][()]
    del group["observations"]
    group["observations/angle"], group["observations/speed"] = seen[:, :2], seen[:, 2:]


def without_last(group: Any) -> None:
    seen = group["observations"][()]
    del group["observations"]
    group["observations"] = seen[:-1]


def emptied(data: Path) -> None:
    import h5py

    h5py.File(data / "main_data.hdf5", "w").close()


MINARI: dict[str, tuple[Callable[[Path], object], str]] = {
    "half": (lambda data: half(data / "main_data.hdf5"), r"main_data\.hdf5 \([\d,]+ bytes\) ends before all"),
    "missing": (lambda data: (data / "main_data.hdf5").unlink(), r"main_data\.hdf5 is not there: copy .* again\."),
    "about": (lambda data: half(data / "metadata.json"), r"metadata\.json \([\d,]+ bytes\) ends before all that it sh"),
    "list": (lambda data: (data / "metadata.json").write_text("[]"), r"metadata\.json \(2 bytes\) .*copy it again"),
    "space": (about(lambda x: x.pop("action_space")), r"metadata\.json .*\(it does not say 'action_space'\): copy it "),
    "bounds": (about(lambda x: x.update(action_space={"type": "Box"})), r"metadata\.json .*: copy it again\."),
    "kind": (about(lambda x: x.update(action_space={"type": "Dict"})),
             r"has a space of the kind Dict: only a Box and Discrete are read"),
    "format": (about(lambda x: x.update(data_format="arrow")), r"keeps its episodes as arrow: export it in the form"),
    "parts": (in_episode(parted), r"observations of /episode_0 have parts \(angle, speed\): flatten them first\."),
    "last": (in_episode(without_last), r"/episode_0 has 5 observations and 5 rewards; there must be one more of th"),
    "column": (in_episode(lambda group: group.pop("rewards")), r"main_data\.hdf5 .* ends before all .*rewards"),
    "none": (emptied, r"holds no episode\."),
}  # fmt: skip


@pytest.mark.parametrize("name", list(MINARI))
def test_a_minari_folder_that_is_cut_short_or_another(tmp_path: Path, name: str) -> None:
    folder = minari(tmp_path / "random-v0")
    assert open_logs(folder).rows == 10
    spoil, sentence = MINARI[name]
    spoil(folder / "data")
    with pytest.raises(DataError, match=sentence):
        open_logs(folder)


def test_hdf5_that_is_cut_short(tmp_path: Path) -> None:
    path = half(hdf5(tmp_path / "a.hdf5", pendulum_columns(episodes=2, length=20)))
    with pytest.raises(DataError, match=r"a\.hdf5 \([\d,]+ bytes\) ends before all that it should hold.*copy it again"):
        open_logs(path)


# Tables


def table(path: Path, **changes: list[Any]) -> Path:
    """Two episodes of four rows."""
    pytest.importorskip("pyarrow")
    columns: dict[str, list[Any]] = {
        "x": [0.1, 0.4, 0.2, 0.5, 0.3, 0.7, 0.6, 0.9], "y": [1.5, 1.25, 1.0, 1.75, 2.0, 1.1, 1.3, 1.6],
        "u": [0.0, 1.0, 0.5, 0.25] * 2, "r": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "id": [0] * 4 + [1] * 4,
        **changes,
    }  # fmt: skip
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), path)
    else:
        rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        path.write_text("\n".join([",".join(columns), *rows]))
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_table_that_is_cut_short(tmp_path: Path, name: str) -> None:
    path = table(tmp_path / name)
    assert open_logs(path, columns=NAMED).rows == 6
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match=rf"{name} \([\d,]+ bytes\) ends before all that it should hold.*copy it again"):
        open_logs(path, columns=NAMED)


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_all_columns_of_text_are_named_at_once_with_those_that_are_missing(tmp_path: Path, name: str) -> None:
    text = ["1", "2", "off", "4", "5", "6", "7", "8"]
    path = table(tmp_path / name, y=text if name == "a.csv" else [None, "on", *text[2:]], u=["low", "high"] * 4)
    with pytest.raises(DataError) as caught:
        open_logs(path, columns="obs=x,y,z action=u next=x,y,z episode=id")
    lines = str(caught.value).splitlines()
    first = "'off' in row 2" if name == "a.csv" else "'on' in row 1"
    assert lines[0] == f"{path} cannot be learned from:" and sorted(map(str.strip, lines[1:])) == [
        "Column 'u' holds 'low' in row 0, and numbers are needed.",
        f"Column 'y' holds {first}, and numbers are needed.",
        "No column is named as reward.",
        "There is no column 'z'.",
    ]


def test_a_column_may_be_what_is_seen_and_say_where_episodes_end(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    with pytest.raises(DataError, match="Observations count the episodes in column 1"):
        open_logs(table(path, id=[0, 0, 1, 1, 2, 2, 3, 3]), columns="obs=x,id action=u reward=r episode=id")


@pytest.mark.parametrize("text", [False, True])
def test_the_times_of_a_table(tmp_path: Path, text: bool) -> None:
    minutes = [0, 1, 2, 3, 0, 2, 1, 3]
    path = table(tmp_path / "a.csv", t=[f"2026-05-01 00:{x:02}:00" for x in minutes] if text else minutes)
    with pytest.raises(DataError, match=r"Times in t do not go on after row 5 \(episode 1\): sort the file\."):
        open_logs(path, columns=f"{NAMED} time=t")
    path = table(tmp_path / "b.csv", t=[0, 1, 2, 3] * 2)
    assert open_logs(path, columns=f"{NAMED} time=t").episodes == 2


# Replays


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [({}, r"run stored no steps: only runs of methods that learn from a replay do\."),
     ({"pixels": torch.zeros(2, 3)}, r"run stored images, and logs hold vectors\.")],
)  # fmt: skip
def test_a_run_that_stored_no_vectors(tmp_path: Path, stored: dict[str, torch.Tensor], sentence: str) -> None:
    def save(folder: Path) -> None:
        (folder / checkpoints.STORED).mkdir()
        if stored:
            checkpoints.save_tensors(folder / checkpoints.STORED / "0.safetensors", stored)

    checkpoints.write(tmp_path / "run" / "checkpoints", 1, save)
    with pytest.raises(DataError, match=sentence):
        read_replay(tmp_path / "run", lambda _: Spaces(Box(-1.0, 1.0, (3,)), Discrete(2), "me"))


# What changes meanwhile


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_changes_during_a_run_ends_it(tmp_path: Path, gone: bool) -> None:
    task = logged_task(tmp_path)
    loop = OffPolicyLoop(small_logged("td3-bc"), task, [Member(3)], 2, 1)
    loop.step()
    loop.save(made(tmp_path / "first"))
    if gone:
        Path(task.data).unlink()
    else:
        written(Path(task.data), pendulum_columns(episodes=2))
    loop.step()
    said = (
        r"swing\.npz is gone.*: put it back" if gone else r"swing\.npz changed while it was learned from: begin again"
    )
    with pytest.raises(DataError, match=said):
        loop.save(made(tmp_path / "second"))


def test_a_file_that_is_put_back_is_the_same(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", pendulum_columns(episodes=2, length=20))
    logs = open_logs(path)
    path.rename(tmp_path / "b.npz")
    with pytest.raises(DataError, match=r"a\.npz is gone"):
        check_unchanged(logs)
    (tmp_path / "b.npz").rename(path)
    check_unchanged(logs)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder
