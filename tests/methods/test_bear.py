"""BEAR: an update against torch's own layers, of numbers and of choices, and the distance at its limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace as Rows
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.experience.stretches import Stretches
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.offline.bear.support import ExpectedSupport, SupportPrice, discrepancy
from log_toys import logged_task, small_logged
from own_updates import Learner, Own, flat, follow, net, q

GAMMA, UPDATES, BATCH, LATENTS, START, LIMIT = 0.99, 3, 6, 2, 1.7, 0.05
torch.set_num_threads(1)


def loop_of(name: str, folder: Path, block: int = UPDATES, **changes: Any) -> OffPolicyLoop:
    told = {"learners.support-price.start": START, **{k.replace("__", "."): v for k, v in changes.items()}}
    method = set_values(small_logged(name), told)
    return OffPolicyLoop(method, logged_task(folder, boxes=name == "bear"), [Member(3), Member(4)], 2, block)


def tensors(loop: OffPolicyLoop) -> dict[str, Tensor]:
    return {name.replace("policy.held.", ""): v.clone() for name, v in loop.policy_tensors().items()}


class Priced(Own):
    """With a price, and of choices with a model of the behaviour."""

    def __init__(self, found: dict[str, Tensor], k: int) -> None:
        super().__init__(found, k, lr=1e-3, policy_lr=1e-3)
        self.log = nn.Parameter(found["support-price.numbers"][k, 0].clone())
        self.learners["support-price"] = Learner(1e-3, free=(self.log,))
        if "behaviour-model.head.weight" in found:
            self.behaviour = net(found, "behaviour-model", k)
            self.learners["behaviour-model"] = Learner(1e-3, self.behaviour)

    def climb(self, worth: Tensor, squared: Tensor) -> None:
        """The policy's step, and then the price's, of the same distances."""
        distance = (squared.clamp(min=0) + 1e-6).sqrt()
        self.learners["policy"].step((-worth + self.log.exp().detach() * distance).mean())
        self.learners["support-price"].step(-self.log.exp() * (distance.detach().mean() - LIMIT))


def kernels(x: Tensor, y: Tensor, width: float) -> Tensor:
    """MMD^2 of two lists of samples [C, N, A], summed up pair by pair."""

    def alike(one: Tensor, other: Tensor) -> Tensor:
        pairs = [(-(a - b).square().sum(-1) / (2 * width)).exp() for a in one for b in other]
        return torch.stack(pairs).mean(0)

    return alike(x, x) + alike(y, y) - 2 * alike(x, y)


def bear(own: Priced, rows: Any, drawn: dict[str, Tensor]) -> None:
    s, a, then = rows.s, rows.a, rows.next
    mean, log_std = own.encoder(torch.cat([s, a], -1)).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-4, 15).exp())
    divergence = torch.distributions.kl_divergence(normal, torch.distributions.Normal(torch.zeros(()), torch.ones(())))
    back = torch.tanh(own.decoder(torch.cat([s, mean + normal.stddev * drawn["vae"]], -1)))
    own.learners["action-vae"].step(functional.mse_loss(back, a) + 0.5 * divergence.mean())
    with torch.no_grad():
        mean, log_std = own.slow_policy(then).chunk(2, -1)
        worth = []
        for i in range(10):
            action = torch.tanh(mean + log_std.exp() * drawn["policy next 10 times"][:, i])
            one, other = (q(critic, then, action) for critic in own.slow)
            worth.append(0.75 * torch.minimum(one, other) + 0.25 * torch.maximum(one, other))
        y = rows.r + GAMMA * rows.live * torch.stack(worth).amax(0)
    own.learners["critic"].step(sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))
    mean, log_std = own.policy(s).chunk(2, -1)
    action = torch.tanh(mean + log_std.exp() * drawn["policy here"])
    worth = torch.minimum(*(q(critic, s, action) for critic in own.critics))
    mine = [mean + log_std.exp() * drawn["before tanh"][:, i] for i in range(5)]
    with torch.no_grad():
        likely = [own.decoder(torch.cat([s, drawn["likely"][:, i].clamp(-0.5, 0.5)], -1)) for i in range(5)]
    own.climb(worth, kernels(torch.stack(mine), torch.stack(likely), 20.0))


def bear_discrete(own: Priced, rows: Any, drawn: dict[str, Tensor]) -> None:
    s, a, then = rows.s, rows.a.long(), rows.next
    own.learners["behaviour-model"].step(functional.cross_entropy(own.behaviour(s), a[:, 0]))
    with torch.no_grad():
        each = torch.stack([critic(then) for critic in own.slow])
        worth = (own.slow_policy(then).softmax(-1) * (0.75 * each.amin(0) + 0.25 * each.amax(0))).sum(-1)
        y = rows.r + GAMMA * rows.live * worth
        clone = own.behaviour(s).softmax(-1)
    said = (critic(s).gather(1, a)[:, 0] for critic in own.critics)
    own.learners["critic"].step(sum((functional.mse_loss(x, y) for x in said), torch.zeros(())))
    pi = own.policy(s).softmax(-1)
    worth = (pi * torch.minimum(*(critic(s) for critic in own.critics))).sum(-1)
    own.climb(worth, expected(pi, clone, 5) - expected(clone, clone, 5))


def expected(pi: Tensor, clone: Tensor, n: int, width: float = 1.0) -> Tensor:
    """The mean of MMD^2 over n samples of either, from how likely two of them are the same."""
    k = torch.tensor(-1 / width, dtype=pi.dtype).exp()
    within = [1 / n + (1 - 1 / n) * (same + (1 - same) * k) for same in (pi.square().sum(-1), clone.square().sum(-1))]
    across = (pi * clone).sum(-1)
    return within[0] + within[1] - 2 * (across + (1 - across) * k)


def normal(*shape: int) -> Any:
    return lambda g, times: torch.randn(times, *shape, generator=g)


DRAWN = {
    "vae": normal(BATCH, LATENTS), "policy next 10 times": normal(BATCH, 10, 1), "policy here": normal(BATCH, 1),
    "before tanh": normal(BATCH, 5, 1), "likely": normal(BATCH, 5, LATENTS),
}  # fmt: skip


@pytest.mark.parametrize("update", [bear, bear_discrete])
def test_updates_are_those_of_the_paper(update: Callable[..., None], tolerance: float, tmp_path: Path) -> None:
    loop = loop_of(update.__name__.replace("_", "-"), tmp_path)
    owns = [Priced(tensors(loop), k) for k in (0, 1)]
    stretches = Stretches(loop.population, "learn")
    for n in range(UPDATES):
        draw = stretches.at(n)
        batch = loop.method.sampling.draw(loop.collector.store, draw)
        drawn = {k: draw(k, of) for k, of in DRAWN.items()}
        for k, own in enumerate(owns):
            rows = Rows(
                s=batch.observations[k], a=batch.actions[k], r=batch.rewards[k], next=batch.next_observations[k],
                live=(~batch.terminated[k]).to(batch.rewards.dtype),
            )  # fmt: skip
            update(own, rows, {name: x[k] for name, x in drawn.items()})
            follow([*own.slow, own.slow_policy], [*own.critics, own.policy])
    reported, found = loop.step().members, tensors(loop)
    for k, own in enumerate(owns):
        after = Priced(found, k)
        pairs = [*zip(after.critics, own.critics, strict=True), (after.policy, own.policy)]
        pairs += [(getattr(after, x), getattr(own, x)) for x in ("encoder", "decoder", "behaviour") if hasattr(own, x)]
        for one, other in pairs:
            torch.testing.assert_close(flat(one), flat(other), atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(after.log, own.log, atol=tolerance, rtol=tolerance)
        for name, part in own.learners.items():
            mean = sum(part.losses) / len(part.losses)
            assert reported[f"{name}_loss"][k] == pytest.approx(mean, abs=tolerance, rel=10 * tolerance)


# The distance


def drawing(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_samples_are_no_distance_apart_and_others_are() -> None:
    x = torch.randn(2, 7, 5, 3, generator=drawing(), dtype=torch.float64)
    torch.testing.assert_close(discrepancy(x, x, 20.0), torch.zeros(2, 7, dtype=torch.float64), atol=1e-12, rtol=0)
    order = torch.randperm(5, generator=drawing())
    again = discrepancy(x, x[:, :, order], 20.0)
    torch.testing.assert_close(again, torch.zeros_like(again), atol=1e-12, rtol=0)
    y = torch.randn(2, 7, 5, 3, generator=drawing(1), dtype=torch.float64)
    assert bool((discrepancy(x, y, 20.0) > 0).all())
    torch.testing.assert_close(discrepancy(x, y, 20.0), discrepancy(y, x, 20.0), atol=1e-12, rtol=0)
    far = discrepancy(x, y + 1e4, 20.0)  # nothing is alike across: what is alike within remains
    both = [kernels(z.movedim(2, 0), z.movedim(2, 0) + 1e4, 20.0) for z in (x, y)]
    torch.testing.assert_close(far, (both[0] + both[1]) / 2, atol=1e-12, rtol=0)


def test_few_samples_tell_what_is_done_and_hardly_how_often() -> None:
    """The paper's reason for few samples: a policy that does the likelier half is nearer than by many samples."""
    g, width = drawing(), 0.5
    one, other = torch.randn(2, 400, 100, 1, generator=g).sign()
    policy = torch.ones(400, 100, 1)

    def apart(n: int) -> float:
        """How much further the policy's samples are from the behaviour's than those from others of the behaviour."""
        own = discrepancy(one[:, :n], other[:, :n], width).mean()
        return (discrepancy(policy[:, :n], one[:, :n], width).mean() / own).item()

    assert apart(2) < 2 and apart(100) > 20


