"""RIQL: what it is at its limits, and logs in which rows are wrong; one update is in `test_offline_updates.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member, PerMember
from etude.core.registry import get_method
from etude.experience.corrupt import COLUMNS, Corrupt, Victim, corrupted_rows, lowered
from etude.experience.fitting import fitted, perceptron
from etude.experience.logs.table import Logs, Spaces
from etude.learners.backups import CutBootstrap
from etude.learners.heads import Squared
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.methods.offline.riql import BoundedInfluence, QuantileOfCritics
from log_toys import logged_task, random_logs, small_logged

torch.set_num_threads(1)
IQL: Any = get_method("iql")
LIKE_IQL = {
    "critic.count": 2, "value.of.alpha": 0.0, "actor.clone.weight.over.alpha": 0.0, "critic.error.delta": 2.0**20,
    "critic.backup.low": -1e9, "critic.backup.high": 1e9,
}  # fmt: skip
"""The least of two, and no error that is large."""


def loop_of(method: Any, folder: Path, seeds: tuple[int, ...] = (3, 4)) -> OffPolicyLoop:
    return OffPolicyLoop(method, logged_task(folder), [Member(s) for s in seeds], 4, 2)


def reading(loop: OffPolicyLoop) -> StoredReading:
    draw, sampling, store = loop.updater.stretches.at(0), loop.method.sampling, loop.collector.store
    read = StoredReading(loop.updater, sampling, sampling.draw(store, draw), draw, store)
    read.reader = "critic"
    return read


# Limits


@pytest.mark.slow
def test_without_quantile_and_bound_it_is_iql_up_to_the_scale_of_a_loss(tmp_path: Path) -> None:
    """Policy and its distance as IQL's: V and policy step as there, critics' gradients are 1 / (2 delta) of those."""
    small = set_values(small_logged("riql"), LIKE_IQL)
    iql = small_logged("iql")
    robust = small.replace(transforms=(), policy=iql.policy, actor=(small.actor[0].replace(error=iql.actor[0].error),))
    one, other = loop_of(robust, tmp_path), loop_of(iql, tmp_path)
    gradients = []
    for loop in (one, other):
        read = reading(loop)
        (loss,) = [part.loss(read) for part in (loop.method.critic,) if part is not None]
        weights = list(loop.updater.networks["critic"].parameters())
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss.sum(), weights)]))
    torch.testing.assert_close(gradients[0] * 2.0**21, gradients[1], rtol=1e-6, atol=1e-7)
    for loop in (one, other):
        loop.advance(range(1))
    for name in ("value", "policy"):
        a, b = (loop.updater.trainers[name].parameters.values for loop in (one, other))
        assert torch.equal(a, b), name


def test_quantiles_are_between_the_least_and_the_largest() -> None:
    values = torch.randn(3, 5, 7)
    found = {a: QuantileOfCritics(alpha=a)(values, None) for a in (0.0, 0.1, 0.25, 0.5, 0.9, 1.0)}  # type: ignore[arg-type]
    assert torch.equal(found[0.0], values.amin(1)) and torch.equal(found[1.0], values.amax(1))
    for alpha, mine in found.items():
        torch.testing.assert_close(mine, values.quantile(alpha, 1))
    part = QuantileOfCritics()
    part.settle("alpha", PerMember([0.0, 0.1, 1.0]))
    both = part(values, None)  # type: ignore[arg-type]
    assert all(torch.equal(both[k], found[a][k]) for k, a in enumerate((0.0, 0.1, 1.0)))


def test_no_error_moves_a_critic_more_than_a_slope_of_one() -> None:
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64, requires_grad=True)
    for delta in (0.1, 1.0, 4.0):
        loss = BoundedInfluence(delta=delta)(x, torch.zeros_like(x))
        (slope,) = torch.autograd.grad(loss.sum(), x)
        assert slope.abs().max() <= 1 + 1e-12
        torch.testing.assert_close(slope, (x / delta).clamp(-1, 1).detach())
        assert slope.diff().abs().max() <= 0.0101 / delta  # no jump at |x| = delta
    flat = BoundedInfluence(delta=1e6)(x, torch.zeros_like(x)) * 1e6
    torch.testing.assert_close(flat, 0.5 * Squared()(x, torch.zeros_like(x)))


@pytest.mark.slow
def test_targets_are_cut_and_the_share_is_said(tmp_path: Path) -> None:
    loop = loop_of(small_logged("riql"), tmp_path)
    store = loop.collector.store
    store.rows[::2, -3] = -500.0
    reports = loop.step()
    assert all(0.2 < share < 0.8 for share in reports.members["critic_cut"])
    with pytest.raises(ConfigError, match=r"CutBootstrap\.low must be below high, got 3\.0 and 3\.0"):
        CutBootstrap(low=3.0, high=3.0)
    wrong = set_values(get_method("riql"), {"critic.head": "quantiles", "critic.error": "quantile-huber",
                                            "critic.count": 1})  # fmt: skip
    with pytest.raises(ConfigError, match="CutBootstrap cuts numbers, and the critic says quantiles"):
        check(wrong)


# Logs in which rows are wrong


def columns(logs: Logs) -> dict[str, Any]:
    return {what: getattr(logs, name) for what, name in COLUMNS.items()}


@pytest.mark.parametrize("what", list(COLUMNS))
def test_what_chance_makes_wrong(what: Any) -> None:
    logs = random_logs()
    found = Corrupt(what=what, rate=0.3, scale=0.5)(logs, IQL)
    assert Corrupt(what=what, rate=0.0)(logs, IQL) is logs
    wrong = corrupted_rows(400, 0.3, 0, what)
    for name, column in columns(found).items():
        before = columns(logs)[name]
        same = (column == before).reshape(400, -1).all(1)
        assert (same == ~wrong).all() if name == what else same.all()
    changed, given = columns(found)[what][wrong].astype(float), columns(logs)[what].astype(float)
    off = (changed - (0 if what == "rewards" else given[wrong])) / (30 if what == "rewards" else given.std(0))
    assert np.abs(off).max() <= 0.5 + 1e-6 and np.abs(off).max() > 0.45 and abs(off.mean()) < 0.1
    again = columns(Corrupt(what=what, rate=0.3, scale=0.5)(logs, IQL))[what]
    other = columns(Corrupt(what=what, rate=0.3, scale=0.5, seed=1)(logs, IQL))[what]
    assert (again == columns(found)[what]).all() and (other != again).any()
    # another scale, the same rows
    wide = columns(Corrupt(what=what, rate=0.3, scale=2.0)(logs, IQL))[what]
    assert ((wide == columns(logs)[what]).reshape(400, -1).all(1) == ~wrong).all()


def test_an_adversary_turns_rewards_around() -> None:
    logs = random_logs()
    found = Corrupt(what="rewards", rate=1.0, scale=2.0, adversarial=True)(logs, IQL)
    assert (found.rewards == -2 * logs.rewards).all()


def test_an_adversary_goes_where_less_is_said() -> None:
    start = np.random.default_rng(0).uniform(-1, 1, (50, 3))
    centre = torch.tensor([0.5, -0.25, 3.0], dtype=torch.float64)
    found = lowered(lambda n: (n - centre).square().sum(-1), start, 1.0)
    reached = np.minimum(start[:, 2] + 0.99, 1) - 1e-9
    assert np.abs(found[:, :1] - 0.5).max() < 0.51 and (found[:, 2] > reached).all() and np.abs(found).max() <= 1


@pytest.mark.slow
def test_an_adversary_lowers_what_its_critic_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.experience.corrupt.UPDATES", 60)
    logs = random_logs()
    victim = Victim.learned(logs, 0.99, 0)
    monkeypatch.setattr(Victim, "learned", lambda *_: victim)
    for what in ("observations", "actions", "dynamics"):
        wrong, given = corrupted_rows(400, 0.3, 0, what), columns(logs)
        change = {"what": what, "rate": 0.3, "scale": 0.5}
        worth = {}
        for adversarial in (False, True):
            after = columns(Corrupt(**change, adversarial=adversarial)(logs, IQL))
            assert (after[what][~wrong] == given[what][~wrong]).all()
            off = np.abs(after[what] - given[what]) / given[what].astype(float).std(0)
            assert off.max() <= 0.5 + 1e-5
            led = what == "dynamics"
            seen, done = (torch.from_numpy(after[k]) for k in (what if led else "observations", "actions"))
            with torch.no_grad():
                worth[adversarial] = victim.of(seen, None if led else done).numpy()[wrong]
        assert (worth[True] < worth[False]).mean() > 0.95, what


@pytest.mark.slow
def test_a_victims_critic_learns_what_was_done_there_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step that is paid by what was done: its value is that."""
    monkeypatch.setattr("etude.experience.corrupt.UPDATES", 150)
    rng, n = np.random.default_rng(0), 300
    done = rng.uniform(-1, 1, (n, 1)).astype(np.float32)
    ends, seen = np.ones(n, bool), rng.normal(size=(n, 2)).astype(np.float32)
    logs = Logs(Path("one"), Spaces(None, Box(-1.0, 1.0, (1,)), "me"), seen, done, done[:, 0] ** 2, ends, ~ends, seen)
    victim = Victim.learned(logs, 0.9, 1)
    with torch.no_grad():
        said = victim.of(torch.from_numpy(seen), torch.from_numpy(done)).numpy()
    assert np.abs(said - done[:, 0] ** 2).mean() < 0.1 < done.var()


