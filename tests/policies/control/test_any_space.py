"""What learns from a replay and needs no more than a log-probability acts in every space that ppo acts in."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.loops.off_policy import OffPolicyLoop
from etude.methods.value.stream_ac import stream_ac
from etude.policies.control.any_units import EndlessBox, any_space
from etude.policies.control.distributions import distribution
from etude.policies.control.replay import StochasticPolicy
from etude.tasks.control.environment import EnvironmentTask
from replay_toys import small
from solo_runs import alike

torch.set_num_threads(1)
BOX = spaces.Box(-2.0, 4.0, (2,))
SPACES: dict[str, Any] = {
    "one choice": spaces.Discrete(3),
    "choices": spaces.MultiDiscrete([3, 2]),
    "switches": spaces.MultiBinary(3),
    "numbers": BOX,
    "endless": spaces.Box(np.array([-1.0, -np.inf], np.float32), np.array([3.0, np.inf], np.float32)),
    "named": spaces.Dict({"move": BOX, "pick": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2)))}),
    "named choices": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiDiscrete([2, 3])}),
}
each_space = pytest.mark.parametrize("name", SPACES)


class Doing(gym.Env[Any, Any]):
    """Asserts that actions are in its space; the reward is larger for larger numbers."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, name: str) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,))
        self.action_space, self.elapsed = SPACES[name], 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.elapsed = 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.elapsed += 1
        worth = float(np.sum(np.asarray(spaces.flatten(self.action_space, action))))
        return self._see(), math.tanh(worth), self.elapsed >= 7, False, {}

    def _see(self) -> Any:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


def task_of(name: str) -> Any:
    return EnvironmentTask(f"{__file__}:Doing", arguments={"name": name})


def loop_of(name: str, seeds: tuple[int, ...] = (3, 4), **changes: Any) -> OffPolicyLoop:
    method = set_values(small(stream_ac), changes)
    return OffPolicyLoop(method, task_of(name), [Member(s) for s in seeds], 2, 20)


def parameters_of(name: str, rows: int) -> tuple[Any, Tensor]:
    spread = any_space(SPACES[name], "me")
    return spread, torch.randn(2, rows, spread.parameters, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@each_space
def test_a_policy_that_says_how_likely_it_is_learns_in_it(name: str) -> None:
    """Every action is in the space, says `Doing`; what is stored are units; weights move and stay finite."""
    loop = loop_of(name)
    before = {k: v.clone() for k, v in loop.policy_tensors().items()}
    for _ in range(2):
        loop.step()
    after = loop.policy_tensors()
    assert all(bool(v.isfinite().all()) for v in after.values())
    assert not torch.equal(after["policy.head.weight"], before["policy.head.weight"])
    spread: Any = loop.actor.distribution
    ppos = distribution(SPACES[name])
    assert spread.actions == ppos.actions == loop.collector.store.widths[1]
    seen = torch.from_numpy(loop.environment.reset())
    done = spread.mode(loop.actor(loop.actor.see(seen)))
    loop.environment.step(done.detach().numpy())


@pytest.mark.slow
@each_space
def test_a_member_learns_what_it_does_alone(name: str) -> None:
    loop = loop_of(name)
    loop.step()
    for k, seed in enumerate((3, 4)):
        alone = loop_of(name, (seed,))
        alone.step()
        for key, value in alone.policy_tensors().items():
            own = loop.policy_tensors()[key]
            assert alike(own.unflatten(0, (2, -1))[k] if own.dim() else own, value), f"{key} of member {k}"


@each_space
def test_densities_are_those_of_the_parts(name: str) -> None:
    """By torch's own distributions, leaf by leaf, of what was drawn; entropies too."""
    spread, said = parameters_of(name, 50)
    choice = spread.chosen(said, spread.noise((2, 50), torch.Generator().manual_seed(2)))
    logp, entropy = torch.zeros(2, 50), torch.zeros(2, 50)
    done = list(choice.actions.unbind(-1))
    rest = said

    def take(count: int) -> Tensor:
        nonlocal rest
        taken, rest = rest[..., :count], rest[..., count:]
        return taken

    def walk(space: Any) -> None:
        size: Any = getattr(space, "n", 0)
        if isinstance(space, spaces.Dict | spaces.Tuple):
            for one in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
                walk(one)
            return
        each: list[tuple[Any, Tensor]]
        if isinstance(space, spaces.Box):
            mean, scale = take(2), torch.nn.functional.softplus(take(2))
            each = [(torch.distributions.Normal(mean[..., i], scale[..., i]), done.pop(0)) for i in range(2)]
        elif isinstance(space, spaces.MultiBinary):
            logits = take(size)
            each = [(torch.distributions.Bernoulli(logits=logits[..., i]), done.pop(0)) for i in range(size)]
        else:
            counts = [size] if isinstance(space, spaces.Discrete) else list(space.nvec)
            each = [(torch.distributions.Categorical(logits=take(int(n))), done.pop(0)) for n in counts]
        for law, action in each:
            logp.add_(law.log_prob(action))
            entropy.add_(law.entropy())

    walk(SPACES[name])
    assert not done and not rest.numel()
    torch.testing.assert_close(choice.logp, logp, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(spread.logp(said, choice.actions), logp, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(spread.entropy(said), entropy, atol=1e-5, rtol=1e-5)


@each_space
def test_units_come_back_and_anything_is_in_the_space(name: str) -> None:
    spread, _ = parameters_of(name, 1)
    drawn = spread.anything((500,), torch.Generator().manual_seed(3))
    assert drawn.shape == (500, spread.actions)
    torch.testing.assert_close(spread.inside(spread.outside(drawn)), drawn, atol=1e-5, rtol=0)
    options = {"one choice": 3, "choices": 6, "switches": 8, "named": 12, "named choices": 12}
    if name in options:  # a Box in units is 2 wide in each of its numbers
        wide = 2 * 2 if name == "named" else 1
        assert spread.anything_logp == pytest.approx(-math.log(options[name] * wide))
    whole = [i for i in range(spread.actions) if (drawn[:, i] == drawn[:, i].round()).all()]
    assert all(drawn[:, i].min() == 0 and drawn[:, i].max() >= 1 for i in whole)


def test_a_number_without_bounds_is_in_its_own_units() -> None:
    spread: Any = any_space(SPACES["endless"], "me")
    assert isinstance(spread, EndlessBox)
    torch.testing.assert_close(spread.outside(torch.tensor([-1.0, 7.5])), torch.tensor([-1.0, 7.5]))
    torch.testing.assert_close(spread.outside(torch.tensor([1.0, -0.25])), torch.tensor([3.0, -0.25]))


@pytest.mark.parametrize("part", ["gaussian-noise", "ornstein-uhlenbeck"])
@pytest.mark.parametrize(("name", "what"), [("named", "there are choices in these"), ("endless", "have none")])
def test_noise_that_is_kept_within_bounds_is_refused_before_a_step(part: str, name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"adds numbers .*{what}: set exploration=sampled"):
        loop_of(name, exploration=part)


def test_any_action_with_some_chance_fits_every_space() -> None:
    loop = loop_of("named", exploration="epsilon-greedy")
    loop.step()
    assert loop.acted == 20


def test_a_discrete_policy_still_says_all_chances() -> None:
    """What reads chances (the entropy of a choice, say) goes on as before where there is one choice."""
    spread = StochasticPolicy().distribution(SPACES["one choice"])
    choice = spread.chosen(torch.zeros(1, 1, 3), torch.zeros(1, 1, 3))
    assert choice.chances is not None and choice.chances.shape == (1, 1, 3)
