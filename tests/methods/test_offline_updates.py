"""Updates of methods that learn from logs, against the same written with torch's own layers and optimizers.

Everything but the random numbers is computed anew from the papers, one member after another: what is seen, losses,
Adam, slow copies. To 1e-5 in float32 and 1e-9 in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from etude.core.edit import set_value, set_values
from etude.core.population import Member
from etude.experience.stretches import Stretches
from etude.learners.value import Expectile
from etude.loops.off_policy import OffPolicyLoop
from etude.objectives.clone import MeanAbs, Ones
from log_toys import in_boxes, logged_task, small_logged
from own_updates import VAE, Own, flat, follow, net, q

GAMMA, UPDATES, MEMBERS = 0.99, 4, 2
torch.set_num_threads(1)


BETWEEN = 0.74
"""What is added to V at the start: about half of the recorded actions are better than usual then."""


def standard(loop: OffPolicyLoop, values: Tensor) -> Tensor:
    """What the policy sees of observations: standardised by all rows of the logs."""
    seen = loop.collector.store.rows[:, :3].double()
    found = (values.double() - seen.mean(0)) / (seen.std(0, correction=0) + 1e-3)
    return found.to(values.dtype)


def bc(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    own.learners["policy"].step(((torch.tanh(own.policy(rows["s"])) - rows["a"]) ** 2).mean())


def bc_likelihood(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    """-log density of tanh u, u normal, by the change of variables."""
    mean, log_std = own.policy(rows["s"]).chunk(2, -1)
    a = rows["a"].clamp(-1 + 1e-6, 1 - 1e-6)
    logp = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp()).log_prob(torch.atanh(a)) - (1 - a**2).log()
    own.learners["policy"].step(-logp.sum(-1).mean())


def bc_discrete(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    own.learners["policy"].step(functional.cross_entropy(own.policy(rows["s"]), rows["a"][:, 0].long()))


def td3_bc(own: Own, rows: Any, noise: Tensor, n: int, towards: Tensor | None = None) -> None:
    s, a, following = rows["s"], rows["a"], rows["next"]
    with torch.no_grad():
        then = (torch.tanh(own.slow_policy(following)) + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
        worth = torch.minimum(*(q(critic, following, then) for critic in own.slow))
        y = rows["r"] + GAMMA * rows["live"] * worth
    own.learners["critic"].step(sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))
    if n % 2:
        return
    done = torch.tanh(own.policy(s))
    values = q(own.critics[0], s, done)
    weight = 2.5 / values.abs().mean().detach()
    own.learners["policy"].step(-weight * values.mean() + functional.mse_loss(done, a if towards is None else towards))
    follow([*own.slow, own.slow_policy], [*own.critics, own.policy])


def prdc(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    """TD3+BC towards the nearest of all rows, which a loop over them finds."""
    s, everything = rows["s"], rows["all"]
    nearest = []
    for state, done in zip(s, torch.tanh(own.policy(s)).detach(), strict=True):
        far = 4 * (everything["s"] - state).square().sum(-1) + (everything["a"] - done).square().sum(-1)
        nearest.append(everything["a"][far.argmin()])
    td3_bc(own, rows, noise, n, torch.stack(nearest))


def iql(own: Own, rows: Any, noise: Tensor, n: int, tau: float = 0.7, beta: float = 3.0) -> None:
    s, a = rows["s"], rows["a"]
    with torch.no_grad():
        worth = torch.minimum(*(q(critic, s, a) for critic in own.slow))
    u = worth - own.value(s)[:, 0]
    own.learners["value"].step(((tau - (u < 0).to(u.dtype)).abs() * u**2).mean())
    with torch.no_grad():
        weight = (beta * (worth - own.value(s)[:, 0])).exp().clamp(max=100.0)
    assert own.log_std is not None
    normal = torch.distributions.Normal(torch.tanh(own.policy(s)), own.log_std.clamp(-5, 2).exp())
    own.learners["policy"].step(-(weight * normal.log_prob(a).sum(-1)).mean())
    with torch.no_grad():
        y = rows["r"] + GAMMA * rows["live"] * own.value(rows["next"])[:, 0]
    own.learners["critic"].step(sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))
    follow(own.slow, own.critics)


def d4rl(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    iql(own, rows, noise, n, tau=0.9, beta=10.0)


def autoencoded(own: Own, s: Tensor, a: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions as they come back, and KL(q || N(0, 1)) of every number of z."""
    mean, log_std = own.encoder(torch.cat([s, a], -1)).chunk(2, -1)
    q = torch.distributions.Normal(mean, log_std.clamp(-4, 15).exp())
    divergence = torch.distributions.kl_divergence(q, torch.distributions.Normal(torch.zeros(()), torch.ones(())))
    return torch.tanh(own.decoder(torch.cat([s, mean + q.stddev * noise], -1))), divergence


