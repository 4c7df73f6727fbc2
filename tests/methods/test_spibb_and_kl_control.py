"""SPIBB and KL-control: updates against torch's own layers, and what each is at its limits."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace as Rows
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.export import plain_policy
from etude.evaluation.restored import restore_policies
from etude.experience.logged import Logged
from etude.experience.stretches import Stretches
from etude.learners.heads import Scalar
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.offline.kl_control import NearPrior
from etude.methods.offline.spibb import kept
from etude.policies.control.noise import noisy
from log_toys import logged_task, small_logged
from own_updates import Learner, flat, net

GAMMA, UPDATES, PASSES, C, RATE, UNITS = 0.99, 3, 5, 0.1, 0.2, 8 + 5
LAYERS = ("body.layers.0", "body.layers.1", "head")
SPIBB = {"critic.backup.rule.threshold": 0.45}
"""So that in some rows of the logs' two choices one is kept, and in others none."""
torch.set_num_threads(1)


def loop_of(name: str, folder: Path, **changes: Any) -> OffPolicyLoop:
    told = {"critic.learning.target.every": 2, **(SPIBB if name == "spibb" else {})}
    method = set_values(small_logged(name), {**told, **{k.replace("__", "."): v for k, v in changes.items()}})
    return OffPolicyLoop(method, logged_task(folder, boxes=False), [Member(3), Member(4)], 2, UPDATES)


def networks_of(loop: OffPolicyLoop, k: int) -> tuple[Any, Any]:
    """The critic, and the model of the behaviour."""
    held = {n.replace("policy.body", "critic").replace("policy.held.", ""): v for n, v in loop.policy_tensors().items()}
    return net(held, "critic", k), net(held, "behaviour-model", k)


# An update of each, in plain torch


def spibb(own: Any, slow: Any, prior: Any, rows: Any) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        chances, q = prior(rows.next).softmax(-1), slow(rows.next)
        worth = []
        for p, each in zip(chances.tolist(), q.tolist(), strict=True):
            rare = [a for a in (0, 1) if p[a] < SPIBB["critic.backup.rule.threshold"]]
            others = [a for a in (0, 1) if a not in rare]
            worth.append(sum(p[a] * each[a] for a in rare) + sum(p[a] for a in others) * max(each[a] for a in others))
    return own(rows.s), rows.r + GAMMA * rows.live * torch.tensor(worth, dtype=rows.r.dtype)


def dropped(network: Any, x: Tensor, uniform: Tensor) -> Tensor:
    """Two hidden layers of 8 and 5, whose units are there where their number is at least the rate."""
    masks = (uniform >= RATE).to(x.dtype).split([8, 5])
    for layer, mask in zip((network[0], network[2]), masks, strict=True):
        x = functional.relu(layer(x)) * mask / (1 - RATE)
    found: Tensor = network[4](x)
    return found


def kl_control(own: Any, slow: Any, prior: Any, rows: Any) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        cost = -functional.cross_entropy(prior(rows.s), rows.done, reduction="none")
        each = [dropped(slow, rows.next, rows.drawn[f"noise next copy {k}"]).double() for k in range(PASSES)]
        soft = torch.stack([C * (q / C).exp().sum(-1).log() for q in each]).amin(0).to(rows.r.dtype)
    return dropped(own, rows.s, rows.drawn["noise here"]), rows.r + C * cost + GAMMA * rows.live * soft


