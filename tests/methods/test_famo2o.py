"""FamO2O: updates on both sides of the handover against torch's own layers, and what the row says of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.log_slots import CloneError
from etude.core.population import Member
from etude.core.registry import get_method
from etude.evaluation.restored import restore_policies
from etude.experience.stretches import Stretches
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.methods.offline.famo2o import BalanceModel, BalanceNetwork, FamilyActor, FamilyClone, embedded
from etude.objectives.clone import Clone, ExpAdvantage
from etude.policies.control.units import in_units
from log_toys import logged_task, small_logged, small_onward
from own_updates import Learner, Own, flat, follow, net, q

GAMMA, BATCH, LOW, HIGH = 0.99, 6, 1.0, 5.0
torch.set_num_threads(1)


def loop_of(folder: Path, **changes: Any) -> OffPolicyLoop:
    """Three updates on logs, then three steps with an update each."""
    told = {"stages.handover.warmup": 0, **{k.replace("__", "."): v for k, v in changes.items()}}
    method = set_values(small_onward("famo2o"), told)
    return OffPolicyLoop(method, logged_task(folder), [Member(3), Member(4)], 2, 3)


class Balanced(Own):
    """With a balance model and its temperature, in one Adam."""

    def __init__(self, tensors: dict[str, Tensor], k: int) -> None:
        super().__init__(tensors, k)
        self.balance = net(tensors, "balance-model", k)
        self.heat = nn.Parameter(tensors["balance-model.heat.numbers"][k, 0].clone())
        self.learners["balance-model"] = Learner(3e-4, self.balance, free=(self.heat,))


def tensors(loop: OffPolicyLoop) -> dict[str, Tensor]:
    return {name.replace("policy.held.", ""): v.clone() for name, v in loop.policy_tensors().items()}


def shown(b: Tensor) -> Tensor:
    """[N] balances as six numbers, one after another."""
    return torch.stack([f(b / 10_000 ** (2 * i / 6)) for i in range(3) for f in (torch.sin, torch.cos)], -1)


def balanced(own: Balanced, s: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """b, and the log-density of the number in units that it is made of."""
    mean, log_std = own.balance(s).chunk(2, -1)
    std = log_std.clamp(-20, 2).exp()
    u = mean + std * noise
    stretch = 2 * (math.log(2) - u - functional.softplus(-2 * u))
    logp = torch.distributions.Normal(mean, std).log_prob(u) - stretch
    return LOW + (HIGH - LOW) * (torch.tanh(u[:, 0]) + 1) / 2, logp[:, 0]


def family(own: Balanced, s: Tensor, b: Tensor) -> torch.distributions.Normal:
    assert own.log_std is not None
    mean = torch.tanh(own.policy(torch.cat([s, shown(b)], -1)))
    return torch.distributions.Normal(mean, own.log_std.clamp(-5, 2).exp())


def step(own: Balanced, rows: dict[str, Tensor], drawn: dict[str, Tensor], online: bool) -> None:
    s, a = rows["s"], rows["a"]
    with torch.no_grad():
        worth = torch.minimum(*(q(critic, s, a) for critic in own.slow))
    u = worth - own.value(s)[:, 0]
    own.learners["value"].step(((0.7 - (u < 0).to(u.dtype)).abs() * u**2).mean())
    with torch.no_grad():
        chance = torch.distributions.Normal(0.0, 1.0).cdf(drawn["balances"][:, 0])
        b = balanced(own, s, drawn["balances"])[0] if online else LOW + (HIGH - LOW) * chance
        weight = (b * (worth - own.value(s)[:, 0])).exp().clamp(max=100.0)
    cloned = -(weight * family(own, s, b).log_prob(a).sum(-1)).mean()
    b, logp = balanced(own, s, drawn["balance"])
    then = family(own, s, b)
    action = then.mean + then.stddev.detach() * drawn["family"]
    climbed = torch.minimum(*(q(critic, s, action) for critic in own.critics))
    picked = (own.heat.detach().exp() * logp - climbed).mean() - own.heat * (logp.detach() - 0.5).mean()
    own.policy.requires_grad_(False)  # the loss of the balance reaches neither family nor critics
    own.learners["balance-model"].adam.zero_grad()
    gradients = torch.autograd.grad(picked, [*own.balance.parameters(), own.heat])
    own.policy.requires_grad_(True)
    own.learners["policy"].step(cloned)
    for parameter, gradient in zip([*own.balance.parameters(), own.heat], gradients, strict=True):
        parameter.grad = gradient
    own.learners["balance-model"].adam.step()
    with torch.no_grad():
        y = rows["r"] + GAMMA * rows["live"] * own.value(rows["next"])[:, 0]
    own.learners["critic"].step(sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))
    follow(own.slow, own.critics)


DRAWN = {name: lambda g, times: torch.randn(times, BATCH, 1, generator=g) for name in ("balances", "balance", "family")}


@pytest.mark.slow
def test_updates_are_those_of_the_paper(tolerance: float, tmp_path: Path) -> None:
    loop, noted = loop_of(tmp_path), list[Any]()
    owns = [Balanced(tensors(loop), k) for k in (0, 1)]
    stretches, run = Stretches(loop.population, "learn"), loop.updater.run

    def seen(store: Any, rates: Any) -> Any:
        draw = stretches.at(loop.updater.updates)
        noted.append((loop.method.sampling.draw(store, draw), {k: draw(k, of) for k, of in DRAWN.items()}, loop.stage))
        return run(store, rates)

    loop.updater.run = seen  # type: ignore[method-assign]
    for _ in range(2):
        loop.step()
    assert [stage for *_, stage in noted] == [0, 0, 0, 1, 1, 1]
    for batch, drawn, stage in noted:
        for k, own in enumerate(owns):
            rows = {
                "s": batch.observations[k], "a": batch.actions[k], "r": batch.rewards[k],
                "next": batch.next_observations[k], "live": (~batch.terminated[k]).to(batch.rewards.dtype),
            }  # fmt: skip
            step(own, rows, {name: x[k] for name, x in drawn.items()}, stage == 1)
    found = tensors(loop)
    for k, own in enumerate(owns):
        mine = {"policy": [own.policy], "value": [own.value], "critic": own.critics, "balance-model": [own.balance]}
        for name, networks in mine.items():
            for i, network in enumerate(networks):
                theirs = flat(net(found, name, len(networks) * k + i))
                torch.testing.assert_close(theirs, flat(network), atol=tolerance, rtol=tolerance)
        assert own.log_std is not None
        torch.testing.assert_close(found["policy.log_std"][k, 0], own.log_std.detach(), atol=tolerance, rtol=0)
        assert abs(float(found["balance-model.heat.numbers"][k, 0]) - own.heat.item()) < tolerance


@pytest.mark.slow
def test_with_one_balance_it_is_iql_with_a_constant_in_view(tmp_path: Path) -> None:
    """Every row has the same b; what V and critics learn is what IQL's do, whatever the family is."""
    loop = loop_of(tmp_path)
    method = set_values(loop.composed, {f"learners.balance-model.{k}": 2.0 for k in ("low", "high")})
    one = OffPolicyLoop(method, loop.task, [Member(3), Member(4)], 4, 3)
    network: Any = one.updater.networks["balance-model"]
    assert torch.equal(network.rescaled(torch.linspace(-1, 1, 9)), torch.full((9,), 2.0))
    iql = set_values(small_logged("iql"), {"policy.learning.optimizer.schedule": "constant"})
    other = OffPolicyLoop(iql, loop.task, [Member(3), Member(4)], 4, 3)
    one.step(), other.step()
    mine, theirs = one.policy_tensors(), other.policy_tensors()
    same = [k for k in mine if k.startswith(("critic.", "value."))]
    assert len(same) == 12 and all(torch.equal(mine[k], theirs[k]) for k in same)


