"""Preferences over segments of logs, rewards learned from them, and IPL; one update is in `test_offline_updates.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member, PerMember
from etude.core.registry import get_method
from etude.experience.logs.table import Compared, Logs
from etude.experience.preferences import (
    RewardsFromPreferences,
    ScriptedPreferences,
    beginnings,
    compared_steps,
    margins,
    preference_loss,
)
from etude.learners.backups import Bootstrap
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.methods.offline.ipl import SegmentPairs
from log_toys import logged_task, random_logs, small_logged

torch.set_num_threads(1)
IPL: Any = get_method("ipl")


def loop_of(folder: Path, name: str = "ipl", changes: Any = ()) -> OffPolicyLoop:
    return OffPolicyLoop(set_values(small_logged(name), changes), logged_task(folder), [Member(3), Member(4)], 4, 4)


def reading(loop: OffPolicyLoop) -> StoredReading:
    draw, sampling, store = loop.updater.stretches.at(0), loop.method.sampling, loop.collector.store
    read = StoredReading(loop.updater, sampling, sampling.draw(store, draw), draw, store)
    read.reader = "critic"
    return read


def of_logs(logs: Logs, **changes: Any) -> Compared:
    found = ScriptedPreferences(**{"pairs": 300, "length": 5, **changes})(logs, IPL).compared
    assert found is not None
    return found


@pytest.fixture
def in_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


# What is preferred


def test_the_segment_is_preferred_that_was_paid_more() -> None:
    logs = random_logs()
    found = of_logs(logs)
    steps = compared_steps(found)
    assert steps.shape == (300, 2, 5)
    assert (logs.ends.searchsorted(steps) == logs.ends.searchsorted(steps[..., :1])).all()  # of one episode each
    sums = logs.rewards[steps].astype(float).sum(-1)
    assert ((sums[:, 1] > sums[:, 0]) == (found.preferred == 1)).all() and 0.4 < found.preferred.mean() < 0.6
    assert {tuple(x) for x in steps[..., 0]} != {tuple(x) for x in compared_steps(of_logs(logs, seed=1))[..., 0]}
    wrong = of_logs(logs, wrong=0.3)
    assert (wrong.first == found.first).all() and 0.2 < (wrong.preferred != found.preferred).mean() < 0.4
    banded = compared_steps(of_logs(logs, band=2.0))
    assert np.abs(np.subtract(*logs.rewards[banded].sum(-1).T)).min() > 2
    apart = logs.ends.searchsorted(compared_steps(of_logs(logs, apart=True))[..., 0])
    assert (apart[:, 0] != apart[:, 1]).all()
    assert len(beginnings(logs, 20)) == logs.episodes and not len(beginnings(logs, 21))


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(ConfigError, match="compares segments of 21 steps, and no episode has them"):
        of_logs(random_logs(), length=21)
    with pytest.raises(ConfigError, match="found 0 of 300 pairs of segments whose rewards are more than 99 apart"):
        of_logs(random_logs(), band=99.0)
    part = ScriptedPreferences()
    part.settle("wrong", PerMember([0.1, 0.2]))
    with pytest.raises(ConfigError, match="ScriptedPreferences is for logs that all members share, and theirs differ"):
        part(random_logs(), IPL)


# Rewards that are learned from it


@pytest.mark.slow
def test_a_model_ranks_states_as_a_judge_without_errors_does() -> None:
    """Progress is linear in what is seen: Kendall's tau goes to 1; a judge who errs half the time says nothing."""
    logs = random_logs(1000)
    progress = (logs.observations @ np.array([1.0, -0.5, 0.0])).astype(np.float32)
    logs = Logs(**{**vars(logs), "rewards": progress})
    part = RewardsFromPreferences(actions=False, ensemble=1, hidden=(32,), lr=3e-3, updates=200).bind()
    tau = {}
    for wrong in (0.0, 0.5):
        asked = ScriptedPreferences(pairs=500, length=1, wrong=wrong)(logs, IPL)
        found = part(asked, IPL)
        assert found.rewards.mean() == pytest.approx(0, abs=1e-5) and found.rewards.std() == pytest.approx(1, abs=1e-5)
        tau[wrong] = kendalltau(found.rewards, progress).statistic
        assert f"{100 * part.made['agreement']:.0f}% of the preferences" in part.sentence(asked, found)
    assert tau[0.0] > 0.9 and abs(tau[0.5]) < 0.6


