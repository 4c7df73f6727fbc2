"""Updates of methods on logs that change the critic, against the same written with torch's own layers and optimizers.

Everything but the random numbers is computed anew from the papers, one member after another, for actions of two
numbers. To 1e-5 in float32 and 1e-9 in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from etude.core.critic_slots import PenaltyFloor, Weighed, WeighedActions
from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.replay_slots import Choice
from etude.experience.logged import Logged
from etude.experience.stretches import Stretches
from etude.experience.transforms import NextActions, ReturnsToGo
from etude.learners.backups import Bootstrap, FromPolicy
from etude.learners.penalties import ConservativeQ, DrawnActions, RecordedReturns
from etude.loops.off_policy import OffPolicyLoop
from etude.objectives.actor import MaximizeQ
from etude.objectives.reductions import Min
from etude.tasks.control.logged import LoggedTask
from log_toys import in_boxes, logged_task, small_logged, written
from own_updates import Own, flat, follow, net, q

GAMMA, UPDATES, MEMBERS, BATCH, WIDTH = 0.99, 3, 2, 6, 2
torch.set_num_threads(1)


def drift_columns(episodes: int = 6, length: int = 30, seed: int = 0) -> dict[str, Any]:
    """A point that actions of two numbers push, in episodes of which every second terminates."""
    rng, rows, seen = np.random.default_rng(seed), [], np.zeros(3)
    for episode in range(episodes):
        seen = rng.normal(size=3)
        for t in range(length + episode):
            action, last = rng.uniform(-1, 1, WIDTH), t == length + episode - 1
            led = 0.9 * seen + 0.3 * np.array([action[0], action[1], action.sum()]) + 0.1 * rng.normal(size=3)
            rows.append((seen, action, 0.2 * float(seen[0]), last and episode % 2 == 0, last and episode % 2 == 1, led))
            seen = led
    names = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
    found = {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return {name: x.astype(bool if x.dtype == bool else np.float32) for name, x in found.items()}


def drift_task(folder: Path) -> LoggedTask:
    """Logs of it, without an environment."""
    folder.mkdir(parents=True, exist_ok=True)
    return LoggedTask(data=str(written(folder / "drift.npz", drift_columns())))


class Numbers(NamedTuple):
    """The random numbers of an update, of one member: what policies draw, [N, A] or [N, C, A]."""

    named: dict[str, Tensor]

    def __call__(self, name: str) -> Tensor:
        return self.named[name]


def normal(*shape: int) -> Callable[[Any, int], Tensor]:
    return lambda g, times: torch.randn(times, *shape, generator=g)


def uniform(*shape: int) -> Callable[[Any, int], Tensor]:
    return lambda g, times: torch.rand(times, *shape, generator=g) * 2 - 1


DRAWN = {
    "policy here": normal(BATCH, WIDTH), "policy next": normal(BATCH, WIDTH), "smoothing": normal(BATCH, WIDTH),
    "anything 10 times": uniform(BATCH, 10, WIDTH), "policy here 10 times": normal(BATCH, 10, WIDTH),
    "policy next 10 times": normal(BATCH, 10, WIDTH), "policy here 4 times": normal(BATCH, 4, WIDTH),
}  # fmt: skip
"""What is drawn in an update, by name."""


def squashed(said: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh of a normal and its log-density by the change of variables, as torch's distributions have it."""
    mean, log_std = said.chunk(2, -1)
    base = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + log_std.clamp(-20, 2).exp() * noise
    stretch = 2 * (math.log(2) - u - functional.softplus(-2 * u))
    return torch.tanh(u), (base.log_prob(u) - stretch).sum(-1)


def sac_policy(own: Own, s: Tensor, noise: Tensor) -> None:
    """The policy's and the temperature's step, of losses from before either."""
    action, logp = squashed(own.policy(s), noise)
    worth = torch.stack([q(critic, s, action) for critic in own.critics]).amin(0)
    alpha = own.log_alpha.detach().exp()
    warm = -(own.log_alpha * (logp.detach() - WIDTH).mean())
    own.learners["policy"].step((alpha * logp - worth).mean())
    own.learners["temperature"].step(warm)


