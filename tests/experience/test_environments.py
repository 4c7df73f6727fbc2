"""Vectors of environments: whose numbers they are, what happens at ends, after a stop, and when they misbehave."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from environment_toys import Nested, Toy
from etude.core.errors import CheckpointError, ConfigError, EnvironmentFault
from etude.core.streams import Stream
from etude.experience import envpool_vector
from etude.experience.environment_faults import Guard, misfit, wrong_step
from etude.experience.envpool_vector import EnvPoolVector
from etude.experience.episodes import Episodes
from etude.experience.gymnasium_vector import GymnasiumVector
from etude.experience.spaces import (
    action_decoder,
    action_size,
    batch_of,
    channels_last,
    observation_encoder,
    observation_shape,
)  # fmt: skip
from etude.loops.states import join_tensors, split_tensors
from etude.tasks.control.cartpole import CartPole, CartPoleArrays
from etude.tasks.control.four_rooms import FourRooms
from etude.tasks.control.pendulum import PendulumArrays
from etude.tasks.control.regulator import Regulator
from etude.tasks.tabular.garnet import Garnet

Make = Callable[..., Any]


def toys(seeds: list[int], count: int, *, workers: bool = False, step_timeout: float = 60.0, **fields: Any) -> Any:
    make = functools.partial(Toy, **fields)
    return GymnasiumVector(make, seeds, count, name="toy", workers=workers, step_timeout=step_timeout)


def gymnasium_cartpole(seeds: list[int], count: int, workers: bool = False) -> Any:
    make = functools.partial(gym.make, "CartPole-v1", disable_env_checker=True)
    return GymnasiumVector(make, seeds, count, workers=workers)


def envpool(name: str, seeds: list[int], count: int) -> Any:
    return EnvPoolVector(name, seeds, count)


def builtin(kind: Any, seeds: list[int], count: int) -> Any:
    return kind(seeds, count, "train")


BACKENDS: dict[str, Make] = {
    "gymnasium": gymnasium_cartpole,
    "workers": functools.partial(gymnasium_cartpole, workers=True),
    "toy": functools.partial(toys, limit=13),
    "nested": lambda seeds, count: GymnasiumVector(Nested, seeds, count),
    "envpool": functools.partial(envpool, "CartPole-v1"),
    "envpool mujoco": functools.partial(envpool, "Hopper-v4"),
    "cartpole": functools.partial(builtin, CartPoleArrays),
    "pendulum": functools.partial(builtin, PendulumArrays),
    "gusts": lambda seeds, count: CartPole(gust=20.0).make(seeds, count),
    "four rooms": lambda seeds, count: FourRooms(limit=20).make(seeds, count),
    "regulator": lambda seeds, count: Regulator(wind=0.1, limit=9).make(seeds, count),
    "garnet": lambda seeds, count: Garnet(states=200, actions=2, limit=9).make(seeds, count),
}
DISCRETE = ("gymnasium", "workers", "toy", "envpool", "cartpole", "gusts", "four rooms", "garnet")


@pytest.fixture(autouse=True)
def short_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that pools are renewed within a test."""
    monkeypatch.setattr(envpool_vector, "GENERATION", 40)


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def play(vector: Any, steps: int, discrete: bool, member: int = 0, begin: int = 0) -> Iterator[Any]:
    """Steps with actions that member, environment and step decide."""
    members, count = vector.grid if hasattr(vector, "grid") else vector.keys.shape
    size = action_size(vector.action_space)
    for t in range(begin, begin + steps):
        rows = [np.random.default_rng([m + member, t]).random((count, size)) for m in range(members)]
        yield vector.step(np.floor(np.array(rows) * 2).astype(np.float32) if discrete else np.float32(np.array(rows)))


def equal(one: Any, two: Any, member: slice = slice(None)) -> None:
    """Two steps are the same, the second being of a part of the members."""
    for name in ("observations", "rewards", "terminated", "truncated"):
        assert np.array_equal(getattr(one, name)[member], getattr(two, name)), name


def whole(step: Any) -> np.ndarray:
    """Final observations where episodes ended, NaN elsewhere."""
    found = np.full(step.observations.shape, np.nan)
    if step.final is not None:
        found[step.terminated | step.truncated] = step.final
    return found


# Whose numbers they are


@pytest.mark.first
def test_a_member_gets_the_same_numbers_alone_and_beside_others(backend: str) -> None:
    three, alone = BACKENDS[backend]([3, 5, 7], 2), BACKENDS[backend]([7], 2)
    assert np.array_equal(three.reset()[2:], alone.reset())
    ends = 0
    pairs = zip(
        play(three, 120, backend in DISCRETE), play(alone, 120, backend in DISCRETE, member=2), strict=True
    )  # fmt: skip
    for together, own in pairs:
        equal(together, own, slice(2, 3))
        assert np.array_equal(whole(together)[2:], whole(own), equal_nan=True)
        ends += int((own.terminated | own.truncated).sum())
    assert ends > 4 or backend == "pendulum"
    three.close()
    alone.close()


@pytest.mark.slow
def test_members_environments_and_purposes_differ(backend: str) -> None:
    vector = BACKENDS[backend]([0, 1], 2)
    first = vector.reset().reshape(4, -1)
    assert len(np.unique(first, axis=0)) == 4
    vector.close()