class AtTwo(CloneError):
    """-log pi(a|s) of the family as a policy with six more numbers in view, those of b = 2."""

    def __call__(self, read: Any, actions: Tensor) -> Tensor:
        seen = read.seen("here")
        constant = seen.new_tensor([f(2 / 10_000 ** (i / 3)) for i in range(3) for f in (math.sin, math.cos)])
        said = read.network.say(read.network.body(torch.cat([seen, constant.expand(*seen.shape[:2], -1)], -1)))
        return -in_units(read.network).logp(said, actions)


@pytest.mark.slow
def test_with_one_balance_the_family_learns_what_iqls_clone_teaches_it(tmp_path: Path) -> None:
    """With b = 2 in every row: IQL's weighed likelihood at beta = 2, of a policy that reads E(2) as six numbers."""
    clone = Clone(weight=ExpAdvantage(beta=2.0, cap=100.0), error=AtTwo())
    method = set_values(small_onward("famo2o"), {f"learners.balance-model.{k}": 2.0 for k in ("low", "high")})
    method = method.replace(stages=())
    assert method.actor == (FamilyClone(),)
    loop, other = (
        OffPolicyLoop(x, logged_task(tmp_path), [Member(3), Member(4)], 2, 3)
        for x in (method, method.replace(actor=(clone,)))
    )
    with torch.no_grad():
        for x in (loop, other):  # so that some weights are cut, at exp(2 * 2.3) = 99.5 and above
            x.updater.networks["value"].head.bias.sub_(2.3)  # type: ignore[union-attr,operator]
    updater, store, cut = loop.updater, loop.collector.store, list[bool]()
    draw = updater.stretches.at(0)
    batch = loop.method.sampling.draw(store, draw)
    read = StoredReading(updater, loop.method.sampling, batch, draw, store)
    read.reader = "policy"
    rows, iql = FamilyClone()(read), clone(read)
    slopes = [torch.autograd.grad(x.sum(), updater.trainers["policy"].parameters.leaves) for x in (rows, iql)]
    for mine, theirs in ((rows, iql), *zip(*slopes, strict=True)):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    for k in (0, 1):
        own, s, a = Balanced(tensors(loop), k), batch.observations[k], batch.actions[k]
        worth = torch.minimum(*(q(critic, s, a) for critic in own.slow))
        constant = torch.tensor([f(2 / 10_000 ** (i / 3)) for i in range(3) for f in (math.sin, math.cos)])
        mean = torch.tanh(own.policy(torch.cat([s, constant.expand(BATCH, -1)], -1)))
        assert own.log_std is not None
        logp = torch.distributions.Normal(mean, own.log_std.clamp(-5, 2).exp()).log_prob(a).sum(-1)
        weight = (2.0 * (worth - own.value(s)[:, 0])).exp().clamp(max=100.0)
        torch.testing.assert_close(iql[k], -weight * logp, atol=1e-5, rtol=1e-5)
        cut += (weight == 100).tolist()
    assert 0 < sum(cut) < len(cut)
    loop.step(), other.step()
    found = [x.updater.trainers["policy"].parameters.values for x in (loop, other)]
    torch.testing.assert_close(*found, atol=1e-6, rtol=0)