def a2pr(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    s, a, following = rows["s"], rows["a"], rows["next"]
    with torch.no_grad():
        then = (torch.tanh(own.slow_policy(following)) + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
        y = rows["r"] + GAMMA * rows["live"] * torch.minimum(*(q(critic, following, then) for critic in own.slow))
    own.learners["critic"].step(sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))
    with torch.no_grad():
        now = rows["r"] + GAMMA * rows["live"] * torch.minimum(*(q(critic, following, then) for critic in own.critics))
        good = q(own.critics[0], s, a) > own.value(s)[:, 0]
    back, divergence = autoencoded(own, s, a, rows["vae"])
    each = good[:, None] * (back - a) ** 2
    own.learners["value"].step(functional.mse_loss(own.value(s)[:, 0], torch.minimum(y, now)))
    own.learners["action-vae"].step(each.mean() + 0.5 * divergence.mean())
    if n % 2:
        return
    done = torch.tanh(own.policy(s))
    values = q(own.critics[0], s, done)
    likely, _ = autoencoded(own, s, done, rows["guide"])
    with torch.no_grad():
        of_likely, of_recorded = (q(own.critics[0], s, x) - own.value(s)[:, 0] for x in (likely, a))
    guide = torch.where((of_likely >= of_recorded)[:, None], likely, a)
    mask = ((of_likely >= 0) | (of_recorded > 0))[:, None]
    weight = 2.5 / values.abs().mean().detach()
    own.learners["policy"].step(-weight * values.mean() + (mask * (done - guide) ** 2).mean())
    follow([*own.slow, own.slow_policy], [*own.critics, own.policy])


def riql(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    """IQL with a quantile of five, Huber's loss over delta = 1, and squares that are weighed."""
    s, a = rows["s"], rows["a"]
    with torch.no_grad():
        worth = torch.quantile(torch.stack([q(critic, s, a) for critic in own.slow]), 0.25, dim=0)
    u = worth - own.value(s)[:, 0]
    own.learners["value"].step(((0.7 - (u < 0).to(u.dtype)).abs() * u**2).mean())
    with torch.no_grad():
        weight = (3.0 * (worth - own.value(s)[:, 0])).exp().clamp(max=100.0)
        y = (rows["r"] + GAMMA * rows["live"] * own.value(rows["next"])[:, 0]).clamp(-100, 1000)
    own.learners["policy"].step((weight * (torch.tanh(own.policy(s)) - a).square().sum(-1)).mean())
    own.learners["critic"].step(sum((functional.huber_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))
    follow(own.slow, own.critics)


def weighed_policy(own: Own, s: Tensor, a: Tensor, worth: Tensor) -> None:
    """IQL's step of the policy."""
    with torch.no_grad():
        weight = (3.0 * (worth - own.value(s)[:, 0])).exp().clamp(max=100.0)
    assert own.log_std is not None
    normal = torch.distributions.Normal(torch.tanh(own.policy(s)), own.log_std.clamp(-5, 2).exp())
    own.learners["policy"].step(-(weight * normal.log_prob(a).sum(-1)).mean())


def dual_rl(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    """f-DVL with chi-square, written as the mean of f*_p over better actions and a line."""
    s, a = rows["s"], rows["a"]
    with torch.no_grad():
        worth = torch.minimum(*(q(critic, s, a) for critic in own.slow))
    y = worth - own.value(s)[:, 0]
    own.learners["value"].step((0.7 * torch.where(y > 0, y + y**2 / 4, 0.0) - 0.3 * y).mean())
    weighed_policy(own, s, a, worth)
    with torch.no_grad():
        y = rows["r"] + GAMMA * rows["live"] * own.value(rows["next"])[:, 0]
    losses = (functional.huber_loss(q(c, s, a), y, delta=20.0) for c in own.critics)
    own.learners["critic"].step(sum(losses, torch.zeros(())))
    follow(own.slow, own.critics)


def recoil(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    """Of six rows three are an expert's; nobody is paid."""
    s, a, half = rows["s"], rows["a"], len(rows["s"]) // 2
    assert rows["expert"].tolist() == [1.0] * half + [0.0] * half and not rows["r"].any()
    with torch.no_grad():
        worth = torch.minimum(*(q(critic, s, a) for critic in own.slow))
    z = (worth - own.value(s)[:, 0]).clamp(max=7.0)
    largest = z.detach().max().clamp(min=-1.0)
    own.learners["value"].step(((z.exp() - z - 1) / largest.exp()).mean())
    weighed_policy(own, s, a, worth)
    with torch.no_grad():
        assert own.log_std is not None
        done = torch.tanh(own.policy(s)) + own.log_std.clamp(-5, 2).exp() * rows["acted"]
        y = GAMMA * rows["live"] * own.value(rows["next"])[:, 0]
    total = torch.zeros(())
    for c in own.critics:
        contrast = q(c, s[half:], done[half:]).mean() - q(c, s[:half], a[:half]).mean()
        total = total + 4 * (0.5 * contrast + 0.25 * (y - q(c, s, a)).square().mean())
    own.learners["critic"].step(total)
    follow(own.slow, own.critics)


def gorl(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    """TD3+BC whose squares are weighed by a network that looks a plain step ahead."""
    if n % 2:
        return td3_bc(own, rows, noise, n)
    s, a, following = rows["s"], rows["a"], rows["next"]
    with torch.no_grad():
        then = (torch.tanh(own.slow_policy(following)) + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
        y = rows["r"] + GAMMA * rows["live"] * torch.minimum(*(q(critic, following, then) for critic in own.slow))
    own.learners["critic"].step(sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))

    def minimised(weights: Tensor) -> Tensor:
        done = torch.tanh(own.policy(s))
        values = q(own.critics[0], s, done)
        scale = 2.5 / values.abs().mean().detach()
        return -scale * values.mean() + (weights * (done - a).square().mean(-1)).mean()

    far = (torch.tanh(own.policy(s)) - a).square().mean(-1, keepdim=True).detach()
    names, numbers = zip(*own.policy.named_parameters(), strict=True)
    slopes = torch.autograd.grad(minimised(2 * torch.sigmoid(own.guide(far))[:, 0]), numbers, create_graph=True)
    stepped = {k: p.detach() - 3e-4 * g for k, p, g in zip(names, numbers, slopes, strict=True)}
    expert = rows["all"]["expert"][:200]
    ahead = torch.tanh(torch.func.functional_call(own.policy, stepped, (rows["all"]["s"][expert],)))
    own.learners["guiding-network"].step((ahead - rows["all"]["a"][expert]).square().mean())
    with torch.no_grad():
        weights = 2 * torch.sigmoid(own.guide(far))[:, 0]
    own.learners["policy"].step(minimised(weights))
    follow([*own.slow, own.slow_policy], [*own.critics, own.policy])
    return None


def halves(each: Tensor, segments: int = 12) -> Tensor:
    """Rows of segments count half, the other rows too."""
    return 0.5 * each[:segments].mean() + 0.5 * each[segments:].mean()


def ipl(own: Own, rows: Any, noise: Tensor, n: int) -> None:
    """Two pairs of segments of three steps, then six other rows; nobody is paid."""
    s, a = rows["s"], rows["a"]
    assert len(s) == 18 and not rows["r"].any()
    with torch.no_grad():
        worth = torch.minimum(*(q(critic, s, a) for critic in own.slow))
    u = worth - own.value(s)[:, 0]
    own.learners["value"].step(halves((0.7 - (u < 0).to(u.dtype)).abs() * u**2))
    with torch.no_grad():
        weight = (3.0 * (worth - own.value(s)[:, 0])).exp().clamp(max=100.0)
        largest = 1 / (0.5 * (1 - GAMMA))
        y = GAMMA * rows["live"] * own.value(rows["next"])[:, 0].clamp(-largest, largest)
    assert own.log_std is not None
    normal = torch.distributions.Normal(torch.tanh(own.policy(s)), own.log_std.clamp(-5, 2).exp())
    own.learners["policy"].step(-halves(weight * normal.log_prob(a).sum(-1)))
    total = torch.zeros(())
    for c in own.critics:
        r = q(c, s, a) - y
        logits = torch.stack([r[6 * k + 3 : 6 * k + 6].sum() - r[6 * k : 6 * k + 3].sum() for k in range(2)])
        likely = torch.where(rows["offers"]["preferred"] > 0, torch.sigmoid(logits), torch.sigmoid(-logits))
        total = total - likely.log().mean() + 0.5 * halves(r**2)
    own.learners["critic"].step(total)
    follow(own.slow, own.critics)


METHODS: dict[str, Callable[[Own, Any, Tensor, int], None]] = {
    "bc": bc, "bc-discrete": bc_discrete, "td3-bc": td3_bc, "iql": iql, "d4rl": d4rl, "prdc": prdc, "a2pr": a2pr,
    "riql": riql, "traj-weighting": iql, "dual-rl": dual_rl, "recoil": recoil,
    "ss-orl": td3_bc, "gorl": gorl, "guda": td3_bc, "ipl": ipl, "offline-rl-vlm-f": iql,
    "bc by likelihood": bc_likelihood,
}  # fmt: skip
CHANGED: dict[str, tuple[str, list[str]]] = {
    "bc by likelihood": (
        "bc", ["policy=squashed-policy", "policy.network.hidden=8,5", "actor.clone.error=likelihood"]
    ),
}  # fmt: skip
"""By name above: a method, and what is set in it."""


@pytest.mark.parametrize("name", list(METHODS))
def test_updates_are_those_of_the_paper(name: str, tolerance: float, tmp_path: Path) -> None:
    of, changes = CHANGED.get(name, (name, []))
    method = set_values(small_logged(of), changes)
    members = [Member(3 + k) for k in range(MEMBERS)]
    loop = OffPolicyLoop(method, logged_task(tmp_path, in_boxes(of)), members, 2, UPDATES)
    if name == "a2pr":
        with torch.no_grad():
            loop.updater.networks["value"].head.bias.add_(BETWEEN)  # type: ignore[union-attr,operator]
    count = 2 if method.critic is None else method.critic.count
    owns = [Own({n: v.clone() for n, v in loop.policy_tensors().items()}, k, count) for k in range(MEMBERS)]
    stretches, store = Stretches(loop.population, "learn"), loop.collector.store
    for n in range(1, UPDATES + 1):
        batch = loop.method.sampling.draw(store, stretches.at(n - 1))
        noise = stretches.at(n - 1)("smoothing", lambda g, times: torch.randn(times, 6, 1, generator=g))
        of_vae = {
            x: stretches.at(n - 1)(x, lambda g, times: torch.randn(times, 6, 2, generator=g)) for x in ("vae", "guide")
        }
        acted = stretches.at(n - 1)("policy here", lambda g, times: torch.randn(times, 6, 1, generator=g))
        assert batch.next_observations is not None
        for k, own in enumerate(owns):
            rows = {
                "s": batch.observations[k], "a": batch.actions[k], "r": batch.rewards[k],
                "next": batch.next_observations[k], "live": (~batch.terminated[k]).to(batch.rewards.dtype),
            }  # fmt: skip
            rows["offers"] = {x: column[k] for x, column in batch.offers.items()}
            rows |= {"acted": acted[k], "expert": batch.offers.get("expert", torch.zeros(MEMBERS, 6))[k]}
            if "standardize-observations" in [part.name for part in method.transforms]:
                rows |= {key: standard(loop, rows[key]) for key in ("s", "next")}
            marked = getattr(store, "beside", {}).get("expert", torch.zeros(store.size)).nonzero()[:, 0]
            rows["all"] = {"expert": marked, "s": standard(loop, store.rows[:, :3]), "a": store.rows[:, 3:4]}
            METHODS[name](own, rows | {x: drawn[k] for x, drawn in of_vae.items()}, noise[k], n)
    reported = loop.step().members
    tensors = loop.policy_tensors()
    for k, own in enumerate(owns):
        for learner, part in own.learners.items():
            count = len(part.networks)
            for i, mine in enumerate(part.networks):
                halves = learner == "action-vae"
                theirs = flat(net(tensors, learner, k, VAE[i]) if halves else net(tensors, learner, count * k + i))
                torch.testing.assert_close(theirs, flat(mine), atol=tolerance, rtol=tolerance)
            mean = sum(part.losses) / len(part.losses)
            assert reported[f"{learner}_loss"][k] == pytest.approx(mean, abs=tolerance, rel=10 * tolerance)
        if own.log_std is not None:
            torch.testing.assert_close(tensors["policy.log_std"][k, 0], own.log_std.detach(), atol=tolerance, rtol=0)


# Limits of the formulas


def weights_after(method: Any, folder: Path) -> Tensor:
    loop = OffPolicyLoop(method, logged_task(folder), [Member(3)], 2, 3)
    loop.step()
    return loop.updater.trainers["policy"].parameters.values.clone()


def test_iql_without_preference_is_cloning(tmp_path: Path) -> None:
    """beta = 0 weighs every action by 1: the policy is that of `bc` with the same likelihood."""
    iql = set_value(small_logged("iql"), "actor.clone.weight.beta=0")
    plain = iql.replace(actor=(iql.actor[0].replace(weight=Ones()),))
    assert torch.equal(weights_after(iql, tmp_path), weights_after(plain, tmp_path))
    assert not torch.equal(weights_after(small_logged("iql"), tmp_path), weights_after(plain, tmp_path))


def test_the_size_of_rewards_does_not_move_the_balance_of_td3_bc() -> None:
    """lambda Q has mean |.| of alpha whatever the size of Q."""
    values = torch.randn(3, 50)
    for size in (1.0, 1e-3, 1e4):
        scaled = MeanAbs(alpha=2.5)(size * values) * size * values
        torch.testing.assert_close(scaled.abs().mean(1), torch.full((3,), 2.5))


def test_an_expectile_of_a_half_is_half_the_square() -> None:
    u = torch.linspace(-2, 2, 9)
    assert torch.equal(Expectile(tau=0.5)(torch.zeros(9), u), 0.5 * u**2)
    high = torch.randn(2000).sort().values  # the expectile tends to the largest of all
    tau, value = Expectile(tau=0.999), torch.zeros(1, requires_grad=True)
    for _ in range(400):
        (gradient,) = torch.autograd.grad(tau(value.expand(2000), high).mean(), value)
        value = (value - 0.5 * gradient / (0.001 + 0.998 * float((high > value).float().mean()))).detach()
        value.requires_grad_()
    above = (high - value).clamp(min=0).sum() * 0.999
    below = (value - high).clamp(min=0).sum() * 0.001
    torch.testing.assert_close(above, below, rtol=1e-2, atol=1e-2)