def test_other_purposes_have_other_episodes() -> None:
    for kind in (lambda p: EnvPoolVector("CartPole-v1", [0], 1, p), lambda p: GymnasiumVector(Toy, [0], 1, p)):
        train, again, test = kind("train").reset(), kind("train").reset(), kind("test").reset()
        assert np.array_equal(train, again) and not np.array_equal(train, test)


# After a stop


@pytest.mark.first
@pytest.mark.parametrize("through", ["memory", "files"])
def test_a_restored_vector_goes_on_as_if_never_stopped(backend: str, through: str) -> None:
    """At two moments, by the state itself and by what a checkpoint makes of it."""
    discrete = backend in DISCRETE
    vector = BACKENDS[backend]([0, 1], 2)
    vector.reset()
    for begin in (0, 54):
        for _ in play(vector, 37, discrete, begin=begin):
            pass
        state = vector.state()
        if through == "files":
            plain, tensors = split_tensors(state)
            state = join_tensors(plain, {k: v.clone() for k, v in tensors.items()})
        other = BACKENDS[backend]([0, 1], 2)
        other.reset()
        other.restore(state)
        copy = BACKENDS[backend]([0, 1], 2)
        copy.reset()
        copy.restore(other.state())
        ahead = [*play(other, 60, discrete, begin=begin + 37)]
        for one, two in zip(ahead, play(copy, 60, discrete, begin=begin + 37), strict=True):
            equal(one, two)
        for one, two in zip(ahead, play(vector, 60, discrete, begin=begin + 37), strict=True):
            equal(one, two)
            assert np.array_equal(whole(one), whole(two), equal_nan=True)
            assert one.faulty is None and two.faulty is None
        other.close()
        copy.close()
    vector.close()


@pytest.mark.slow
def test_actions_that_nobody_must_repeat_are_forgotten() -> None:
    vector = toys([0], 2)
    vector.reset()
    for _ in play(vector, 2060, True):
        pass
    assert len(vector.log) < 100 and vector.base > 1000
    for _ in play(vector, 7, True, begin=2060):
        pass
    other = toys([0], 2)
    other.reset()
    other.restore(vector.state())
    for one, two in zip(
        play(vector, 30, True, begin=2067), play(other, 30, True, begin=2067), strict=True
    ):  # fmt: skip
        equal(one, two)
        assert two.faulty is None


def test_an_end_while_repeating_means_that_it_strayed() -> None:
    """Even if the environment says the right thing afterwards."""
    make = functools.partial(Toy, length=5)
    env, actions = Episodes(make, Stream(0)), np.zeros((7, 1), np.float32)
    started, _ = env.reset()
    for repeated, strayed in ((4, False), (7, True)):
        expected = np.array([[started[0], repeated, 0]], np.float32)
        env.journal = (0, actions[:repeated], expected)
        observation, info = env.reset()
        assert info.get("strayed", False) == strayed == env.lost
        assert observation[1] == (0 if strayed else 4)


def test_a_state_of_another_backend_or_size_is_refused() -> None:
    pool, plain = EnvPoolVector("CartPole-v1", [0], 2), gymnasium_cartpole([0], 2)
    pool.reset()
    plain.reset()
    with pytest.raises(CheckpointError, match="was saved as 1x2 environments of gymnasium"):
        pool.restore(plain.state())
    with pytest.raises(CheckpointError, match="was saved as 1x2 environments of envpool"):
        plain.restore(pool.state())
    with pytest.raises(CheckpointError, match="is 2x2 of gymnasium now"):
        gymnasium_cartpole([0, 1], 2).restore(plain.state())


def test_what_does_not_repeat_itself_is_discarded_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    vector = toys([0, 1], 2, fault="clock", at=3)
    vector.reset()
    for _ in play(vector, 5, True):
        pass
    state = vector.state()
    with caplog.at_level(logging.WARNING):
        vector.restore(state)
        vector.restore(state)
    assert len([r for r in caplog.records if "did not repeat itself" in r.message]) == 1
    step = next(play(vector, 1, True))
    assert step.faulty is not None and step.faulty.all() and step.truncated.all() and not step.terminated.any()
    assert (vector.episode == 1).all() and (step.observations[..., 1] == 0).all()
    later = next(play(vector, 1, True))
    assert later.faulty is None and (later.observations[..., 1] == 1).all()


def test_an_envpool_that_does_not_repeat_itself_is_discarded(caplog: pytest.LogCaptureFixture) -> None:
    vector = EnvPoolVector("CartPole-v1", [0, 1], 2)
    vector.reset()
    for _ in play(vector, 5, True):
        pass
    state = vector.state()
    state["observations"][1, 0] += 1
    with caplog.at_level(logging.WARNING):
        vector.restore(state)
    assert "did not repeat itself" in caplog.text
    step = next(play(vector, 1, True, begin=5))
    assert step.faulty.tolist() == [[False, False], [True, False]]
    assert step.truncated[1, 0] and not step.terminated[1, 0] and step.rewards[1, 0] == 0
    assert next(play(vector, 1, True, begin=6)).faulty is None


