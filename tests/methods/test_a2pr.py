"""A2PR: its mask, its guide and its autoencoder at their limits; one update is in `test_offline_updates.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member
from etude.core.registry import get_method
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.objectives.clone import AsRecorded, Clone, MeanAbs
from log_toys import logged_task, small_logged

torch.set_num_threads(1)


def loop_of(folder: Path, name: str = "a2pr", above: float = 0.0, **changes: Any) -> OffPolicyLoop:
    """Two members; `above` is added to what states are worth."""
    loop = OffPolicyLoop(small_logged(name).replace(**changes), logged_task(folder), [Member(3), Member(4)], 4, 4)
    if above:
        with torch.no_grad():
            loop.updater.networks["value"].head.bias.add_(above)  # type: ignore[union-attr,operator]
    return loop


def reading(loop: OffPolicyLoop, reader: str = "policy") -> StoredReading:
    draw, sampling, store = loop.updater.stretches.at(0), loop.method.sampling, loop.collector.store
    read = StoredReading(loop.updater, sampling, sampling.draw(store, draw), draw, store)
    read.reader = reader
    return read


def gradient(loop: OffPolicyLoop, loss: Tensor, of: str = "policy") -> Tensor:
    leaves = loop.updater.trainers[of].parameters.leaves
    found = torch.autograd.grad(loss.sum(), leaves, allow_unused=True, retain_graph=True)
    return torch.cat([torch.zeros_like(x).flatten() if g is None else g.flatten() for g, x in zip(found, leaves)])


def first_values(loop: OffPolicyLoop, read: StoredReading, actions: Tensor) -> Tensor:
    return read.values(read.outputs("here", actions, frozen=True, first=True))[:, 0].detach()


def test_where_nothing_is_better_than_usual_it_is_td3_in_units_of_its_values(tmp_path: Path) -> None:
    loop = loop_of(tmp_path, above=1e3)
    read = reading(loop)
    climb, clone = loop.method.actor
    assert torch.equal(clone(read), torch.zeros(2, 6))
    whole = gradient(loop, (climb(read) + clone(read)).mean(1))
    done = read.policy().actions
    values = read.values(read.outputs("here", done, frozen=True, first=True))[:, 0]
    alone = gradient(loop, -(2.5 / values.detach().abs().mean(1)) * values.mean(1))
    torch.testing.assert_close(whole, alone)
    assert alone.abs().max() > 0


def test_without_guide_and_mask_it_is_td3_bc(tmp_path: Path) -> None:
    """The guide is the recorded action and everything counts: the policy's loss and gradient are TD3+BC's."""
    loop, other = loop_of(tmp_path, above=-1e3), loop_of(tmp_path, "td3-bc")
    climb, clone = loop.method.actor
    assert isinstance(clone, Clone)
    plain = clone.replace(towards=AsRecorded())
    read, theirs = reading(loop), reading(other)
    assert torch.equal(clone.weight(read, read.batch.actions), torch.ones(2, 6))
    mine, wanted = climb(read) + plain(read), sum(term(theirs) for term in other.method.actor)
    assert isinstance(wanted, Tensor) and torch.equal(mine, wanted)
    assert torch.equal(gradient(loop, mine.mean(1)), gradient(other, wanted.mean(1)))


def test_bad_actions_are_not_learned_to_be_likely(tmp_path: Path) -> None:
    """Rows with Q_1(s, a) <= V(s) leave the divergence alone, exactly; the others do not."""
    loop = loop_of(tmp_path, above=0.74)
    part, read = loop.method.learners[0], reading(loop, "action-vae")
    usual, worth = read.worth("here").detach(), first_values(loop, read, read.batch.actions)
    good = worth > usual
    assert 0 < good.sum() < good.numel()
    network, actions = read.network, read.batch.actions
    mean, log_std = network.encode(read.seen("here"), actions)  # type: ignore[operator]
    noise = read.normal("vae", mean)
    back = network.decode(read.seen("here"), mean + log_std.exp() * noise)  # type: ignore[operator]
    kl = -0.5 * (1 + (log_std.exp() ** 2).log() - mean**2 - log_std.exp() ** 2)
    wanted = torch.stack([((back - actions) ** 2)[k][good[k]].sum() / (6 * 1) for k in range(2)])
    torch.testing.assert_close(part.loss(read), wanted + 0.5 * kl.mean((1, 2)))
    none = loop_of(tmp_path, above=1e3)
    alone = reading(none, "action-vae")
    mean, log_std = alone.network.encode(alone.seen("here"), actions)  # type: ignore[operator]
    kl = -0.5 * (1 + 2 * log_std - mean**2 - (2 * log_std).exp())
    own = gradient(none, part.loss(alone), "action-vae")
    torch.testing.assert_close(own, gradient(none, 0.5 * kl.mean((1, 2)), "action-vae"), rtol=1e-5, atol=1e-8)


def test_the_guide_is_the_better_of_two(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    clone: Any = loop.method.actor[1]
    read = reading(loop)
    guide, recorded = clone.towards(read), read.batch.actions
    vae, done = loop.updater.networks["action-vae"], read.policy().actions
    likely = vae(read.seen("here"), done, read.normal("guide", torch.empty(2, 6, 2)))
    mine, theirs = (first_values(loop, read, x) for x in (likely, recorded))
    better = mine >= theirs
    assert 0 < better.sum() < better.numel()
    assert torch.equal(guide, torch.where(better[..., None], likely, recorded))
    for detach, reaches in ((False, True), (True, False)):
        found = clone.towards.replace(detach=detach)(read)
        assert found.requires_grad is reaches
        if reaches:  # through the autoencoder, whose own weights have none
            assert gradient(loop, found.sum()).any() and not gradient(loop, found.sum(), "action-vae").any()


def test_values_are_towards_the_smaller_of_slow_copies_and_critics(tmp_path: Path) -> None:
    loop = loop_of(tmp_path)
    loop.step()  # so that they differ
    read, batch = reading(loop, "value"), reading(loop).batch
    noise = (0.2 * read.normal("smoothing", batch.actions)).clamp(-0.5, 0.5)
    actor = loop.updater.trainers["policy"].target
    assert actor is not None and batch.discounts is not None
    then = (torch.tanh(actor(read.seen("next"))) + noise).clamp(-1, 1)
    both = [read.outputs("next", then, copy=c).squeeze(-1).amin(1) for c in (True, False)]
    assert (both[0] > both[1]).any() or (both[0] < both[1]).any()
    target = batch.rewards + 0.99 * (~batch.terminated).float() * torch.minimum(*both)
    value: Any = loop.method.value
    wanted = (read.state_outputs("here")[:, 0, :, 0] - target).square().mean(1)
    torch.testing.assert_close(value.loss(read), wanted)
    assert MeanAbs() == loop.method.actor[0].scale  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            ["learners=none", 'order=["critic","value","policy"]'],
            "AugmentedGuide asks an autoencoder .*learners=action-vae",
        ),
        (["value=none", 'order=["critic","action-vae","policy"]'], "OfState asks what states are worth"),
        (["value.noise.scale=0.1"], "CautiousValue asks about other actions than the critic's backup"),
    ],
)
def test_what_it_needs_is_said(changes: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(get_method("a2pr"), changes))