def soft_target(own: Own, rows: Any, noise: Tensor, entropy: bool) -> Tensor:
    """r + gamma (min Q' - alpha log pi), a' drawn."""
    with torch.no_grad():
        then, logp = squashed(own.policy(rows["next"]), noise)
        worth = torch.stack([q(critic, rows["next"], then) for critic in own.slow]).amin(0)
        worth = worth - entropy * own.log_alpha.exp() * logp
        found: Tensor = rows["r"] + GAMMA * rows["live"] * worth
    return found


def gap(own: Own, rows: Any, drawn: Numbers, critic: Any, floor: Tensor | None) -> Tensor:
    """log of the integral of exp(Q) as thirty actions say it, minus Q of what was done: [N]."""
    s = rows["s"][:, None].expand(-1, 10, -1)
    terms = [q(critic, s, drawn("anything 10 times")) - WIDTH * math.log(0.5)]
    for at, seen in (("here", rows["s"]), ("next", rows["next"])):
        with torch.no_grad():
            actions, logp = squashed(own.policy(seen)[:, None].expand(-1, 10, -1), drawn(f"policy {at} 10 times"))
        values = q(critic, s, actions)
        terms.append((values if floor is None else torch.maximum(values, floor[:, None])) - logp)
    return torch.cat(terms, 1).exp().sum(1).log() - q(critic, rows["s"], rows["a"])


def conservative(own: Own, rows: Any, drawn: Numbers, n: int, floor: Tensor | None = None) -> None:
    y = soft_target(own, rows, drawn("policy next"), entropy=False)
    losses = [
        functional.mse_loss(q(c, rows["s"], rows["a"]), y) + 5.0 * gap(own, rows, drawn, c, floor).mean()
        for c in own.critics
    ]
    own.learners["critic"].step(torch.stack(losses).sum())
    sac_policy(own, rows["s"], drawn("policy here"))
    follow(own.slow, own.critics)


def calibrated(own: Own, rows: Any, drawn: Numbers, n: int) -> None:
    conservative(own, rows, drawn, n, floor=rows["returns_to_go"])


def plain(own: Own, s: Tensor, least: float, most: float) -> torch.distributions.Normal:
    """A normal with a squashed mean and deviations of its own."""
    assert own.log_std is not None
    return torch.distributions.Normal(torch.tanh(own.policy(s)), own.log_std.clamp(least, most).exp())


def awac(own: Own, rows: Any, drawn: Numbers, n: int) -> None:
    s, a = rows["s"], rows["a"]
    with torch.no_grad():
        then = plain(own, rows["next"], -6, 0)
        following = then.mean + then.stddev * drawn("policy next")
        worth = torch.minimum(*(q(critic, rows["next"], following) for critic in own.slow))
        y = rows["r"] + GAMMA * rows["live"] * worth
    own.learners["critic"].step(sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))
    now = plain(own, s, -6, 0)
    with torch.no_grad():
        tried = now.mean + now.stddev * drawn("policy here")
        good, usual = (torch.minimum(*(q(critic, s, x) for critic in own.critics)) for x in (a, tried))
        weight = (good - usual).exp() / (good - usual).exp().mean()
    own.learners["policy"].step(-(weight * now.log_prob(a).sum(-1)).mean())
    follow(own.slow, own.critics)


def crr(own: Own, rows: Any, drawn: Numbers, n: int) -> None:
    """With copies that are made in every second update."""
    s, a, (critic,), (slow,) = rows["s"], rows["a"], own.critics, own.slow
    with torch.no_grad():
        assert own.log_std is not None and own.slow_log_std is not None
        mean = torch.tanh(own.slow_policy(rows["next"]))
        following = mean + own.slow_log_std.clamp(-6, 0).exp() * drawn("policy next")
        y = rows["r"] + GAMMA * rows["live"] * q(slow, rows["next"], following)
    own.learners["critic"].step(functional.mse_loss(q(critic, s, a), y))
    now = plain(own, s, -6, 0)
    with torch.no_grad():
        tried = [now.mean + now.stddev * drawn("policy here 4 times")[:, i] for i in range(4)]
        usual = sum((q(critic, s, action) for action in tried), torch.zeros(())) / 4
        weight = (q(critic, s, a) - usual).exp().clamp(max=20.0)
    own.learners["policy"].step(-(weight * now.log_prob(a).sum(-1)).mean())
    if n % 2 == 0:
        slow.load_state_dict(critic.state_dict())
        own.slow_policy.load_state_dict(own.policy.state_dict())
        own.slow_log_std = own.log_std.detach().clone()