# Ends of episodes


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "in place"])
@pytest.mark.parametrize("workers", [False, True])
def test_final_observations_are_the_true_last_ones_and_no_transition_crosses_a_reset(workers: bool, fault: str) -> None:
    """Also of an environment that always returns the same array."""
    vector = toys([0, 1], 2, length=7, fault=fault, workers=workers)
    before, after = vector.reset().copy(), None
    assert (before[..., 1] == 0).all()
    for t, step in enumerate(play(vector, 30, True), 1):
        after = step.observations
        done = t % 7 == 0
        assert (step.rewards == (7 if done else t % 7)).all(), "no step is lost or added"
        assert (step.terminated == done).all() and not step.truncated.any()
        if done:
            assert step.final.shape == (4, 3)
            assert (step.final[:, 1] == 7).all() and (after[..., 1] == 0).all()
            assert np.array_equal(step.final[:, 0], before[..., 0].reshape(-1)), "of the episode that ended"
            assert not np.isin(after[..., 0], before[..., 0]).any(), "another episode"
        else:
            assert step.final is None and (after[..., 1] == t % 7).all()
            assert np.array_equal(after[..., 0], before[..., 0])
        before = after.copy()
    vector.close()


def test_a_limit_is_truncated_and_finals_come_in_the_order_of_nonzero() -> None:
    vector = GymnasiumVector(functools.partial(Toy, fault="both", at=1, limit=13), [0, 1, 2], 3)
    last = vector.reset().copy()
    ends = 0
    for step in play(vector, 60, True):
        done = step.terminated | step.truncated
        if done.any():
            ends += int(done.sum())
            assert np.array_equal(step.final[:, 0], last[done][:, 0])
            assert np.array_equal(step.final[:, 1], last[done][:, 1] + 1)
        last = step.observations.copy()
    assert ends > 20
    vector = toys([0], 1, limit=4)
    vector.reset()
    assert [bool(s.truncated[0, 0]) for s in play(vector, 8, True)] == [False, False, False, True] * 2


@pytest.mark.slow
def test_envpool_loses_no_step_and_no_transition_crosses_a_reset() -> None:
    """Against Gymnasium's dynamics: every observation follows from the one before it, or begins an episode."""
    vector, model = EnvPoolVector("CartPole-v1", [0, 1], 2), gym.make("CartPole-v1").unwrapped
    model.reset(seed=0)
    before, ends, lengths = vector.reset(), 0, np.zeros((2, 2), int)
    for t in range(300):
        actions = np.random.default_rng(t).integers(0, 2, (2, 2, 1)).astype(np.float32)
        step = vector.step(actions)
        reached = np.full_like(before, np.nan)
        done = step.terminated | step.truncated
        reached[~done] = step.observations[~done]
        if done.any():
            reached[done] = step.final
        for m, e in np.ndindex(2, 2):
            model.state, model.steps_beyond_terminated = before[m, e].astype(np.float64), None
            expected, _, terminated, _, _ = model.step(int(actions[m, e, 0]))
            assert np.allclose(reached[m, e], expected, atol=2e-6)
            assert terminated == step.terminated[m, e]
        lengths += 1
        assert (step.rewards == 1).all()
        assert (np.abs(step.observations[done]) <= 0.05).all(), "the first observation of an episode"
        ends += int(done.sum())
        lengths[done] = 0
        before = step.observations
    assert ends > 30


@pytest.mark.slow
def test_envpool_truncates_at_its_limit() -> None:
    vector = EnvPoolVector("Pendulum-v1", [0], 2)
    vector.reset()
    found = [(bool(s.truncated.all()), bool(s.terminated.any())) for s in play(vector, 400, False)]
    assert [t for t, (cut, _) in enumerate(found, 1) if cut] == [200, 400]
    assert not any(ended for _, ended in found)


@pytest.mark.slow
def test_pictures_are_made_by_all_cores_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    played = []
    for count in (1, 3):
        monkeypatch.setattr(envpool_vector, "cores", lambda count=count: count)
        vector = EnvPoolVector("Pong-v5", [0, 1], 2)
        assert vector.threads == count and vector._pool(0).config["num_threads"] == count
        played.append([vector.reset()])
        rng = np.random.default_rng(0)
        for _ in range(20):
            step = vector.step(rng.integers(6, size=(2, 2)))
            played[-1] += [vector.observations.copy(), step.rewards]
    for one, other in zip(*played):
        np.testing.assert_array_equal(one, other)
    assert EnvPoolVector("CartPole-v1", [0], 4).threads == 1, "they are done before another thread is awake"


@pytest.mark.slow
def test_pools_are_renewed_one_environment_at_a_time() -> None:
    """And at most a few live: an environment goes over when its own episode ends."""
    vector = EnvPoolVector("CartPole-v1", [0, 1], 4)
    vector.reset()
    counts, begun = [], []
    for step in play(vector, 200, True):
        begun += [*step.observations[step.terminated]]
        counts.append(len(vector.pools))
        assert set(vector.pools) >= set(vector.generation.tolist())
        assert len(vector.log) == vector.steps - vector.base
    assert max(counts) == 2 or max(counts) == 3
    assert vector.generation.min() >= 3
    firsts = np.array(begun)
    assert len(np.unique(firsts, axis=0)) == len(firsts), "every generation has other episodes"
    assert vector.state()["actions"].shape[0] < 100, "what must be repeated stays short"


