"""Policies that remember: the recurrence, its resets, its states in rollouts and checkpoints, what it is good for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.errors import ConfigError, InvariantError
from etude.core.method import Method
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.learners.state import StateValue
from etude.loops.control_update import Minibatch
from etude.loops.on_policy import OnPolicyLoop, credited
from etude.policies.control.actor import Player
from etude.policies.control.memory import GRU, LSTM, Gated, Past
from etude.policies.control.networks import MLP
from etude.policies.control.observations import NormalizeObservations
from etude.rewards.running import NormalizeRewards
from etude.tasks.control._batched import ArrayEnvironment
from etude.tasks.control.cartpole import cartpole
from etude.tasks.control.pendulum import pendulum
from solo_runs import assert_members_are_alone

torch.set_num_threads(1)
PEOPLE = Population([Member(seed) for seed in range(3)])
LENGTH = 5


class CueArrays(ArrayEnvironment):
    """A cue, shown at the first step only, must be given back at the last. States [M, E, 2]: cue and time.

    Observations [M, E, 3]: the cue (-1 or 1; 0 later), whether this is the last step, 1.
    """

    draws, limit = 1, 100
    observation_space, action_space = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)

    def start(self, uniform: np.ndarray) -> np.ndarray:
        return np.concatenate([np.where(uniform < 0.5, -1.0, 1.0), np.zeros_like(uniform)], -1)

    def advance(self, states: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        last = states[..., 1] == LENGTH - 1
        right = (actions[..., 0] > 0.5) == (states[..., 0] > 0)
        return states + np.array([0.0, 1.0]), (last & right).astype(float), last

    def observe(self, states: np.ndarray) -> np.ndarray:
        cue, time = states[..., 0], states[..., 1]
        return np.stack([cue * (time == 0), time == LENGTH - 1, np.ones_like(cue)], -1).astype(np.float32)


class Cue(ControlTask):
    id: ClassVar[str] = "cue"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return CueArrays(seeds, count, purpose)


def method(
    memory: GRU | LSTM | None, environments: int = 4, steps: int = 16, minibatches: int = 2, epochs: int = 3
) -> Method:
    found: Any = get_method("ppo", "control")
    return found.replace(
        policy=found.policy.replace(
            network=MLP(hidden=(16,)), memory=memory, observations=(NormalizeObservations(),) if memory else ()
        ),
        critic=StateValue(network=MLP(hidden=(16,)), shared=memory is not None),
        experience=found.experience.replace(environments=environments, steps=steps),
        minibatches=minibatches,
        epochs=epochs,
    )


def past(members: int, steps: int, sequences: int, size: int, seed: int = 0, chance: float = 0.3) -> Past:
    generator = torch.Generator().manual_seed(seed)
    begins = torch.rand(members, steps, sequences, generator=generator) < chance
    return Past(torch.randn(members, sequences, size, generator=generator), begins)


def gated(width: int = 6, inputs: int = 4) -> Gated:
    module, size = GRU(width=width).build(inputs, PEOPLE, "x")
    assert size == width and isinstance(module, Gated)
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return module


# The recurrence


@pytest.mark.parametrize("member", range(3))
def test_it_is_torchs_gru(member: int) -> None:
    module, torch_gru = gated(), nn.GRU(4, 6)
    torch_gru.weight_ih_l0.data, torch_gru.bias_ih_l0.data = (
        x.detach().clone() for x in (module.input.weight[member].T, module.input.bias[member, 0])
    )
    torch_gru.weight_hh_l0.data, torch_gru.bias_hh_l0.data = (
        x.detach().clone() for x in (module.weight[member].T, module.bias[member, 0])
    )
    before, x = past(3, 7, 5, 6, chance=0.0), torch.randn(3, 35, 4, generator=torch.Generator().manual_seed(1))
    said, states = module(x, before)
    exact, last = torch_gru(x[member].view(7, 5, 4), before.memory[member][None])
    torch.testing.assert_close(said[member].view(7, 5, 6), exact, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(states[member, -5:], last[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("member", range(3))
def test_the_other_is_torchs_lstm(member: int) -> None:
    """On the same weights, with h and c side by side in what is remembered; an episode that begins starts from 0."""
    module, size = LSTM(width=6).build(4, PEOPLE, "x")
    generator, torch_lstm = torch.Generator().manual_seed(3), nn.LSTM(4, 6)
    for parameter in module.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    for name, weight, bias in (("ih", module.input.weight, module.input.bias), ("hh", module.weight, module.bias)):
        getattr(torch_lstm, f"weight_{name}_l0").data = weight[member].detach().T.clone()
        getattr(torch_lstm, f"bias_{name}_l0").data = bias[member, 0].detach().clone()
    before, x = past(3, 7, 5, 12, chance=0.0), torch.randn(3, 35, 4, generator=generator)
    said, states = module(x, before)
    h, c = (z.contiguous()[None] for z in before.memory[member].chunk(2, -1))
    exact, (last_h, last_c) = torch_lstm(x[member].view(7, 5, 4), (h, c))
    assert size == 6 and module.size == 12
    torch.testing.assert_close(said[member].view(7, 5, 6), exact, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(states[member, -5:], torch.cat([last_h[0], last_c[0]], -1), atol=1e-6, rtol=1e-5)
    before.begins[:, 4] = True
    fresh, _ = torch_lstm(x[member].view(7, 5, 4)[4:])
    torch.testing.assert_close(module(x, before)[0][member].view(7, 5, 6)[4:], fresh, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_members_with_an_lstm_are_as_they_would_be_alone() -> None:
    assert_members_are_alone(method(LSTM(width=8)), Cue(), [Member(s) for s in range(3)], (1, 3))


def test_an_episode_remembers_nothing_of_the_one_before() -> None:
    """After a reset in the middle, everything is as from a fresh start; gradients stop there too."""
    module, x = gated(), torch.randn(3, 12, 4, generator=torch.Generator().manual_seed(1))
    x.requires_grad_()
    before = past(3, 6, 2, 6, chance=0.0)
    before.begins[:, 3, 0] = True
    said = module(x, before)[0].view(3, 6, 2, 6)
    fresh = Past(torch.zeros(3, 1, 6), torch.zeros(3, 3, 1, dtype=torch.bool))
    later = module(x.view(3, 6, 2, 4)[:, 3:, 0], fresh)[0]
    torch.testing.assert_close(said[:, 3:, 0], later, atol=1e-6, rtol=1e-6)
    (gradient,) = torch.autograd.grad(said[:, 5].sum(), x)
    gradient = gradient.view(3, 6, 2, 4).abs().sum(-1)
    assert bool((gradient[:, :3, 0] == 0).all()) and bool((gradient[:, :3, 1] > 0).all())


def test_one_step_at_a_time_is_the_whole_sequence() -> None:
    module, x = gated(), torch.randn(3, 15, 4, generator=torch.Generator().manual_seed(1))
    before = past(3, 5, 3, 6)
    whole = module(x, before)[0].view(3, 5, 3, 6)
    memory = before.memory
    for t in range(5):
        said, memory = module(x.view(3, 5, 3, 4)[:, t], Past(memory, before.begins[:, t : t + 1]))
        torch.testing.assert_close(said, whole[:, t], atol=1e-6, rtol=1e-6)


def test_weights_start_orthogonal_gate_by_gate() -> None:
    module, _ = GRU(width=6).build(4, PEOPLE, "x")
    eye = torch.eye(6).expand(3, -1, -1)
    for gate in module.weight.detach().split(6, 2):
        torch.testing.assert_close(gate @ gate.transpose(1, 2), eye, atol=1e-5, rtol=0)


def test_a_policy_with_a_memory_acts_through_a_player() -> None:
    loop = OnPolicyLoop(method(GRU(width=8)), cartpole, [Member(0), Member(1)], 2)
    seen = torch.randn(2, 3, 4)
    with pytest.raises(ValueError, match="act through a Player"):
        loop.actor(seen)
    player = Player(loop.actor, 2, 3)
    with torch.no_grad():
        first, second = player.act(seen), player.act(seen)
        player.ended(torch.tensor([[True, False, False]] * 2))
        third = player.act(seen)
    assert not torch.equal(first, second)
    torch.testing.assert_close(third[:, 0], first[:, 0])
    assert not torch.allclose(third[:, 1], first[:, 1])


# In a run


@pytest.mark.slow
@pytest.mark.parametrize("task", (cartpole, pendulum), ids=("cartpole", "pendulum"))
def test_fresh_log_probabilities_are_those_that_acted(task: ControlTask) -> None:
    """In the third rollout: sequences begin in the middle of episodes, with what was remembered."""
    loop = OnPolicyLoop(method(GRU(width=8)), task, [Member(0), Member(1)], 4)
    loop.step(), loop.step()
    batch = loop.collector.collect(2, loop.critic)
    batch.advantages = torch.zeros_like(batch.rewards)
    assert bool((batch.memory[:, 0].abs().amax(-1) > 0).any())
    for piece in loop.updater._pieces(batch.flat(), 2, 0):
        out = Minibatch(loop.updater, piece, fresh=True, reports=False).evaluate()
        torch.testing.assert_close(out.logp.detach(), piece.behaviour_logp, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(out.values.detach(), piece.values, atol=2e-6, rtol=1e-5)


def test_minibatches_are_whole_sequences() -> None:
    loop = OnPolicyLoop(
        method(GRU(width=8), environments=5, steps=7, minibatches=2), cartpole, [Member(0), Member(1)], 2
    )
    batch = loop.collector.collect(0, loop.critic)
    where = torch.arange(7)[:, None] * 10 + torch.arange(5)  # step and environment
    batch = batch.replace(rewards=where.expand(2, -1, -1).float(), advantages=batch.rewards)
    pieces = list(loop.updater._pieces(batch.flat(), 0, 0))
    assert [p.rewards.shape[1] for p in pieces] == [14, 21]
    seen = []
    for piece in pieces:
        steps, environments = piece.rewards.unflatten(1, (7, -1)) // 10, piece.rewards.unflatten(1, (7, -1)) % 10
        assert torch.equal(steps, torch.arange(7.0)[None, :, None].expand_as(steps))
        assert torch.equal(environments, environments[:, :1].expand_as(environments))
        seen.append(environments[:, 0])
    assert torch.equal(torch.cat(seen, 1).sort(1).values, torch.arange(5.0).expand(2, -1))


def test_memories_that_do_not_belong_to_the_rollout_are_noticed() -> None:
    loop = OnPolicyLoop(method(GRU(width=8)), cartpole, [Member(0), Member(1)], 4)
    loop.parameters.values[:, loop.parameters.slices["policy.head.weight"]] *= 100  # so that memories say something
    batch = loop.collector.collect(0, loop.critic)
    batch = loop.collector.collect(1, loop.critic)
    batch = credited(loop.method, batch)
    batch.memory = torch.zeros_like(batch.memory)
    with pytest.raises(InvariantError, match="between acting and learning"):
        loop.updater.run(batch.flat(), 1, 1.0)


@pytest.mark.slow
def test_values_after_a_cut_remember_the_episode() -> None:
    """V(s') of truncated steps, of the rollout's end and inside, against the sequence played again by hand."""
    loop = OnPolicyLoop(method(GRU(width=8), environments=2, steps=230), pendulum, [Member(0), Member(1)], 2)
    watched: list[Any] = []
    step = loop.environment.step

    def watch(actions: np.ndarray) -> Any:
        watched.append(step(actions))
        return watched[-1]

    loop.environment.step = watch  # type: ignore[method-assign]
    batch = loop.collector.collect(0, loop.critic)
    (ends,) = np.nonzero(batch.truncated[0, :, 0].numpy())
    assert ends.tolist() == [199]
    player, exact = Player(loop.actor, 2, 2), torch.empty_like(batch.values)

    def value(features: Tensor) -> Tensor:
        return loop.critic(features)

    with torch.no_grad():
        for t, found in enumerate(watched):
            now = value(player.features(loop.actor.see(batch.observations[:, t])))
            torch.testing.assert_close(batch.values[:, t], now, atol=1e-5, rtol=1e-5)
            after = Player(loop.actor, 2, 2)
            after.memory, after.begins = player.memory, torch.zeros_like(player.begins)
            last = found.observations if found.final is None else found.final.reshape(2, 2, -1)
            exact[:, t] = value(after.features(loop.actor.see(torch.from_numpy(last))))
            player.ended(torch.from_numpy(found.terminated | found.truncated))
    torch.testing.assert_close(batch.next_values, exact, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.kernels
@pytest.mark.parametrize("task", (cartpole, pendulum), ids=("cartpole", "pendulum"))
def test_members_with_a_memory_equal_their_own_runs(task: ControlTask) -> None:
    remembers: Any = method(GRU(width=7), environments=5, steps=9)
    assert_members_are_alone(
        remembers.replace(rewards=(NormalizeRewards(),)), task, [Member(seed) for seed in range(5)], (3, 5), steps=3
    )


@pytest.mark.slow
def test_a_resumed_run_remembers(tmp_path: Path) -> None:
    """Saved in the middle of episodes; the fresh loop goes on with the same numbers."""
    remembers = method(GRU(width=8))
    whole, fresh = (OnPolicyLoop(remembers, pendulum, [Member(0), Member(1)], 4) for _ in range(2))
    whole.step()
    whole.save(tmp_path)
    assert bool((whole.collector.player.memory != 0).any())
    fresh.load(tmp_path)
    for _ in range(3):
        one, other = whole.step(), fresh.step()
        assert one.members == other.members
    assert torch.equal(whole.parameters.values, fresh.parameters.values)


def test_what_does_not_fit_a_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="4 environments cannot be divided into 8 minibatches"):
        method(GRU(), minibatches=8).check()
    apart: Any = method(GRU())
    with pytest.raises(ConfigError, match=r"set critic\.shared=true"):
        apart.replace(critic=StateValue()).check()
    method(GRU()).check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "steps", "low", "high"), ((GRU(width=16), 40, 0.9, 1.0), (None, 15, 0.3, 0.7)), ids=("gru", "mlp")
)
def test_a_cue_is_given_back_by_who_remembers_it(memory: GRU | None, steps: int, low: float, high: float) -> None:
    """The best that a policy without a memory can do is to guess: 0.5."""
    learner: Any = method(memory, environments=16, steps=20, minibatches=2, epochs=6)
    learner = learner.replace(
        policy=learner.policy.replace(observations=()),
        optimizer=learner.optimizer.replace(lr=5e-3),
        regularizers=(),
        advantages=learner.advantages.replace(gamma=1.0, lam=0.95),
    )
    loop = OnPolicyLoop(learner, Cue(), [Member(0), Member(1)], steps)
    for _ in range(steps):
        found = loop.step()
    returns = found.members["return"]
    assert all(low <= r <= high for r in returns), returns
