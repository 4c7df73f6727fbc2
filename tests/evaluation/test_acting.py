"""`etude.policy`: a trained policy acts on single observations as it did in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_export import CASES, played, trained

import etude
from etude.core.errors import ConfigError
from etude.evaluation.acting import TrainedPolicy
from etude.experience.spaces import action_decoder
from leaf_toys import GRID, MASKED, Grid, Masked

SMALL: dict[str, Any] = {"steps": 64, "seeds": 2, "evaluate": 0, "quiet": True, "set": {"experience.steps": 8}}


@pytest.mark.first
@pytest.mark.parametrize("name", CASES)
def test_one_observation_at_a_time_it_does_what_the_actor_does(name: str) -> None:
    task, changes = CASES[name]
    loop = trained(task, **changes)
    policy = TrainedPolicy(loop, 1)
    own = action_decoder(loop.environment.action_space)
    for batch, begins, exact in zip(*played(loop, 1), strict=True):
        if begins[0]:
            policy.reset()
        action = policy(batch[0].numpy().reshape(policy.observation_space.shape))
        np.testing.assert_allclose(action, own(exact.numpy())[0], atol=1e-5)
        assert policy.action_space.contains(action)


@pytest.mark.slow
def test_the_episode_before_is_forgotten() -> None:
    loop = trained(*CASES["memory"][:1], **CASES["memory"][1])
    policy, observation = TrainedPolicy(loop), np.array([1.0, 0.0, 0.5], np.float32)
    first, second = policy(observation), policy(observation)
    policy.reset()
    assert policy(observation) == first != second


def episode(policy: Any, environment: gym.Env[Any, Any], masked: bool = False) -> float:
    (observation, info), total, done = environment.reset(seed=7), 0.0, False
    while not done:
        action = policy(observation, info["action_mask"]) if masked else policy(observation)
        observation, reward, terminated, truncated, info = environment.step(action)
        total, done = total + float(reward), terminated or truncated
    return total


@pytest.mark.slow
def test_dicts_with_text_are_read_as_they_come(tmp_path: Path) -> None:
    run = etude.train("ppo", GRID, out=str(tmp_path / "run"), **SMALL)
    policy = etude.policy(run.folder, member=1)
    assert 0 <= episode(policy, Grid()) <= 8
    with pytest.raises(ConfigError, match=r"reads a dict of 'camera', 'depth', .*, got 'camera'\."):
        policy({"camera": np.zeros((7, 7, 3), np.uint8)})


@pytest.mark.slow
@pytest.mark.parametrize("where", ["info", "key"])
def test_what_a_mask_forbids_is_never_done(tmp_path: Path, where: str) -> None:
    options = {**SMALL, "set": {**SMALL["set"], "task.arguments.where": where}}
    policy = etude.policy(etude.train("ppo", MASKED, out=str(tmp_path / "run"), **options).checkpoint)
    for _ in range(5):
        episode(policy, Masked(where=where), masked=where == "info")  # which raises if it is
    observation, info = Masked(where=where).reset()
    with pytest.raises(ConfigError, match="with masks from infos: give" if where == "info" else "leave mask out"):
        policy(observation, None if where == "info" else [1, 1, 1])
    if where == "info":
        with pytest.raises(ConfigError, match="must be 3 numbers, each 0 or 1"):
            policy(observation, info["action_mask"][:2])


@pytest.mark.slow
def test_what_cannot_act_is_refused(tmp_path: Path) -> None:
    class Own(gym.Env[Any, Any]):
        observation_space = spaces.Box(0, 1, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def reset(self, **options: Any) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.zeros(1, np.float32), 0.0, True, False, {}

    run = etude.train("ppo", "cartpole", out=str(tmp_path / "run"), **SMALL)
    with pytest.raises(ConfigError, match=r"no member 2: the run's are 0 to 1\."):
        etude.policy(run.folder, member=2)
    with pytest.raises(ConfigError, match=r"one observation of shape \[4\], got \[2, 4\]\."):
        etude.policy(run.folder)(torch.zeros(2, 4).numpy())
    with pytest.raises(ConfigError, match=r"tiny is no run, nor a checkpoint in one\."):
        etude.policy("tiny")
    own = etude.train("ppo", Own, out=str(tmp_path / "own"), **SMALL)
    with pytest.raises(
        ConfigError, match=r"was trained on <.*Own>, which only lives in Python: give it again.*task=Own\)"
    ):
        etude.policy(own.folder)
    assert int(etude.policy(own.folder, task=Own)(np.zeros(1, np.float32))) in (0, 1)
    with pytest.raises(ConfigError, match="knows its task by name, cartpole: leave task out"):
        etude.policy(run.folder, task="cartpole")
    words = etude.train("grpo", steps=1, evaluate=0, quiet=True, set={"problems": 2}, out=str(tmp_path / "words"))
    with pytest.raises(ConfigError, match=r"no run of control.*from_pretrained\(.*step-1/model"):
        etude.policy(words.folder)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "task"), [("dqn", "cartpole"), ("sac", "pendulum")])
def test_what_learns_from_a_replay_acts_too(tmp_path: Path, method: str, task: str) -> None:
    soon = {
        "experience.warmup": 240, "experience.every": 4, "experience.updates": 0.25, "sampling.batch": 8,
        "critic.learning.target.every": 1,
    }  # fmt: skip
    run = etude.train(method, task, steps=64, seeds=2, evaluate=0, quiet=True, set=soon, out=str(tmp_path / "run"))
    policy = etude.policy(run.folder, member=1)
    assert policy.action_space.contains(policy(np.zeros(policy.observation_space.shape, np.float32)))