@pytest.mark.slow
def test_an_endless_episode_is_truncated_in_every_run_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("etude.experience.episodes.LONGEST", 25)
    monkeypatch.setattr(envpool_vector, "LONGEST", 25)
    for vector in (toys([0], 1, length=10**9), EnvPoolVector("Pendulum-v1", [0], 1)):
        vector.reset()
        cut = [t for t, s in enumerate(play(vector, 60, True), 1) if s.truncated[0, 0]]
        assert cut == [25, 50]
        copy = type(vector)("Pendulum-v1", [0], 1) if hasattr(vector, "pools") else toys([0], 1, length=10**9)
        copy.reset()
        copy.restore(vector.state())
        for one, two in zip(play(vector, 40, True, begin=60), play(copy, 40, True, begin=60), strict=True):
            equal(one, two)


# The built-in ones


def test_built_in_cartpole_is_gymnasiums() -> None:
    vector, model = CartPoleArrays([0, 1], 2, "train"), gym.make("CartPole-v1").unwrapped
    model.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        states = rng.uniform([-2.6, -3, -0.25, -3], [2.6, 3, 0.25, 3], (2, 2, 4))
        actions = rng.integers(0, 2, (2, 2, 1)).astype(np.float32)
        after, rewards, terminated = vector.advance(states, actions)
        for m, e in np.ndindex(2, 2):
            model.state, model.steps_beyond_terminated = states[m, e].copy(), None
            seen, reward, ended, _, _ = model.step(int(actions[m, e, 0]))
            assert np.allclose(after[m, e], model.state, rtol=0, atol=1e-12)
            assert np.allclose(vector.observe(after[m, e]), seen, rtol=0, atol=1e-6)
            assert ended == terminated[m, e] and rewards[m, e] == reward
    before = vector.reset()
    for step in play(vector, 100, True):
        if step.final is not None:
            for was, last in zip(before[step.terminated], step.final, strict=True):
                assert np.allclose(last[0], was[0] + 0.02 * was[1], atol=1e-6)
                assert np.allclose(last[2], was[2] + 0.02 * was[3], atol=1e-6)
            assert (np.abs(step.observations[step.terminated]) <= 0.05).all()
        before = step.observations
    assert vector.observation_space == gym.make("CartPole-v1").observation_space
    assert vector.limit == gym.spec("CartPole-v1").max_episode_steps


def test_a_gust_is_a_force_on_the_cart_and_another_one_in_every_step() -> None:
    """Gymnasium's cart, pushed by the sum of both forces: that is what it calls `force_mag`, to the right."""
    vector, model = CartPole(gust=15.0).make([0, 1], 2), gym.make("CartPole-v1").unwrapped
    assert isinstance(vector, CartPoleArrays)
    vector.reset()
    model.reset(seed=0)
    rng, forces = np.random.default_rng(0), []
    for _ in range(200):
        states = vector.states = rng.uniform([-0.1, -1, -0.05, -1], [0.1, 1, 0.05, 1], (2, 2, 4))
        actions, gusts = rng.integers(0, 2, (2, 2, 1)), 30.0 * vector.luck(1)[..., 0] - 15.0
        forces.append(gusts)
        vector.step(actions.astype(np.float32))
        for m, e in np.ndindex(2, 2):
            model.state, model.steps_beyond_terminated = states[m, e].copy(), None
            model.force_mag = (10.0 if actions[m, e, 0] else -10.0) + gusts[m, e]
            model.step(1)
            assert np.allclose(vector.states[m, e], model.state, rtol=0, atol=1e-12)
    drawn = np.array(forces)
    assert len(np.unique(drawn)) == drawn.size and (np.abs(drawn) <= 15.0).all()
    assert abs(drawn.mean()) < 4 * 15.0 / np.sqrt(3 * drawn.size)  # the mean of uniform forces
    assert np.isclose(drawn.std(), 15.0 / np.sqrt(3), rtol=0.1)


def test_only_a_cart_without_wind_has_gymnasiums_picture() -> None:
    assert (CartPole().rendered, CartPole(gust=1.0).rendered) == ("CartPole-v1", "")


def pushes(rng: np.random.Generator, seen: np.ndarray) -> np.ndarray:
    """Actions for four carts, mostly to where the pole leans: some keep it up until the limit, others drop it."""
    leans = seen @ np.array([[0.05], [0.1], [1.0], [0.3]]) > 0
    skilled = np.array([[1.0], [0.9], [0.3], [1.0]]) > rng.random((4, 1))
    return np.where(skilled, leans, rng.random((4, 1)) < 0.5).astype(np.float32)


def torques(rng: np.random.Generator, seen: np.ndarray) -> np.ndarray:
    """Actions for four pendulums, some out of bounds."""
    return rng.uniform(-2.5, 2.5, (4, 1)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "act", "take", "least"),
    [
        ("CartPole-v1", CartPoleArrays, pushes, lambda a: int(a[0]), (20, 4)),
        ("Pendulum-v1", PendulumArrays, torques, lambda a: np.clip(a, -2, 2).astype(np.float64), (0, 40)),
    ],
)
def test_built_in_environments_play_gymnasiums_episodes(
    name: str, kind: Any, act: Any, take: Any, least: tuple[int, int]
) -> None:
    """8,000 steps side by side: observations, rewards, terminations, time limits, what is seen last.

    Gymnasium's goes on from the same state every time: a pole doubles what the two differ by several times a second.
    """
    vector, models, rng, ends = (
        kind([0, 1], 2, "train"),
        [gym.make(name) for _ in range(4)],
        np.random.default_rng(0),
        [],
    )

    for model in models:
        model.reset(seed=0)
    seen = vector.reset().reshape(4, -1)
    for _ in range(2000):
        actions = act(rng, seen)
        for model, state in zip(models, vector.states.reshape(4, -1)):
            model.unwrapped.state = state.copy()
        step = vector.step(actions.reshape(2, 2, 1))
        seen, last = step.observations.reshape(4, -1), [] if step.final is None else list(step.final)
        for i, model in enumerate(models):
            shown, reward, terminated, truncated, _ = model.step(take(actions[i]))
            truncated = truncated and not terminated
            assert (step.terminated.flat[i], step.truncated.flat[i]) == (terminated, truncated)
            assert np.isclose(step.rewards.flat[i], reward, rtol=1e-6, atol=1e-9)
            assert np.allclose(last.pop(0) if terminated or truncated else seen[i], shown, rtol=0, atol=1e-6)
            if terminated or truncated:
                ends.append(terminated)
                model.reset()
        assert not last
    assert sum(ends) >= least[0] and len(ends) - sum(ends) >= least[1]