@pytest.mark.parametrize("update", [spibb, kl_control])
def test_updates_are_those_of_the_paper(
    update: Callable[[Any, Any, Any, Any], tuple[Tensor, Tensor]], tolerance: float, tmp_path: Path
) -> None:
    loop = loop_of(update.__name__.replace("_", "-"), tmp_path)
    stretches = Stretches(loop.population, "learn")
    batches = [loop.method.sampling.draw(loop.collector.store, stretches.at(n)) for n in range(UPDATES)]
    names = ["noise here", *(f"noise next copy {k}" for k in range(PASSES))]
    drawn = [
        {x: stretches.at(n)(x, lambda g, t: torch.rand(t, 1, UNITS, generator=g))[:, 0] for x in names}
        for n in range(UPDATES)
    ]
    owns = [networks_of(loop, k) for k in (0, 1)]
    reported = loop.step().members
    for k, (own, prior) in enumerate(owns):
        slow, losses = copy.deepcopy(own), []
        adam, cloner = torch.optim.Adam(own.parameters(), 2.3e-3), Learner(1e-3, prior)
        for n, batch in enumerate(batches, 1):
            rows = Rows(
                s=batch.observations[k], next=batch.next_observations[k], r=batch.rewards[k],
                live=(~batch.terminated[k]).to(batch.rewards.dtype), done=batch.actions[k].long()[:, 0],
                drawn={x: u[k] for x, u in drawn[n - 1].items()},
            )  # fmt: skip
            cloner.step(functional.cross_entropy(prior(rows.s), rows.done))
            said, y = update(own, slow, prior, rows)
            loss = functional.smooth_l1_loss(said.gather(1, rows.done[:, None])[:, 0], y)
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(own.parameters(), 10.0)
            adam.step()
            losses.append(loss.item())
            if n == 2:
                slow.load_state_dict(own.state_dict())
        for found, mine in zip(networks_of(loop, k), (own, prior), strict=True):
            torch.testing.assert_close(flat(found), flat(mine), atol=tolerance, rtol=tolerance)
        for name, each in (("critic_loss", losses), ("behaviour-model_loss", cloner.losses)):
            assert reported[name][k] == pytest.approx(sum(each) / UPDATES, abs=tolerance, rel=10 * tolerance)


# SPIBB


def chances_and_values() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    chances = (2 * torch.randn(2, 50, 4, generator=g, dtype=torch.float64)).softmax(-1)
    return chances, torch.randn(2, 50, 4, generator=g, dtype=torch.float64)


def test_a_threshold_of_0_is_greedy_and_above_1_the_behaviour() -> None:
    chances, values = chances_and_values()
    greedy = functional.one_hot(values.argmax(-1), 4).double()
    torch.testing.assert_close(kept(chances, values, 0.0), greedy, atol=1e-12, rtol=0)
    assert torch.equal(kept(chances, values, 1.1), chances)


def test_rare_choices_keep_their_chances_and_the_best_of_the_others_has_the_rest() -> None:
    chances, values = chances_and_values()
    found, rare = kept(chances, values, 0.2), chances < 0.2
    assert torch.equal(found[rare], chances[rare])
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 50, dtype=torch.float64), atol=1e-12, rtol=0)
    others = found.masked_fill(rare, 0.0)
    assert bool(((others > 0).sum(-1) <= 1).all())
    best = values.masked_fill(rare, -torch.inf).argmax(-1)
    some = (~rare).any(-1)
    assert torch.equal(others.argmax(-1)[some], best[some]) and 0 < int(some.sum()) <= 100
    worth = [(kept(chances, values, t) * values).sum(-1) for t in (0.0, 0.1, 0.2, 0.5, 2.0)]
    assert all(bool((a >= b - 1e-12).all()) for a, b in pairwise(worth))  # what safety costs


@pytest.mark.parametrize("threshold", [0.0, 1.5])
def test_at_its_ends_spibb_is_dqn_and_what_evaluates_the_behaviour(threshold: float, tmp_path: Path) -> None:
    loop = loop_of("spibb", tmp_path, critic__backup__rule__threshold=threshold)
    base: Any = get_method("dqn")
    if threshold == 0:
        method = loop.method.replace(
            policy=base.policy, learners=(), order=("critic",),
            critic=loop.method.critic.replace(backup=base.critic.backup),  # type: ignore[union-attr]
        )  # fmt: skip
        other = OffPolicyLoop(method, loop.task, [Member(3), Member(4)], 2, UPDATES)
        loop.step(), other.step()
        for name, mine in other.policy_tensors().items():
            torch.testing.assert_close(mine, loop.policy_tensors()[name], atol=1e-6, rtol=0)
    seen = torch.randn(2, 40, 4)
    with torch.no_grad():
        said = loop.actor(loop.actor.see(seen)).exp()
        for k in (0, 1):
            critic, prior = networks_of(loop, k)
            whole = functional.one_hot(critic(seen[k]).argmax(-1), 2).float()
            torch.testing.assert_close(said[k], whole if threshold == 0 else prior(seen[k]).softmax(-1))


