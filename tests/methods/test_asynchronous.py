"""The methods of the paper of A3C, one worker: returns, gradients of a segment, targets, what each worker tries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from etude.core.edit import set_values
from etude.core.errors import ConfigError
from etude.core.fit import check
from etude.core.population import Member, Population
from etude.core.registry import get_method
from etude.experience.exploration import DrawnEpsilon
from etude.experience.stretches import Stretches
from etude.loops.control_update import Minibatch
from etude.loops.off_policy import OffPolicyLoop
from etude.loops.on_policy import OnPolicyLoop, credited
from etude.regularizers.entropy import EntropyBonus
from etude.tasks.control.cartpole import cartpole
from etude.tasks.tabular.river_swim import RiverSwim
from replay_toys import REPLAY, small
from solo_runs import assert_members_are_alone

torch.set_num_threads(1)
VALUES = ("one-step-q", "one-step-sarsa", "n-step-q")


def a3c(**changes: Any) -> Any:
    method: Any = get_method("a3c")
    return set_values(method, {"policy.network.hidden": (8,), "experience.updates": 4, **changes})


def rollout_loop(seeds: int = 2, **changes: Any) -> OnPolicyLoop:
    return OnPolicyLoop(a3c(**changes), cartpole, [Member(s) for s in range(seeds)], 3)


def segment(loop: OnPolicyLoop, number: int = 0) -> Any:
    return credited(loop.method, loop.collector.collect(number, loop.critic))


# Identities (2), (3) and (4) of the catalogue's row


def test_the_recursion_is_the_sum_of_rewards_and_the_value_after_them() -> None:
    """R_i = sum_k gamma^k r_{i+k} + gamma^n V(s_{i+n}), n being what is left of the segment, or of the episode."""
    loop, ends = rollout_loop(), 0
    for number in range(30):
        batch = segment(loop, number)
        done = (batch.terminated | batch.truncated)[:, :, 0]
        ends += int(done.sum())
        for p in range(2):
            for i in range(5):
                n = next((k for k in range(i, 5) if done[p, k]), 4) - i + 1
                last = i + n - 1
                after = 0.0 if batch.terminated[p, last, 0] else float(batch.next_values[p, last, 0])
                wanted = sum(0.99**k * float(batch.rewards[p, i + k, 0]) for k in range(n)) + 0.99**n * after
                assert float(batch.returns[p, i, 0]) == pytest.approx(wanted, rel=1e-5)
                advantage = wanted - float(batch.values[p, i, 0])
                assert float(batch.advantages[p, i, 0]) == pytest.approx(advantage, rel=1e-4, abs=1e-5)
    assert ends > 2


def test_a_segment_as_long_as_the_episode_is_monte_carlo() -> None:
    """No value has a part in what a whole episode is worth."""
    loop = rollout_loop(1, **{"experience.steps": 200})
    batch = segment(loop)
    end = int(batch.terminated[0, :, 0].nonzero()[0, 0])
    rewards, wanted = batch.rewards[0, : end + 1, 0].double(), 0.0
    for t in reversed(range(end + 1)):
        wanted = float(rewards[t]) + 0.99 * wanted
        assert float(batch.returns[0, t, 0]) == pytest.approx(wanted, rel=1e-5)


def test_the_step_follows_the_summed_gradient_of_the_segment() -> None:
    """Autograd of the paper's loss, summed over the five steps, with R held fixed, and g <- 0.01 d^2 at first."""
    loop = rollout_loop()
    batch = segment(loop).flat()
    updater = loop.updater
    policy = Minibatch(updater, batch, fresh=True, reports=False).evaluate()
    assert policy.values is not None and policy.entropy is not None
    held = batch.returns.detach()
    each = -(held - batch.values) * policy.logp + 0.5 * (held - policy.values) ** 2 - 0.01 * policy.entropy
    updater.parameters.differentiate(each.sum(1))
    d, before = updater.parameters.gradient.clone(), updater.parameters.values.clone()
    updater.run(batch, 0, 1.0)
    torch.testing.assert_close(updater.optimizer.square, 0.01 * d * d, rtol=1e-4, atol=1e-10)
    wanted = before - 3e-3 * d / (0.01 * d * d + 0.1).sqrt()
    torch.testing.assert_close(updater.parameters.values, wanted, rtol=1e-5, atol=1e-7)


