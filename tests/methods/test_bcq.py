"""BCQ: an update against torch's own layers, and what it does at its limits."""

from __future__ import annotations

from pathlib import Path
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
from etude.experience.stretches import Stretches
from etude.learners.best_of import MostlyMin
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.offline.bcq import Perturbing
from log_toys import logged_task, small_logged
from own_updates import Own, flat, follow, net, q

GAMMA, UPDATES, BATCH, LATENTS = 0.99, 3, 6, 2
torch.set_num_threads(1)


def loop_of(folder: Path, block: int = UPDATES, **changes: Any) -> OffPolicyLoop:
    method = set_values(small_logged("bcq"), {k.replace("__", "."): v for k, v in changes.items()})
    return OffPolicyLoop(method, logged_task(folder), [Member(3), Member(4)], 2, block)


def tensors(loop: OffPolicyLoop) -> dict[str, Tensor]:
    """As they would be called if the policy did not hold what it acts by."""
    return {name.replace("policy.held.", ""): v.clone() for name, v in loop.policy_tensors().items()}


def decoded(own: Own, s: Tensor, z: Tensor) -> Tensor:
    return torch.tanh(own.decoder(torch.cat([s, z.clamp(-0.5, 0.5)], -1)))


def moved(policy: Any, s: Tensor, a: Tensor) -> Tensor:
    return (a + 0.05 * torch.tanh(policy(torch.cat([s, a], -1)))).clamp(-1, 1)


def step(own: Own, rows: dict[str, Tensor], drawn: dict[str, Tensor]) -> None:
    s, a, then = rows["s"], rows["a"], rows["next"]
    mean, log_std = own.encoder(torch.cat([s, a], -1)).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-4, 15).exp())
    divergence = torch.distributions.kl_divergence(normal, torch.distributions.Normal(torch.zeros(()), torch.ones(())))
    back = torch.tanh(own.decoder(torch.cat([s, mean + normal.stddev * drawn["vae"]], -1)))
    own.learners["action-vae"].step(functional.mse_loss(back, a) + 0.5 * divergence.mean())
    with torch.no_grad():
        worth = []
        for i in range(10):
            action = moved(own.slow_policy, then, decoded(own, then, drawn["candidates next"][:, i]))
            one, other = (q(critic, then, action) for critic in own.slow)
            worth.append(0.75 * torch.minimum(one, other) + 0.25 * torch.maximum(one, other))
        y = rows["r"] + GAMMA * rows["live"] * torch.stack(worth).amax(0)
    own.learners["critic"].step(sum((functional.mse_loss(q(c, s, a), y) for c in own.critics), torch.zeros(())))
    with torch.no_grad():
        proposal = decoded(own, s, drawn["candidates here"][:, 0])
    own.learners["policy"].step(-q(own.critics[0], s, moved(own.policy, s, proposal)).mean())
    follow([*own.slow, own.slow_policy], [*own.critics, own.policy])


def normal(*shape: int) -> Any:
    return lambda g, times: torch.randn(times, *shape, generator=g)


DRAWN = {
    "vae": normal(BATCH, LATENTS), "candidates next": normal(BATCH, 10, LATENTS),
    "candidates here": normal(BATCH, 1, LATENTS),
}  # fmt: skip


