"""Bad logs get a sentence for each fault, all of a file at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from etude.core.errors import DataError
from etude.experience.logs.reading import open_logs
from etude.experience.logs.table import Logs, Numbers, Spaces
from etude.tasks.control.logged import spaces_of
from etude.tasks.control.pendulum import pendulum
from log_toys import Columns, cartpole_columns, pendulum_columns, written

Spoil = Callable[[Columns], object]


def fine() -> Columns:
    return pendulum_columns(episodes=5, length=50, following=True)


def opened(folder: Path, columns: Columns, spaces: Spaces | None = None, **how: object) -> Logs:
    return open_logs(written(folder / "a.npz", columns), spaces=spaces, **how)  # type: ignore[arg-type]


def sentences(folder: Path, columns: Columns, spaces: Spaces | None = None, **how: object) -> str:
    """All that is said of them."""
    with pytest.raises(DataError) as caught:
        opened(folder, columns, spaces, **how)
    return str(caught.value)


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


def constant(columns: Columns) -> None:
    for name in ("observations", "next_observations"):
        columns[name] = np.concatenate([columns[name], np.ones((250, 1))], 1)


def endless(columns: Columns) -> None:
    del columns["terminals"], columns["timeouts"]


def jumping(columns: Columns) -> None:
    del columns["next_observations"]
    columns["observations"] = np.cumsum(np.random.default_rng(0).normal(size=(250, 3)) * 0.01, 0).astype(np.float32)
    columns["observations"][75:100] += 50.0
    columns["observations"][100:] = columns["observations"][:150] + 0.001


def pictures(dtype: type) -> Spoil:
    def spoil(columns: Columns) -> None:
        for name in ("observations", "next_observations"):
            columns[name] = np.zeros((250, 8, 8, 3), dtype)

    return spoil


def first(rows: int) -> Spoil:
    def spoil(columns: Columns) -> None:
        columns.update({name: values[:rows] for name, values in columns.items()})

    return spoil


def held(name: str, change: Callable[[Numbers], object]) -> Spoil:
    """Another column in the place of one."""

    def spoil(columns: Columns) -> None:
        columns[name] = change(columns[name])

    return spoil


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
    "pixels": (pictures(np.float32), r"images \[8, 8, 3\] of float32: pixels are whole numbers from 0 to 255, in uint"),
    "bytes": (pictures(np.uint8), r"Observations are images \[8, 8, 3\], and logs hold vectors: encode them first\."),
    "text": (held("rewards", lambda x: x.astype(str)), r"Column rewards holds <U\d+, and must hold numbers\."),
    "wide": (held("rewards", lambda x: np.stack([x, x], 1)), r"rewards has the shape \[250, 2\], and must be a num"),
    "next": (held("next_observations", lambda x: x[:, 1:]),
             r"next_observations have the shape \[250, 2\], and observations \[250, 3\]\."),
    "empty": (first(0), r"There is no row\."),
    "one": (first(1), r"There is one row, and what it led to is in the next\."),
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
     (jumping, r"Observations jump inside of an episode, by up to \d+ times .* after rows 74 \(episode 1\), 174"),
     (put("actions", slice(None), 1.0), r"Actions never change in column 0: give --task, whose bounds count\.")],
)  # fmt: skip
def test_faults_of_observations_whose_space_nobody_knows(tmp_path: Path, spoil: Spoil, sentence: str) -> None:
    columns = fine()
    spoil(columns)
    with pytest.raises(DataError, match=sentence):
        opened(tmp_path, columns)


def test_a_constant_column(tmp_path: Path) -> None:
    columns = fine()
    constant(columns)
    with pytest.raises(DataError, match=r"never change in column 3: .*\n.*task\.allow=constant-obs"):
        opened(tmp_path, columns)
    assert opened(tmp_path, columns, allow=("constant-observations",)).observations.shape == (250, 4)


HIDDEN: dict[str, tuple[Spoil, str, object, str]] = {
    "jump": (jumping, "observations", (10, 1), r"Observations jump .* after rows 74 \(episode 1\), 174 \(episode 3\)"),
    "constant": (constant, "observations", (0, 3), r"Observations never change in column 3:"),
    "rewards": (put("rewards", slice(None), 1.0), "rewards", 0, r"All rewards are 1:"),
    "rows": (indexed, "observations", (0, 3), r"Observations count the rows in column 3,"),
    "episodes": (numbered, "observations", (60, 3), r"Observations count the episodes in column 3,"),
    "disagree": (put("next_observations", (30, 1), 9), "observations", (60, 1), r"row saw in row 30 \(episode 0\)\."),
    "units": (put("actions", slice(None), 0.001), "actions", 7, r"Actions from \[0\.001\d*\] .* never come near"),
}  # fmt: skip


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", list(HIDDEN))
def test_what_is_not_finite_hides_no_other_fault(tmp_path: Path, name: str, value: float) -> None:
    columns = fine()
    spoil, column, row, sentence = HIDDEN[name]
    spoil(columns)
    put(column, row, value)(columns)
    said = sentences(tmp_path, columns, spaces_of(pendulum) if name == "units" else None)
    assert re.search(sentence, said) and re.search(rf"{column}.* hold NaN or infinity", said), said


def test_a_column_without_any_number_hides_nothing(tmp_path: Path) -> None:
    columns = fine()
    jumping(columns)
    columns["observations"][:, 1] = np.nan
    said = sentences(tmp_path, columns)
    assert "(column 1) hold NaN" in said and "after rows 74 (episode 1), 174 (episode 3)" in said
    assert "never change" not in said


def test_what_needs_no_ends_is_said_where_they_are_missing(tmp_path: Path) -> None:
    columns = fine()
    for spoil in (constant, put("rewards", slice(None), 1.0), put("next_observations", (30, 0), 0.5), endless):
        spoil(columns)
    said = sentences(tmp_path, columns)
    assert "No row ends an episode" in said and "never change in column 3" in said and "All rewards are 1" in said
    assert re.search(r"row saw in rows 30 .*, 49 .*, 99 .*, 149 .*, 199 .*, as where an episode ends\.", said), said
    del columns["next_observations"]
    said = sentences(tmp_path, {**columns, "observations": np.arange(250)[:, None]})
    assert "No row ends an episode" in said and "count the rows in column 0" in said and "jump" not in said


# The number of a state

LAKE = np.random.default_rng(0).permutation(np.resize([0, 1, 2, 3, 4, 6, 8, 9, 10, 13, 14], 250))
"""What is seen of a frozen lake of 16: nobody acts from a hole or the goal."""


def seeing(values: Numbers) -> Columns:
    columns = fine()
    del columns["next_observations"]
    return {**columns, "observations": values}


@pytest.mark.parametrize("values", [LAKE, LAKE[:, None], LAKE.astype(np.uint8), LAKE + 1, LAKE % 3])
def test_the_number_of_a_state_is_no_observation(tmp_path: Path, values: Numbers) -> None:
    columns = seeing(values)
    said = sentences(tmp_path, columns)
    sentence = (
        f"Observations are whole numbers from {values.min()} to {values.max()} in one column, which looks like the"
    )
    assert f"{sentence} number of a state" in said and "one-hot" in said and "task.allow=index" in said
    allowed = opened(tmp_path, columns, allow=("index",))
    assert allowed.rows == 245 and len(allowed.notes) == 1


@pytest.mark.parametrize(
    "values",
    [LAKE.astype(np.float32), LAKE % 2, LAKE - 4, LAKE + 18, LAKE * 10, np.stack([LAKE, LAKE[::-1]], 1),
     np.random.default_rng(0).permutation(250)],
    ids=["floats", "two", "below-zero", "degrees", "wide-apart", "two-columns", "each-once"],
)  # fmt: skip
def test_measurements_in_whole_numbers_are_fine(tmp_path: Path, values: Numbers) -> None:
    assert opened(tmp_path, seeing(values)).rows == 245


def test_spaces_of_states_have_no_bounds(tmp_path: Path) -> None:
    lake = Spaces(Discrete(16), Box(-2.0, 2.0, (1,)), "lake")
    assert opened(tmp_path, seeing(LAKE), lake, allow=("index",)).rows == 245


def test_the_number_of_an_episode_is_said_once(tmp_path: Path) -> None:
    said = sentences(tmp_path, seeing(np.repeat(np.arange(5), 50)))
    assert "count the episodes in column 0" in said and "number of a state" not in said


def test_choices_that_an_environment_does_not_have(tmp_path: Path) -> None:
    columns = cartpole_columns()
    columns["actions"][[4, 9]] = 2, -1
    cart = Spaces(Box(-np.inf, np.inf, (4,)), Discrete(2), "cart")
    said = sentences(tmp_path, columns, cart, allow=("constant-rewards",))
    assert re.search(r"Actions are no choice from 0 to 1 in rows 4 \(episode \d\), 9 \(episode \d\)\.", said), said


def test_no_outcome_is_known_of_episodes_of_one_step(tmp_path: Path) -> None:
    columns = fine()
    put("timeouts", slice(None), True)(columns)
    assert opened(tmp_path, columns, allow=("one-step-episodes",)).episodes == 250
    del columns["next_observations"]
    said = sentences(tmp_path, columns, allow=("one-step-episodes",))
    assert "No row is left whose outcome is known: give next_observations." in said


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


@pytest.mark.slow
def test_a_column_of_a_table_is_one_thing(tmp_path: Path) -> None:
    """But times and episodes, which may be seen too."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.csv"
    path.write_text(
        "angle,torque,payoff,day,hour\n" + "".join(f"{i % 7},{i % 3},{i},{i // 4},{i}\n" for i in range(12))
    )
    with pytest.raises(DataError) as caught:
        open_logs(path, columns="obs=angle,angle,torque action=torque reward=payoff episode=day")
    said = str(caught.value)
    assert "Column 'angle' is named as obs and as obs: name it once" in said
    assert "Column 'torque' is named as obs and as action: name it once" in said and "payoff" not in said
    open_logs(path, columns="obs=angle,hour action=torque reward=payoff episode=day time=hour", allow=["index"])


@pytest.mark.slow
def test_a_table_without_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.csv"
    path.write_text("angle,torque,payoff\n")
    with pytest.raises(DataError, match=r"has columns \(angle, torque, payoff\) and no rows"):
        open_logs(path, columns="obs=angle action=torque reward=payoff")