def test_balances_are_waves_of_length_one() -> None:
    assert embedded(torch.zeros(2, 3, 1))[0, 0].tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    found = embedded(torch.linspace(-20, 20, 41)[:, None])
    torch.testing.assert_close(found.view(41, 3, 2).square().sum(-1), torch.ones(41, 3))
    torch.testing.assert_close(found, shown(torch.linspace(-20, 20, 41)))


def test_the_balance_moves_nothing_else(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    updater, store = loop.updater, loop.collector.store
    draw = updater.stretches.at(0)
    read = StoredReading(updater, loop.method.sampling, loop.method.sampling.draw(store, draw), draw, store)
    read.reader = "balance-model"
    loss = next(part for part in loop.method.learners if isinstance(part, BalanceModel)).loss(read).sum()
    for name, trainer in updater.trainers.items():
        found = torch.autograd.grad(loss, trainer.parameters.leaves, retain_graph=True, allow_unused=True)
        assert all((x is not None) == (name == "balance-model") for x in found), name


def test_it_acts_by_the_likeliest_balance(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    loop.step()
    (tmp_path / "saved").mkdir()
    loop.save(tmp_path / "saved")
    actor: Any = restore_policies(tmp_path / "saved", loop.composed, loop.task, [Member(3), Member(4)]).actor
    assert isinstance(actor, FamilyActor) and isinstance(actor.held["balance-model"], BalanceNetwork)
    found, s = tensors(loop), torch.randn(2, 5, 3)
    with torch.no_grad():
        said = torch.tanh(actor(actor.see(s))[..., :1])
        for k in (0, 1):
            own = Balanced(found, k)
            b = LOW + (HIGH - LOW) * (torch.tanh(own.balance(s[k])[:, 0]) + 1) / 2
            torch.testing.assert_close(said[k], family(own, s[k], b).mean)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["learners=none", "order=value,policy,critic"], "is shown a balance, and nobody says which"),
        (["actor=clone"], "learns at a balance of each row's own, and other terms have none"),
        (["critic.backup.rule=from-policy"], r"the critic would ask for it: set critic\.backup\.rule=from-value"),
        (["learners.balance-model.low=6"], "low must not be above high, got 6"),
    ],
)
def test_what_cannot_be_composed_is_said(changes: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method("famo2o").replace(stages=()), changes))