def ensemble(own: Own, rows: Any, drawn: Numbers, n: int, eta: float = 0.0) -> None:
    """SAC with the smallest of all; for EDAC with the cosines of all pairs of slopes, one pair after another."""
    s, a, y = rows["s"], rows["a"].clone().requires_grad_(), soft_target(own, rows, drawn("policy next"), entropy=True)
    loss = sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(()))
    slopes = [torch.autograd.grad(q(c, s, a).sum(), a, create_graph=True)[0] for c in own.critics]
    for i, first in enumerate(slopes):
        for j, second in enumerate(slopes):
            if i != j and eta:
                loss = loss + eta / (len(slopes) - 1) * functional.cosine_similarity(first, second, dim=-1).mean()
    own.learners["critic"].step(loss)
    sac_policy(own, s, drawn("policy here"))
    follow(own.slow, own.critics)


def edac(own: Own, rows: Any, drawn: Numbers, n: int) -> None:
    ensemble(own, rows, drawn, n, eta=1.0)


def rebrac(own: Own, rows: Any, drawn: Numbers, n: int) -> None:
    s, a, following = rows["s"], rows["a"], rows["next"]
    with torch.no_grad():
        then = (torch.tanh(own.slow_policy(following)) + (0.2 * drawn("smoothing")).clamp(-0.5, 0.5)).clamp(-1, 1)
        away = ((then - torch.where(rows["live"][:, None] > 0, rows["next_actions"], then)) ** 2).sum(-1)
        worth = torch.minimum(*(q(critic, following, then) for critic in own.slow)) - 0.01 * away
        y = rows["r"] + GAMMA * rows["live"] * worth
    own.learners["critic"].step(sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))
    if n % 2:
        return
    done = torch.tanh(own.policy(s))
    values = torch.minimum(*(q(critic, s, done) for critic in own.critics))
    cloned = 0.001 * ((done - a) ** 2).sum(-1).mean()
    own.learners["policy"].step(cloned - values.mean() / values.abs().mean().detach())
    follow([*own.slow, own.slow_policy], [*own.critics, own.policy])


METHODS: dict[str, tuple[Callable[[Own, Any, Numbers, int], None], dict[str, Any]]] = {
    "cql": (conservative, {"policy_lr": 1e-4}), "cal-ql": (calibrated, {"policy_lr": 1e-4}),
    "awac": (awac, {}), "crr": (crr, {"count": 1}),
    "sac-n": (ensemble, {"count": 3}), "edac": (edac, {"count": 3}),
    "rebrac": (rebrac, {"lr": 1e-3, "policy_lr": 1e-3}),
}  # fmt: skip
"""By method: an update, and the rates and the critics that are not the usual ones."""
SOONER: dict[str, dict[str, Any]] = {
    "crr": {f"{k}.learning.target.every": 2 for k in ("policy", "critic")},
    **{name: {"critic.count": 3} for name in ("sac-n", "edac")},
}


