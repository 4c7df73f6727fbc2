"""Member k of a population equals the run of that member alone, bit for bit, whatever the others are and do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.control import ControlTask, Step, VectorEnvironment
from etude.core.errors import ConfigError, UnknownNameError
from etude.core.kinds import RolloutMethod
from etude.core.method import Method
from etude.core.population import Member, PerMember, Population, settle
from etude.core.registry import compositions, files, get_method
from etude.experience.vector import FINAL_ROWS, Segments
from etude.loops.on_policy import OnPolicyLoop
from etude.optimizers.adam import AdamW
from etude.optimizers.schedules import Linear
from etude.policies.control.networks import MLP
from etude.policies.control.observations import NormalizeObservations
from etude.rewards.running import NormalizeRewards
from etude.tasks.control.cartpole import CartPoleArrays, cartpole
from etude.tasks.control.pendulum import pendulum
from solo_runs import assert_members_are_alone, assert_same, member, results

CONTROL = [name for name in sorted(files("methods")) if any(isinstance(m, RolloutMethod) for m in compositions(name))]
FIVE = [Member(seed) for seed in range(5)]


def method(name: str, environments: int = 3, steps: int = 17, minibatches: int = 2, **changes: Any) -> Method:
    """The method with normalisers, at an odd size; epochs as few as it takes to leave the policy that acted."""
    found: Any = get_method(name, "control")
    found = found.replace(
        policy=found.policy.replace(observations=(NormalizeObservations(),), network=MLP(hidden=(16, 16))),
        experience=found.experience.replace(
            environments=environments, steps=steps, **({"updates": 5} if isinstance(found.experience, Segments) else {})
        ),
        rewards=(NormalizeRewards(),),
        learners=tuple(one.replace(length=5) if hasattr(one, "length") else one for one in found.learners),
        **({"minibatches": minibatches, "epochs": min(found.epochs, 3)} if found.critic.joint else {}),
    )
    return found.replace(**changes)


# Everybody alone


@pytest.mark.slow
@pytest.mark.parametrize("task", (cartpole, pendulum), ids=("cartpole", "pendulum"))
@pytest.mark.parametrize("name", CONTROL)
def test_members_of_every_method_equal_their_own_runs(name: str, task: ControlTask) -> None:
    sizes = (3, 8) if name in ("ppo", "reinforce") else (3,)
    assert_members_are_alone(method(name), task, [Member(seed) for seed in range(8)], sizes)


@pytest.mark.first
@pytest.mark.kernels
@pytest.mark.parametrize(
    ("environments", "steps", "minibatches"), ((1, 7, 1), (2, 64, 2), (3, 17, 5), (5, 13, 4), (7, 9, 3))
)
def test_members_equal_their_own_runs_at_every_size(environments: int, steps: int, minibatches: int) -> None:
    small = method("ppo", environments, steps, minibatches)
    assert_members_are_alone(small, cartpole, FIVE, (3, 5))


@pytest.mark.slow
@pytest.mark.parametrize("activation", ("tanh", "relu", "silu", "elu", "leaky-relu"))
@pytest.mark.parametrize("hidden", ((), (7,), (33, 5)))
def test_members_equal_their_own_runs_with_every_network(activation: str, hidden: tuple[int, ...]) -> None:
    network = MLP(hidden=hidden, activation=activation, layer_norm=True)  # type: ignore[arg-type]
    if activation == "leaky-relu" and hidden:
        network = network.replace(affine=False, penultimate_norm=True)
    base: Any = method("ppo")
    changed = base.replace(policy=base.policy.replace(network=network), critic=base.critic.replace(network=network))
    assert_members_are_alone(changed, pendulum, FIVE, (3, 5))


@pytest.mark.slow
@pytest.mark.kernels
def test_members_equal_their_own_runs_with_the_default_networks() -> None:
    base: Any = method("ppo")
    changed = base.replace(policy=base.policy.replace(network=MLP()))
    assert_members_are_alone(changed, cartpole, [Member(seed) for seed in range(17)], (3, 17))


def test_the_order_of_members_means_nothing() -> None:
    forward, back = FIVE[:3], FIVE[2::-1]
    ahead, behind = results(method("ppo"), cartpole, forward, 2), results(method("ppo"), cartpole, back, 2)
    for k in range(3):
        assert_same(member(ahead, k), member(behind, 2 - k), f"member {k}")


def test_members_differ() -> None:
    tensors, _ = results(method("ppo"), cartpole, FIVE[:3], 1)
    weights = tensors["policy.head.weight"]
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])


class Faulty(CartPoleArrays):
    """Carts that break down after six steps, for members whose keys are even."""

    def step(self, actions: np.ndarray) -> Step:
        broken = (self.elapsed == 5) & (self.keys % np.uint64(2) == 0)
        self.limit = np.where(broken, 6, 500)  # type: ignore[misc,assignment]
        found = super().step(actions)
        found.faulty = broken & found.truncated
        return found


class Breakdowns(ControlTask):
    id: ClassVar[str] = "breakdowns"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return Faulty(seeds, count, purpose)


@pytest.mark.slow
def test_faults_of_one_member_change_no_other() -> None:
    single = method("ppo", environments=1)
    members = [Member(seed) for seed in range(5)]
    with_faults = [int(results(single, Breakdowns(), [m], 1)[1][0]["loss"][0] != 0) for m in members]
    assert any(with_faults)
    assert_members_are_alone(single, Breakdowns(), members, (3, 5))


class Short(CartPoleArrays):
    """Cut after 12 steps, so that members see different numbers of cuts and of falls."""

    limit = 12


class ShortTask(ControlTask):
    id: ClassVar[str] = "short"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return Short(seeds, count, purpose)


@pytest.mark.slow
def test_values_after_cuts_are_the_members_own() -> None:
    """More cuts than are valued at a time, more for some than for others."""
    often = method("ppo", environments=9, steps=40)
    loop = OnPolicyLoop(often, ShortTask(), FIVE, 1)
    cuts = loop.collector.collect(0, loop.critic).truncated.sum((1, 2))
    assert int(cuts.min()) > FINAL_ROWS and len(set(cuts.tolist())) > 1
    assert_members_are_alone(often, ShortTask(), FIVE, (3, 5))


# Settings


def every_float(base: Method) -> list[str]:
    """Paths of all fields that hold a real number; Adam's betas are refused (`optimizers/population.py`)."""
    fields = [(f"{path}.{k}", v) for path, part in base.parts().items() for k, v in part.fields().items()]
    return [k for k, v in fields if isinstance(v, float) and k not in ("optimizer.beta1", "optimizer.beta2")]


