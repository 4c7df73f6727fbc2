"""Every method that learns from logs: it trains, resumes exactly, members are runs of their own; the shared store."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.edit import set_value, set_values
from etude.core.errors import CheckpointError, ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience.logged import Logged, LoggedStore
from etude.experience.sampling import NStep
from etude.experience.transforms import StandardizeObservations
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.units import Best, Point
from etude.tasks.control.logged import LoggedTask, NoEnvironment
from etude.tasks.control.pendulum import pendulum
from log_toys import OFFLINE, in_boxes, logged_task, pendulum_columns, small_logged, written
from solo_runs import alike

torch.set_num_threads(1)
each_method = pytest.mark.parametrize("name", list(OFFLINE))


def loop_of(name: str, folder: Path, seeds: tuple[int, ...] = (3, 4), block: int = 3, **changes: Any) -> OffPolicyLoop:
    method = small_logged(name).replace(**changes)
    return OffPolicyLoop(method, logged_task(folder, in_boxes(name)), [Member(s) for s in seeds], 4, block)


def tensors(loop: OffPolicyLoop) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in {**loop.policy_tensors(), **loop.updater.tensors()}.items() if v.dim()}


def numbers(report: Any) -> dict[str, list[float]]:
    return {k: v for k, v in report.members.items() if "second" not in k}


@each_method
def test_it_trains_and_nothing_is_stepped(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_of(name, tmp_path)
    assert len(loop.collector.store.rows) == loop.collector.store.size  # one table, whoever learns

    def stepped(*_: object) -> None:
        raise AssertionError("an environment was stepped")

    monkeypatch.setattr(type(loop.environment), "step", stepped)
    monkeypatch.setattr(type(loop.environment), "reset", stepped)
    before = tensors(loop)
    reports = [loop.step() for _ in range(2)]
    after = tensors(loop)
    assert all(np.isfinite(v).all() for r in reports for v in r.members.values())
    assert reports[-1].metrics["updates"] == 6 and "environment_steps" not in reports[-1].metrics
    for learner in loop.updater.trainers:
        assert any(not torch.equal(before[k], after[k]) for k in before if k.startswith(f"{learner}."))


@pytest.mark.first("iql", "cql")
@each_method
def test_a_resumed_run_is_the_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    loop = loop_of(name, tmp_path)
    loop.step()
    (tmp_path / "saved").mkdir()
    loop.save(tmp_path / "saved")
    wanted = [numbers(loop.step()) for _ in range(2)]
    again = loop_of(name, tmp_path)
    again.load(tmp_path / "saved")
    assert [numbers(again.step()) for _ in range(2)] == wanted
    assert all(torch.equal(v, tensors(again)[k]) for k, v in tensors(loop).items())
    assert not (tmp_path / "saved" / "replay").exists()  # the logs stay where they are


@pytest.mark.first("iql", "cql")
@each_method
def test_a_member_is_the_run_of_its_seed(name: str, tmp_path: Path) -> None:
    both, alone = loop_of(name, tmp_path), loop_of(name, tmp_path, seeds=(4,))
    for _ in range(2):
        both.step(), alone.step()
    own, whole = tensors(alone), tensors(both)
    for key, value in own.items():
        rows = len(whole[key]) // 2
        assert alike(whole[key][rows:], value), key


@pytest.mark.first("iql", "cql")
@each_method
def test_the_length_of_a_block_changes_no_number(name: str, tmp_path: Path) -> None:
    loops = [loop_of(name, tmp_path, block=block) for block in (2, 3)]
    changed = [set_values(loop.method, {}) for loop in loops]
    assert changed[0] == changed[1]
    for loop, count in zip(loops, (3, 2), strict=True):
        if any(type(p.learning.optimizer.schedule).__name__ != "Constant" for p in loop.method.trained.values()):
            return  # rates follow the steps of a run
        for _ in range(count):
            loop.step()
    first, second = map(tensors, loops)
    assert all(torch.equal(first[k], v) for k, v in second.items())


def test_other_logs_are_refused(tmp_path: Path) -> None:
    loop = loop_of("bc", tmp_path)
    loop.step()
    (tmp_path / "saved").mkdir()
    loop.save(tmp_path / "saved")
    other = logged_task(tmp_path / "other").replace(data=str(written(tmp_path / "o.npz", pendulum_columns(seed=9))))
    again = OffPolicyLoop(small_logged("bc"), other, [Member(3), Member(4)], 4, 3)
    with pytest.raises(
        CheckpointError, match=r"learned from logs with the fingerprint \w{12}, and .*o\.npz has \w{12}"
    ):
        again.load(tmp_path / "saved")


# The store


def test_members_draw_their_own_rows_of_one_table(tmp_path: Path) -> None:
    loop = loop_of("td3-bc", tmp_path)
    store, logs = loop.collector.store, logged_task(tmp_path).logs()
    index = torch.tensor([[0, 5], [7, 0]])
    rows = store.read(index)
    for name in ("observations", "next_observations", "rewards"):
        assert torch.equal(getattr(rows, name), torch.from_numpy(getattr(logs, name))[index]), name
    assert torch.allclose(rows.actions, torch.from_numpy(logs.actions)[index] / 2)  # in units
    drawn = loop.method.sampling.draw(store, loop.updater.stretches.at(0))
    assert drawn.index is not None and drawn.index.shape == (2, 6) and not torch.equal(*drawn.index)


def test_horizons_stop_at_ends(tmp_path: Path) -> None:
    store = loop_of("td3-bc", tmp_path).collector.store
    assert isinstance(store, LoggedStore)
    logs, gamma = logged_task(tmp_path).logs(), 0.9
    batch = NStep(gamma=gamma, n=3).read(store, torch.tensor([[197], [store.size - 1]]))
    r = logs.rewards
    assert logs.truncated[198] and batch.discounts is not None
    np.testing.assert_allclose(batch.rewards.flatten(), [r[197] + gamma * r[198], r[-1]], rtol=1e-6)
    np.testing.assert_allclose(batch.discounts.flatten(), [gamma**2, gamma], rtol=1e-6)


def test_actions_in_units_are_the_environments() -> None:
    point, given = Point((-2.0, 0.0), (2.0, 10.0)), torch.tensor([[-1.0, 7.5], [2.0, 0.0]])
    assert torch.equal(point.outside(point.inside(given)), given)
    assert point.inside(given).tolist() == [[-0.5, 0.5], [1.0, -1.0]]
    assert Best(3).inside(torch.tensor([[2.0]])).item() == 2.0


# Observations are standardised for everybody


def test_the_moments_are_those_of_the_logs_and_belong_to_the_policy(tmp_path: Path) -> None:
    loop, logs = loop_of("td3-bc", tmp_path), logged_task(tmp_path).logs()
    seen = loop.actor.look(torch.from_numpy(logs.observations).expand(2, -1, -1))
    values = logs.observations.astype(np.float64)
    expected = (values - values.mean(0)) / (values.std(0) + 1e-3)
    np.testing.assert_allclose(seen[1], expected, atol=1e-5)
    assert {k for k in loop.policy_tensors() if "transforms" in k} == {
        "policy.transforms.0.mean", "policy.transforms.0.deviation"
    }  # fmt: skip
    said = "every observation has mean 0 and deviation 1 over them (+ 0.001), for the policy too"
    assert loop.collector.lines == [f"796 rows -> 796: {said}"]  # type: ignore[union-attr]


# What cannot be


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("bc", ["exploration=sampled"], "Logged never acts, so nobody asks Sampled: leave it out"),
        ("td3-bc", ["rewards=normalize-rewards"], "Logged never acts, so nobody asks NormalizeRewards"),
        ("bc", ["policy.observations=normalize-observations"], "NormalizeObservations learns from what is acted"),
        ("td3-bc", ["sampling=prioritized-rows"], "one table for all members, of which PrioritizedRows cannot draw"),
        ("td3-bc", ["critic=none"], "MaximizeQ climbs what actions are worth, and there is no critic"),
        ("iql", ["value=none"], "FromValue asks what states are worth, .*: set value=value-function"),
        ("iql", ["policy=deterministic-policy"], "asks how likely actions are, which DeterministicPolicy cannot say"),
        ("bc-discrete", ["actor.clone.error=squared-distance"], "is between numbers, and SoftmaxPolicy makes choices"),
        ("td3", ["transforms=standardize-observations"], "changes logs, and Replay acts: leave transforms empty"),
        ("td3", ["exploration=none"], "Replay acts, and nothing says how"),
        ("dqn", ["critic=none"], "FromCritic does what the critic says is best, and there is none"),
    ],
)
def test_what_cannot_be_composed_is_said(name: str, changes: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), changes))


def test_logs_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"Logged learns from logs, and there are none for pendulum: give --data PATH"
    ):
        check(get_method("bc"), pendulum)
    check(get_method("bc"), logged_task(tmp_path))


def test_any_method_learns_from_logs_that_takes_its_actions(tmp_path: Path) -> None:
    """`dqn` on logs is dqn with `experience=logged` and no exploration."""
    method: Any = get_method("dqn").replace(experience=Logged(), exploration=None)
    method = set_value(method, "critic.network.hidden=8")
    check(method, logged_task(tmp_path, boxes=False))
    loop = OffPolicyLoop(method, logged_task(tmp_path, boxes=False), [Member(0)], 2, 3)
    assert np.isfinite(loop.step().metrics["critic_loss"]) and loop.headline == "critic_loss"


def test_without_an_environment_there_are_spaces_alone(tmp_path: Path) -> None:
    task = LoggedTask(data=logged_task(tmp_path).data)
    environment = task.make([0, 1], 1)
    assert isinstance(environment, NoEnvironment) and environment.action_space.shape == (1,)
    assert task.id == "swing" and task.needs_reward() == "There is no environment to play in: give --task."
    with pytest.raises(ConfigError, match="logs and no environment"):
        environment.reset()
    OffPolicyLoop(small_logged("bc"), task, [Member(0)], 2, 3).step()


def test_values_without_bound_are_said(tmp_path: Path) -> None:
    loop = loop_of("td3-bc", tmp_path)
    with torch.no_grad():
        loop.updater.networks["critic"].head.bias.fill_(1e6)  # type: ignore[union-attr,operator]
    with pytest.warns(UserWarning, match="Values grow without bound"):
        loop.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.step()  # once


def test_constants_of_the_logs_are_no_image(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"StandardizeObservations is for vectors, and observations are \[3, 8, 8\]"):
        StandardizeObservations().build((3, 8, 8), loop_of("bc", tmp_path).population)