def test_the_entropy_has_no_gradient_at_the_uniform_policy() -> None:
    logits = torch.zeros(1, 3, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for moved in (logits, logits + torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)):
        entropy = torch.distributions.Categorical(logits=moved).entropy()
        term = EntropyBonus(coefficient=0.01)(None, type("Said", (), {"entropy": entropy})())  # type: ignore[arg-type]
        found.append(torch.autograd.grad(term.sum(), logits)[0].abs().max().item())
    assert found[0] < 1e-12 < 1e-4 < found[1]


# Values


def value_loop(name: str, seeds: int = 2, **changes: Any) -> OffPolicyLoop:
    method = set_values(small(REPLAY[name]), changes)
    return OffPolicyLoop(method, cartpole, [Member(s) for s in range(seeds)], 3, 40)


def watched(loop: OffPolicyLoop) -> tuple[list[Any], list[Any]]:
    """What every update reads, and every step of the environment, while the loop takes a step."""
    read, happened = [], []
    draw, push = loop.method.sampling.draw, loop.collector.store.push

    def drawn(store: Any, numbers: Any) -> Any:
        read.append((len(happened), draw(store, numbers)))
        return read[-1][1]

    def pushed(*columns: Any) -> None:
        happened.append([np.array(x) for x in columns])
        push(*columns)

    object.__setattr__(loop.method.sampling, "draw", drawn)
    loop.collector.store.push = pushed  # type: ignore[method-assign]
    loop.step()
    return read, happened


@pytest.mark.parametrize("name", VALUES)
def test_every_step_is_learned_from_once_in_its_segment(name: str) -> None:
    loop = value_loop(name)
    ahead = loop.method.experience.ahead  # type: ignore[attr-defined]
    read, happened = watched(loop)
    assert [when for when, _ in read] == [5 * k + ahead for k in range(1, len(read) + 1)] and len(read) in (7, 8)
    for k, (_, batch) in enumerate(read):
        for i in range(5):
            t = 5 * k + i
            for p in range(2):
                n = 1
                if name == "n-step-q":
                    n = next((j for j in range(i, 5) if happened[5 * k + j][5][p, 0]), 4) - i + 1
                rewards = sum(0.99**j * happened[t + j][3][p, 0] for j in range(n))
                assert np.allclose(batch.observations[p, i], happened[t][0][p, 0])
                assert float(batch.rewards[p, i]) == pytest.approx(rewards, rel=1e-5)
                assert float(batch.discounts[p, i]) == pytest.approx(0.99**n * happened[t + n - 1][4][p, 0], rel=1e-5)
                assert np.allclose(batch.next_observations[p, i], happened[t + n - 1][2][p, 0])
                if name == "one-step-sarsa":
                    done, after = happened[t][5][p, 0], float(batch.offers["next_actions"][p, i, 0])
                    assert np.isnan(after) if done else after == happened[t + 1][1][p, 0, 0]
    assert any(step[5].any() for step in happened)


@pytest.mark.parametrize("name", ["a3c", *VALUES])
def test_members_equal_their_own_runs(name: str) -> None:
    members = [Member(0), Member(1), Member(5)]
    if name == "a3c":
        assert_members_are_alone(a3c(), cartpole, members, [1, 2], steps=3)
        return
    method = small(REPLAY[name])
    together = OffPolicyLoop(method, cartpole, members, 3, 40)
    alone = OffPolicyLoop(method, cartpole, members[2:], 3, 40)
    for loop in (together, alone):
        for _ in range(3):
            loop.step()
    for key, value in alone.policy_tensors().items():
        torch.testing.assert_close(value[0], together.policy_tensors()[key][2], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["a3c", *VALUES])