PLAIN = {
    "optimizer.lr": (1e-3, 3e-3), "optimizer.epsilon": (1e-8, 1e-3), "optimizer.clip_norm": (0.05, 1.0),
    "optimizer.weight_decay": (0.0, 0.3), "optimizer.warmup": (0.0, 0.9), "optimizer.schedule.floor": (0.0, 0.5),
    "objective.low": (0.01, 0.3),
    "objective.high": (0.01, 0.4), "regularizers.0.coefficient": (0.0, 0.1), "advantages.gamma": (0.5, 1.0),
    "advantages.lam": (0.0, 1.0), "critic.coefficient": (0.1, 2.0), "critic.clip": (0.01, 0.5),
    "policy.gain": (0.01, 1.0), "policy.log_std": (-1.0, 0.5), "policy.observations.0.clip": (0.5, 2.0),
    "policy.observations.0.epsilon": (1e-8, 0.1), "rewards.0.gamma": (0.5, 1.0), "rewards.0.clip": (0.2, 2.0),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("task", (cartpole, pendulum), ids=("cartpole", "pendulum"))
@pytest.mark.parametrize("name", ("ppo", "reinforce"))
def test_settings_of_members_equal_plain_fields(name: str, task: ControlTask) -> None:
    base: Any = method(name)
    base = base.replace(critic=base.critic.replace(clip=0.2))
    paths, draw = every_float(base), random.Random(0)
    assert set(paths) <= PLAIN.keys()
    members = [Member(seed, {k: draw.uniform(*PLAIN[k]) for k in paths}) for seed in range(5)]
    assert_members_are_alone(base, task, members, (3, 5), steps=3)


@pytest.mark.slow
def test_members_without_a_setting_have_the_methods() -> None:
    members = [Member(0, {"optimizer.lr": 1e-2}), Member(0), Member(0, {"objective.low": 0.01, "objective.high": 0.01})]
    assert_members_are_alone(method("ppo"), cartpole, members, (3,))


@pytest.mark.slow
def test_a_setting_may_be_given_where_the_method_has_none() -> None:
    members = [Member(0, {"critic.clip": 0.1}), Member(1, {"critic.clip": 0.3}), Member(2, {"critic.clip": 0.5})]
    assert_members_are_alone(method("ppo"), cartpole, members, (3,))


@pytest.mark.parametrize(
    ("path", "value"), (("epochs", 2), ("policy.squash", True), ("policy.network.hidden", (3,)), ("elsewhere.lr", 0.1))
)
def test_fields_that_shape_the_work_are_refused(path: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="cannot differ between the members of one run"):
        settle(method("ppo").bind(), Population([Member(0, {path: value}), Member(1)]))


def test_settings_out_of_range_and_unknown_fields_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"ClippedSurrogate.low must be a number in \(0, 1\), got 2.0"):
        settle(method("ppo").bind(), Population([Member(0, {"objective.low": 2.0}), Member(1)]))
    with pytest.raises(UnknownNameError, match="low"):
        settle(method("ppo").bind(), Population([Member(0, {"objective.lov": 0.1}), Member(1)]))


