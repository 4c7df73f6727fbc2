"""What stands before policy and critic: they read what it makes, and so does who acts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from etude.core.encoder_slots import ReplayEncoder
from etude.core.errors import ConfigError
from etude.core.learners import Learning, Target
from etude.core.population import Member, Population
from etude.core.replay_slots import ReplayReading
from etude.evaluation.acting import TrainedPolicy
from etude.evaluation.restored import restore_policies
from etude.loops.off_policy import OffPolicyLoop
from etude.optimizers.adam import Adam
from etude.policies.control.networks import Linear
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, fill, small

torch.set_num_threads(1)
MEMBERS = [Member(3), Member(4)]


class Mixing(nn.Module):
    """Features are a linear layer of what is seen; with an action they are put side by side."""

    def __init__(self, inputs: int, size: int, population: Population, identity: bool) -> None:
        super().__init__()
        self.width, self.joined = inputs, inputs + size
        self.layer = Linear(population, "mixing", inputs, inputs)
        if identity:
            self.layer.weight.data = torch.eye(inputs).repeat(population.size, 1, 1)

    def forward(self, seen: Tensor) -> Tensor:
        found: Tensor = self.layer(seen)
        return found

    def join(self, features: Tensor, actions: Tensor) -> Tensor:
        return torch.cat([features, actions], -1)


class ToyEncoder(ReplayEncoder):
    """Learns that its features are small."""

    name = "encoder"
    identity: bool = False
    learning: Learning = Learning(Adam(lr=0.05), target=Target(every=3))

    def about_target(self) -> str | None:
        return None

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        return Mixing(shape[0], actions.shape[0], population, self.identity)

    def loss(self, read: ReplayReading) -> Tensor:
        said: Tensor = read.network(read.seen("here"))
        return said.square().mean((1, 2))


class SecondEncoder(ToyEncoder):
    name = "second"


def encoded(encoder: ToyEncoder, name: str = "td3", order: Any = ("encoder", "critic", "policy")) -> Any:
    return small(REPLAY[name]).replace(learners=(encoder,), order=order)


def loop_of(method: Any, task: Any = pendulum) -> OffPolicyLoop:
    loop = OffPolicyLoop(method, task, MEMBERS, 2, 40)
    fill(loop.collector.store)
    return loop


def update(loop: OffPolicyLoop, times: int) -> OffPolicyLoop:
    for _ in range(times):
        loop.updater.run(loop.collector.store, loop.updater.rates(0, 1))
    return loop


RESTS = Learning(Adam(lr=0.05), warmup=100)


def test_behind_an_encoder_that_changes_nothing_all_learn_as_without() -> None:
    plain = update(loop_of(small(REPLAY["td3"])), 4)
    behind = update(loop_of(encoded(ToyEncoder(identity=True, learning=RESTS))), 4).policy_tensors()
    for key, value in plain.policy_tensors().items():
        assert torch.equal(value, behind[key]), key


def test_policy_and_critic_leave_the_encoder_alone() -> None:
    loop = loop_of(encoded(ToyEncoder(learning=RESTS)))
    before = {k: v.clone() for k, v in loop.policy_tensors().items()}
    after = update(loop, 4).policy_tensors()
    still = {k for k, v in after.items() if torch.equal(v, before[k])}
    assert still == {"policy.encoder.layer.weight", "policy.encoder.layer.bias"}
    assert "encoder" not in str(dict(loop.updater.trainers["policy"].network.named_parameters()).keys())


def test_features_are_computed_once_until_the_encoder_has_stepped() -> None:
    """An update of the policy too: features here, and those of the slow copy of what follows."""
    loop = update(loop_of(encoded(ToyEncoder())), 2)
    assert loop.updater.passes == {"critic": 5, "policy": 3, "encoder": 4}
    late = update(loop_of(encoded(ToyEncoder(), order=("critic", "encoder", "policy"))), 2)
    assert late.updater.passes == {"critic": 5, "policy": 3, "encoder": 5}  # those here are others for the policy


def test_slow_copies_read_the_slow_copy_of_the_encoder() -> None:
    loop = update(loop_of(encoded(ToyEncoder())), 1)
    trainers, store = loop.updater.trainers, loop.collector.store
    seen: dict[str, Tensor] = {}

    def spied(name: str, module: Any, x: Tensor, forward: Any) -> Tensor:
        seen[name] = x.detach().clone()
        found: Tensor = forward(x)
        return found

    for name, module in (("now", trainers["policy"].network), ("slow", trainers["policy"].target)):
        body: Any = module.body  # type: ignore[union-attr]
        body.forward = lambda x, n=name, b=body, f=body.forward: spied(n, b, x, f)
    update(loop, 1)
    batch = loop.method.sampling.draw(store, loop.updater.stretches.at(1))
    slow, now = trainers["encoder"].target, trainers["encoder"].network
    assert slow is not None and batch.next_observations is not None
    assert torch.allclose(seen["slow"], slow(batch.next_observations))  # it follows after the third update only
    assert torch.allclose(seen["now"], now(batch.observations))
    assert not torch.allclose(seen["slow"], now(batch.next_observations), atol=1e-3)


@pytest.mark.slow
def test_who_acts_has_the_encoder_in_checkpoints_and_exports_too(tmp_path: Path) -> None:
    loop = OffPolicyLoop(encoded(ToyEncoder()), pendulum, MEMBERS, 2, 40)
    loop.step()
    loop.save(tmp_path)
    restored = restore_policies(tmp_path, encoded(ToyEncoder()), pendulum, MEMBERS)
    shown = torch.randn(2, 5, 3)
    by_hand = loop.actor.head(loop.actor.body(loop.updater.networks["encoder"](shown)))
    assert torch.equal(loop.actor(loop.actor.see(shown)), by_hand)
    assert torch.equal(restored.actor(restored.actor.see(shown)), by_hand)
    one = TrainedPolicy(restored, 1)(shown[1, 0].numpy())
    assert one == pytest.approx(2 * torch.tanh(by_hand[1, 0]).detach().numpy(), abs=1e-6)


@pytest.mark.slow
def test_a_run_behind_an_encoder_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    loop, again = (OffPolicyLoop(encoded(ToyEncoder()), pendulum, MEMBERS, 2, 40) for _ in range(2))
    loop.step()
    loop.save(tmp_path)
    again.load(tmp_path)
    assert loop.step().members == again.step().members


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (
            lambda: encoded(ToyEncoder()).replace(learners=(ToyEncoder(), SecondEncoder())),
            "encoder and second are enco",
        ),
        (lambda: encoded(ToyEncoder(), "dqn", ("encoder", "critic")), "reads what is seen, and encoder stands before"),
    ],
)
def test_what_an_encoder_cannot_stand_before_is_refused(method: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        method().check()


class ForChoices(ToyEncoder):
    name = "encoder"

    def build(self, shape: tuple[int, ...], actions: Any, population: Population) -> nn.Module:
        return Mixing(shape[0], 1, population, self.identity)


def test_values_of_all_choices_are_refused_behind_an_encoder() -> None:
    method = encoded(ForChoices(), "sac-discrete").replace(learners=(*REPLAY["sac-discrete"].learners, ForChoices()))
    loop = loop_of(method.replace(order=("encoder", "critic", "policy", "temperature")), cartpole)
    with pytest.raises(
        ConfigError, match="values of all choices are asked for, and this critic says that of one action"
    ):
        update(loop, 1)
