"""Bad logs get a sentence for each fault, all of a file at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from etude.core.errors import DataError
from etude.experience.logs.reading import open_logs
from etude.experience.logs.table import Logs, Spaces
from etude.tasks.control.logged import spaces_of
from etude.tasks.control.pendulum import pendulum
from log_toys import Columns, cartpole_columns, pendulum_columns, written

Spoil = Callable[[Columns], object]


def fine() -> Columns:
    return pendulum_columns(episodes=5, length=50, following=True)


def opened(folder: Path, columns: Columns, spaces: Spaces | None = None, **how: object) -> Logs:
    return open_logs(written(folder / "a.npz", columns), spaces=spaces, **how)  # type: ignore[arg-type]


def put(name: str, row: object, value: object) -> Spoil:
    def spoil(columns: Columns) -> None:
        columns[name] = columns[name].copy()
        columns[name][row] = value

    return spoil


def renamed(columns: Columns) -> None:
    columns["reward"] = columns.pop("rewards")


def shorter(columns: Columns) -> None:
    columns["actions"] = columns["actions"][:-2]


def repeated(columns: Columns) -> None:
    for name, values in columns.items():
        columns[name] = np.concatenate([values, values[50:100]])


def indexed(columns: Columns) -> None:
    rows = np.arange(250.0)[:, None]
    columns["observations"] = np.concatenate([columns["observations"], rows], 1)
    columns["next_observations"] = np.concatenate([columns["next_observations"], rows + 1], 1)


def numbered(columns: Columns) -> None:
    which = np.repeat(np.arange(5.0), 50)[:, None]
    for name in ("observations", "next_observations"):
        columns[name] = np.concatenate([columns[name], which], 1)


def endless(columns: Columns) -> None:
    del columns["terminals"], columns["timeouts"]


def jumping(columns: Columns) -> None:
    del columns["next_observations"]
    columns["observations"] = np.cumsum(np.random.default_rng(0).normal(size=(250, 3)) * 0.01, 0).astype(np.float32)
    columns["observations"][75:100] += 50.0
    columns["observations"][100:] = columns["observations"][:150] + 0.001


def pictures(columns: Columns) -> None:
    for name in ("observations", "next_observations"):
        columns[name] = np.zeros((250, 8, 8, 3), np.float32)


def timed(columns: Columns) -> None:
    columns["times"] = np.arange(250.0)
    columns["times"][[10, 11]] = columns["times"][[11, 10]]


def single(columns: Columns) -> None:
    put("timeouts", 60, True)(columns)
    put("timeouts", 61, True)(columns)


CASES: dict[str, tuple[Spoil, str]] = {
    "misnamed": (renamed, r"There is no column rewards; the file has .*reward.* Did you mean 'reward'\?"),
    "lengths": (shorter, r"different lengths: observations 250, actions 248, rewards 250"),
    "nan": (put("observations", (60, 1), np.nan), r"\(column 1\) hold NaN or infinity in row 60 \(episode 1\)"),
    "infinity": (put("rewards", 7, np.inf), r"rewards hold NaN or infinity in row 7 \(episode 0\)"),
    "outside": (put("actions", 120, 2.5), r"leave the bounds of pendulum, \[-2.0\] to \[2.0\], in row 120 "),
    "units": (put("actions", slice(None), 0.001), r"never come near the bounds of pendulum"),
    "rewards": (put("rewards", slice(None), 1.0), r"All rewards are 1: .*"),
    "endless": (endless, r"No row ends an episode.*--set task\.episode_length=N"),
    "both": (put("terminals", 99, True), r"both a terminal and a timeout.*row 99 \(episode 1\)"),
    "single": (single, r"Episodes of one step: episode 2\."),
    "disagree": (put("next_observations", 30, 0.5), r"next_observations are not what the following row saw in row 30"),
    "times": (timed, r"Times in times do not go on after row 10 \(episode 0\)"),
    "twice": (repeated, r"Episodes that are there already: episode 5\."),
    "another": (indexed, r"logs of another environment: they hold 4 numbers of an observation .* pendulum has Box"),
    "strange": (put("observations", 3, 9.0), r"logs of another environment: .*So in row 3 \(episode 0\)"),
    "pixels": (pictures, r"images \[8, 8, 3\] of float32: pixels are whole numbers from 0 to 255, in uint8"),
}  # fmt: skip


def test_what_is_fine_is_fine(tmp_path: Path) -> None:
    assert opened(tmp_path, fine(), spaces_of(pendulum)).rows == 250


@pytest.mark.parametrize("name", list(CASES))
def test_a_fault_gets_a_sentence(tmp_path: Path, name: str) -> None:
    columns = fine()
    spoil, sentence = CASES[name]
    spoil(columns)
    with pytest.raises(DataError, match=sentence) as caught:
        opened(tmp_path, columns, spaces_of(pendulum))
    assert (
        str(caught.value).startswith(f"{tmp_path / 'a.npz'} cannot be learned from:\n") and caught.value.exit_code == 2
    )


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [(indexed, "count the rows in column 3, which is an index"), (numbered, "count the episodes in column 3"),
     (jumping, r"Observations jump inside of an episode, by up to \d+ times .* after rows 74 \(episode 1\), 174")],
)  # fmt: skip
def test_faults_of_observations_whose_space_nobody_knows(tmp_path: Path, spoil: Spoil, sentence: str) -> None:
    columns = fine()
    spoil(columns)
    with pytest.raises(DataError, match=sentence):
        opened(tmp_path, columns)


def test_a_constant_column(tmp_path: Path) -> None:
    columns = fine()
    for name in ("observations", "next_observations"):
        columns[name] = np.concatenate([columns[name], np.ones((250, 1))], 1)
    with pytest.raises(DataError, match=r"never change in column 3: .*\n.*task\.allow=constant-obs"):
        opened(tmp_path, columns)
    assert opened(tmp_path, columns, allow=("constant-observations",)).observations.shape == (250, 4)


def test_all_faults_are_listed_at_once(tmp_path: Path) -> None:
    columns = fine()
    for name in ("nan", "outside", "infinity"):
        CASES[name][0](columns)
    with pytest.raises(DataError) as caught:
        opened(tmp_path, columns, spaces_of(pendulum))
    lines = str(caught.value).splitlines()
    assert len(lines) == 5 and "--skip-bad-rows leaves out whole episodes" in lines[-1]


def test_rows_are_named_up_to_twenty(tmp_path: Path) -> None:
    columns = fine()
    put("rewards", slice(60, 90), np.nan)(columns)
    with pytest.raises(DataError, match=r"79 \(episode 1\) and 10 more") as caught:
        opened(tmp_path, columns)
    assert "80 (" not in str(caught.value)


def test_bad_episodes_can_be_left_out(tmp_path: Path) -> None:
    columns = fine()
    for name in ("nan", "outside"):
        CASES[name][0](columns)
    logs = opened(tmp_path, columns, spaces_of(pendulum), skip=True)
    assert (logs.rows, logs.episodes) == (150, 3)
    assert logs.dropped == {"those of 2 episodes with faults (1, 2)": 100}
    whole = opened(tmp_path, fine(), spaces_of(pendulum))
    np.testing.assert_array_equal(logs.rewards, np.delete(whole.rewards, slice(50, 150)))


def test_nothing_left_is_said_with_counts(tmp_path: Path) -> None:
    columns = fine()
    put("rewards", slice(None, None, 50), np.nan)(columns)
    with pytest.raises(DataError, match=r"Nothing would be left: of 5 episodes 5 by the fault 1\."):
        opened(tmp_path, columns, skip=True)


def test_what_is_meant_is_allowed(tmp_path: Path) -> None:
    columns = cartpole_columns()
    with pytest.raises(DataError, match=r"All rewards are 1.*\n.*--set task.allow=constant-rewards"):
        opened(tmp_path, columns)
    assert opened(tmp_path, columns, allow=("constant-rewards",)).rows == 300


def test_a_length_says_where_episodes_end(tmp_path: Path) -> None:
    columns = fine()
    endless(columns)
    del columns["next_observations"]
    logs = opened(tmp_path, columns, episode_length=50)
    assert (logs.episodes, logs.rows) == (5, 245)


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", fine())
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"a\.npz \(2,000 bytes\) ends before all that it should hold"):
        open_logs(path)


def test_objects_are_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npz", {**fine(), "infos": np.array([{"x": 1}] * 250)})
    with pytest.raises(DataError, match="no array of numbers"):
        open_logs(path)


def test_nothing_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing is downloaded.*minari download"):
        open_logs(tmp_path / "mujoco" / "hopper" / "expert-v0")
    with pytest.raises(DataError, match=r"There is nothing at .*x\.npz: --data takes"):
        open_logs(tmp_path / "x.npz")
    (tmp_path / "x.txt").write_text("1")
    with pytest.raises(DataError, match=r"none of the logs that are read: \.npz"):
        open_logs(tmp_path / "x.txt")


@pytest.mark.slow
def test_a_missing_column_of_a_table_is_answered_with_the_nearest(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.csv"
    path.write_text("angle,torque,payoff\n0,1,2\n1,1,2\n")
    with pytest.raises(DataError) as caught:
        open_logs(path, columns="obs=angel action=torque")
    assert "no column 'angel'; the nearest are angle" in str(caught.value) and "named as reward" in str(caught.value)
    with pytest.raises(DataError, match="has the columns angle, torque, payoff: say what they are"):
        open_logs(path)
