"""H2O: an update anew with torch's own layers, what its discriminators say of dynamics, and what is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
from etude.loops.replay_reading import StoredReading
from etude.methods.offline.h2o import Discriminators, shares
from log_toys import logged_task, small_onward
from own_updates import Learner, Own, flat, follow, net, q

torch.set_num_threads(1)
NAME, SEEDS, GAMMA, BATCH = "dynamics-discriminators", (3, 4), 0.99, 6
BODIES = [(f"{x}.layers.0", f"{x}.layers.1", f"{x}_head") for x in ("pair", "step")]


def loop_of(folder: Path, changes: Any = ()) -> OffPolicyLoop:
    often = {"experience.warmup": 0, "policy.learning.every": 1, "learners.temperature.learning.every": 1}
    method = set_values(small_onward("h2o"), {**often, **dict(changes)})
    return OffPolicyLoop(method, logged_task(folder), [Member(s) for s in SEEDS], 4, 3)


def reading(loop: OffPolicyLoop) -> StoredReading:
    for _ in range(9):
        loop.collector.step()
    draw, sampling, store = loop.updater.stretches.at(0), loop.method.sampling, loop.collector.store
    read = StoredReading(loop.updater, sampling, sampling.draw(store, draw), draw, store)  # type: ignore[arg-type]
    read.reader = "critic"
    return read


def squashed(said: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = said.chunk(2, -1)
    base = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    u = mean + base.stddev * noise
    return torch.tanh(u), (base.log_prob(u) - 2 * (math.log(2) - u - functional.softplus(-2 * u))).sum(-1)


class Both:
    """A member's two discriminators."""

    def __init__(self, tensors: dict[str, Tensor], k: int) -> None:
        self.pair, self.step = (net(tensors, NAME, k, keys) for keys in BODIES)
        self.learner = Learner(3e-4, self.pair, self.step)

    def chances(self, s: Tensor, a: Tensor, then: Tensor) -> tuple[Tensor, Tensor]:
        """p(.|s, a) and p(.|s, a, s'), [N, 2]."""
        pair = 2 * torch.tanh(self.pair(torch.cat([s, a], -1)))
        step = 2 * torch.tanh(self.step(torch.cat([s, a, then], -1)))
        return pair.softmax(-1), (step + pair).softmax(-1)

    def ratio(self, s: Tensor, a: Tensor, then: Tensor) -> Tensor:
        with torch.no_grad():
            of_pair, of_step = self.chances(s, a, then)
        return of_step[:, 0] / of_step[:, 1] * of_pair[:, 1] / of_pair[:, 0]


def update(own: Own, both: Both, rows: dict[str, Tensor], drawn: dict[str, Tensor], deviation: Tensor) -> None:
    """The first three rows are the simulator's, the others real."""
    s, a, then, sim, real = rows["s"], rows["a"], rows["next"], slice(0, 3), slice(3, 6)
    noisy = [x + 0.1 * drawn[f"discriminator {k}"] for k, x in (("here", s), ("done", a), ("next", then))]
    loss = torch.zeros(())
    for found in both.chances(*noisy):
        loss = loss - found[real, 0].log().mean() - found[sim, 1].log().mean()
    both.learner.step(loss)
    with torch.no_grad():
        following, _ = squashed(own.policy(then), drawn["policy next"])
        worth = torch.minimum(*(q(critic, then, following) for critic in own.slow))
        y = rows["r"] + GAMMA * rows["live"] * worth
        trust = both.ratio(s, a, then)[sim].clamp(1e-5, 1.0)
        u = torch.stack([
            -both.ratio(s, a, then + deviation * drawn["near"].view(BATCH, 10, -1)[:, j]).log()[sim] for j in range(10)
        ]).mean(0).clamp(1e-45, 10)  # fmt: skip
    losses = torch.zeros(())
    for critic in own.critics:
        values = q(critic, s, a)
        square = (values - y).square()
        low = (u / u.sum() * values[sim].exp()).sum().log()
        losses = losses + square[real].mean() + (trust * square[sim]).mean() + 0.01 * (low - values[real].mean())
    action, logp = squashed(own.policy(s), drawn["policy here"])
    climbed = torch.minimum(*(q(critic, s, action) for critic in own.critics))
    policy = (own.log_alpha.detach().exp() * logp - climbed).mean()
    warm = -(own.log_alpha * (logp.detach() - 1.0).mean())
    own.learners["policy"].step(policy)
    own.learners["critic"].step(losses)
    own.learners["temperature"].step(warm)
    follow(own.slow, own.critics)


def normal(*shape: int) -> Any:
    return lambda g, times: torch.randn(times, *shape, generator=g)


DRAWN = {
    "policy here": normal(BATCH, 1), "policy next": normal(BATCH, 1), "discriminator here": normal(BATCH, 3),
    "discriminator done": normal(BATCH, 1), "discriminator next": normal(BATCH, 3), "near": normal(10 * BATCH, 3),
}  # fmt: skip


