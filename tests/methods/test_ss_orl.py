"""SS-ORL: whose actions are hidden, what an inverse model says of them, and what it is where all are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience.logs.table import Logs
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.offline.ss_orl.labels import HideActions, KnownActions, LabelActions, episode_of, mixed, windows
from etude.tasks.control.logged import LoggedTask
from log_toys import logged_task, random_logs, small_logged, written

torch.set_num_threads(1)
METHOD: Any = get_method("ss-orl")
SMALL = LabelActions(hidden=(16,), updates=20, batch=32)


def linear_logs() -> Logs:
    """What follows is s + M a, with a matrix that can be inverted."""
    logs = random_logs(600)
    led = logs.observations.copy()
    led[:, :2] += logs.actions @ np.array([[1.0, 0.5], [-0.5, 1.0]], np.float32)
    return replace(logs, next_observations=led)


@pytest.mark.slow
def test_where_every_action_is_known_it_is_td3_bc(tmp_path: Path) -> None:
    loops = [
        OffPolicyLoop(small_logged(name), logged_task(tmp_path), [Member(3), Member(4)], 4, 4)
        for name in ("ss-orl", "td3-bc")
    ]
    assert torch.equal(*(loop.collector.store.rows for loop in loops))
    assert loops[0].collector.lines[0] == "796 rows -> 796: every row has an action"  # type: ignore[union-attr]
    for loop in loops:
        loop.step()
    for name, trainer in loops[0].updater.trainers.items():
        assert torch.equal(trainer.parameters.values, loops[1].updater.trainers[name].parameters.values), name


def test_actions_of_bad_episodes_stay() -> None:
    logs = random_logs()
    hidden = HideActions(share=0.2, below=0.5, seed=1)
    found = hidden(logs, METHOD)
    there = ~np.isnan(found.actions).any(1)
    kept = np.unique(episode_of(logs)[there])
    assert len(kept) == 4 and set(kept) <= set(np.argsort(logs.returns)[:10])
    assert (found.actions[there] == logs.actions[there]).all() and there.sum() == 80
    assert (np.isnan(found.actions) == np.isnan(hidden(logs, METHOD).actions)).all()
    assert (HideActions(share=0.2, seed=2).labelled(logs.returns) != hidden.labelled(logs.returns)).any()
    only = KnownActions()(found, METHOD)
    assert only.episodes == 4 and (only.rewards == logs.rewards[there]).all()
    assert only.terminated.sum() + only.truncated.sum() >= 4
    assert HideActions(share=1.0, below=1.0)(logs, METHOD).actions.tolist() == logs.actions.tolist()


@pytest.mark.slow
def test_a_linear_system_is_inverted() -> None:
    """s' = s + M a: what is said is what was done, as far as the model is good; least squares finds it exactly."""
    logs = linear_logs()
    read = windows(logs, 0)
    both = np.concatenate([read, np.ones((600, 1))], 1)
    exact = both @ np.linalg.lstsq(both, logs.actions, rcond=None)[0]
    assert np.abs(exact - logs.actions).max() < 1e-5
    hidden = HideActions(share=0.5, below=1.0)(logs, METHOD)
    part = LabelActions(past=0, hidden=(64,), dropout=0.0, lr=1e-2, batch=256, updates=300).bind()
    found = part(hidden, METHOD)
    missing = np.isnan(hidden.actions).any(1)
    assert (found.actions[~missing] == logs.actions[~missing]).all() and np.abs(found.actions).max() <= 1
    off = np.abs(found.actions - logs.actions)[missing].mean()
    assert off < 0.12 < np.abs(logs.actions - logs.actions.mean(0))[missing].mean() / 3
    assert f"{int(missing.sum())} rows got an action, which a model is unsure of by 0." in part.sentence(hidden, found)


def walk_columns(episodes: int = 120, length: int = 5) -> dict[str, Any]:
    """Walks that follow s' = s + M a and that a limit ends, paid by how near to 0 they come."""
    rng, matrix = np.random.default_rng(0), np.array([[1.0, 0.5], [-0.5, 1.0]])
    actions = rng.uniform(-1, 1, (episodes, length, 2)).astype(np.float32)
    begun = rng.normal(size=(episodes, 1, 2))
    states = np.concatenate([begun, begun + (actions @ matrix).cumsum(1)], 1).astype(np.float32)
    ends = np.broadcast_to(np.arange(length) == length - 1, (episodes, length))
    found = {
        "observations": states[:, :-1], "actions": actions, "rewards": -np.square(states[:, 1:]).sum(-1),
        "terminals": ends & False, "timeouts": ends, "next_observations": states[:, 1:],
    }  # fmt: skip
    return {name: x.reshape(episodes * length, *x.shape[2:]) for name, x in found.items()}


def solved(network: Any, read: Any, units: Any, fit: Any, *others: Any) -> Any:
    """The linear model of least squares, sure of what it says."""
    rows = np.concatenate([read[fit].double().numpy(), np.ones((len(fit), 1))], 1)
    said = torch.from_numpy(np.linalg.lstsq(rows, units[fit].double().numpy(), rcond=None)[0]).float()
    with torch.no_grad():
        network[0].weight.copy_(torch.cat([said[:-1].T, 0 * said[:-1].T]))
        network[0].bias.copy_(torch.cat([said[-1], said[-1] * 0 - 9]))
    return network