def test_of_choices_it_is_what_samples_are_on_average() -> None:
    pi, clone = (torch.randn(4, generator=drawing(s), dtype=torch.float64).softmax(-1) for s in (2, 3))
    g, n, width = drawing(4), 3, 0.7
    ones = torch.eye(4, dtype=torch.float64)

    def samples(chances: Tensor) -> Tensor:
        return ones[torch.multinomial(chances.expand(50_000, 4), n, replacement=True, generator=g)]

    drawn = [discrepancy(samples(p), samples(clone), width).mean() for p in (pi, clone)]
    assert expected(pi, clone, n, width).item() == pytest.approx(drawn[0].item(), abs=5e-3)
    read = Rows(
        policy=lambda: Rows(chances=pi[None, None]), beside=lambda name: lambda seen: clone[None, None].log(),
        seen=lambda at: None,
    )  # fmt: skip
    found = ExpectedSupport(count=n, width=width).squared(read).item()
    assert found == pytest.approx((drawn[0] - drawn[1]).item(), abs=8e-3)
    whole = ExpectedSupport(count=10**9, width=width).squared(read).item()
    k = torch.tensor(-1 / width, dtype=torch.float64).exp()
    assert whole == pytest.approx(((1 - k) * (pi - clone).square().sum()).item(), abs=1e-8)
    read.policy = lambda: Rows(chances=clone[None, None])
    for count in (1, 5, 1000):
        assert ExpectedSupport(count=count, width=width).squared(read).item() == pytest.approx(0.0, abs=1e-12)