FORMULAS: dict[str, Callable[[Any, Tensor], Any]] = {
    "a x": lambda a, x: a * x,
    "x a": lambda a, x: x * a,
    "a + x": lambda a, x: a + x,
    "x + a": lambda a, x: x + a,
    "a - x": lambda a, x: a - x,
    "x - a": lambda a, x: x - a,
    "a / x": lambda a, x: a / x,
    "x / a": lambda a, x: x / a,
    "clamp": lambda a, x: x.clamp(-a, 1 + a),
    "clamp, one side": lambda a, x: x.clamp(max=a),
    "clamp between a number and one per member": lambda a, x: x.clamp(-0.1, a),
    "clamp between one per member and a number": lambda a, x: x.clamp(min=-a, max=2),
    "in place": lambda a, x: x.clone().mul_(a).add_(a),
    "a / 2 x": lambda a, x: a / 2 * x,
    "(1 - a) x": lambda a, x: (1 - a) * x,
    "1 / a x": lambda a, x: 1 / a * x,
    "a^2 x": lambda a, x: a**2 * x,
    "0.9^a x": lambda a, x: 0.9**a * x,
    "-a x a": lambda a, x: -a * x * a,
    "a a x": lambda a, x: a * a * x,
    "whole": lambda a, x: a * x.long(),
    "decision": lambda a, x: a * (x > 0),
    "x > a": lambda a, x: (x > a) * 1.0,
    "lerp": lambda a, x: torch.lerp(x, 2 * x + 1, a),
}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("kind", (torch.float32, torch.float64))
@pytest.mark.parametrize("shape", ((), (7,), (5, 3)))
def test_a_number_per_member_is_a_float_to_each(formula: str, kind: torch.dtype, shape: tuple[int, ...]) -> None:
    numbers = [0.1, 1 / 3, 2e-5, 0.7, 1.7]
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0), dtype=kind)
    found = FORMULAS[formula](PerMember(numbers), x)
    for k, number in enumerate(numbers):
        alone = FORMULAS[formula](number, torch.stack([x[k]] * 2))
        assert found.dtype == alone.dtype and torch.equal(found[k], alone[0])


def test_a_number_per_member_has_no_single_truth() -> None:
    with pytest.raises(ConfigError, match="differs between the members"):
        bool(PerMember([0.0, 1.0]))


def test_warmup_may_differ() -> None:
    from etude.core.population import per_member

    part = settle(method("ppo").bind(), Population([Member(0, {"optimizer.warmup": 0.5}), Member(1)])).optimizer
    assert per_member(part, lambda p: p.rate(1, 10)).numbers == (AdamW(warmup=0.5, schedule=Linear()).rate(1, 10), 0.9)
    assert per_member(AdamW(), lambda p: p.rate(1, 10)) == 1.0


# Who is there


def test_a_lone_member_is_computed_once_with_the_numbers_it_has_in_a_population() -> None:
    lone, pair = Population([Member(3)]), Population([Member(3), Member(4)])
    assert (lone.size, pair.size) == (1, 2)
    numbers = lone.draw("x", of=lambda g: torch.rand(4, generator=g))
    assert numbers.shape == (1, 4)
    assert torch.equal(numbers[0], pair.draw("x", of=lambda g: torch.rand(4, generator=g))[0])
    loop = OnPolicyLoop(method("ppo"), cartpole, [Member(3)], 1)
    assert all(len(p) == 1 for p in loop.parameters.leaves)