@pytest.mark.slow
@pytest.mark.parametrize(("fit", "close"), [("its own", 1e-4), ("least squares", 1e-5)])
def test_where_a_linear_model_says_what_was_done_td3_bc_learns_what_it_would_from_all_actions(
    fit: str, close: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s' = s + M a without hidden layers, as far as float32 can tell likelihoods apart; after ten steps it is not."""
    task = LoggedTask(data=str(written(tmp_path / "walks.npz", walk_columns())))
    logs, hidden = task.logs(), HideActions(share=0.5, below=1.0)
    part = LabelActions(past=0, hidden=(), dropout=0.0, lr=1e-2, updates=2000)

    def weights_after(*transforms: Any) -> torch.Tensor:
        method = small_logged("ss-orl")
        method = method.replace(transforms=(*transforms, method.transforms[1]))
        loop = OffPolicyLoop(method, task, [Member(3), Member(4)], 2, 8)
        loop.step(), loop.step()
        return torch.cat([x.parameters.values.flatten() for x in loop.updater.trainers.values()])

    oracle = weights_after()
    if fit == "its own":
        assert (weights_after(hidden, part.replace(updates=10)) - oracle).abs().max() > 1e-3
    else:
        monkeypatch.setattr("etude.methods.offline.ss_orl.labels.best", solved)
    missing = np.isnan(hidden(logs, METHOD).actions).any(1)
    off = np.abs(part.bind()(hidden(logs, METHOD), METHOD).actions - logs.actions)
    assert missing.sum() == 300 and off[missing].max() < close and not off[~missing].any()
    torch.testing.assert_close(weights_after(hidden, part), oracle, atol=1e-5, rtol=0)


def test_equal_parts_of_normals_have_these_moments() -> None:
    mean, variance = mixed(torch.tensor([[0.0], [2.0]]), torch.ones(2, 1))
    assert mean.item() == 1 and variance.item() == 2
    draws = torch.cat([torch.randn(50_000) * 0.5 - 1, torch.randn(50_000) * 2 + 3])
    mean, variance = mixed(torch.tensor([[-1.0], [3.0]]), torch.tensor([[0.5], [2.0]]))
    assert draws.mean().item() == pytest.approx(mean.item(), abs=0.05)
    assert draws.var().item() == pytest.approx(variance.item(), rel=0.03)


def test_windows_have_zeros_before_their_episode() -> None:
    logs = random_logs()
    mean, deviation = logs.observations.astype(float).mean(0), logs.observations.astype(float).std(0)
    found = windows(logs, 2).reshape(400, 4, 3) * deviation + mean
    np.testing.assert_allclose(found[45, :3], logs.observations[43:46], atol=1e-5)
    np.testing.assert_allclose(found[:, 3], logs.next_observations, atol=1e-4)
    np.testing.assert_allclose(found[40, :2], np.zeros((2, 3)), atol=1e-6)  # the first row of its episode
    np.testing.assert_allclose(found[41, :2], [np.zeros(3), logs.observations[40]], atol=1e-5)


@pytest.mark.slow
def test_labels_are_the_same_whoever_asks_and_an_ensemble_is_their_mixture() -> None:
    logs = HideActions(share=0.5, below=1.0)(random_logs(), METHOD)
    one, again, other = (
        part.bind()(logs, METHOD).actions for part in (SMALL, SMALL, SMALL.replace(seed=1, ensemble=2))
    )
    assert (one == again).all() and (one != other).any()


@pytest.mark.slow
def test_a_run_learns_from_labels(tmp_path: Path) -> None:
    method = small_logged("ss-orl")
    method = method.replace(transforms=(HideActions(share=0.5, below=1.0), SMALL, method.transforms[1]))
    check(method)
    loop = OffPolicyLoop(method, logged_task(tmp_path), [Member(3)], 4, 2)
    assert not loop.collector.store.rows.isnan().any()
    hidden, labelled, _ = loop.collector.lines  # type: ignore[union-attr]
    assert "actions of 2 of 4 episodes stay" in hidden and "398 rows got an action" in labelled
    assert all(np.isfinite(v).all() for v in loop.step().members.values())


def test_what_cannot_be_labelled_is_said() -> None:
    logs = random_logs()
    empty = replace(logs, actions=np.full_like(logs.actions, np.nan))
    with pytest.raises(ConfigError, match="learns from rows that have actions, and none has"):
        LabelActions().bind()(empty, METHOD)
    choices = random_logs(discrete=True)
    choices.actions[0] = np.nan
    with pytest.raises(ConfigError, match="LabelActions is for vectors and actions that are numbers"):
        LabelActions().bind()(choices, METHOD)
    with pytest.raises(ConfigError, match="leaves rows without actions: set transforms=hide-actions,label-actions"):
        check(set_values(get_method("bc"), ["transforms=hide-actions"]))
    with pytest.raises(ConfigError, match=r"LabelActions\.dropout must be below 1, got 1"):
        LabelActions(dropout=1.0)