@pytest.mark.slow
def test_built_in_pendulum_is_gymnasiums() -> None:
    vector, model = PendulumArrays([0, 1], 2, "train"), gym.make("Pendulum-v1").unwrapped
    model.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        states = rng.uniform([-9, -8], [9, 8], (2, 2, 2))
        actions = rng.normal(size=(2, 2, 1), scale=2).astype(np.float32)
        after, rewards, terminated = vector.advance(states, actions)
        for m, e in np.ndindex(2, 2):
            model.state = states[m, e].copy()
            seen, reward, _, _, _ = model.step(actions[m, e].astype(np.float64))
            assert np.allclose(after[m, e], model.state, rtol=0, atol=1e-12)
            assert np.allclose(vector.observe(after[m, e]), seen, rtol=0, atol=1e-6)
            assert np.isclose(rewards[m, e], reward, rtol=0, atol=1e-12)
    assert not terminated.any()
    assert vector.limit == gym.spec("Pendulum-v1").max_episode_steps


# What fails is discarded (faults, rows 20 and 22)


def test_an_episode_that_raises_is_discarded_and_the_others_feel_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vector, sound = toys([0, 1], 2, fault="raises once", at=5, file=str(tmp_path / "x")), toys([0, 1], 2)
    vector.reset()
    sound.reset()
    with caplog.at_level(logging.WARNING):
        pairs = [*zip(play(vector, 30, True), play(sound, 30, True), strict=True)]
    for t, (step, other) in enumerate(pairs, 1):
        assert np.array_equal(step.observations.reshape(4, 3)[1:], other.observations.reshape(4, 3)[1:])
        if t == 5:
            assert step.faulty.tolist() == [[True, False], [False, False]]
            assert step.truncated[0, 0] and not step.terminated[0, 0] and step.rewards[0, 0] == 0
            assert len(step.final) == 1 and (step.observations[0, 0, 1] == 0)
        else:
            assert step.faulty is None
    said = caplog.text
    assert "an episode is discarded: step raised ZeroDivisionError: the valve is stuck" in said
    assert "environment_toys.py, line" in said and "environment 0 of member 0, step 5" in said
    assert vector.failures.sum() == 0, "an episode that ended as it should ends the row of failures"


KINDS = [
    ("raises", False, "step raised ZeroDivisionError: the valve is stuck"),
    ("exits", False, "step raised SystemExit: 3"),
    ("raises", True, "step raised ZeroDivisionError: the valve is stuck"),
    ("dies", True, "it lost its process, which ended with exit code 4"),
    ("hangs", False, "it did not answer within 0.3 s"),
    ("hangs", True, "it did not answer within 0.3 s"),
]


@pytest.mark.first
@pytest.mark.parametrize(("fault", "workers", "cause"), KINDS)
def test_three_episodes_in_a_row_stop_the_run(fault: str, workers: bool, cause: str) -> None:
    limit = 0.3 if fault == "hangs" else 60.0
    vector = toys([0, 1], 1, fault=fault, at=2, workers=workers, step_timeout=limit)
    vector.reset()
    seen = []
    with pytest.raises(EnvironmentFault) as caught:
        for step in play(vector, 20, True):
            seen.append(None if step.faulty is None else step.faulty[:, 0].tolist())
    said = str(caught.value)
    assert cause in said and "3 episodes in a row failed" in said
    assert "environment 0 of member" in said and "action [" in said and "step " in said
    if fault == "raises":
        assert "environment_toys.py, line" in said and "raise ZeroDivisionError" in said
        assert seen == [None, [True, True], None, [True, True], None]
    vector.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["dies once", "hangs once"])
def test_a_lost_process_costs_one_episode_and_nothing_of_the_others(fault: str, tmp_path: Path) -> None:
    limit = 1.5 if fault == "hangs once" else 60.0
    vector = toys([0, 1], 2, fault=fault, at=5, file=str(tmp_path / "x"), workers=True, step_timeout=limit)
    sound = toys([0, 1], 2)
    vector.reset()
    sound.reset()
    lost = []
    for t, (step, other) in enumerate(zip(play(vector, 12, True), play(sound, 12, True), strict=True), 1):
        if step.faulty is not None:
            lost += [(t, *where) for where in np.argwhere(step.faulty).tolist()]
        kept = np.array([[(m, e) not in [x[1:] for x in lost] for e in range(2)] for m in range(2)])
        assert np.array_equal(step.observations[kept], other.observations[kept])
        assert np.array_equal(step.rewards[kept], other.rewards[kept])
    assert len(lost) == 1 and lost[0][0] == 5
    state = vector.state()
    i = lost[0][1], lost[0][2]
    assert state["episode"][i] == 1 and state["lengths"][i] == 7
    vector.close()