@pytest.mark.slow
def test_a_network_is_fitted_from_its_own_random_numbers() -> None:
    x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]

    def line() -> torch.Tensor:
        torch.rand(1)
        generator = torch.Generator().manual_seed(4)
        network = perceptron((1, 8, 1), generator)
        fitted(network, lambda rows: (network(x[rows]) - 3 * x[rows]).square().mean(), 50, 60, 16, generator, 3e-2)
        found: torch.Tensor = network(x).detach()
        return found

    one = line()
    assert torch.equal(one, line()) and (one - 3 * x).abs().max() < 0.5


def test_what_cannot_be_corrupted_is_said() -> None:
    logs = random_logs(discrete=True)
    with pytest.raises(ConfigError, match="noise to numbers, and actions here are choices: set what=observations"):
        Corrupt(what="actions")(logs, IQL)
    with pytest.raises(ConfigError, match="An adversary of Corrupt is for vectors and actions that are numbers"):
        Corrupt(what="dynamics", adversarial=True)(logs, IQL)
    part = Corrupt()
    part.settle("scale", PerMember([0.1, 1.0]))
    with pytest.raises(ConfigError, match="logs that all members share, and theirs differ"):
        part(random_logs(), IQL)


@pytest.mark.slow
def test_a_run_says_what_is_wrong_in_its_logs(tmp_path: Path) -> None:
    method = small_logged("riql")
    method = method.replace(transforms=(Corrupt(what="rewards"), *method.transforms))
    loop = loop_of(method, tmp_path)
    said = loop.collector.lines[0]  # type: ignore[union-attr]
    count = int(corrupted_rows(796, 0.3, 0, "rewards").sum())
    assert said == f"796 rows -> 796: rewards of {count} rows are wrong by chance, at scale 1, seed 0"
    assert count == int((np.abs(loop.collector.store.rewards[0].numpy() - rewards(tmp_path)) > 1e-6).sum())


def rewards(folder: Path) -> Any:
    return logged_task(folder).logs().rewards