@pytest.mark.slow
def test_a_linear_model_ranks_all_states_as_progress_that_is_linear_does() -> None:
    """The likeliest weights point where progress grows, as far as 20,000 pairs say: tau > 0.99, and up."""
    logs, way = random_logs(8000), np.array([1.0, -0.5, 0.0])
    logs = Logs(**{**vars(logs), "rewards": (logs.observations @ way).astype(np.float32)})
    asked = ScriptedPreferences(pairs=20_000, length=1)(logs, IPL)
    part = RewardsFromPreferences(actions=False, ensemble=1, hidden=(), lr=1e-2, batch=512, updates=1500)
    found = part.bind()(asked, IPL).rewards
    assert kendalltau(found, logs.observations @ way).statistic > 0.99


def test_only_differences_between_segments_count() -> None:
    rewards, preferred = torch.randn(7, 2, 4, dtype=torch.float64), (torch.rand(7) < 0.5).double()
    loss = preference_loss(rewards, preferred)
    torch.testing.assert_close(preference_loss(rewards + 3.0, preferred), loss)
    torch.testing.assert_close(preference_loss(rewards.flip(1), 1 - preferred), loss)
    by_hand = [
        torch.sigmoid((2 * y - 1) * (r[1].sum() - r[0].sum())).log() for r, y in zip(rewards, preferred, strict=True)
    ]
    torch.testing.assert_close(loss, -torch.stack(by_hand).mean())
    flat = torch.zeros(400, 2, 1, requires_grad=True)  # equal rewards, answers by chance: no way is better
    half = torch.arange(400.0) % 2
    preference_loss(flat, half).backward()
    assert flat.grad is not None and flat.grad.sum(0).abs().max() < 1e-6 < flat.grad.abs().max()
    steps = torch.tensor([[[0, 1], [2, 3]]])
    assert margins(torch.tensor([1.0, 2.0, 4.0, 8.0]), steps).tolist() == [9.0]


# IPL


@pytest.mark.slow
def test_rewards_that_values_imply_are_those_that_give_these_values(tmp_path: Path, in_float64: None) -> None:
    """One to one: told what Q implies, IQL's critics are where they would stay."""
    loop = loop_of(tmp_path, changes={"critic.count": 1})
    read = reading(loop)
    critic: Any = loop.method.critic
    said = read.outputs("here", read.batch.actions)
    with torch.no_grad():
        read.batch.rewards = read.values(said - critic.backup.target(read, critic.head)[:, None])[:, 0]
        target = Bootstrap(critic.backup.rule).target(read, critic.head)
    torch.testing.assert_close(target, said[:, 0].detach(), rtol=0, atol=1e-12)


def test_policy_evaluation_of_implied_rewards_gives_the_values_back() -> None:
    """A table: r = Q - gamma P V_pi(Q), and the Q of r under the same policy."""
    rng = np.random.default_rng(0)
    chances, policy, q = rng.dirichlet(np.ones(5), (5, 3)), rng.dirichlet(np.ones(3), 5), rng.normal(size=(5, 3))
    rewards = q - 0.9 * chances @ (policy * q).sum(1)
    moves = (chances[..., None] * policy).reshape(15, 15)
    found = np.linalg.solve(np.eye(15) - 0.9 * moves, rewards.ravel())
    np.testing.assert_allclose(found, q.ravel(), atol=1e-12)