@pytest.mark.slow
def test_a_hang_in_this_process_costs_one_episode(tmp_path: Path) -> None:
    vector = toys([0, 1], 1, fault="hangs once", at=4, file=str(tmp_path / "x"), step_timeout=1.0)
    sound = toys([0, 1], 1)
    vector.reset()
    sound.reset()
    for t, (step, other) in enumerate(zip(play(vector, 10, True), play(sound, 10, True), strict=True), 1):
        assert (step.faulty is not None and step.faulty[:, 0].tolist() == [True, False]) == (t == 4)
        assert np.array_equal(step.observations[1], other.observations[1])


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "workers"), [("hangs", False), ("dies", True)])
def test_two_that_fail_in_the_same_step_are_both_discarded(fault: str, workers: bool) -> None:
    vector = toys([0, 1], 1, fault=fault, at=3, workers=workers, step_timeout=0.3 if fault == "hangs" else 60.0)
    vector.reset()
    found = [step.faulty for step in play(vector, 4, True)]
    assert found[2].all() and [f is None for f in found] == [True, True, False, True]
    assert vector.failures.tolist() == [1, 1] and vector.episode.tolist() == [1, 1]
    vector.close()


def test_a_lost_episode_is_still_lost_after_another_stop() -> None:
    vector, other = (toys([0, 1], 2, fault="clock", at=3) for _ in range(2))
    vector.reset()
    for _ in play(vector, 5, True):
        pass
    vector.restore(vector.state())
    other.reset()
    other.restore(vector.state())
    for v in (vector, other):
        assert v.lost.all()
        step = next(play(v, 1, True))
        assert step.faulty.all() and (v.episode == 1).all() and not v.lost.any()


def test_failures_are_part_of_the_state() -> None:
    vector = toys([0], 1, fault="raises", at=2)
    vector.reset()
    for _ in play(vector, 4, True):
        pass
    copy = toys([0], 1, fault="raises", at=2)
    copy.reset()
    copy.restore(vector.state())
    assert copy.failures.tolist() == [2]
    with pytest.raises(EnvironmentFault, match="3 episodes in a row"):
        for _ in play(copy, 2, True):
            pass


def test_a_reset_that_raises_stops_after_three() -> None:
    with pytest.raises(EnvironmentFault, match=r"3 episodes in a row failed: reset raised RuntimeError: cannot begin"):
        toys([0], 2, fault="reset raises").reset()


def test_an_environment_that_cannot_be_made_is_a_sentence() -> None:
    with pytest.raises(EnvironmentFault, match=r"toy cannot be made: ValueError: no licence \(.*environment_toys"):
        toys([0], 2, fault="constructor")


# What does not belong is refused at once (row 21)


WRONG = [
    ("nan observation", "the observation[1] is nan: observations must be finite numbers"),
    ("infinite observation", "the observation[2] is inf: observations must be finite numbers"),
    ("outside", "the observation[1] is 2000000.0, outside of its space"),
    ("shape", "the observation must be a numpy array of float32 (3,), got an array of float32 (4,)"),
    ("dtype", "the observation must be a numpy array of float32 (3,), got an array of float64 (3,)"),
    ("list", "the observation must be a numpy array of float32 (3,), got a list of 3"),
    ("nan reward", "the reward is nan: rewards must be finite numbers"),
    ("large reward", "the reward is 1e+300: rewards must be finite numbers"),
    ("array reward", "the reward must be one number, got an array of float64 (1,)"),
    ("no reward", "the reward must be one number, got None (NoneType)"),
    ("number as flag", "terminated must be True or False, got 1 (int)"),
    ("info", "info must be a dictionary, got a list of 1"),
    ("four values", "step must return (observation, reward, terminated, truncated, info), got a tuple of 4"),
    ("reset only", "reset must return (observation, info), got an array of float32 (3,)"),
    ("reset info", "info must be a dictionary, got None"),
]
IN_WORKERS = ("nan observation", "shape", "reset only")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sentence", "workers"),
    [(*each, False) for each in WRONG] + [(*each, True) for each in WRONG if each[0] in IN_WORKERS],
)
def test_what_cannot_be_learned_from_is_refused_at_its_first_occurrence(
    fault: str, sentence: str, workers: bool
) -> None:
    vector, steps = toys([0, 1], 2, fault=fault, at=3, workers=workers), 0
    with pytest.raises(EnvironmentFault) as caught:
        vector.reset()
        for _ in play(vector, 5, True):
            steps += 1
    said = str(caught.value)
    assert said.startswith(f"toy: {sentence}"), said
    assert "environment 0 of member 0" in said
    assert (steps == 2 and "step 3" in said and "action [" in said) or fault.startswith("reset")
    vector.close()


def test_the_place_of_a_fault_is_named() -> None:
    """Not only the first environment's."""
    vector = GymnasiumVector(functools.partial(Toy, fault="nan observation", at=9), [0, 1], 3, name="toy")
    vector.reset()
    for _ in play(vector, 3, True):
        pass
    vector.envs.envs[4].environment.at = 5
    for _ in play(vector, 1, True):
        pass
    with pytest.raises(EnvironmentFault, match=r"environment 1 of member 1, step 5, which is step 5 of its episode 0"):
        next(play(vector, 1, True))


