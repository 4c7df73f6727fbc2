"""An encoder that the critic's loss trains and that the policy reads: gradients, numbers, and tasks learned with it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import etude
from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.learners import Learning, Target
from etude.core.population import Member
from etude.experience.augment import RandomShift
from etude.experience.sampling import OneStep, UniformRows
from etude.experience.spaces import observation_shape
from etude.experience.stretches import Stretches
from etude.learners.encoder import CriticEncoder
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.replay_reading import StoredReading
from etude.optimizers.adam import Adam
from etude.policies.control.inputs import suited
from etude.policies.control.networks import MLP
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from spot_toys import TINY, SpotTask, encoded, seeing

torch.set_num_threads(1)
GAMMA = 0.99
TD3, SAC = ("td3", "policy"), ("sac", ("policy", "temperature"))


def loop_of(method: Any, boxes: bool = True) -> OffPolicyLoop:
    """Before any update, with a store that is filled by acting."""
    loop = OffPolicyLoop(method, SpotTask(boxes=boxes), [Member(3), Member(4)], 1)
    for _ in range(30):
        loop.collector.step()
    return loop


def update(loop: OffPolicyLoop, times: int = 1) -> None:
    for _ in range(times):
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))


def read_of(loop: OffPolicyLoop) -> StoredReading:
    method, draw = loop.method, Stretches(loop.population, "learn").at(0)
    read = StoredReading(loop.updater, method.sampling, method.sampling.draw(loop.collector.store, draw), draw)
    read.reader = "policy"
    return read


@pytest.mark.parametrize("which", [TD3, SAC], ids=["td3", "sac"])
def test_the_critics_gradient_reaches_it_and_the_policys_does_not(which: Any) -> None:
    loop = loop_of(encoded(*which))
    leaves = list(loop.updater.networks["critic-encoder"].parameters())
    read = read_of(loop)
    found = torch.autograd.grad(loop.method.critic.loss(read).sum(), leaves)
    assert all(bool((g.flatten(1).abs().sum(1) > 0).all()) for g in found)
    for before in (read, read_of(loop)):  # where the critic has read the same rows before, and where nobody has
        loss: Any = sum(term(before) for term in loop.method.actor)
        assert torch.autograd.grad(loss.sum(), leaves, allow_unused=True, retain_graph=True) == (None,) * len(leaves)
        assert any(
            bool((g != 0).any())
            for g in torch.autograd.grad(loss.sum(), loop.updater.trainers["policy"].parameters.leaves)
        )


def test_both_step_from_one_loss_that_is_computed_once() -> None:
    """What is seen here with gradient, what follows, and, for the policy, here again once it has stepped."""
    loop = loop_of(encoded(*SAC))
    update(loop, 3)
    assert loop.updater.passes == {"encoder": 9, "critic": 9, "policy": 6}
    reports = loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    losses = {name: report["loss"] for name, report in reports}
    assert torch.equal(losses["critic"], losses["critic-encoder"])


# Numbers


class Layers(nn.Module):
    """A member's convolution and linear layers, or a perceptron's, taken from the rows [P M, ...] of a loop."""

    def __init__(self, tensors: dict[str, Tensor], start: str, row: int, names: list[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for name in names:
            weight, bias = tensors[f"{start}.{name}.weight"][row], tensors[f"{start}.{name}.bias"][row]
            layer: Any = (
                nn.Conv2d(*weight.shape[1::-1], weight.shape[-1], 2) if weight.dim() == 4 else nn.Linear(*weight.shape)
            )
            layer.weight.data = weight.clone() if weight.dim() == 4 else weight.T.clone()
            layer.bias.data = bias.reshape(-1).clone()
            self.layers.append(layer)

    def forward(self, *inputs: Tensor) -> Tensor:
        x = torch.cat(inputs, -1)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i < len(self.layers) - 1 or isinstance(self.layers[0], nn.Conv2d):
                x = functional.relu(x)
            if isinstance(layer, nn.Conv2d):
                x = x.flatten(1)
        return x


class Own:
    """One member, by torch's own layers and optimizers."""

    def __init__(self, tensors: dict[str, Tensor], k: int) -> None:
        hidden = ["body.layers.0", "body.layers.1", "head"]
        self.encoder = Layers(tensors, "policy.encoder.body", k, ["layers.0", "after.layers.0"])
        self.critics = [Layers(tensors, "critic", 2 * k + i, hidden) for i in range(2)]
        self.policy = Layers(tensors, "policy", k, hidden)

    def nets(self) -> dict[str, list[Layers]]:
        return {"encoder": [self.encoder], "critics": self.critics, "policy": [self.policy]}


