"""Rewards of logs that are scaled and moved, and episodes that earned most: what is learned from afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.log_slots import LogTransform
from etude.core.method import Method
from etude.core.population import Member, PerMember
from etude.core.registry import get_method
from etude.experience.logs.table import Logs
from etude.experience.transforms import Filter, ReturnsToGo, ScaleRewards
from etude.loops.off_policy import OffPolicyLoop
from etude.stages.handover import Handover
from etude.stages.phases import Phase
from log_toys import logged_task, small_logged

torch.set_num_threads(1)


def loop_of(tmp_path: Path, *transforms: object) -> OffPolicyLoop:
    method = small_logged("td3-bc").replace(transforms=transforms)
    return OffPolicyLoop(method, logged_task(tmp_path), [Member(3), Member(4)], 4, 3)


def test_rewards_are_scaled_then_moved(tmp_path: Path) -> None:
    loop, logs = loop_of(tmp_path, ScaleRewards(scale=0.5, shift=-1.0)), logged_task(tmp_path).logs()
    store = loop.collector.store
    index = torch.tensor([[0, 5], [7, 1]])
    np.testing.assert_allclose(store.read(index).rewards, logs.rewards[index] / 2 - 1, rtol=1e-6)
    returns = logs.returns / 2 - np.diff(logs.ends, prepend=-1)
    said = f"796 rows -> 796: rewards are 0.5 r -1, returns {returns.min():.4g} to {returns.max():.4g}"
    assert loop.collector.lines == [said]  # type: ignore[union-attr]


def test_the_best_and_the_worst_episode_are_so_far_apart(tmp_path: Path) -> None:
    logs, method = logged_task(tmp_path).logs(), small_logged("td3-bc")
    spread = ScaleRewards(spread=1000.0)(logs, method)
    assert spread.returns.max() - spread.returns.min() == pytest.approx(1000.0, rel=1e-5)
    factor = 1000.0 / (logs.returns.max() - logs.returns.min())
    np.testing.assert_allclose(spread.rewards, factor * logs.rewards, rtol=1e-5)
    moved = ScaleRewards(spread=1000.0, shift=2.0)(logs, method)
    np.testing.assert_allclose(moved.rewards, spread.rewards + 2.0, rtol=1e-5)
    alike = ScaleRewards(scale=1e-30)(logs, method)
    with pytest.raises(ConfigError, match="returns that are all alike: give scale instead of spread"):
        ScaleRewards(spread=1.0)(Filter(top=0.01)(alike, method), method)
    with pytest.raises(ConfigError, match="leave one of them out"):
        ScaleRewards(scale=2.0, spread=1.0)


def test_what_episodes_earn_is_summed_after_rewards_are_scaled(tmp_path: Path) -> None:
    logs, method = logged_task(tmp_path).logs(), small_logged("cql")
    with pytest.raises(ConfigError, match="ReturnsToGo has summed already: put it before that"):
        ScaleRewards(scale=2.0)(ReturnsToGo()(logs, method), method)
    twice, once = ReturnsToGo()(ScaleRewards(scale=2.0)(logs, method), method), ReturnsToGo()(logs, method)
    np.testing.assert_allclose(twice.returns_to_go, 2 * once.returns_to_go, rtol=1e-5)


def test_what_is_acted_beside_scaled_logs_needs_the_same_scale(tmp_path: Path) -> None:
    scaled = small_logged("cql").replace(transforms=(ScaleRewards(shift=-1.0),))
    check(scaled, logged_task(tmp_path))
    later = scaled.replace(stages=(Phase(end=0.5), Handover(warmup=10)))
    with pytest.raises(
        ConfigError, match="ScaleRewards changes what the logs were paid, and what is acted beside them"
    ):
        check(later, logged_task(tmp_path))
    own = scaled.replace(stages=(Phase(end=0.5), Handover(warmup=10, set=("rewards=normalize-rewards",))))
    check(own, logged_task(tmp_path))


@pytest.mark.parametrize(("top", "stays"), [(0.5, 2), (0.01, 1), (1.0, 4)])
def test_the_episodes_that_earned_most_stay_whole(top: float, stays: int, tmp_path: Path) -> None:
    logs, method = logged_task(tmp_path).logs(), small_logged("td3-bc")
    assert logs.episodes == 4
    kept = Filter(top=top)(logs, method)
    assert sorted(kept.returns) == pytest.approx(sorted(logs.returns)[-stays:])
    order = [float(x) for x in logs.returns if x in set(kept.returns)]
    assert kept.returns.tolist() == pytest.approx(order), "in the order in which they were logged"
    said = f"{stays} of 4 episodes stay, of {min(order):.4g} or more"
    assert loop_of(tmp_path, Filter(top=top)).collector.lines == [f"796 rows -> {kept.rows}: {said}"]  # type: ignore[union-attr]


class Nothing(LogTransform):
    """Leaves out every row."""

    def __call__(self, logs: Logs, method: Method) -> Logs:
        return logs.only(np.zeros(logs.rows, bool))

    def sentence(self, before: Logs, after: Logs) -> str:
        return "all of them were bad"


def test_where_nothing_is_left_each_transform_says_how_much_it_left(tmp_path: Path) -> None:
    left = r"Nothing is left of the logs: 796 rows -> 199: 1 of 4 .*; 199 rows -> 0: all of them were bad"
    with pytest.raises(ConfigError, match=left):
        loop_of(tmp_path, Filter(top=0.01), Nothing())


def test_they_are_set_from_the_command_line() -> None:
    method = set_values(get_method("bc"), ["transforms=filter,scale-rewards", "transforms.filter.top=0.2"])
    assert [type(x) for x in method.transforms] == [Filter, ScaleRewards] and method.transforms[0].top == 0.2


def test_members_who_share_logs_cannot_differ_in_them(tmp_path: Path) -> None:
    logs, method = logged_task(tmp_path).logs(), small_logged("td3-bc")
    for part, field in ((Filter(), "top"), (ScaleRewards(), "shift")):
        part.settle(field, PerMember([0.1, 0.2]))
        with pytest.raises(ConfigError, match="for logs that all members share, and theirs differ: compare runs"):
            part(logs, method)
