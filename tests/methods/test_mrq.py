"""MR.Q: what its features, its scale and its choices must fulfil."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.population import Member, Population
from etude.evaluation.acting import TrainedPolicy
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.value.mrq.encoder import Encoder
from etude.policies.control.networks import MLP
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, fill, small, sooner
from solo_runs import alike

torch.set_num_threads(1)
MRQ: Any = small(REPLAY["mrq"])
MEMBERS = [Member(3), Member(4)]


def updated(method: Any, updates: int, factor: float = 1.0, ends: bool = True) -> OffPolicyLoop:
    loop = OffPolicyLoop(method, pendulum, MEMBERS, 1)
    store = loop.collector.store
    fill(store)
    store.grid[..., -3] *= factor
    if not ends:
        store.grid[..., -2] = 1.0
    for _ in range(updates):
        loop.updater.run(store, loop.updater.rates(0, 1))
    return loop


def test_unrolling_a_linear_model_is_least_squares_temporal_difference_learning() -> None:
    """W = Z^+ Z', w = Z^+ r: the sum of gamma^t w z_t along the model is (Z^T (Z - gamma Z'))^-1 Z^T r at z."""
    g, size, gamma = torch.Generator().manual_seed(0), 4, 0.9
    z = torch.randn(50, size, generator=g, dtype=torch.float64)
    mixing = torch.linalg.qr(torch.randn(size, size, generator=g, dtype=torch.float64)).Q
    led = 0.8 * z @ mixing + 0.1 * torch.randn(50, size, generator=g, dtype=torch.float64)
    rewards = torch.randn(50, generator=g, dtype=torch.float64)
    step, reward = torch.linalg.lstsq(z, led).solution, torch.linalg.lstsq(z, rewards[:, None]).solution[:, 0]
    solved = torch.linalg.solve(z.T @ (z - gamma * led), z.T @ rewards)

    linear = MLP(hidden=())
    part = Encoder(states=linear, pairs=linear, actions=1, joined=size)
    network = part.build((size,), spaces.Box(-1.0, 1.0, (1,)), Population([Member(0)])).double().requires_grad_(False)
    network.last.weight.copy_(torch.eye(size + 1, size)[None])  # of features and an action the features
    network.model.weight[0, :, 1 : 1 + size] = step
    now, value = network(z[None]), torch.zeros(50, dtype=torch.float64)
    for t in range(400):
        value += gamma**t * now[0] @ reward
        _, now, _ = network.tell(now, torch.zeros(1, 50, 1, dtype=torch.float64))
    assert torch.allclose(value, z @ solved, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_the_size_of_rewards_changes_nothing_that_values_learn() -> None:
    """With the encoder at rest, and after the second renewal: until then c or c' is 1."""
    rests = {"learners.encoder.learning.warmup": 99, "critic.learning.warmup": 2, "policy.learning.warmup": 2}
    method = set_values(sooner(MRQ, every=1), rests)
    one, other = (updated(method, 5, factor) for factor in (1.0, 700.0))
    for name in ("critic", "policy"):
        a, b = (loop.updater.trainers[name].parameters for loop in (one, other))
        assert torch.allclose(a.gradient, b.gradient, rtol=1e-4, atol=1e-7) and float(a.gradient.abs().max()) > 1e-4
        assert torch.allclose(a.values, b.values, atol=1e-5)
    scales = [loop.method.critic.backup.state["now"] for loop in (one, other)]  # type: ignore[attr-defined]
    assert torch.allclose(700 * scales[0], scales[1])
    early = [updated(set_values(method, {"critic.learning.warmup": 0}), 1, f) for f in (1.0, 700.0)]
    a, b = (loop.updater.trainers["critic"].parameters.gradient for loop in early)
    assert not torch.allclose(a, b, rtol=1e-2)


@pytest.mark.slow
def test_ends_are_learned_once_one_is_stored() -> None:
    for ends in (False, True):
        network: Any = updated(MRQ, 3, ends=ends).updater.networks["encoder"]
        before = network.model.bias[..., 0].clone()
        network = updated(MRQ, 4, ends=ends).updater.networks["encoder"]
        assert torch.equal(network.model.bias[..., 0], before) is not ends
        assert not torch.equal(network.model.bias[..., 1], torch.zeros(2, 1))


@pytest.mark.slow
def test_choices_are_one_hot_in_the_store_and_numbers_outside() -> None:
    loop = OffPolicyLoop(MRQ, cartpole, MEMBERS, 3, 30)
    acted: list[Any] = []
    step = loop.environment.step
    loop.environment.step = lambda actions: (acted.append(actions.copy()), step(actions))[1]  # type: ignore[method-assign]
    loop.step()
    stored = loop.collector.store.read(torch.arange(30).expand(2, -1)).actions
    assert stored.shape == (2, 30, 2) and torch.equal(stored.sum(-1), torch.ones(2, 30))
    taken = torch.stack([torch.from_numpy(x) for x in acted], 1)[..., 0, 0]
    assert torch.equal(stored.argmax(-1).to(taken.dtype), taken) and 0 < float(taken.mean()) < 1
    alone = OffPolicyLoop(MRQ, cartpole, MEMBERS[1:], 3, 30)
    alone.step()
    assert alike(alone.policy_tensors()["policy.head.weight"][0], loop.policy_tensors()["policy.head.weight"][1])
    shown = torch.randn(5, 4)
    logits = loop.actor(loop.actor.see(shown.expand(2, -1, -1)))
    policy = TrainedPolicy(loop, 1)
    assert [int(policy(x.numpy())) for x in shown] == logits[1].argmax(-1).tolist()


@pytest.mark.parametrize(
    ("shape", "actions", "sentence"),
    [
        ((3, 8, 8), spaces.Discrete(2), r"Encoder reads vectors, and observations are images \[3, 8, 8\]"),
        (
            (3,),
            spaces.MultiDiscrete([2, 2]),
            "RelaxedPolicy acts in a Box of floats, and the actions are MultiDiscrete",
        ),
    ],
)
def test_what_the_encoder_cannot_read_is_refused(shape: Any, actions: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Encoder().build(shape, actions, Population([Member(0)]))


def test_an_encoder_without_a_slow_copy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"reads a slow copy of its network: set learning\.target"):
        set_values(MRQ, {"learners.encoder.learning.target": "none"}).check()
