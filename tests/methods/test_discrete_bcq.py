"""Discrete BCQ: an update against torch's own layers, and what it is at the ends of its threshold."""

from __future__ import annotations

from pathlib import Path
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
from etude.experience.stretches import Stretches
from etude.experiments.poles import CHANCES, poles
from etude.learners.heads import Scalar
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.offline.discrete_bcq import LikelyChoices
from log_toys import logged_task, small_logged
from own_updates import flat, net

GAMMA, UPDATES = 0.99, 3
torch.set_num_threads(1)


def loop_of(folder: Path, **changes: Any) -> OffPolicyLoop:
    told = {"critic.learning.target.every": 2, **{k.replace("__", "."): v for k, v in changes.items()}}
    method = set_values(small_logged("discrete-bcq"), told)
    return OffPolicyLoop(method, logged_task(folder, boxes=False), [Member(3), Member(4)], 2, UPDATES)


def network_of(loop: OffPolicyLoop, k: int) -> Any:
    return net({n.replace("policy.body", "critic"): v for n, v in loop.policy_tensors().items()}, "critic", k)


def test_updates_are_those_of_the_paper(tolerance: float, tmp_path: Path) -> None:
    """One member after another; what the network says is [Q, i] of each of two choices."""
    loop = loop_of(tmp_path)
    stretches = Stretches(loop.population, "learn")
    batches = [loop.method.sampling.draw(loop.collector.store, stretches.at(n)) for n in range(UPDATES)]
    owns = [(network_of(loop, k), network_of(loop, k)) for k in (0, 1)]
    loop.step()
    for k, (own, slow) in enumerate(owns):
        adam = torch.optim.Adam(own.parameters(), 2.3e-3)
        for n, batch in enumerate(batches, 1):
            s, done, then = batch.observations[k], batch.actions[k].long()[:, 0], batch.next_observations[k]
            with torch.no_grad():
                q, i = own(then).view(-1, 2, 2).unbind(-1)
                chances = i.softmax(-1)
                likely = chances / chances.amax(-1, keepdim=True) > 0.3
                best = torch.where(likely, q, torch.full_like(q, -1e30)).argmax(-1, keepdim=True)
                worth = slow(then).view(-1, 2, 2)[..., 0].gather(1, best)[:, 0]
                y = batch.rewards[k] + GAMMA * (~batch.terminated[k]) * worth
            q, i = own(s).view(-1, 2, 2).unbind(-1)
            loss = functional.smooth_l1_loss(q.gather(1, done[:, None])[:, 0], y)
            loss = loss + functional.cross_entropy(i, done) + 0.01 * i.square().mean()
            adam.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(own.parameters(), 10.0)
            adam.step()
            if n == 2:
                slow.load_state_dict(own.state_dict())
        torch.testing.assert_close(flat(network_of(loop, k)), flat(own), atol=tolerance, rtol=tolerance)


def outputs() -> Tensor:
    """Values and logits of five choices at twenty rows."""
    return torch.randn(2, 1, 20, 5, 2, generator=torch.Generator().manual_seed(0)) * 3


def test_a_threshold_of_0_is_double_dqn_and_next_to_1_is_cloning() -> None:
    said = outputs()
    q, i = said.unbind(-1)
    assert torch.equal(LikelyChoices(threshold=0.0).mean(said), Scalar().mean(q[..., None]))
    far = said.clone()
    far[..., 0, 1] = 500.0  # the others' ratios are 0 in float32
    assert bool(LikelyChoices(threshold=0.0).mean(far).isfinite().all())
    assert torch.equal(LikelyChoices(threshold=0.999999).mean(said).argmax(-1), i.argmax(-1))


def test_the_choice_is_the_best_of_the_likely_ones(tmp_path: Path) -> None:
    said, logits = outputs(), outputs()[..., 1]
    values = LikelyChoices(threshold=0.3).mean(said)
    ratio = logits.softmax(-1) / logits.softmax(-1).amax(-1, keepdim=True)
    assert torch.equal(values.isfinite(), ratio > 0.3)
    assert 0.2 < float(values.isfinite().float().mean()) < 0.8
    shifted = torch.stack([said[..., 0], logits + 7.0], -1)  # by a constant: the same ones
    assert torch.equal(LikelyChoices(threshold=0.3).mean(shifted).isfinite(), values.isfinite())
    loop = loop_of(tmp_path)
    seen = torch.randn(2, 6, 4)
    spoken = loop.updater.networks["critic"](loop.actor.see(seen))
    with torch.no_grad():
        acted = loop.actor.distribution.mode(loop.actor(loop.actor.see(seen)))[..., 0]
    assert torch.equal(acted, loop.method.critic.head.mean(spoken)[:, 0].argmax(-1).to(acted.dtype))  # type: ignore[union-attr]


@pytest.mark.slow
def test_without_a_threshold_its_values_are_double_dqns(tmp_path: Path) -> None:
    """The same target and the same error: what either moves of the values is the other's, step by step."""
    one = loop_of(tmp_path, critic__penalties="none", critic__head__threshold=0.0, optimizer__lr=1e-3)
    base: Any = get_method("double-dqn")
    small = small_logged("discrete-bcq")
    critic = base.critic.replace(network=small.critic.network, learning=one.method.critic.learning)  # type: ignore[union-attr]
    method = small.replace(critic=critic)
    other = OffPolicyLoop(method, one.task, [Member(3), Member(4)], 2, UPDATES)
    with torch.no_grad():
        for name, mine in other.updater.networks["critic"].named_parameters():
            theirs = dict(one.updater.networks["critic"].named_parameters())[name]
            mine.copy_(theirs[..., ::2] if name.startswith("head") else theirs)
        for loop in (one, other):
            loop.updater.trainers["critic"].slow.values.copy_(loop.updater.trainers["critic"].parameters.values)
    one.step(), other.step()
    for name, mine in other.updater.networks["critic"].named_parameters():
        theirs = dict(one.updater.networks["critic"].named_parameters())[name]
        torch.testing.assert_close(mine, theirs[..., ::2] if name.startswith("head") else theirs, atol=1e-6, rtol=0)


def test_what_is_learned_of_likelihood_needs_a_head_for_it() -> None:
    with pytest.raises(ConfigError, match=r"the critic does not say it: set critic\.head=likely-choices"):
        check(set_values(get_method("discrete-bcq"), ["critic.head=scalar", "critic.error=huber"]))
    with pytest.raises(ConfigError, match="threshold must be a number"):
        LikelyChoices(threshold=1.0)


def test_the_logs_of_its_claim_are_whole_episodes() -> None:
    logs = poles(3, episodes=10)
    ends = np.flatnonzero(logs["terminals"] | logs["timeouts"])
    starts = np.concatenate([[0], ends[:-1] + 1])
    assert len(ends) == 10 and ends[-1] == len(logs["rewards"]) - 1
    for first, last in zip(starts, ends, strict=True):
        assert np.array_equal(logs["next_observations"][first:last], logs["observations"][first + 1 : last + 1])
    lengths, disturbed = ends - starts + 1, np.resize(np.asarray(CHANCES), 10) > 0.1
    assert lengths[~disturbed].mean() > lengths[disturbed].mean()  # and yet the cart leaves the track
    assert logs["terminals"].sum() == 10