@pytest.mark.first("float32-cql")
@pytest.mark.parametrize("name", list(METHODS))
def test_updates_are_those_of_the_paper(name: str, tolerance: float, tmp_path: Path) -> None:
    method, (update, sizes) = set_values(small_logged(name), SOONER.get(name, {})), METHODS[name]
    members = [Member(3 + k) for k in range(MEMBERS)]
    loop = OffPolicyLoop(method, drift_task(tmp_path), members, 2, UPDATES)
    owns = [Own({n: v.clone() for n, v in loop.policy_tensors().items()}, k, **sizes) for k in range(MEMBERS)]
    stretches = Stretches(loop.population, "learn")
    for n in range(1, UPDATES + 1):
        draw = stretches.at(n - 1)
        batch, drawn = method.sampling.draw(loop.collector.store, draw), {k: draw(k, of) for k, of in DRAWN.items()}
        for k, own in enumerate(owns):
            rows = {
                "s": batch.observations[k], "a": batch.actions[k], "r": batch.rewards[k],
                "next": batch.next_observations[k], "live": (~batch.terminated[k]).to(batch.rewards.dtype),
                **{key: value[k] for key, value in batch.offers.items()},
            }  # fmt: skip
            update(own, rows, Numbers({key: value[k] for key, value in drawn.items()}), n)
    reported, tensors = loop.step().members, loop.policy_tensors()
    for k, own in enumerate(owns):
        same(own, k, tensors, reported, tolerance)


def same(own: Own, k: int, tensors: dict[str, Tensor], reported: Any, tolerance: float) -> None:
    """Weights of a member, and the means of its losses."""
    for learner, part in own.learners.items():
        for i, mine in enumerate(part.networks):
            theirs = flat(net(tensors, learner, len(part.networks) * k + i))
            torch.testing.assert_close(theirs, flat(mine), atol=tolerance, rtol=tolerance)
        mean = sum(part.losses) / len(part.losses)
        assert reported[f"{learner}_loss"][k] == pytest.approx(mean, abs=tolerance, rel=10 * tolerance)
    if own.log_std is not None:
        torch.testing.assert_close(tensors["policy.log_std"][k, 0], own.log_std.detach(), atol=tolerance, rtol=0)
    if "temperature" in own.learners:
        assert abs(tensors["temperature.numbers"][k, 0].item() - own.log_alpha.item()) < tolerance


def test_a_discrete_update_is_that_of_the_paper(tolerance: float, tmp_path: Path) -> None:
    """cql-discrete: Huber's error of Double DQN, and log sum exp over both choices minus the value of the one made."""
    method = set_values(small_logged("cql-discrete"), {"critic.learning.target.every": 2})
    loop = OffPolicyLoop(method, logged_task(tmp_path, boxes=False), [Member(3)], 2, UPDATES)
    tensors, stretches = {n: v.clone() for n, v in loop.policy_tensors().items()}, Stretches(loop.population, "learn")
    tensors = {n.replace("policy.body", "critic"): v for n, v in tensors.items()}
    critic, slow = (net(tensors, "critic", 0) for _ in range(2))
    adam = torch.optim.Adam(critic.parameters(), 2.3e-3)
    for n in range(1, UPDATES + 1):
        batch = method.sampling.draw(loop.collector.store, stretches.at(n - 1))
        s, done, then = batch.observations[0], batch.actions[0].long(), batch.next_observations[0]
        with torch.no_grad():
            best = critic(then).argmax(-1, keepdim=True)
            y = batch.rewards[0] + GAMMA * (~batch.terminated[0]) * slow(then).gather(1, best)[:, 0]
        said = critic(s)
        chosen = said.gather(1, done)[:, 0]
        loss = functional.smooth_l1_loss(chosen, y) + functional.cross_entropy(said, done[:, 0])
        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(critic.parameters(), 10.0)
        adam.step()
        if n == 2:
            slow.load_state_dict(critic.state_dict())
    loop.step()
    theirs = {n.replace("policy.body", "critic"): v for n, v in loop.policy_tensors().items()}
    torch.testing.assert_close(flat(net(theirs, "critic", 0)), flat(critic), atol=tolerance, rtol=tolerance)


# Limits of the formulas


def weights_after(method: Any, folder: Path, steps: int = 2) -> dict[str, Tensor]:
    loop = OffPolicyLoop(method, drift_task(folder), [Member(3)], 2, steps)
    loop.step()
    return {name: v.clone() for name, v in loop.policy_tensors().items()}


def alike(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(v, second[k]) for k, v in first.items())