@pytest.mark.slow
def test_without_the_square_it_is_bradley_and_terry_of_what_is_implied(tmp_path: Path, in_float64: None) -> None:
    loop = loop_of(tmp_path)
    read = reading(loop)
    critic: Any = loop.method.critic
    with torch.no_grad():
        target = critic.backup.target(read, critic.head)[:, None]
        implied = read.values(read.outputs("here", read.batch.actions) - target)
        offers = read.batch.offers
        square = (offers["importance"][:, None] * implied.square()).mean(2).sum(1)
        wanted = [
            sum(preference_loss(implied[k, m, :12].view(2, 2, 3), offers["preferred"][k]) for m in range(2))
            for k in range(2)
        ]
        found = critic.loss(read)
        torch.testing.assert_close(found - 0.5 * square, torch.stack(wanted))  # type: ignore[arg-type]
        offers.update(preferred=1 - offers["preferred"], signs=-offers["signs"])
        torch.testing.assert_close(critic.loss(read), found)
    assert 0 <= read.noted["agreement"].min() <= 1


@pytest.mark.slow
def test_values_of_states_learn_nothing_of_preferences(tmp_path: Path) -> None:
    loop, other = loop_of(tmp_path), loop_of(tmp_path, "iql")
    read = reading(loop)
    value = list(loop.updater.networks["value"].parameters())
    slopes = torch.autograd.grad(read.critic_loss().sum(), value, allow_unused=True)
    assert all(slope is None or not slope.any() for slope in slopes)
    assert loop.trained == other.trained  # no model of rewards


@pytest.mark.slow
def test_a_batch_has_the_same_steps_of_both_segments(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, changes={"transforms.scripted-preferences.length": 5})
    read, store = reading(loop), loop.collector.store
    found, index = store.compared, read.batch.index  # type: ignore[attr-defined]
    assert index is not None and index.shape == (2, 18) and not torch.equal(index[0], index[1])
    first, second = torch.from_numpy(found.first), torch.from_numpy(found.second)
    assert not store.rewards.any()
    told = logged_task(tmp_path).logs().rewards
    for k in range(2):
        for pair, preferred in zip(index[k, :12].view(2, 2, 3), read.batch.offers["preferred"][k], strict=True):
            assert (pair.diff(dim=1) == 1).all()
            at = [
                j for j in range(len(first)) if int(pair[0, 0] - first[j]) == int(pair[1, 0] - second[j]) in {0, 1, 2}
            ]
            paid = [told[first[j] : first[j] + 5].sum() < told[second[j] : second[j] + 5].sum() for j in at]
            assert at and preferred in paid
    importance = read.batch.offers["importance"]
    torch.testing.assert_close(importance[:, :12].sum(1), importance[:, 12:].sum(1))
    torch.testing.assert_close(importance.mean(1), torch.ones(2))


@pytest.mark.slow
def test_targets_are_cut_where_no_implied_reward_leads(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    with torch.no_grad():
        loop.updater.networks["value"].head.bias.fill_(-500.0)  # type: ignore[union-attr,operator]
    critic: Any = loop.method.critic
    target = critic.backup.target(reading(loop), critic.head)
    torch.testing.assert_close(target, torch.full_like(target, -0.99 / (0.5 * 0.01)))


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("iql", ["sampling=segment-pairs"], "SegmentPairs learns from pairs of segments, and nobody has compared any"),
        ("ipl", ["sampling=uniform-rows"], "set sampling=segment-pairs"),
        ("ipl", ["sampling.horizon=n-step"], "SegmentPairs draws steps one by one"),
        ("ipl", ["critic.penalties=alike-slopes"], "has rewards for its values, one number each"),
        (
            "iql",
            ["transforms=rewards-from-preferences,scripted-preferences"],
            "nobody has compared any: set transforms",
        ),
        ("iql", ["value=counted-value"], "CountedValue asks how much each row counts, which nobody says"),
    ],
)
def test_what_it_asks_for_is_said(name: str, changes: Sequence[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), changes))


@pytest.mark.slow
def test_segments_that_are_too_short_are_said(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, changes={"transforms.scripted-preferences.length": 2})
    with pytest.raises(ConfigError, match="draws segments of 3 steps, and those that were compared have 2"):
        loop.step()
    assert SegmentPairs().rows == 1280
