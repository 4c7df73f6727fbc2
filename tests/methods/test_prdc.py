"""PRDC: what the search finds, and what it is at its limits; one update is in `test_offline_updates.py`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import scipy.spatial
import torch
from torch import Tensor

from etude.core.edit import set_value, set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.objectives.clone import Clone
from log_toys import logged_task, small_logged

torch.set_num_threads(1)


def loop_of(folder: Path, name: str = "prdc", beta: float | None = None, members: Any = (3, 4)) -> OffPolicyLoop:
    method = small_logged(name)
    if beta is not None:
        method = set_value(method, f"actor.clone.towards.beta={beta}")
    members = [m if isinstance(m, Member) else Member(m) for m in members]
    return OffPolicyLoop(method, logged_task(folder), members, 4, 4)


def reading(loop: OffPolicyLoop) -> StoredReading:
    draw, sampling, store = loop.updater.stretches.at(0), loop.method.sampling, loop.collector.store
    read = StoredReading(loop.updater, sampling, sampling.draw(store, draw), draw, store)
    read.reader = "policy"
    return read


def term(loop: OffPolicyLoop) -> Clone:
    found = loop.method.actor[1]
    assert isinstance(found, Clone)
    return found


def weights(loop: OffPolicyLoop) -> dict[str, Tensor]:
    return {k: t.parameters.values for k, t in loop.updater.trainers.items()}


@pytest.mark.slow
def test_states_that_count_alone_make_it_td3_bc(tmp_path: Path) -> None:
    """No state was there twice, so the nearest row is the row itself: every number of a run is TD3+BC's."""
    near, same = loop_of(tmp_path, beta=1e6), loop_of(tmp_path, "td3-bc")
    read = reading(near)
    assert torch.equal(term(near).towards(read), read.batch.actions)
    near.step(), same.step()
    assert all(torch.equal(value, weights(same)[k]) for k, value in weights(near).items())
    far = loop_of(tmp_path)
    far.step()
    assert not torch.equal(weights(far)["policy"], weights(same)["policy"])


def test_actions_alone_forget_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """beta = 0: the recorded action that is nearest; 0 away where it was done somewhere."""
    loop = loop_of(tmp_path, beta=0.0)
    read, recorded = reading(loop), loop.collector.store.rows[:, 3]
    asked = torch.linspace(-1, 1, 2 * 6).view(2, 6, 1)
    monkeypatch.setattr(read, "policy", lambda: SimpleNamespace(actions=asked))
    wanted = recorded[(recorded - asked).abs().argmin(-1)]
    assert torch.equal(term(loop).towards(read)[..., 0], wanted)
    read.batch.observations.mul_(-1).add_(3)
    read.known.clear()
    assert torch.equal(term(loop).towards(read)[..., 0], wanted)
    asked.copy_(recorded[7 : 7 + 12].view(2, 6, 1))
    assert torch.equal(term(loop)(read), torch.zeros(2, 6)) and not read.noted["nearest_distance"].any()


@pytest.mark.slow
def test_the_tree_finds_what_a_loop_over_all_rows_finds(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    read, rows = reading(loop), loop.collector.store.rows.double()
    seen = (rows[:, :3] - rows[:, :3].mean(0)) / (rows[:, :3].std(0, correction=0) + 1e-3)
    keys = torch.cat([2 * seen, rows[:, 3:4]], -1)
    own = torch.cat([2 * read.seen("here"), read.policy().actions], -1).detach().double()
    far, index = torch.cdist(own.flatten(0, 1), keys, compute_mode="donot_use_mm_for_euclid_dist").min(-1)
    assert torch.equal(term(loop).towards(read), rows[index, 3].float().view(2, 6, 1))
    torch.testing.assert_close(read.noted["nearest_distance"].double(), far.view(2, 6).mean(1), rtol=1e-4, atol=1e-6)


def test_its_gradient_is_that_of_a_square_towards_a_constant(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    read = reading(loop)
    done = read.policy().actions
    (gradient,) = torch.autograd.grad(term(loop)(read).mean(1).sum(), done)
    nearest = term(loop).towards(read)
    assert not nearest.requires_grad
    torch.testing.assert_close(gradient, 2 * (done - nearest) / (6 * 1))


def test_one_index_serves_all_members_for_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, asked = list[int](), list[tuple[int, ...]]()

    class Counted(scipy.spatial.KDTree):
        def __init__(self, keys: Any) -> None:
            built.append(len(keys))
            super().__init__(keys)

        def query(self, keys: Any) -> Any:  # type: ignore[override]
            asked.append(keys.shape)
            return super().query(keys)

    monkeypatch.setattr(scipy.spatial, "KDTree", Counted)
    loop = loop_of(tmp_path)
    reports = [loop.step() for _ in range(2)]  # 8 updates, of which the policy takes every other
    assert built == [796] and asked == [(12, 4)] * 4
    assert all(x > 0 for x in reports[0].members["policy_nearest_distance"])


@pytest.mark.slow
def test_beta_may_be_each_members_own(tmp_path: Path) -> None:
    path = "actor.1.towards.beta"
    both = loop_of(tmp_path, members=[Member(3, {path: 0.0}), Member(3, {path: 7.5})])
    both.step()
    for k, beta in enumerate((0.0, 7.5)):
        alone = loop_of(tmp_path, beta=beta, members=[3])
        alone.step()
        assert torch.equal(weights(both)["policy"][k], weights(alone)["policy"][0])


def test_what_it_cannot_search_is_said() -> None:
    with pytest.raises(ConfigError, match="Nearest searches logs that stay as they are, and Replay acts"):
        check(get_method("td3").replace(actor=get_method("prdc").actor))  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="Nearest measures how far actions are apart, and SoftmaxPolicy"):
        check(set_values(get_method("bc-discrete"), ["actor.clone.towards=nearest"]))