def test_above_1_its_target_is_what_the_behaviour_earns(tmp_path: Path) -> None:
    """y = r + gamma (1 - terminated) sum_a G(a|s') Q'(s', a), of the slow copy and of what has been cloned by then."""
    changes = {"critic__backup__rule__threshold": 1.5, "critic__learning__target__every": 100, "sampling__batch": 100}
    loop = loop_of("spibb", tmp_path, **changes)
    slow = [networks_of(loop, k)[0] for k in (0, 1)]
    with torch.no_grad():
        loop.updater.networks["behaviour-model"].head.bias.add_(torch.tensor([1.0, -1.0]))  # type: ignore[union-attr,operator]
    loop.step()
    read = loop.updater._drawn("critic", 0, loop.collector.store)
    batch, critic = read.batch, loop.method.critic
    assert critic is not None and batch.next_observations is not None and bool(batch.terminated.any())
    found = critic.backup.target(read, critic.head)  # type: ignore[attr-defined]
    for k in (0, 1):
        fast, prior = networks_of(loop, k)
        with torch.no_grad():
            chances, values = prior(batch.next_observations[k]).softmax(-1), slow[k](batch.next_observations[k])
            assert not torch.equal(values, fast(batch.next_observations[k]))
        worth = [p[0] * q[0] + p[1] * q[1] for p, q in zip(chances.tolist(), values.tolist(), strict=True)]
        y = batch.rewards[k] + GAMMA * torch.tensor(worth) * (~batch.terminated[k])
        torch.testing.assert_close(found[k].flatten(), y, atol=1e-6, rtol=1e-6)
        assert (values.amax(-1) - torch.tensor(worth)).max() > 0.01  # and not the best choice's


def test_a_checkpoint_of_spibb_has_all_that_it_acts_by(tmp_path: Path) -> None:
    loop, method = loop_of("spibb", tmp_path), set_values(small_logged("spibb"), SPIBB)
    loop.step()
    (tmp_path / "saved").mkdir()
    loop.save(tmp_path / "saved")
    again = restore_policies(tmp_path / "saved", method, loop.task, [Member(3), Member(4)])
    seen = torch.randn(2, 30, 4)
    with torch.no_grad():
        said = loop.actor(loop.actor.see(seen))
        assert torch.equal(again.actor(again.actor.see(seen)), said)
        for k in (0, 1):
            assert torch.equal(plain_policy(again, k)(seen[k]).flatten().long(), said[k].argmax(-1))


# KL-control


def reading(prior: Tensor, values: Tensor, actions: Tensor, r: Tensor) -> Any:
    """One member's rows, of which passes say `values` [C, N, A]."""
    return Rows(
        beside=lambda name: lambda seen: prior[None].log(), seen=lambda at: None, values=lambda said: said[..., 0],
        passes=lambda count, at: values[None, :count, ..., None],
        batch=Rows(actions=actions[None, :, None].double(), rewards=r[None], discounts=torch.full_like(r, 0.9)[None]),
    )  # fmt: skip


def some_rows() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    prior = torch.randn(20, 3, generator=g, dtype=torch.float64).softmax(-1)
    values = torch.randn(4, 20, 3, generator=g, dtype=torch.float64)
    return prior, values, torch.randint(3, (20,), generator=g), torch.randn(20, generator=g, dtype=torch.float64)


def test_a_soft_value_is_what_the_best_policy_earns_with_its_entropy() -> None:
    """max_pi sum pi Q + c H(pi), enumerated: c log sum exp(Q / c), at pi = softmax(Q / c)."""
    prior, values, actions, r = some_rows()
    y = NearPrior(c=0.3, passes=1).target(reading(prior, values, actions, r), Scalar())[0, :, 0]
    soft = (y - r - 0.3 * prior.gather(1, actions[:, None])[:, 0].log()) / 0.9
    pi = (values[0] / 0.3).softmax(-1)
    torch.testing.assert_close(soft, (pi * (values[0] - 0.3 * pi.log())).sum(-1), atol=1e-12, rtol=0)
    for _ in range(20):
        other = torch.rand_like(pi).softmax(-1)
        assert bool(((other * (values[0] - 0.3 * other.log())).sum(-1) <= soft + 1e-9).all())