@pytest.mark.slow
def test_cql_without_its_penalty_is_sac_on_logs(tmp_path: Path) -> None:
    """weight = 0, with the entropy in the target and one rate: what sac does with `experience=logged`."""
    sac: Any = get_method("sac").replace(experience=Logged(), exploration=None)
    small = small_logged("cql")
    sac = sac.replace(
        policy=small.policy, learners=small.learners, sampling=small.sampling,
        critic=small.critic.replace(penalties=(), backup=Bootstrap(FromPolicy(), reduce=Min(), entropy=True)),
    )  # fmt: skip
    told = {"critic.backup.entropy": True}
    none = set_values(small, {**told, "critic.penalties.conservative-q.weight": 0.0})
    assert alike(weights_after(none, tmp_path), weights_after(sac, tmp_path))
    assert not alike(weights_after(set_values(small, told), tmp_path), weights_after(sac, tmp_path))


@pytest.mark.slow
def test_edac_without_eta_is_sac_n_and_two_critics_are_sac(tmp_path: Path) -> None:
    sac_n, edac = (set_values(small_logged(name), {"critic.count": 3}) for name in ("sac-n", "edac"))
    none = set_values(edac, {"critic.penalties.alike-slopes.weight": 0.0})
    assert alike(weights_after(none, tmp_path), weights_after(sac_n, tmp_path))
    assert not alike(weights_after(edac, tmp_path), weights_after(sac_n, tmp_path))
    sac: Any = get_method("sac").replace(experience=Logged(), exploration=None, sampling=sac_n.sampling)
    sac = sac.replace(policy=sac_n.policy, critic=sac.critic.replace(network=sac_n.critic.network))
    assert alike(weights_after(set_values(sac_n, {"critic.count": 2}), tmp_path), weights_after(sac, tmp_path))


@pytest.mark.slow
def test_rebrac_without_penalties_is_td3(tmp_path: Path) -> None:
    """beta = 0 in actor and critic, values as they are: td3 that climbs the smaller Q."""
    rebrac = small_logged("rebrac")
    none = set_values(
        rebrac, {"critic.backup.rule.weight": 0.0, "actor.clone.scale": 0.0, "actor.maximize-q.scale": "none"}
    )
    td3: Any = get_method("td3").replace(experience=Logged(), exploration=None, transforms=rebrac.transforms)
    rule = FromPolicy(noise=rebrac.critic.backup.rule.noise)
    critic = rebrac.critic.replace(backup=Bootstrap(rule, reduce=Min()))
    td3 = td3.replace(policy=rebrac.policy, critic=critic, sampling=rebrac.sampling, actor=(MaximizeQ(over=Min()),))
    assert alike(weights_after(none, tmp_path), weights_after(td3, tmp_path))
    for path in ("critic.backup.rule.weight", "actor.clone.scale"):
        one = set_values(none, {path: 1.0})
        assert not alike(weights_after(one, tmp_path), weights_after(td3, tmp_path))


def test_next_actions_are_those_of_the_next_row_of_the_episode(tmp_path: Path) -> None:
    """Of six episodes three are truncated, and lose their last row; the row before it ends them then."""
    task, method = drift_task(tmp_path), get_method("rebrac")
    logs = task.logs()
    found = NextActions()(logs, method)
    assert found.rows == logs.rows - 3 and found.episodes == 6 and found.truncated.sum() == 3
    kept = np.flatnonzero(~logs.truncated)
    np.testing.assert_array_equal(found.observations, logs.observations[kept])
    for row, source in enumerate(kept):
        if logs.terminated[source]:
            assert np.isnan(found.next_actions[row]).all() and found.terminated[row]
        else:
            np.testing.assert_array_equal(found.next_actions[row], logs.actions[source + 1])
    store = OffPolicyLoop(small_logged("rebrac"), task, [Member(3)], 2, 1).collector.store
    index = torch.arange(found.rows - 1)[None]
    given, units = store.offers(index)["next_actions"][0], store.read(index + 1).actions[0]
    inside = torch.from_numpy(~(found.terminated | found.truncated)[:-1])
    assert torch.equal(given[inside], units[inside])  # in units, as what was done