def test_updates_are_those_of_the_paper(tolerance: float, tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    owns = [Own(tensors(loop), k, lr=1e-3, policy_lr=1e-3) for k in (0, 1)]
    stretches = Stretches(loop.population, "learn")
    for n in range(UPDATES):
        draw = stretches.at(n)
        batch, drawn = (
            loop.method.sampling.draw(loop.collector.store, draw),
            {k: draw(k, of) for k, of in DRAWN.items()},
        )
        for k, own in enumerate(owns):
            rows = {
                "s": batch.observations[k], "a": batch.actions[k], "r": batch.rewards[k],
                "next": batch.next_observations[k], "live": (~batch.terminated[k]).to(batch.rewards.dtype),
            }  # fmt: skip
            step(own, rows, {name: x[k] for name, x in drawn.items()})
    reported, found = loop.step().members, tensors(loop)
    for k, own in enumerate(owns):
        for i, mine in enumerate(own.critics):
            torch.testing.assert_close(
                flat(net(found, "critic", 2 * k + i)), flat(mine), atol=tolerance, rtol=tolerance
            )
        torch.testing.assert_close(flat(net(found, "policy", k)), flat(own.policy), atol=tolerance, rtol=tolerance)
        after = Own(found, k)
        for one, other in ((after.encoder, own.encoder), (after.decoder, own.decoder)):
            torch.testing.assert_close(flat(one), flat(other), atol=tolerance, rtol=tolerance)
        for name, part in own.learners.items():
            mean = sum(part.losses) / len(part.losses)
            assert reported[f"{name}_loss"][k] == pytest.approx(mean, abs=tolerance, rel=10 * tolerance)


def test_it_does_what_the_first_critic_chooses_of_its_candidates(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, policy__candidates=7)
    actor, found = loop.actor, tensors(loop)
    assert isinstance(actor, Perturbing) and actor.latents.shape == (2, 7, LATENTS)
    assert float(actor.latents.abs().max()) == 0.5 and not torch.equal(*actor.latents)
    seen = torch.randn(2, 5, 3)
    with torch.no_grad():
        done = actor(actor.see(seen))
        for k in (0, 1):
            own = Own(found, k)
            for row in range(5):
                s = seen[k, row].expand(7, -1)
                actions = moved(own.policy, s, decoded(own, s, actor.latents[k]))
                best = actions[q(own.critics[0], s, actions).argmax()]
                torch.testing.assert_close(done[k, row], best)
    outside = actor.distribution.mode(done)
    torch.testing.assert_close(outside, 2 * done)  # torques up to 2


def test_no_action_is_further_from_a_proposal_than_its_reach(tmp_path: Path) -> None:
    """And with a reach of nearly nothing, it is the proposal: imitation of what is likely."""
    loop = loop_of(tmp_path, policy__reach=0.05)
    actor: Any = loop.actor
    s, a = 10 * torch.randn(2, 50, 3), torch.rand(2, 50, 1) * 2 - 1
    with torch.no_grad():
        there = actor.perturb(s, a)
        actor.reach = 1e-9
        assert torch.allclose(actor.perturb(s, a), a)
    assert float((there - a).abs().max()) <= 0.05 + 1e-6 and float(there.abs().max()) <= 1.0


def test_a_share_of_1_is_the_smaller_critic() -> None:
    values = torch.randn(2, 2, 6, 10, 1)
    assert torch.equal(MostlyMin(share=1.0)(values, None), values.amin(1))  # type: ignore[arg-type]
    assert torch.equal(MostlyMin(share=0.0)(values, None), values.amax(1))  # type: ignore[arg-type]


def test_a_checkpoint_has_all_that_it_acts_by(tmp_path: Path) -> None:
    loop, method = loop_of(tmp_path, policy__candidates=7), set_values(small_logged("bcq"), {"policy.candidates": 7})
    loop.step()
    (tmp_path / "saved").mkdir()
    loop.save(tmp_path / "saved")
    again = restore_policies(tmp_path / "saved", method, loop.task, [Member(3), Member(4)])
    seen = torch.randn(2, 5, 3)
    with torch.no_grad():
        done = loop.actor(loop.actor.see(seen))
        assert torch.equal(again.actor(again.actor.see(seen)), done)
        for k in (0, 1):
            torch.testing.assert_close(plain_policy(again, k)(seen[k]), 2 * done[k])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["learners=none", "order=critic,policy"], "moves what an autoencoder proposes, and there is none"),
        (["actor=maximize-q"], "has no action without a proposal"),
        (["policy.learning.target=none"], "is asked by its slow copy: set policy.learning.target"),
        (["policy=deterministic-policy"], "asks about proposed actions, which nobody moves"),
    ],
)
def test_what_cannot_be_composed_is_said(changes: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method("bcq"), changes))
