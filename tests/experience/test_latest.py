"""One transition, learned from at once and forgotten: the loop around it, its faults, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from etude.core.control import ControlTask, Step, VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.population import Member
from etude.experience.latest import Latest, Newest
from etude.experience.replay import Replay
from etude.experience.sampling import NStep, OneStep, UniformRows
from etude.loops.off_policy import OffPolicyLoop
from etude.policies.control.observations import NormalizeObservations
from etude.rewards.running import NormalizeRewards
from etude.tasks.control.cartpole import CartPoleArrays, cartpole
from etude.tasks.control.pendulum import pendulum
from replay_toys import REPLAY, narrow
from solo_runs import alike

torch.set_num_threads(1)


def streamed(name: str, environments: int = 1) -> Any:
    """A method of the replay that learns from its last step instead."""
    method: Any = REPLAY[name]
    policy = narrow(method.policy, 8).replace(observations=(NormalizeObservations(),))
    return method.replace(
        policy=policy, critic=narrow(method.critic, 8),
        experience=Latest(environments=environments), sampling=Newest(horizon=OneStep(gamma=0.9)),
    )  # fmt: skip


def loop_of(name: str, seeds: Sequence[int] = (3, 4), environments: int = 1) -> OffPolicyLoop:
    task: ControlTask = cartpole if name == "dqn" else pendulum
    return OffPolicyLoop(streamed(name, environments), task, [Member(s) for s in seeds], 4, 20)


def everything(loop: OffPolicyLoop) -> dict[str, torch.Tensor]:
    return {**loop.policy_tensors(), **loop.updater.tensors(), "rows": loop.collector.store.grid}


def train(loop: OffPolicyLoop, steps: int) -> list[dict[str, list[float]]]:
    return [loop.step().members for _ in range(steps)]


def test_every_step_is_learned_from_once_and_at_once() -> None:
    """What an update reads is what the environment just answered, its true last observation where it ended."""
    loop, read, happened = loop_of("dqn", environments=2), [], []
    draw, step = loop.method.sampling.draw, loop.environment.step

    def drawn(store: Any, numbers: Any) -> Any:
        read.append(draw(store, numbers))
        return read[-1]

    def stepped(actions: np.ndarray) -> Step:
        happened.append((loop.collector.observations.copy(), actions.copy(), step(actions)))
        return happened[-1][2]

    object.__setattr__(loop.method.sampling, "draw", drawn)
    loop.collector.environment.step = stepped  # type: ignore[method-assign]
    train(loop, 4)
    assert len(read) == len(happened) == loop.updater.updates == 40 and loop.acted == 80
    ends = 0
    for batch, (seen, actions, answer) in zip(read, happened, strict=True):
        following, done = answer.observations.copy(), answer.terminated | answer.truncated
        if answer.final is not None:
            following[done] = answer.final
        ends += int(done.sum())
        assert np.array_equal(batch.observations, seen) and np.array_equal(batch.actions, actions)
        assert np.array_equal(batch.next_observations, following) and np.array_equal(batch.rewards, answer.rewards)
        assert np.array_equal(batch.terminated, answer.terminated)
        assert torch.equal(batch.discounts, torch.from_numpy(0.9 * ~answer.terminated).float())
    assert ends > 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_resume_and_population_are_exact(name: str, tmp_path: Path) -> None:
    together, alone = loop_of(name, (3, 4, 9)), loop_of(name, (4,))
    train(together, 2), train(alone, 2)
    together.save(tmp_path)
    for key, value in everything(alone).items():
        size = len(value)
        assert alike(everything(together)[key][size : 2 * size], value), key
    after = train(together, 2)
    again = loop_of(name, (3, 4, 9))
    again.load(tmp_path)
    assert train(again, 2) == after
    assert all(torch.equal(v, everything(again)[k]) for k, v in everything(together).items())


def test_what_acts_and_what_learns_see_a_step_alike() -> None:
    """Moments learn from an observation before it is acted on, and stand still until it has been learned from."""
    loop = loop_of("sac")
    collector, actor, seen = loop.collector, loop.actor, []
    act = collector._act

    def acted(shown: torch.Tensor) -> torch.Tensor:
        seen.append(actor.see(shown).clone())
        return act(shown)

    collector._act = acted  # type: ignore[method-assign]
    for _ in range(5):
        collector.step()
        batch = loop.method.sampling.draw(collector.store, None)
        assert torch.equal(actor.see(batch.observations), seen[-1])


@pytest.mark.slow
def test_rewards_are_shaped_before_they_are_stored() -> None:
    """Divided by the deviation of all discounted sums so far, written out; what is reported stays as it was."""
    method = streamed("sac").replace(rewards=(NormalizeRewards(gamma=0.9, clip=5.0),))
    loop = OffPolicyLoop(method, pendulum, [Member(3), Member(4)], 1, 20)
    sums, told = list[np.ndarray](), list[np.ndarray]()
    step = loop.environment.step

    def stepped(actions: np.ndarray) -> Step:
        found = step(actions)
        told.append(found.rewards[:, 0].astype(float))
        return found

    loop.collector.environment.step = stepped  # type: ignore[method-assign]
    for _ in range(205):  # an episode ends after 200
        loop.collector.step()
        before = np.zeros(2) if len(sums) % 200 == 0 else sums[-1]
        sums.append(0.9 * before + told[-1])
        expected = np.clip(told[-1] / np.sqrt(np.var(sums, axis=0) + 1e-8), -5, 5)
        assert loop.collector.store.grid[:, 0, -3].numpy() == pytest.approx(expected, rel=1e-5)
    assert [r for _, r, _ in loop.collector.ended] == pytest.approx(np.sum(told[:200], 0).tolist(), rel=1e-5)


class FromRollouts(NormalizeRewards):
    """Learns after a rollout."""

    def after_update(self, batch: Any) -> None:
        raise AssertionError


def test_rewards_that_learn_from_rollouts_are_refused() -> None:
    with pytest.raises(ConfigError, match="FromRollouts learns from whole rollouts, and here rewards are told one"):
        streamed("sac").replace(rewards=(FromRollouts(),)).check()


class Failing(CartPoleArrays):
    """The environment of member 1 fails in steps 1, 3 and 9, with rewards that nothing may learn from."""

    taken = 0

    def step(self, actions: np.ndarray) -> Step:
        self.taken += 1
        late = np.zeros(self.keys.shape, np.int64) + 500
        if self.taken in (1, 3, 9):
            late[1] = 0
        self.limit = late  # type: ignore[misc,assignment]
        found = super().step(actions)
        faulty = np.zeros_like(found.truncated)
        if self.taken in (1, 3, 9):
            faulty[1] = True
            found.rewards[1] = 1e6
        return dataclasses.replace(found, faulty=faulty)


class FailingTask(ControlTask):
    id: ClassVar[str] = "failing"

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        return Failing(seeds, count, purpose)


def test_a_failed_step_is_not_learned_from() -> None:
    """The step before stands in its place, as an end; no other member moves."""
    loops = [OffPolicyLoop(streamed("dqn"), task, [Member(3), Member(4)], 1, 12) for task in (FailingTask(), cartpole)]
    rows: list[torch.Tensor] = []
    for t in range(12):
        loops[0].collector.step(), loops[1].collector.step()
        rows.append(loops[0].collector.store.grid.clone())
        assert torch.equal(rows[t][0], loops[1].collector.store.grid[0])
        if t in (2, 8):
            assert torch.equal(rows[t][1, :, :-1], rows[t - 1][1, :, :-1]) and rows[t][1, 0, -1] == 1
    assert loops[0].collector.faults == 3
    assert all(float(row[..., -3].max()) <= 1 for row in rows)
    first = rows[0][1, 0]  # of the first step nothing is known but where it began
    assert torch.equal(first[:4], first[5:9]) and first[-3:].tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"sampling": UniformRows()}, "Latest keeps nothing that UniformRows could draw from: set sampling=newest"),
        ({"sampling": Newest(horizon=NStep(n=3))}, r"and the horizon is 3: set sampling\.horizon=one-step"),
        (
            {"experience": Replay()},
            "reads the steps that were just taken, and Replay keeps more: set experience=",
        ),
    ],
)
def test_what_does_not_go_with_the_latest_step_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        streamed("dqn").replace(**changes).check()
