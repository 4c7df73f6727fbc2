"""DQN's kin on logs of choices (rem, bve, mce): updates against torch's own layers, and the identities of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Rows
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience.logged import Logged
from etude.experience.stretches import Stretches
from etude.learners.backups import Bootstrap, Taken
from etude.learners.heads import Scalar
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.offline.tq_saco.mixtures import BestMixture, SeveralValues, mixture
from etude.methods.offline.tq_saco.monte_carlo import MonteCarlo
from log_toys import cartpole_columns, logged_task, small_logged
from own_updates import flat, net

GAMMA, UPDATES, HEADS = 0.99, 3, 5
SMALLER = {"rem": {"critic.head.count": HEADS}}
torch.set_num_threads(1)


def method_of(name: str, **changes: Any) -> Any:
    slow = {} if name == "mce" else {"critic.learning.target.every": 2}
    return set_values(small_logged(name), {**slow, **SMALLER.get(name, {}), **changes})


def loop_of(method: Any, folder: Path, members: int = 2) -> OffPolicyLoop:
    task = logged_task(folder, boxes=False)
    return OffPolicyLoop(method, task, [Member(3 + k) for k in range(members)], 2, UPDATES)


def network_of(loop: OffPolicyLoop, k: int) -> Any:
    return net({n.replace("policy.body", "critic"): v for n, v in loop.policy_tensors().items()}, "critic", k)


# An update of each, in plain torch


def rem(own: Any, slow: Any, rows: Any) -> tuple[Tensor, Tensor]:
    u = 0.5 * (1 + torch.erf(rows.drawn / 2**0.5))
    alpha = u / u.sum()
    best = torch.einsum("nak,k->na", slow(rows.next).view(-1, 2, HEADS), alpha).max(1).values
    said = torch.einsum("nak,k->na", own(rows.s).view(-1, 2, HEADS), alpha)
    return said, rows.r + GAMMA * rows.live * best


def bve(own: Any, slow: Any, rows: Any) -> tuple[Tensor, Tensor]:
    then = rows.then.nan_to_num(0.0).long()
    assert not bool((rows.then.isnan()[:, 0] & (rows.live > 0)).any())
    return own(rows.s), rows.r + GAMMA * rows.live * slow(rows.next).gather(1, then)[:, 0]


def mce(own: Any, slow: Any, rows: Any) -> tuple[Tensor, Tensor]:
    return own(rows.s), rows.earned


@pytest.mark.parametrize("update", [rem, bve, mce])
def test_updates_are_those_of_the_paper(
    update: Callable[[Any, Any, Any], tuple[Tensor, Tensor]], tolerance: float, tmp_path: Path
) -> None:
    loop = loop_of(method_of(update.__name__), tmp_path)
    stretches = Stretches(loop.population, "learn")
    batches = [loop.method.sampling.draw(loop.collector.store, stretches.at(n)) for n in range(UPDATES)]
    drawn = [stretches.at(n)("mixture", lambda g, t: torch.randn(t, HEADS, generator=g)) for n in range(UPDATES)]
    owns = [(network_of(loop, k), network_of(loop, k)) for k in (0, 1)]
    reported = loop.step().members
    for k, (own, slow) in enumerate(owns):
        adam, losses = torch.optim.Adam(own.parameters(), 2.3e-3), []
        for n, batch in enumerate(batches, 1):
            nothing = torch.zeros(2, 6, 1)
            rows = Rows(
                s=batch.observations[k], next=batch.next_observations[k], r=batch.rewards[k],
                live=(~batch.terminated[k]).to(batch.rewards.dtype), drawn=drawn[n - 1][k],
                then=batch.offers.get("next_actions", nothing)[k], earned=batch.offers.get("returns_to_go", nothing)[k],
            )  # fmt: skip
            said, y = update(own, slow, rows)
            loss = functional.smooth_l1_loss(said.gather(1, batch.actions[k].long())[:, 0], y.detach())
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(own.parameters(), 10.0)
            adam.step()
            losses.append(loss.item())
            if n == 2:
                slow.load_state_dict(own.state_dict())
        torch.testing.assert_close(flat(network_of(loop, k)), flat(own), atol=tolerance, rtol=tolerance)
        assert reported["critic_loss"][k] == pytest.approx(sum(losses) / UPDATES, abs=tolerance, rel=10 * tolerance)


def test_what_acts_is_the_best_by_the_mean(tmp_path: Path) -> None:
    loop = loop_of(method_of("rem"), tmp_path)
    seen = torch.randn(2, 300, 4)
    with torch.no_grad():
        acted = loop.actor.distribution.mode(loop.actor(loop.actor.see(seen)))[..., 0]
        said = [network_of(loop, k)(seen[k]).view(300, 2, HEADS).mean(-1).argmax(-1) for k in (0, 1)]
    assert torch.equal(acted.long(), torch.stack(said))


# REM: mixtures


def drawing(seed: int = 0, members: int = 2) -> Rows:
    g = torch.Generator().manual_seed(seed)
    return Rows(normal=lambda purpose, like: torch.randn(members, like.shape[-1], generator=g, dtype=torch.float64))


def test_a_mixture_is_convex_and_the_same_all_along_a_member() -> None:
    values = torch.randn(2, 1, 50, 3, 7, dtype=torch.float64)
    for seed in range(5):
        found = mixture(drawing(seed), values)
        assert bool((found <= values.amax(-1, keepdim=True)).all() and (found >= values.amin(-1, keepdim=True)).all())
        same = values[..., :1].expand_as(values)
        torch.testing.assert_close(mixture(drawing(seed), same), values[..., :1], atol=1e-12, rtol=0)
        moved = mixture(drawing(seed), 2 * values + 3)  # affine, as all convex combinations
        torch.testing.assert_close(moved, 2 * found + 3, atol=1e-12, rtol=0)
    units = torch.eye(7, dtype=torch.float64).expand(2, 1, 7, 7)  # each value alone: the shares themselves
    shares = mixture(drawing(3), units)[:, 0, :, 0]
    torch.testing.assert_close(shares.sum(1), torch.ones(2, dtype=torch.float64), atol=1e-12, rtol=0)
    assert bool((shares > 0).all()) and not torch.allclose(shares[0], shares[1])


def test_the_shares_are_of_uniform_numbers() -> None:
    """The mean of u_1 / (u_1 + u_2) is 1/2, its variance 3/4 - log 2: that of two numbers uniform in [0, 1]."""
    read = Rows(normal=lambda purpose, like: torch.randn(like.shape, generator=torch.Generator().manual_seed(1)))
    first = mixture(read, torch.tensor([1.0, 0.0]).expand(200_000, 1, 2)).flatten()
    assert float(first.mean()) == pytest.approx(0.5, abs=2e-3)
    assert float(first.var()) == pytest.approx(0.75 - np.log(2), abs=5e-4)


def test_the_best_choice_is_the_mixtures_own() -> None:
    """max sum alpha Q, and not sum alpha max Q, which is never less."""
    values = torch.randn(2, 1, 40, 3, 6, dtype=torch.float64)
    read = Rows(normal=drawing(4).normal, outputs=lambda at, copy: values)
    found = BestMixture()(read).outputs
    torch.testing.assert_close(found, mixture(drawing(4), values).amax(-2))
    apart = mixture(drawing(4), values.amax(-2))
    assert bool((apart >= found).all()) and float((apart - found).max()) > 0.1


def test_with_one_value_rem_is_dqn_on_logs(tmp_path: Path) -> None:
    one = loop_of(method_of("rem", **{"critic.head.count": 1}), tmp_path)
    base: Any = get_method("dqn").replace(experience=Logged(), exploration=None)
    critic = base.critic.replace(network=one.method.critic.network, learning=one.method.critic.learning)  # type: ignore[union-attr]
    other = loop_of(base.replace(critic=critic, sampling=one.method.sampling), tmp_path)
    one.step(), other.step()
    for name, mine in one.policy_tensors().items():
        torch.testing.assert_close(mine, other.policy_tensors()[name], atol=1e-6, rtol=0)


# BVE and MCE: values of who made the logs


def test_what_nobody_did_next_counts_nothing_in_bve() -> None:
    """The target asks for a' alone: whatever other choices are said to be worth, and not for the best."""
    said = torch.tensor([[5.0, 1.0, 9.0]], dtype=torch.float64).view(1, 1, 1, 3, 1)
    batch = Rows(
        rewards=torch.tensor([[2.0]], dtype=torch.float64), discounts=torch.tensor([[0.5]], dtype=torch.float64),
        offers={"next_actions": torch.tensor([[[1.0]]])},
    )  # fmt: skip
    for other in (0.0, 100.0):
        said[..., 0, 0] = said[..., 2, 0] = other
        read = Rows(batch=batch, outputs=lambda at, copy: said, values=lambda x: x.squeeze(-1))
        assert Bootstrap(Taken()).target(read, Scalar()).item() == 2.5


