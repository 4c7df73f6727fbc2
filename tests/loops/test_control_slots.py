"""What the on-policy loop asks of the parts: when they see a batch, what rewards know, costs, stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from corridor import Corridor, CorridorTask
from etude.core.control import VectorEnvironment
from etude.core.errors import ConfigError, EnvironmentFault
from etude.core.method import Method
from etude.core.part import Need
from etude.core.population import Member
from etude.core.registry import get_method
from etude.core.step_slots import StepExperience, StepRegularizer, StepReward
from etude.core.transitions import Transitions
from etude.experience.gymnasium_vector import GymnasiumVector
from etude.experience.vector import RolloutCollector
from etude.learners.fitted import FittedValue
from etude.loops.on_policy import OnPolicyLoop
from etude.policies.control.networks import MLP
from etude.rewards.episodic import EpisodicReward
from etude.rewards.running import NormalizeRewards
from etude.runs.kinds import run_of
from etude.stages.phases import Phase
from etude.tasks.control.cartpole import cartpole

torch.set_num_threads(1)
MEMBERS = [Member(0), Member(3)]


def small(name: str = "ppo", **changes: Any) -> Method:
    method: Any = get_method(name, "control")
    method = method.replace(
        policy=method.policy.replace(network=MLP(hidden=(8,)), observations=()), minibatches=1, epochs=2,
        experience=method.experience.replace(environments=2, steps=20),
    )  # fmt: skip
    return method.replace(**changes)


# Before and after an update


class Double(StepReward):
    def shape(self, batch: Transitions) -> Tensor:
        return 2 * batch.rewards


class Watcher(StepRegularizer):
    """Adds nothing, and keeps what it was shown."""

    def initial_state(self) -> dict[str, Any]:
        return {"seen": []}

    def __call__(self, batch: Any, policy: Any) -> Tensor:
        self.state["seen"].append("learn")
        return torch.zeros_like(policy.logp)

    def before_update(self, batch: Any) -> None:
        assert batch.rewards.shape == (2, 20, 2) and (batch.rewards == 2).all() and batch.advantages is None
        self.state["seen"].append("before")

    def after_update(self, batch: Any) -> None:
        assert batch.rewards.shape == batch.advantages.shape == (2, 20, 2)
        self.state["seen"].append("after")


def test_parts_see_every_batch_before_and_after_its_update() -> None:
    loop = OnPolicyLoop(small(rewards=(Double(),), regularizers=(Watcher(),)), cartpole, MEMBERS, 3)
    loop.step()
    loop.step()
    assert loop.method.regularizers[0].state["seen"] == ["before", "learn", "learn", "after"] * 2


# Collectors


class Backwards(StepExperience):
    """Rollouts whose collector is its own, and says so."""

    def collector(
        self, environment: VectorEnvironment, actor: Any, population: Any, needs: frozenset[Need], shared: bool
    ) -> RolloutCollector:
        class Own(RolloutCollector):
            def collect(self, number: int, critic: Any) -> Transitions:
                found = super().collect(number, critic)
                found.rewards += 4
                return found

        return Own(environment, actor, population, self.steps, needs, shared)


def test_the_experience_builds_what_collects() -> None:
    class Paid(Watcher):
        def before_update(self, batch: Any) -> None:
            self.state["seen"].append(float(batch.rewards.mean()))

        def after_update(self, batch: Any) -> None:
            pass

    loop = OnPolicyLoop(
        small(experience=Backwards(environments=2, steps=20), regularizers=(Paid(),), epochs=1), cartpole, MEMBERS, 2
    )
    loop.step()
    assert loop.method.regularizers[0].state["seen"] == [5.0, "learn"]


# Rewards that know the episode, and costs


class Count(EpisodicReward):
    """The number of the step in its episode, from 1."""

    def blank(self, batch: Transitions) -> Tensor:
        return torch.zeros_like(batch.rewards[:, 0])

    def advance(self, memory: Tensor, batch: Transitions, t: int) -> tuple[Tensor, Tensor]:
        return memory + 1, memory + 1


class Charged(StepReward):
    """The reward less the cost."""

    needs: ClassVar[frozenset[Need]] = frozenset({Need.COSTS})

    def shape(self, batch: Transitions) -> Tensor:
        assert batch.costs is not None
        return batch.rewards - batch.costs


def counted(loop: OnPolicyLoop, rollouts: int) -> tuple[Tensor, Tensor]:
    """Rewards and observations [P, T, E] of some rollouts in a row."""
    found = []
    for number in range(rollouts):
        batch = loop.collector.collect(number, loop.critic)
        found.append((loop.method.rewards[0].shape(batch), batch.terminated | batch.truncated))
    rewards, done = (torch.cat(x, 1) for x in zip(*found))
    return rewards, done


def test_a_reward_knows_its_episode_across_rollouts_and_forgets_it_at_its_end() -> None:
    loop = OnPolicyLoop(small(rewards=(Count(),)), cartpole, MEMBERS, 4)
    rewards, done = counted(loop, 4)
    expected = torch.zeros_like(rewards)
    for m in range(2):
        for e in range(2):
            number = 0
            for t in range(80):
                number += 1
                expected[m, t, e] = number
                number = 0 if done[m, t, e] else number
    assert torch.equal(rewards, expected) and done.any() and float(rewards.max()) > 20


def test_a_run_that_goes_on_knows_the_episodes_too(tmp_path: Path) -> None:
    whole, again = (OnPolicyLoop(small(rewards=(Count(),)), cartpole, MEMBERS, 4) for _ in range(2))
    whole.step()
    whole.save(tmp_path)
    again.load(tmp_path)
    memory = whole.method.rewards[0].state["memory"]
    assert memory.any() and torch.equal(again.method.rewards[0].state["memory"], memory)


def test_costs_are_what_the_environment_says() -> None:
    """Half of the place that the step led to, also in the last step of an episode."""
    loop = OnPolicyLoop(small(rewards=(Charged(),)), CorridorTask(), MEMBERS, 2)
    batch = loop.collector.collect(0, loop.critic)
    assert batch.costs is not None and batch.terminated.any() and batch.truncated.any()
    assert torch.equal(batch.costs, (batch.observations[..., 0] + 1) / 2)
    assert torch.equal(loop.method.rewards[0].shape(batch), 1 - batch.costs)
    found = loop.step().members["cost"]
    assert all(0.5 < x < 2.5 for x in found)
    plain = OnPolicyLoop(small(), CorridorTask(), MEMBERS, 2)
    assert plain.collector.collect(0, plain.critic).costs is None


def test_costs_that_nobody_says_are_asked_for() -> None:
    loop = OnPolicyLoop(small(rewards=(Charged(),)), cartpole, MEMBERS, 2)
    with pytest.raises(ConfigError, match="needs costs, and the environment says none"):
        loop.step()


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("cost", "much", r'info\["cost"\] must be one number'),
        ("cost", float("nan"), "the cost is nan"),
        ("subgoal_progress", "much", r'info\["subgoal_progress"\] must be one number'),
        ("subgoal_progress", float("inf"), "the subgoal_progress is inf"),
    ],
)
def test_what_is_said_beside_a_reward_and_is_no_number_is_a_fault(key: str, value: Any, sentence: str) -> None:
    class Wrong(Corridor):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {key: value}

    vector = GymnasiumVector(Wrong, [0], 2, name="wrong")
    vector.reset()
    with pytest.raises(EnvironmentFault, match=sentence):
        vector.step(torch.zeros(1, 2, 1).numpy())


def test_what_a_loop_does_not_compute_is_refused() -> None:
    class Hidden(Watcher):
        needs: ClassVar[frozenset[Need]] = frozenset({Need.HIDDEN})

    with pytest.raises(ConfigError, match="Hidden needs hidden, which the loop of a RolloutMethod does not compute"):
        small(regularizers=(Hidden(),)).check()


# Stages


class First(Phase, abstract=True):
    """Other slots for the first half."""

    slots: ClassVar[dict[str, Any]] = {}

    def apply(self, method: Any) -> Any:
        return method.replace(**self.slots)


def halves(method: Any, optimizer: Any = "keep", **slots: Any) -> Any:
    """The method with other slots in the first half of the steps."""

    class Half(First):
        pass

    Half.slots = slots
    return method.replace(stages=(Half(end=0.5), Phase(optimizer=optimizer)))


def steps(loop: OnPolicyLoop, count: int) -> list[dict[str, float]]:
    found = [loop.step().metrics for _ in range(count)]
    return [{k: v for k, v in each.items() if "second" not in k} for each in found]


def test_a_stage_that_changes_nothing_changes_no_number() -> None:
    method = small(rewards=(NormalizeRewards(),))
    plain, staged = (OnPolicyLoop(m, cartpole, MEMBERS, 4) for m in (method, halves(method)))
    assert steps(plain, 4) == steps(staged, 4)
    assert torch.equal(plain.parameters.values, staged.parameters.values)


@pytest.mark.slow
def test_the_optimizer_goes_on_or_starts_anew() -> None:
    for choice, taken in (("keep", 8.0), ("reset", 4.0)):  # two epochs of one minibatch in each of four steps
        loop = OnPolicyLoop(halves(small(), choice), cartpole, MEMBERS, 4)
        steps(loop, 4)
        assert loop.updater.tensors()["optimizer.taken"].tolist() == [taken, taken]


def changing() -> Any:
    """Other experience, critic and rewards in the first half."""
    method = small(rewards=(NormalizeRewards(),))
    first = method.experience.replace(environments=3, steps=10)
    fitted = FittedValue(network=MLP(hidden=(4,)), learning=FittedValue().learning.replace(minibatches=2))
    return halves(method, "reset", experience=first, critic=fitted)


@pytest.mark.slow
def test_every_slot_but_the_policy_may_change() -> None:
    loop = OnPolicyLoop(changing(), cartpole, MEMBERS, 4)
    loop.method  # noqa: B018
    steps(loop, 2)
    policy = {k: v.clone() for k, v in loop.parameters.named() if k.startswith("policy")}
    assert loop.collector.observations.shape[1] == 2 and not isinstance(loop.method.critic, FittedValue)
    fresh = OnPolicyLoop(changing(), cartpole, MEMBERS, 4)
    steps(fresh, 1)
    assert fresh.collector.observations.shape[1] == 3 and isinstance(fresh.method.critic, FittedValue)
    assert fresh.step().metrics["environment_steps"] == 60.0
    assert all(torch.equal(v, policy[k]) for k, v in fresh.parameters.named() if k in policy)
    assert steps(fresh, 2)[-1]["environment_steps"] == 140.0


@pytest.mark.first
@pytest.mark.parametrize("when", (1, 2, 3))
def test_a_resumed_run_has_the_same_numbers_in_every_stage(when: int, tmp_path: Path) -> None:
    whole, again = (OnPolicyLoop(changing(), cartpole, MEMBERS, 4) for _ in range(2))
    steps(whole, when)
    whole.save(tmp_path)
    again.load(tmp_path)
    assert steps(whole, 4 - when) == steps(again, 4 - when)
    assert torch.equal(whole.parameters.values, again.parameters.values)


def test_the_length_of_a_run_counts_the_stages() -> None:
    """Half of the rollouts have 30 steps of each member, half 40: 350 steps are 10 rollouts."""
    for method, budget, rollouts in ((changing(), 350, 10), (small(), 401, 11)):
        assert run_of(method).training_steps(method, budget) == rollouts


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (lambda: halves(small(), critic=FittedValue()), "stage 1 changes the critic, .*optimizer=reset"),
        (lambda: halves(small(), policy=small().policy.replace(log_std=1.0)), "stage 1 changes the policy"),  # type: ignore[attr-defined]
        (lambda: halves(small(), "reset", minibatches=41), "in stage 0, .*cannot be divided into 41 minibatches"),
        (lambda: small(stages=(Phase(reference="reset"),)), "resets the reference, and a RolloutMethod has none"),
        (lambda: small(stages=(Phase(end=0.7), Phase(end=0.4))), "must end after the phase before it"),
    ],
)
def test_stages_that_cannot_follow_each_other_are_refused(method: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        method().check()