@pytest.mark.slow
def test_updates_are_those_of_the_paper(tolerance: float, tmp_path: Path) -> None:
    loop, noted = loop_of(tmp_path), list[Any]()
    with torch.no_grad():
        loop.updater.networks[NAME].step_head.bias[..., 1] += 0.3  # type: ignore[union-attr,index,operator]  # gaps above 0
    start = {n: v.clone() for n, v in loop.policy_tensors().items()}
    owns = [Own(start, k, 2) for k in (0, 1)]
    boths = [Both(start, k) for k in (0, 1)]
    stretches, run = Stretches(loop.population, "learn"), loop.updater.run

    def seen(store: Any, rates: Any) -> Any:
        draw = stretches.at(loop.updater.updates)
        noted.append((loop.method.sampling.draw(store, draw), {k: draw(k, of) for k, of in DRAWN.items()}))
        return run(store, rates)

    loop.updater.run = seen  # type: ignore[method-assign]
    loop.step()
    assert len(noted) == 6
    told = logged_task(tmp_path).logs().observations.astype(np.float64)
    deviation = torch.from_numpy(told.std(0)).to(torch.get_default_dtype())
    for batch, drawn in noted:
        assert batch.offers["logged"].tolist() == [[0, 0, 0, 1, 1, 1]] * 2
        for k, own in enumerate(owns):
            rows = {
                "s": batch.observations[k], "a": batch.actions[k], "r": batch.rewards[k],
                "next": batch.next_observations[k], "live": (~batch.terminated[k]).to(batch.rewards.dtype),
            }  # fmt: skip
            update(own, boths[k], rows, {n: v[k] for n, v in drawn.items()}, deviation)
    found = loop.policy_tensors()
    for k, own in enumerate(owns):
        nets: list[tuple[nn.Module, nn.Module]] = [(net(found, "policy", k), own.policy)]
        nets += [(net(found, "critic", 2 * k + i), mine) for i, mine in enumerate(own.critics)]
        nets += [
            (net(found, NAME, k, keys), mine) for keys, mine in zip(BODIES, (boths[k].pair, boths[k].step), strict=True)
        ]
        for theirs, mine in nets:
            torch.testing.assert_close(flat(theirs), flat(mine), atol=tolerance, rtol=tolerance)
        assert abs(found["temperature.numbers"][k, 0].item() - own.log_alpha.item()) < tolerance


class Table(nn.Module):
    """Two logits l of whole numbers, as what a tanh makes 2 l of."""

    def __init__(self, odds: np.ndarray, columns: list[int]) -> None:
        super().__init__()
        self.odds, self.columns = torch.from_numpy(odds), columns

    def forward(self, x: Tensor) -> Tensor:
        half = self.odds[tuple(x[..., c].long() for c in self.columns)] / 2
        return torch.atanh(torch.stack([half, -half], -1) / 2)


def test_perfect_discriminators_say_the_ratio_of_the_dynamics() -> None:
    """Tables, by Bayes' rule: P / P^ whatever the classes' shares, and how often each pair was met."""
    rng = np.random.default_rng(0)
    true, wrong = rng.dirichlet(np.full(4, 9.0), 6), rng.dirichlet(np.full(4, 9.0), 6)
    at, led = (torch.from_numpy(x.ravel()[None, :, None].astype(float)) for x in np.indices((6, 4)))
    for share in (0.5, 0.7):
        met, met_wrong = (k * rng.dirichlet(np.full(6, 9.0)) for k in (share, 1 - share))
        real = (met[:, None] * true) / (met[:, None] * true + met_wrong[:, None] * wrong)
        pair, step = np.log(met / met_wrong), np.log(real / (1 - real))
        both = Discriminators(Table(pair, [0]), nn.Identity(), Table(step - pair[:, None], [0, 2]), nn.Identity())
        said = both(at, 0 * at, led)
        np.testing.assert_allclose((said.pair + said.step).softmax(-1)[0, :, 0].view(6, 4), real, rtol=1e-9)
        found = both.log_ratio(at, 0 * at, led).exp()[0].view(6, 4)
        np.testing.assert_allclose(found, true / wrong, rtol=1e-9)


@pytest.mark.slow
def test_where_the_simulator_is_right_it_is_a_critic_of_both(tmp_path: Path) -> None:
    """w = 1, omega = 1 / n, and the penalty is the log of a mean over the simulator's rows, less the logs' mean."""
    loop = loop_of(tmp_path)
    with torch.no_grad():
        for parameter in loop.updater.networks[NAME].step_head.parameters():  # type: ignore[union-attr,operator]
            parameter.zero_()
    read, critic = reading(loop), loop.method.critic
    torch.testing.assert_close(critic.importance(read), torch.full((2, 6), 2.0))  # type: ignore[union-attr,operator]
    outputs = read.outputs("here", read.batch.actions)
    found = critic.penalties[0](read, outputs)  # type: ignore[union-attr,index]
    values = outputs[..., 0]
    wanted = (values[..., :3].exp().mean(-1).log() - values[..., 3:].mean(-1)).sum(1)
    torch.testing.assert_close(found, 0.01 * wanted[:, None].expand(-1, 6))
    assert read.noted["trust"].tolist() == [1.0, 1.0] and read.noted["gap"].abs().max() == 0


def test_shares_do_not_rest_on_the_unit_of_the_gap() -> None:
    gaps, logged = torch.rand(2, 8, dtype=torch.float64) + 0.1, (torch.arange(8) % 2).double().expand(2, -1)
    found = shares(gaps, logged).exp()
    torch.testing.assert_close(found.sum(1), torch.ones(2).double())
    torch.testing.assert_close(shares(7 * gaps, logged).exp(), found)
    assert not found[:, 1::2].any()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["sampling=uniform-rows"], "compares rows of logs with others, and a batch may have none: set sampling=sym"),
        (["learners=temperature", "order=critic,policy,temperature"], "asks how far the dynamics are off, and nobody"),
    ],
)
def test_what_it_asks_for_is_said(changes: Sequence[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method("h2o"), changes))