def episodes(length: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Rewards [n], returns to go, what follows each row, where episodes end, one of every length."""
    rng = np.random.default_rng(seed)
    ends = np.cumsum(np.arange(1, length + 1)) - 1
    rewards, last = rng.normal(size=ends[-1] + 1), np.isin(np.arange(ends[-1] + 1), ends)
    earned = np.zeros(len(rewards))
    for t in range(len(rewards) - 1, -1, -1):
        earned[t] = rewards[t] + (0.0 if last[t] else GAMMA * earned[t + 1])
    return rewards, earned, np.minimum(np.arange(len(rewards)) + 1, len(rewards) - 1), last


def test_what_mce_learns_is_the_fixed_point_of_bve() -> None:
    """Where each state is seen once, Sarsa's target of returns is these returns."""
    rewards, earned, following, last = (torch.from_numpy(x) for x in episodes(7, seed=2))
    batch = Rows(
        rewards=rewards[None], discounts=GAMMA * (~last).double()[None],
        offers={"next_actions": torch.where(last, torch.nan, 1.0)[None, :, None], "returns_to_go": earned[None]},
    )  # fmt: skip
    table = torch.stack([earned + 50, earned], -1)[following]  # choice 1 is what was done, 0 would be worth more
    read = Rows(batch=batch, outputs=lambda at, copy: table[None, None, ..., None], values=lambda x: x.squeeze(-1))
    of_mce = MonteCarlo().target(read, Scalar())
    torch.testing.assert_close(of_mce[0, :, 0], earned, atol=0, rtol=0)
    torch.testing.assert_close(Bootstrap(Taken()).target(read, Scalar()), of_mce, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["bve", "mce"])
def test_rows_say_what_was_done_and_earned(name: str, tmp_path: Path) -> None:
    """Each against the logs themselves, read from the file's columns."""
    store = loop_of(method_of(name), tmp_path, members=1).collector.store
    logs = cartpole_columns()
    over, count = logs["terminals"] | logs["timeouts"], len(logs["rewards"])
    if name == "bve":
        kept = ~logs["timeouts"]
        then = np.where(logs["terminals"], np.nan, np.append(logs["actions"][1:], 0))[kept]
        assert np.array_equal(store.beside["next_actions"][:, 0].numpy(), then, equal_nan=True)  # type: ignore[attr-defined]
        return
    expected = np.zeros(count)
    for t in range(count - 1, -1, -1):
        expected[t] = logs["rewards"][t] + (0.0 if over[t] else GAMMA * expected[t + 1])
    np.testing.assert_allclose(store.beside["returns_to_go"].numpy(), expected, rtol=1e-6)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "name, told, sentence",
    [
        ("rem", ["critic.backup.rule=argmax"], "learns a mixture, which Argmax does not ask about"),
        ("rem", ["critic.penalties=conservative-q"], "has a mixture's error alone"),
        ("bve", ["transforms=none"], "asks what was done next, which no row says: set transforms=next-actions"),
        ("bve", ["sampling.horizon=n-step"], "asks what was done after one step: set sampling.horizon=one-step"),
        ("mce", ["transforms=none"], "asks what rows went on to earn, which no row says: set transforms=returns-to-go"),
        ("mce", ["experience=replay", "exploration=epsilon-greedy"], "learns what whole episodes earned"),
    ],
)
def test_parts_that_do_not_fit_are_refused(name: str, told: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), told))


def test_several_values_are_numbers_of_one_network() -> None:
    head = SeveralValues(count=3)
    r, discount = torch.tensor([[1.0]]), torch.tensor([[0.5]])
    assert head.target(r, discount, torch.tensor([[[2.0, 4.0, 6.0]]])).tolist() == [[[2.0, 3.0, 4.0]]]
    with pytest.raises(ConfigError, match="count must be"):
        SeveralValues(count=0)