def test_with_a_uniform_prior_it_is_maximum_entropy_but_for_a_constant() -> None:
    _, values, actions, r = some_rows()
    uniform = torch.full((20, 3), 1 / 3, dtype=torch.float64)
    y = NearPrior(c=0.3, passes=1).target(reading(uniform, values, actions, r), Scalar())[0, :, 0]
    entropic = r + 0.9 * 0.3 * (values[0] / 0.3).logsumexp(-1)
    apart = entropic - y
    torch.testing.assert_close(apart, torch.full_like(apart, 0.3 * math.log(3)), atol=1e-12, rtol=0)


def test_times_1_over_c_it_is_the_papers_equation_and_near_0_the_largest_value() -> None:
    """Psi = r / c + log p(a|s) + gamma log sum exp Psi', of Psi = Q / c; the least of the passes."""
    prior, values, actions, r = some_rows()
    read, c = reading(prior, values, actions, r), 0.1
    y = NearPrior(c=c, passes=4).target(read, Scalar())[0, :, 0]
    psi = r / c + prior.gather(1, actions[:, None])[:, 0].log() + 0.9 * (values / c).logsumexp(-1).amin(0)
    torch.testing.assert_close(y / c, psi, atol=1e-12, rtol=0)
    cold = NearPrior(c=1e-6, passes=1).target(read, Scalar())[0, :, 0]
    torch.testing.assert_close(cold, r + 0.9 * values[0].amax(-1), atol=1e-5, rtol=0)


def test_passes_differ_by_what_is_dropped_and_what_acts_drops_nothing(tmp_path: Path) -> None:
    loop = loop_of("kl-control", tmp_path)
    network, seen = loop.updater.networks["critic"], torch.randn(2, 6, 4)
    drawn: dict[str, Tensor] = {}

    def draw(name: str, of: Any) -> Tensor:
        generators = [torch.Generator().manual_seed(k + len(name)) for k in (0, 1)]
        return drawn.setdefault(name, torch.cat([of(g, 1) for g in generators]))

    with torch.no_grad():
        whole = network(seen)
        each = []
        for name in ("a", "bb"):
            with noisy(network, draw, name):
                each.append(network(seen)[:, 0, ..., 0])
        assert not torch.equal(*each)
        for k in (0, 1):
            critic, _ = networks_of(loop, k)
            torch.testing.assert_close(whole[k, 0, ..., 0], critic(seen[k]))
            torch.testing.assert_close(each[0][k], dropped(critic, seen[k], drawn["a"][k, 0]))
        acted = loop.actor.distribution.mode(loop.actor(loop.actor.see(seen)))[..., 0]
    assert torch.equal(acted.long(), whole[:, 0, ..., 0].argmax(-1))


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("spibb", ["policy=from-critic"], "is what SafePolicy does, and FromCritic does something else"),
        ("spibb", ["critic.backup.rule=argmax"], "set critic.backup.rule=rarely-as-before"),
        ("spibb", ["learners=none", "order=critic"], "how likely choices were in the logs, which nobody says"),
        ("kl-control", ["critic.noise=none"], "which without noise are all the same: set critic.noise=dropout"),
        ("kl-control", ["learners=none", "order=critic"], "how likely choices were in the logs, which nobody says"),
        ("kl-control", ["critic.head=quantiles", "critic.error=quantile-huber"], "set critic.head=scalar"),
        ("bc", ["learners=behaviour-model", "order=policy,behaviour-model"], "makes numbers: leave it out"),
    ],
)
def test_what_cannot_be_composed_is_said(name: str, changes: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), changes))


def test_dqn_on_logs_takes_dropout_too() -> None:
    method: Any = get_method("dqn").replace(experience=Logged(), exploration=None)
    check(set_values(method, ["critic.noise=dropout"]))
    with pytest.raises(ConfigError, match=r"Dropout.rate must be a number"):
        set_values(method, ["critic.noise=dropout", "critic.noise.rate=1.0"])