def test_how_many_updates_a_training_step_has_changes_no_number(name: str) -> None:
    """12 segments as 3 x 4, as 2 x 6 and as 1 x 12 steps of the run; the rate does not fall meanwhile."""
    ends = []
    for steps, updates in ((3, 4), (2, 6), (1, 12)):
        if name == "a3c":
            loop: Any = OnPolicyLoop(a3c(**{"experience.updates": updates}), cartpole, [Member(3)], steps)
        else:
            constant = {"critic.learning.optimizer.schedule": "constant"}
            method = set_values(small(REPLAY[name]), constant)
            loop = OffPolicyLoop(method, cartpole, [Member(3)], steps, 5 * updates)
        for _ in range(steps):
            loop.step()
        ends.append(loop.policy_tensors())
    for other in ends[1:]:
        assert all(torch.equal(other[k], v) for k, v in ends[0].items())


# What each worker tries


def test_each_environment_draws_once_to_what_its_chance_falls() -> None:
    part, population = DrawnEpsilon(over=100).bind(), Population([Member(s) for s in range(300)])
    draw = Stretches(population, "explore")
    numbers: list[Tensor] = []
    for time in (0, 1, 200):
        uniform = draw.at(time)("ends", lambda g, n: torch.rand(n, 2, 1, generator=g))
        if time == 0:
            part.begin(uniform)
        numbers.append(part.chance(0 if time == 0 else 1_000))
    assert numbers[0].unique().tolist() == [1.0] and torch.equal(numbers[1], numbers[2])
    shares = [float(((numbers[1] - end).abs() < 1e-6).float().mean()) for end in (0.1, 0.01, 0.5)]
    assert shares == pytest.approx([0.4, 0.3, 0.3], abs=0.06) and sum(shares) == pytest.approx(1)


def test_what_was_drawn_is_in_the_checkpoint(tmp_path: Any) -> None:
    loop = value_loop("one-step-q", seeds=6)
    loop.step()
    drawn = loop.method.exploration.state["ends"].clone()
    assert len(drawn.unique()) > 1
    loop.save(tmp_path)
    again = value_loop("one-step-q", seeds=6)
    again.load(tmp_path)
    assert torch.equal(again.method.exploration.state["ends"], drawn)
    for one in (loop, again):
        one.step()
    assert all(torch.equal(again.policy_tensors()[k], v) for k, v in loop.policy_tensors().items())


@pytest.mark.parametrize(
    "name, changes, sentence",
    [
        ("one-step-sarsa", {"experience.ahead": 0}, "set experience.ahead=1"),
        ("one-step-q", {"critic.backup.rule": "taken"}, "or sampling.horizon=quintuple"),
        ("n-step-q", {"experience.steps": 3}, "has 3 steps of an environment, and the horizon is 5"),
        ("stream-x", {"experience.steps": 5}, "learns from several at once: set experience.steps=1"),
        ("stream-ac", {"experience.steps": 5}, "set experience.steps=1"),
        ("one-step-q", {"exploration.ends": (0.1, 0.2)}, "there must be as many"),
    ],
)
def test_what_cannot_work_is_refused(name: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check(set_values(REPLAY[name], changes), cartpole)


@pytest.mark.slow
@pytest.mark.parametrize("name", VALUES)
def test_values_of_a_river_are_learned(name: str) -> None:
    """Where the best values are known: the way against the stream is found from each step once."""
    task = RiverSwim()
    method = set_values(
        REPLAY[name],
        {"exploration.ends": (0.3,), "exploration.shares": (1.0,), "exploration.over": 1_000,
         "critic.network.hidden": (16,)},
    )  # fmt: skip
    loop = OffPolicyLoop(method, task, [Member(s) for s in range(4)], 16, 250)
    returns = [loop.step().metrics.get("return", 0.0) for _ in range(16)]
    assert returns[-1] > 2 * max(returns[1], 1e-3)