class Low(PenaltyFloor):
    """No floor at all."""

    def __call__(self, read: Any) -> Tensor:
        return torch.full_like(read.batch.rewards, -math.inf)


@pytest.mark.slow
def test_cal_ql_with_nothing_below_is_cql(tmp_path: Path) -> None:
    small = small_logged("cal-ql")
    (penalty,) = small.critic.penalties
    low = small.replace(critic=small.critic.replace(penalties=(penalty.replace(floor=Low()),)))
    cql = weights_after(small_logged("cql"), tmp_path)
    assert alike(weights_after(low, tmp_path), cql)
    high = set_values(small, {"sampling.horizon.gamma": 0.1})  # returns near 0, above what a new critic says
    assert not alike(
        weights_after(high, tmp_path), weights_after(set_values(low, {"sampling.horizon.gamma": 0.1}), tmp_path)
    )


def test_the_floor_is_of_the_policys_actions_alone() -> None:
    """Three actions worth 0 of density 1, floor 2: log(1 + 2 e^2) for one uniform and two of the policy."""
    drawn = Choice(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1))
    read: Any = SimpleNamespace(
        several=lambda count, at: drawn, anything=lambda count: drawn, values=lambda x: x[..., 0],
        outputs=lambda at, a: 0 * a[:, None], batch=SimpleNamespace(offers={"returns_to_go": torch.full((1, 1), 2.0)}),
    )  # fmt: skip
    penalty = ConservativeQ(actions=DrawnActions(count=1), floor=RecordedReturns(), weight=1.0)
    assert penalty(read, torch.zeros(1, 1, 1, 1)).item() == pytest.approx(math.log(1 + 2 * math.exp(2)))


class Kept(WeighedActions):
    """What thirty actions are worth, as leaves: what would be learned of each of them can be asked."""

    def __call__(self, read: Any) -> Weighed:
        found = DrawnActions(count=10)(read)
        return found._replace(values=read.kept.setdefault("values", found.values.detach().requires_grad_()))


def test_where_a_policys_action_is_worth_less_than_was_earned_nothing_of_it_is_learned(tmp_path: Path) -> None:
    """Its slope is 0 exactly where Q < V_mc; of others it is each one's share of the sum of exp(max(Q, V_mc)) / p."""
    loop = OffPolicyLoop(small_logged("cal-ql"), drift_task(tmp_path), [Member(3), Member(4)], 2, 1)
    loop.updater.updates = 1
    read: Any = loop.updater._drawn("critic", 0, loop.collector.store)
    with torch.no_grad():
        outputs, drawn = read.outputs("here", read.batch.actions), DrawnActions(count=10)(read)
    middle = drawn.values[..., 10:].median(-1).values.mean(1)
    for floor in (torch.full_like(middle, 1e3), middle, torch.full_like(middle, -math.inf)):
        read.kept, read.batch.offers["returns_to_go"] = {}, floor
        penalty = ConservativeQ(actions=Kept(), floor=RecordedReturns(), weight=5.0)(read, outputs)
        (slopes,) = torch.autograd.grad(penalty.sum(), read.kept["values"])
        below = drawn.values < floor[:, None, :, None]
        below[..., :10] = False  # anything at all has no floor
        counted = torch.where(below, floor[:, None, :, None].expand_as(drawn.values), drawn.values)
        each = (counted.double() - drawn.logp).exp()
        wanted = torch.where(below, 0.0, 5 * each / each.sum(-1, keepdim=True))
        assert not slopes[below].any()
        torch.testing.assert_close(slopes.double(), wanted, atol=1e-6, rtol=1e-4)
        share = float(below[..., 10:].float().mean())
        assert share == (1.0 if floor.min() > 99 else 0.0 if floor.isinf().all() else pytest.approx(0.5, abs=0.2))
        low = ConservativeQ(actions=Kept(), floor=Low(), weight=5.0)(read, outputs)  # CQL's
        assert torch.equal(low, penalty) == (share == 0.0)


