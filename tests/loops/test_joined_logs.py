"""Logs that others stand behind, and rewards that somebody's own function says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience.joined import Mix, Relabel
from etude.experience.logs.table import Logs
from etude.experience.transforms import Filter, MarkExperts, NextActions, ReturnsToGo
from etude.loops.off_policy import OffPolicyLoop
from etude.runtime.sources import gather, named
from etude.stages.handover import Handover
from etude.stages.phases import Phase
from etude.tasks.control.logged import LoggedTask
from log_toys import cartpole_columns, logged_task, pendulum_columns, small_logged, written

torch.set_num_threads(1)

OWN = """
import numpy as np

def upright(observations, actions, next_observations):
    return next_observations[:, 0] - 0.1 * actions[:, 0] ** 2

def one(observations, actions, next_observations):
    return 1.0

def endless(observations, actions, next_observations):
    return np.where(np.arange(len(actions)) == 7, np.inf, 0.0)

def broken(observations, actions, next_observations):
    return observations["angle"]
"""


def own(folder: Path, function: str, module: str = "told") -> str:
    file = folder / f"{module}.py"
    file.write_text(OWN)
    return f"{file}:{function}"


def others(folder: Path, episodes: int = 6) -> str:
    return str(written(folder / "others.npz", pendulum_columns(episodes=episodes, seed=7)))


def loop_of(tmp_path: Path, *transforms: object) -> OffPolicyLoop:
    method = small_logged("td3-bc").replace(transforms=transforms)
    return OffPolicyLoop(method, logged_task(tmp_path), [Member(3), Member(4)], 4, 3)


def test_rewards_are_what_a_function_says(tmp_path: Path) -> None:
    loop, logs = loop_of(tmp_path, Relabel(reward=own(tmp_path, "upright"))), logged_task(tmp_path).logs()
    index = torch.tensor([[0, 5], [7, 1]])
    expected = logs.next_observations[index][..., 0] - 0.1 * logs.actions[index][..., 0] ** 2
    np.testing.assert_allclose(loop.collector.store.read(index).rewards, expected, rtol=1e-6)
    [line] = loop.collector.lines  # type: ignore[union-attr]
    assert line.startswith("796 rows -> 796: rewards are what ") and "told.py:upright says, returns " in line
    assert f"where {logs.returns.mean():.4g} was paid" in line


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("one", r"returned \[\] where a reward for each row is wanted, \[796\]"),
        ("endless", "says nothing finite of 1 rows, the first of them row 7"),
        ("broken", r"fails on 796 rows: IndexError: .*with all observations, actions and next_observations at once"),
        ("upwards", r"There is no attribute of .*told.py named .upwards."),
    ],
)
def test_a_function_that_says_no_rewards_is_told_so(function: str, said: str, tmp_path: Path) -> None:
    logs, method = logged_task(tmp_path).logs(), small_logged("td3-bc")
    with pytest.raises(ConfigError, match=said):
        Relabel(reward=own(tmp_path, function))(logs, method)


def test_what_was_said_of_rewards_comes_after_them(tmp_path: Path) -> None:
    logs, method = logged_task(tmp_path).logs(), small_logged("cql")
    relabel = Relabel(reward=own(tmp_path, "upright"))
    with pytest.raises(ConfigError, match="of which ReturnsToGo has said something already: put it before that"):
        relabel(ReturnsToGo()(logs, method), method)
    known = NextActions()(logs, method)
    assert relabel(known, method).next_actions is known.next_actions, "what was done is done, whatever it is paid"
    later = method.replace(transforms=(relabel,), stages=(Phase(end=0.5), Handover(warmup=10)))
    with pytest.raises(ConfigError, match="Relabel changes what the logs were paid, and what is acted beside them"):
        check(later, logged_task(tmp_path))


def test_all_of_the_others_stand_behind(tmp_path: Path) -> None:
    logs, method, path = logged_task(tmp_path).logs(), small_logged("td3-bc"), others(tmp_path)
    behind, found = LoggedTask(data=path).logs(), Mix(data=path)(logs, method)
    assert found.rows == logs.rows + behind.rows and found.episodes == 10
    np.testing.assert_array_equal(found.observations, np.concatenate([logs.observations, behind.observations]))
    np.testing.assert_array_equal(found.rewards, np.concatenate([logs.rewards, behind.rewards]))
    np.testing.assert_array_equal(found.returns, np.concatenate([logs.returns, behind.returns]))
    share = behind.rows / found.rows
    [line] = loop_of(tmp_path, Mix(data=path)).collector.lines  # type: ignore[union-attr]
    assert line.startswith(f"796 rows -> {found.rows:,}: 6 episodes of {path} behind them")
    assert f"a share of {share:.3g} of all rows" in line


@pytest.mark.parametrize(("share", "episodes"), [(0.2, 1), (1 / 3, 2), (0.5, 4), (0.6, 6)])
def test_whole_episodes_make_up_the_share(share: float, episodes: int, tmp_path: Path) -> None:
    logs, method, path = logged_task(tmp_path).logs(), small_logged("td3-bc"), others(tmp_path)
    behind = LoggedTask(data=path).logs()
    drawn = [Mix(data=path, share=share, seed=seed)(logs, method) for seed in range(4)]
    for found in drawn:
        added = found.returns[logs.episodes :]
        assert len(added) == episodes and set(added) <= set(behind.returns) and len(set(added)) == episodes
        assert added.tolist() == [x for x in behind.returns if x in set(added)], "in the order of the logs"
    assert (len({f.fingerprint for f in drawn}) > 1) == (episodes < 6), "other seeds draw others"
    again = Mix(data=path, share=share, seed=0)(logs, method)
    assert again.fingerprint == drawn[0].fingerprint


def test_a_share_that_cannot_be_is_told_so(tmp_path: Path) -> None:
    logs, method, path = logged_task(tmp_path).logs(), small_logged("td3-bc"), others(tmp_path)
    with pytest.raises(ConfigError, match=r"wants 3,184 rows of .*, and there are 1,194, a share of 0\.6: lower share"):
        Mix(data=path, share=0.8)(logs, method)
    with pytest.raises(ConfigError, match=r"wants 8 rows of .*, and its episodes have 199: raise share"):
        Mix(data=path, share=0.01)(logs, method)
    with pytest.raises(ConfigError, match="share=1 would leave nothing of the logs"):
        Mix(data=path, share=1.0)


def test_logs_of_another_environment_are_refused(tmp_path: Path) -> None:
    logs, method = logged_task(tmp_path).logs(), small_logged("td3-bc")
    pole = str(written(tmp_path / "pole.npz", cartpole_columns()))
    with pytest.raises(ConfigError, match=r"Mix cannot put .*pole.npz beside .*swing.npz"):
        Mix(data=pole)(logs, method)
    with pytest.raises(ConfigError, match=r"Mix cannot put .*nowhere.npz beside"):
        Mix(data=str(tmp_path / "nowhere.npz"))(logs, method)


def test_what_both_lack_one_of_is_forgotten(tmp_path: Path) -> None:
    logs, method, path = logged_task(tmp_path).logs(), small_logged("td3-bc"), others(tmp_path)
    known = Logs(**{**vars(logs), "behaviour_logp": np.zeros(logs.rows, np.float32)} | {"returns_to_go": None})
    assert Mix(data=path)(known, method).behaviour_logp is None


@pytest.mark.parametrize("adds", [ReturnsToGo(), NextActions(), MarkExperts()])
def test_what_was_added_to_the_first_cannot_be_said_of_others(adds: object, tmp_path: Path) -> None:
    logs, method = logged_task(tmp_path).logs(), small_logged("cql")
    with pytest.raises(ConfigError, match=f"of which {type(adds).__name__} has said something already"):
        Mix(data=others(tmp_path))(adds(logs, method), method)  # type: ignore[operator]


@pytest.mark.parametrize(("part", "said"), [(Mix(), "transforms.mix.data"), (Relabel(), "transforms.relabel.reward")])
def test_what_has_to_be_said_is_asked_for(part: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"set {said}="):
        check(small_logged("td3-bc").replace(transforms=(part,)), logged_task(tmp_path))


def test_both_are_inputs_of_a_run_and_set_from_the_command_line(tmp_path: Path) -> None:
    path, reward = others(tmp_path), own(tmp_path, "upright", "said")
    method = set_values(
        get_method("bc"),
        ["transforms=mix,relabel,filter", f"transforms.mix.data={path}", f"transforms.relabel.reward={reward}"],
    )
    assert [type(x) for x in method.transforms] == [Mix, Relabel, Filter]
    found = gather(*named(method, logged_task(tmp_path)))
    assert {path, reward} <= set(found.names)
    written(Path(path), pendulum_columns(episodes=2, seed=8))
    assert found.changed() == [path]
    (tmp_path / "said.py").write_text(OWN + "\n")
    assert sorted(found.changed()) == sorted([path, str(tmp_path / "said.py")])