def test_a_final_observation_is_looked_at_too() -> None:
    vector = GymnasiumVector(functools.partial(Toy, fault="clock", at=12, length=4), [0], 1, name="toy")
    vector.reset()
    toy = vector.envs.envs[0].environment
    toy.observation_space = None
    see = toy._see
    toy._see = lambda: see() * (np.float32("nan") if toy.elapsed == 4 else 1)
    for _ in play(vector, 3, True):
        pass
    with pytest.raises(EnvironmentFault, match=r"the observation\[0\] is nan"):
        next(play(vector, 1, True))


def test_bounds_may_be_left_unchecked_but_numbers_must_be_finite() -> None:
    make = functools.partial(Toy, fault="outside", at=2)
    vector = GymnasiumVector(make, [0], 1, bounds=False)
    vector.reset()
    assert [float(s.observations[0, 0, 1]) for s in play(vector, 3, True)] == [1, 2e6, 2e6]
    vector = GymnasiumVector(functools.partial(Toy, fault="infinite observation", at=2), [0], 1, bounds=False)
    vector.reset()
    with pytest.raises(EnvironmentFault, match="is inf"):
        for _ in play(vector, 3, True):
            pass


def test_an_envpool_with_numbers_that_are_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = EnvPoolVector("CartPole-v1", [0, 1], 2)
    vector.reset()
    pool = vector.pools[0]

    class Broken:
        config = pool.config

        def step(self, *arguments: Any) -> Any:
            raw, *rest = pool.step(*arguments)
            raw[3, 2] = np.nan
            return raw, *rest

    vector.pools[0] = Broken()
    with pytest.raises(
        EnvironmentFault, match=r"CartPole-v1: the observation\[2\] is nan.*environment 1 of member 1, step 1"
    ):
        next(play(vector, 1, True))