def test_returns_to_go_are_sums_to_the_end_of_each_episode(tmp_path: Path) -> None:
    """Row by row from the file, with the critic's gamma; members whose gamma differ share no column."""
    task, method = drift_task(tmp_path), get_method("cal-ql")
    logs, changed = task.logs(), set_values(method, {"sampling.horizon.gamma": 0.9})
    found, wanted, after = ReturnsToGo()(logs, changed), np.zeros(logs.rows), 0.0
    for row in reversed(range(logs.rows)):
        after = float(logs.rewards[row]) + (0.0 if logs.terminated[row] or logs.truncated[row] else 0.9 * after)
        wanted[row] = after
    np.testing.assert_allclose(found.returns_to_go, wanted, rtol=1e-5)
    store = OffPolicyLoop(small_logged("cal-ql"), task, [Member(3), Member(4)], 2, 1).collector.store
    index = torch.tensor([[0, 7], [9, 1]])
    assert torch.equal(
        store.offers(index)["returns_to_go"], torch.from_numpy(ReturnsToGo()(logs, method).returns_to_go)[index]
    )
    members = [Member(3, {"sampling.horizon.gamma": 0.9}), Member(4, {"sampling.horizon.gamma": 0.8})]
    with pytest.raises(ConfigError, match="one column that all members share, and their gamma differ"):
        OffPolicyLoop(small_logged("cal-ql"), task, members, 2, 1)


class Grid(WeighedActions):
    """Actions at the middles of equal intervals, with the density of that: an integral by sums."""

    def __call__(self, read: Any) -> Weighed:
        middles = (torch.arange(200) + 0.5) / 100 - 1
        actions = middles.view(1, 1, 200, 1).expand(*read.batch.rewards.shape, -1, -1)
        logp = torch.full(actions.shape[:3], math.log(0.5))
        return Weighed(read.values(read.outputs("here", actions)), logp[:, None], None)


@pytest.mark.slow
def test_drawn_actions_say_the_integral(tmp_path: Path) -> None:
    """The mean of exp(Q) / p over 9,000 drawn actions of each row is the integral over all, within their noise."""
    loop = OffPolicyLoop(small_logged("cql"), logged_task(tmp_path), [Member(3)], 2, 1)
    loop.updater.updates = 1
    read = loop.updater._drawn("critic", 0, loop.collector.store)
    with torch.no_grad():
        outputs = read.outputs("here", read.batch.actions)
        drawn = ConservativeQ(actions=DrawnActions(count=3_000), weight=1.0)(read, outputs) - 2 * math.log(9_000)
        whole = ConservativeQ(actions=Grid(), weight=1.0)(read, outputs) - 2 * math.log(200)
    torch.testing.assert_close(drawn, whole, atol=0.04, rtol=0)


def test_the_thirty_actions_are_rows_of_one_product(tmp_path: Path) -> None:
    """An update asks critics four times: the target, what was done, the thirty, and the policy's climb."""
    loop = OffPolicyLoop(small_logged("cql"), drift_task(tmp_path), [Member(3)], 2, 1)
    loop.updater.run(loop.collector.store, loop.updater.rates(0, 2))
    assert loop.updater.passes["critic"] == 4


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("cql", ["policy=deterministic-policy"], "draws numbers by their density, which DeterministicPolicy does not"),
        (
            "cql",
            ["critic.penalties.conservative-q.actions=every-choice"],
            "is for choices, and SquashedPolicy makes nu",
        ),
        ("cql", ["critic.penalties.conservative-q.floor=recorded-returns"], "set transforms=returns-to-go"),
        ("rebrac", ["transforms=none"], "asks what was done next, which no row says: set transforms=next-actions"),
        ("rebrac", ["sampling.horizon=n-step"], "asks what was done after one step"),
        ("edac", ["critic.count=1"], "compares what several critics say of actions"),
        ("cql-discrete", ["critic.penalties.conservative-q.actions=drawn-actions"], "draws numbers by their density"),
    ],
)
def test_what_cannot_be_penalised_is_said(name: str, changes: list[str], sentence: str) -> None:
    assert in_boxes(name) == (name != "cql-discrete")
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), changes))