def squashed(said: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    normal = torch.distributions.Normal(said[:, :1], said[:, 1:].clamp(-20, 2).exp())
    u = normal.mean + normal.stddev * noise
    return torch.tanh(u), (normal.log_prob(u) - torch.log(1 - torch.tanh(u) ** 2)).sum(-1)


def step(optimizers: list[Any], loss: Tensor) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()


@pytest.mark.first
@pytest.mark.parametrize("slow", [False, True], ids=["itself", "copy"])
@pytest.mark.parametrize("which", [TD3, SAC], ids=["td3", "sac"])
def test_updates_are_those_of_torchs_own_layers(which: Any, slow: bool) -> None:
    """Two updates on moved images; the policy of td3 learns in the second only, after the encoder has stepped."""
    target = {"learning": Learning(Adam(lr=3e-4), target=Target(rate=0.5))} if slow else {}
    method = encoded(*which, **target).replace(sampling=UniformRows(batch=6, augment=RandomShift(1)))
    loop = loop_of(method)
    td3, before = which is TD3, {k: v.clone() for k, v in loop.policy_tensors().items()}
    members, stretches = [Own(before, k) for k in range(2)], Stretches(loop.population, "learn")
    slows = [copy.deepcopy(own) for own in members]
    adams = [
        [torch.optim.Adam(net.parameters(), 3e-4) for nets in own.nets().values() for net in nets] for own in members
    ]
    for number in (1, 2):
        draw = stretches.at(number - 1)
        batch = method.sampling.draw(loop.collector.store, draw)
        noise = {
            name: draw(name, lambda g, n: torch.randn(n, 6, 1, generator=g)).clone()
            for name in ("smoothing", "policy here", "policy next")
        }
        for k, (own, old, (encoding, *critics, policy)) in enumerate(zip(members, slows, adams, strict=True)):
            seen, led = batch.observations[k] / 255, batch.next_observations[k] / 255
            with torch.no_grad():
                after = (old if slow else own).encoder(led)
                if td3:
                    jitter = (0.2 * noise["smoothing"][k]).clamp(-0.5, 0.5)
                    a, extra = (torch.tanh(old.policy(after)) + jitter).clamp(-1, 1), 0.0
                else:
                    a, logp = squashed(own.policy(own.encoder(led)), noise["policy next"][k])
                    extra = -heat(loop)[k] * logp
                worst = torch.minimum(*(q(after, a)[:, 0] for q in old.critics))
                y = batch.rewards[k] + GAMMA * (~batch.terminated[k]) * (worst + extra)
            z = own.encoder(seen)
            step([encoding, *critics], sum((q(z, batch.actions[k])[:, 0] - y).square().mean() for q in own.critics))
            with torch.no_grad():
                z = own.encoder(seen)
            if td3 and number == 2:
                step([policy], -own.critics[0](z, torch.tanh(own.policy(z))).mean())
            elif not td3:
                a, logp = squashed(own.policy(z), noise["policy here"][k])
                worst = torch.minimum(*(q(z, a)[:, 0] for q in own.critics))
                step([policy], (heat(loop)[k] * logp - worst).mean())
            follow(old, own, 0.005, 0.5, number if td3 else 2)
        update(loop)
    found = loop.policy_tensors()
    for k, own in enumerate(members):
        start = Own(before, k).nets()
        for name, nets in Own(found, k).nets().items():
            for net, mine, was in zip(nets, own.nets()[name], start[name], strict=True):
                for p, q, r in zip(net.parameters(), mine.parameters(), was.parameters(), strict=True):
                    assert float((p - q).detach().abs().max()) < 1e-5 and not torch.equal(p, r), name


def heat(loop: OffPolicyLoop) -> Tensor:
    part = loop.updater.offering["temperature"]
    return loop.updater.offers(part, "temperature")["temperature"].detach()


def follow(old: Own, own: Own, rate: float, encoder: float, number: int) -> None:
    """Slow copies; of td3 those of the others move in every second update, the encoder's in all of them."""
    with torch.no_grad():
        for name, nets in own.nets().items():
            tau = encoder if name == "encoder" else rate * (number == 2)
            for net, copied in zip(nets, old.nets()[name], strict=True):
                for p, q in zip(net.parameters(), copied.parameters(), strict=True):
                    q.lerp_(p, tau)


# What it stands before


def test_choices_are_said_of_features_alone() -> None:
    method = encoded("sac-discrete", "policy", "temperature")
    loop = loop_of(method, boxes=False)
    before = {k: v.clone() for k, v in loop.policy_tensors().items()}
    update(loop)
    encoder = {
        k for k, v in loop.policy_tensors().items() if k.startswith("policy.encoder") and not torch.equal(v, before[k])
    }
    assert len(encoder) == 4


def test_only_the_encoder_is_made_to_see_what_the_task_shows() -> None:
    shape = observation_shape(SpotTask(boxes=True).make([0], 1).observation_space)
    method = encoded(*SAC)
    assert suited(method, shape) == method
    plain: Any = suited(method.replace(learners=method.learners[:1], order=SAC[1:]), shape)
    assert plain.policy.network.name == plain.critic.network.name == "multi-input"


def test_it_stands_before_vectors_too() -> None:
    method = encoded(*TD3)
    method = method.replace(learners=(CriticEncoder(network=method.critic.network),))
    loop = OffPolicyLoop(method, pendulum, [Member(3)], 1, 20)
    loop.step()
    assert loop.updater.updates > 2


def test_what_reads_rows_of_its_own_is_refused() -> None:
    method = encoded(*TD3)
    with pytest.raises(ConfigError, match=r"CriticEncoder learns by the critic's loss on the rows of the method"):
        method.replace(critic=method.critic.replace(sampling=OneStep())).check()
    with pytest.raises(ConfigError, match=r"order leaves out critic-encoder, which would never learn"):
        method.replace(order=("critic", "policy")).check()


def test_images_beside_actions_are_refused_with_what_to_set() -> None:
    plain = encoded(*TD3).replace(learners=(), order=("critic", "policy"))
    with pytest.raises(ConfigError, match=r"observations are images \[1, 6, 6\]: use a cnn"):
        loop_of(plain)
    with pytest.raises(
        ConfigError, match=r"images \[1, 6, 6\]: let an encoder make vectors of them \(learners=critic-e"
    ):
        loop_of(plain.replace(policy=plain.policy.replace(network=TINY)))


# From the first step to the last


@pytest.mark.slow
def test_choices_are_learned_from_images(tmp_path: Path) -> None:
    """An episode has five steps in the mean, each of which pays 1 for the right side: by chance 2.5 in all."""
    method = set_values(seeing(2, capacity=400, random=100, warmup=100, every=1), {"optimizer.lr": 0.01})
    method = method.replace(sampling=UniformRows(batch=32, horizon=OneStep(gamma=0.0), augment=RandomShift(1)))
    assert trained(method, SpotTask(), tmp_path) > 3.8


@pytest.mark.slow
def test_numbers_are_learned_from_images(tmp_path: Path) -> None:
    network = MLP(hidden=(16,), activation="relu")
    found = encoded(*SAC)
    method = found.replace(
        sampling=UniformRows(batch=32, horizon=OneStep(gamma=0.0), augment=RandomShift(1)),
        experience=found.experience.replace(capacity=400, random=100, warmup=100, every=1),
        policy=found.policy.replace(network=network),
        critic=found.critic.replace(network=network),
    )
    method = set_values(method, {"optimizer.lr": 0.01, "learners.temperature.start": 0.05})
    assert trained(method, SpotTask(boxes=True), tmp_path) > 3.6


def trained(method: Any, task: Any, folder: Path) -> float:
    """What a run of two members comes to; its checkpoint is read again."""
    done = etude.train(method, task, steps=250, seeds=2, evaluate=10, out=folder / "run", quiet=True)
    assert done.evaluation["before"]["test"]["return"]["value"] < 3.3
    found = etude.evaluate(done.folder, episodes=10)["test"]["return"].value
    assert found == pytest.approx(done.evaluation["after"]["test"]["return"]["value"], abs=1.0)
    return float(found)


def test_who_sees_vectors_is_told_that_it_has_no_convolution() -> None:
    with pytest.raises(ConfigError, match=r"CNN reads images \[C, H, W\], and observations are \[4\]"):
        OffPolicyLoop(seeing(), cartpole, [Member(3)], 1)