@pytest.mark.slow
def test_an_envpool_that_hangs_ends_the_process_with_a_sentence() -> None:
    """Nothing can stop a call into C++."""
    code = (
        "import ctypes, numpy as np\n"
        "from etude.experience.envpool_vector import EnvPoolVector\n"
        "vector = EnvPoolVector('CartPole-v1', [0], 1, step_timeout=0.4)\n"
        "vector.reset()\n"
        "pool = vector.pools[0]\n"
        "class Hung:\n"
        "    def step(self, *a): ctypes.CDLL(None).sleep(60)\n"
        "vector.pools[0] = Hung()\n"
        "vector.step(np.zeros((1, 1, 1), np.float32))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert done.returncode == 1
    assert "EnvPool did not answer within 0.4 s" in done.stderr


def test_several_players_are_refused() -> None:
    with pytest.raises(ConfigError, match="several players"):
        EnvPoolVector("Go9x9-v1", [0], 1)


@pytest.mark.slow
def test_workers_end_with_the_vector_and_with_their_parent() -> None:
    vector = toys([0], 2, workers=True)
    vector.reset()
    processes = vector.envs.processes
    vector.close()
    assert not any(p.is_alive() for p in processes)
    code = (
        "import os, signal, functools, gymnasium\n"
        "from etude.experience.gymnasium_vector import GymnasiumVector\n"
        "make = functools.partial(gymnasium.make, 'CartPole-v1')\n"
        "vector = GymnasiumVector(make, [0], 3, workers=True)\n"
        "vector.reset()\n"
        "print(*[p.pid for p in vector.envs.processes], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    pids = [int(p) for p in done.stdout.split()]
    assert len(pids) == 3, "the pipes of stdout were closed by all, or run would not have returned"
    until = time.monotonic() + 10
    while any(map(running, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(running, pids))


def running(pid: int) -> bool:
    """Whether there is a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# Spaces


SPACES = [
    spaces.Box(-1, 1, (2, 3)),
    spaces.Box(-1, 1, (), np.float64),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([3, 4]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, -2]]),
    spaces.MultiBinary([2, 2]),
    spaces.Tuple((spaces.Discrete(2), spaces.Dict(b=spaces.MultiBinary(2), a=spaces.Box(0, 1, (2,))))),
    Nested.observation_space,
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_observations_are_what_flatten_makes_of_them(space: spaces.Space) -> None:
    space.seed(0)
    each = [space.sample() for _ in range(6)]
    flat = observation_encoder(space)(batch_of(space, each))
    assert flat.dtype == np.float32 and flat.shape == (6, *observation_shape(space))
    for row, one in zip(flat, each, strict=True):
        assert np.array_equal(row, spaces.flatten(space, one).astype(np.float32))
    assert misfit(space, each[0]) is None and Guard(space)(batch_of(space, each)) is None


ACTIONS = [*SPACES[:-1], Nested.action_space]


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_flat_actions_become_actions_of_the_space(space: spaces.Space) -> None:
    """And back: what was flat can be read off."""
    from etude.evaluation.environment_findings import flat_actions

    flat = next(flat_actions(space, 1, 8))[0]
    assert flat.shape == (8, action_size(space))
    decoded = list(iterate(batch_space(space, 8), action_decoder(space)(flat)))
    for row, one in zip(flat, decoded, strict=True):
        assert space.contains(one if space.shape != () else np.asarray(one))
        assert np.allclose(_numbers(space, one), np.clip(row, *_range(space)), atol=1e-6)


def _numbers(space: spaces.Space, action: Any) -> list[float]:
    """A flat action as it must have been."""
    if isinstance(space, spaces.Dict):
        return [x for k, s in space.spaces.items() for x in _numbers(s, action[k])]
    if isinstance(space, spaces.Tuple):
        return [x for s, a in zip(space.spaces, action, strict=True) for x in _numbers(s, a)]
    start = getattr(space, "start", 0)
    return list(np.ravel(np.asarray(action, np.float64) - start))


def _range(space: spaces.Space) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of each number of a flat action."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        inside = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        lows, highs = zip(*(_range(s) for s in inside), strict=True)
        return np.concatenate(lows), np.concatenate(highs)
    if isinstance(space, spaces.Box):
        return space.low.reshape(-1), space.high.reshape(-1)
    return np.zeros(action_size(space)), np.full(action_size(space), 99.0)


@pytest.mark.parametrize(
    ("shape", "policy", "last"),
    [
        ((84, 84, 3), (3, 84, 84), True), ((3, 84, 84), (3, 84, 84), False), ((4, 84, 84), (4, 84, 84), False),
        ((12, 84, 84), (12, 84, 84), False), ((96, 64, 3), (3, 96, 64), True), ((3, 64, 96), (3, 64, 96), False),
        ((7, 7, 20), (20, 7, 7), True), ((1, 64, 64), (1, 64, 64), False),
    ],
)  # fmt: skip
def test_images_come_with_channels_first(shape: tuple[int, ...], policy: tuple[int, ...], last: bool) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    batch = np.random.default_rng(0).integers(0, 256, (2, *shape)).astype(np.uint8)
    found = observation_encoder(space)(batch)
    assert observation_shape(space) == policy and found.shape == (2, *policy) and found.dtype == np.uint8
    assert found.flags.c_contiguous and channels_last(shape) == last
    assert np.array_equal(np.moveaxis(found, 1, -1) if last else found, batch)


def test_spaces_without_a_fixed_size_are_refused_with_the_place() -> None:
    inside = spaces.Dict(a=spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2)))))
    with pytest.raises(ConfigError, match=r"got Sequence\(.*under \['a'\]\[1\]"):
        observation_shape(inside)
    for space in (spaces.Sequence(spaces.Discrete(2)), spaces.Text(3)):
        with pytest.raises(ConfigError, match="fixed size"):
            observation_encoder(space)
        with pytest.raises(ConfigError, match="Actions must be"):
            action_decoder(space)


def test_actions_and_observations_of_every_kind_reach_the_environment() -> None:
    """`Nested` asserts that the action is in its space and returns it in the reward."""
    vector = GymnasiumVector(Nested, [0, 1], 2, name="nested")
    assert vector.reset().shape == (2, 2, *observation_shape(Nested.observation_space))
    flat = np.array([[3.0, 0.5, 2, 1, 1], [-1, 0.25, 0, 0, 1]], np.float32)  # move, pick, keys
    step = vector.step(np.stack([flat, flat[::-1]]))
    assert np.allclose(step.rewards, [[2.5 + 10 + 200, -0.75 - 10 + 100], [-0.75 - 10 + 100, 2.5 + 10 + 200]])


def test_guards_name_the_key_and_the_index() -> None:
    space, guard = Nested.observation_space, Guard(Nested.observation_space)
    space.seed(0)
    each = [space.sample() for _ in range(3)]
    each[2]["arm"][0][1, 0] = np.nan
    assert guard(batch_of(space, each)) == (
        2,
        "the observation['arm'][0][1, 0] is nan: observations must be finite numbers",
    )
    each[2]["arm"][0][1, 0] = 1.5
    row, said = guard(batch_of(space, each))
    assert row == 2 and said.startswith("the observation['arm'][0][1, 0] is 1.5, outside of its space ([-1, 1])")
    each[2]["arm"][0][1, 0] = 1 + 1e-7  # beyond by a rounding
    assert guard(batch_of(space, each)) is None
    each[1]["dials"] = np.array([1, 3])
    assert guard(batch_of(space, each))[1].startswith("the observation['dials'][1] is 3, outside")
    assert "got an array of float32 (2,)" in misfit(space, {**each[0], "keys": np.zeros(2, np.float32)})
    assert "['keys'] must be whole numbers (3,)" in misfit(space, {**each[0], "keys": np.zeros(2, np.float32)})
    assert "a dictionary with the keys" in misfit(space, {k: v for k, v in each[0].items() if k != "eye"})
    assert "a tuple of 2, got" in misfit(space, {**each[0], "arm": 3})


def test_usual_answers_pass_quickly_and_unusual_ones_still_pass() -> None:
    box = spaces.Box(-1, 1, (2,), np.float64)
    seen = np.zeros(2, np.float32)  # fits into float64
    for reward in (1, 1.0, np.float32(1), np.int64(1), True, np.array(1.0), torch.tensor(1.0)):
        assert wrong_step(box, (seen, reward, np.bool_(True), False, {})) is None


def test_off_the_main_thread_environments_in_this_process_are_refused() -> None:
    """Nothing could end one that hangs there."""
    found: list[str] = []

    def work() -> None:
        with pytest.raises(ConfigError, match="only the main thread of a Unix process can hold it to that") as refused:
            GymnasiumVector(Toy, [0], 1)
        found.append(str(refused.value))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found