def test_the_price_rises_beyond_the_limit_and_falls_within_it(tmp_path: Path) -> None:
    """And with a limit that nothing reaches it falls for ever, where only values are climbed."""
    for limit, sign in ((0.0, 1), (5.0, -1)):
        loop = loop_of("bear", tmp_path, **{"learners.support-price.limit": limit})
        before = tensors(loop)["support-price.numbers"]
        loop.step()
        moved = tensors(loop)["support-price.numbers"] - before
        assert bool((moved * sign > 0).all())
        assert "support-price_distance" in loop.step().members


def test_a_price_is_kept_within_bounds_and_can_come_back() -> None:
    part = SupportPrice()
    network: Any = part.build((3,), None, Rows(size=1))  # type: ignore[arg-type]
    for log, counts in ((12.0, 10.0), (-9.0, -5.0), (1.0, 1.0)):
        network.numbers.data.fill_(log)
        price = part.offers(network)["support_price"]
        torch.testing.assert_close(price, torch.tensor([counts]).exp())
        (slope,) = torch.autograd.grad(price.sum(), network.numbers)
        torch.testing.assert_close(slope[:, 0], torch.tensor([counts]).exp())


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("bear", ["learners.action-vae=none", "order=critic,policy,support-price"], "asks an autoencoder for likely"),
        ("bear", ["policy=squashed-mean-policy"], "asks what is tanh's argument"),
        ("bear", ["learners=action-vae", "order=action-vae,critic,policy"], "counts by a price that a learner offers"),
        ("bear", ["actor=maximize-q"], "is the price of a distance that no term of the policy has"),
        ("bear-discrete", ["critic.backup=best-drawn"], "draws numbers by chance, and SoftmaxPolicy does not"),
    ],
)
def test_what_cannot_be_composed_is_said(name: str, changes: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method(name), changes))
