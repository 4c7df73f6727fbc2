"""Exhibits in Stable-Baselines3: `python museum/peers/in_sb3.py [ID ...]`, in an environment that has it."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import stable_baselines3 as sb3
import torch
from frame import GIVEN, Attack, Case, beside, given, main
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer, RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

walk = beside("walk")

torch.set_num_threads(1)


def small() -> dict[str, Any]:
    """Networks of 16; made anew, as SAC writes into it."""
    return {"policy_kwargs": {"net_arch": [16]}, "device": "cpu", "verbose": 1}


class Logged(BaseCallback):
    """What is logged: after every rollout or every sixteenth step, and whenever it is written out."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.steps = every, list[dict[str, float]]()

    def take(self) -> None:
        found = {k: v for k, v in self.model.logger.name_to_value.items() if np.isscalar(v)}
        if self.model.ep_info_buffer:
            found["rollout/ep_rew_mean"] = float(np.mean([x["r"] for x in self.model.ep_info_buffer]))
            found["rollout/ep_len_mean"] = float(np.mean([x["l"] for x in self.model.ep_info_buffer]))
        self.steps.append({k: float(v) for k, v in found.items()})

    def _on_step(self) -> bool:
        if self.every and self.num_timesteps % self.every == 0:
            self.take()
        return True


class Rollouts(Logged):
    """Takes what the update logged before the logger forgets it."""

    def _on_training_start(self) -> None:
        train = self.model.train

        def trained() -> None:
            train()
            self.take()

        self.model.train = trained  # type: ignore[method-assign]

    def _on_training_end(self) -> None:
        del self.model.train


def ppo(environment: Any, seed: int, **options: Any) -> sb3.PPO:
    """PPO with rollouts of 64 steps in 4 environments."""
    made = environment if isinstance(environment, VecEnv) else make_vec_env(environment, n_envs=4, seed=seed)
    return sb3.PPO("MlpPolicy", made, n_steps=64, batch_size=64, n_epochs=4, seed=seed, **{**small(), **options})


@cache
def rolled(environment: Any = "CartPole-v1") -> Callable[[int], Iterator[Mapping[str, float]]]:
    """Three updates of PPO."""

    def run(seed: int) -> Iterator[Mapping[str, float]]:
        log, model = Rollouts(0), ppo(environment, seed)
        model.learn(3 * 256, callback=log)
        yield from log.steps

    return run


def sac(seed: int, environment: Any = "Pendulum-v1") -> sb3.SAC:
    """SAC that learns after every step from the sixteenth on."""
    return sb3.SAC("MlpPolicy", environment, learning_starts=16, batch_size=16, buffer_size=400, seed=seed, **small())


def dqn(seed: int, environment: Any = "CartPole-v1") -> sb3.DQN:
    """DQN that learns after every second step from the sixteenth on, and copies its target every 16 steps."""
    return sb3.DQN(
        "MlpPolicy", environment, learning_starts=16, batch_size=16, buffer_size=400, train_freq=2, seed=seed,
        target_update_interval=16, exploration_fraction=0.5, **small(),
    )  # fmt: skip


@cache
def replayed(make: Callable[[int], Any]) -> Callable[[int], Iterator[Mapping[str, float]]]:
    """A hundred and sixty steps, looked at every thirty-second."""

    def run(seed: int) -> Iterator[Mapping[str, float]]:
        log = Logged(32)
        make(seed).learn(160, callback=log)
        yield from log.steps

    return run


# What goes wrong in the library


@contextmanager
def acts_first() -> Iterator[None]:
    """What plays is a copy of the policy as it was at first."""
    original = sb3.PPO.collect_rollouts

    def collect(self: Any, *given: Any, **options: Any) -> bool:
        now = self.policy
        self.first = getattr(self, "first", None) or copy.deepcopy(now)
        self.policy = self.first
        try:
            return original(self, *given, **options)
        finally:
            self.policy = now

    with mock.patch.object(sb3.PPO, "collect_rollouts", collect):
        yield


def targets(how: Callable[[Any, Any], None]) -> Callable[[], Any]:
    """Target networks follow in another way, in DQN and in SAC."""

    @contextmanager
    def inject() -> Iterator[None]:
        def update(parameters: Any, slow: Any, tau: float) -> None:
            with torch.no_grad():
                for own, its in zip(parameters, slow, strict=False):
                    how(own, its)

        with mock.patch("stable_baselines3.sac.sac.polyak_update", update), \
             mock.patch("stable_baselines3.dqn.dqn.polyak_update", update):  # fmt: skip
            yield

    return inject


@contextmanager
def other_parameters() -> Iterator[None]:
    """The optimizer of the policy is made of copies of its parameters."""
    original = sb3.PPO._setup_model

    def setup(self: Any) -> None:
        original(self)
        copies = [torch.nn.Parameter(p.detach().clone()) for p in self.policy.parameters()]
        self.policy.optimizer = torch.optim.Adam(copies, lr=3e-4)

    with mock.patch.object(sb3.PPO, "_setup_model", setup):
        yield


@contextmanager
def clipped() -> Iterator[None]:
    """Stored actions are clipped to the range of the torque."""
    original = RolloutBuffer.add

    def add(self: Any, seen: Any, action: Any, *rest: Any) -> None:
        original(self, seen, np.clip(action, -2.0, 2.0), *rest)

    with mock.patch.object(RolloutBuffer, "add", add):
        yield


def estimated(change: Callable[[Any], Any]) -> Callable[[], Any]:
    """Advantages are estimated from a rollout that is read in another way."""

    @contextmanager
    def inject() -> Iterator[None]:
        original = RolloutBuffer.compute_returns_and_advantage

        def compute(self: Any, last_values: Any, dones: Any) -> None:
            kept = self.episode_starts
            self.episode_starts, dones = change(kept), change(dones[None])[0]
            original(self, last_values, dones)
            self.episode_starts = kept

        with mock.patch.object(RolloutBuffer, "compute_returns_and_advantage", compute):
            yield

    return inject


def _later(starts: Any) -> Any:
    return np.roll(starts, 1, 0) if len(starts) > 1 else starts


@contextmanager
def value_after_the_end() -> Iterator[None]:
    """At a true end the value of the next episode's first observation is added to the reward."""
    original = RolloutBuffer.compute_returns_and_advantage

    def compute(self: Any, last_values: Any, dones: Any) -> None:
        ends = np.concatenate([self.episode_starts[1:], dones[None]])
        following = np.concatenate([self.values[1:], last_values.cpu().numpy().reshape(1, -1)])
        self.rewards += ends * self.gamma * following
        original(self, last_values, dones)

    with mock.patch.object(RolloutBuffer, "compute_returns_and_advantage", compute):
        yield


@contextmanager
def all_go_on() -> Iterator[None]:
    """Every step is stored as one that goes on."""
    original = ReplayBuffer.add

    def add(self: Any, seen: Any, led: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        original(self, seen, led, action, reward, np.zeros_like(done), infos)

    with mock.patch.object(ReplayBuffer, "add", add):
        yield


@contextmanager
def first_for_last() -> Iterator[None]:
    """The last observation of an episode is the one that the next begins with."""
    original = DummyVecEnv.step_wait

    def step(self: Any) -> Any:
        seen, rewards, dones, infos = original(self)
        for i, info in enumerate(infos):
            if dones[i]:
                info["terminal_observation"] = seen[i]
        return seen, rewards, dones, infos

    with mock.patch.object(DummyVecEnv, "step_wait", step):
        yield


@contextmanager
def one_seed() -> Iterator[None]:
    """All copies have the seed of the first."""

    def seed(self: Any, seed: int | None = None) -> list[Any]:
        self._seeds = [seed] * self.num_envs
        return self._seeds

    with mock.patch.object(VecEnv, "seed", seed):
        yield


# Environments of a user


def checked(seed: int) -> Iterator[Mapping[str, float]]:
    """What `check_env` says, and three updates of PPO."""
    check_env(walk.Walk())
    yield from rolled(walk.Walk)(seed)


# Stopped and resumed


@cache
def resumed(make: Callable[[int], Any], learn: Callable[[Any, str], Any], steps: int) -> Any:
    """Steps, a saved model, and a model that goes on from it; what is looked at comes after."""

    def run(seed: int) -> Iterator[Mapping[str, float]]:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.zip")
            model = make(seed)
            log: Logged = Rollouts(0) if isinstance(model, sb3.PPO) else Logged(32)
            model.learn(steps, callback=log)
            model.save(path)
            if hasattr(model, "save_replay_buffer"):
                model.save_replay_buffer(path + ".replay")
            if isinstance(model.env, VecNormalize):
                model.env.save(path + ".moments")
            again = learn(model, path)
            log = Rollouts(0) if isinstance(again, sb3.PPO) else Logged(32)
            again.learn(steps, callback=log, reset_num_timesteps=GIVEN.get("reset", False))
            yield from log.steps

    return run


def read_off_policy(model: Any, path: str) -> Any:
    """The model and its replay."""
    again = type(model).load(path, env=model.env)
    if GIVEN.get("replay", True):
        again.load_replay_buffer(path + ".replay")
    return again


def normalised(seed: int) -> sb3.PPO:
    """PPO on cart-pole with a normaliser."""
    return ppo(VecNormalize(make_vec_env("CartPole-v1", n_envs=4, seed=seed)), seed)


def read_on_policy(model: Any, path: str) -> Any:
    """The model and the moments of its normaliser."""
    plain = make_vec_env("CartPole-v1", n_envs=4, seed=0)
    made = VecNormalize.load(path + ".moments", plain) if GIVEN.get("moments", True) else VecNormalize(plain)
    return sb3.PPO.load(path, env=made)


def without(*names: str) -> Callable[[], Any]:
    """Parts of a saved model are not taken from it."""

    @contextmanager
    def inject() -> Iterator[None]:
        original = BaseAlgorithm.set_parameters

        def load(self: Any, given: Any, **options: Any) -> None:
            kept = copy.deepcopy(self.get_parameters())
            for name in names:
                if name == "policy.optimizer" or name not in given:
                    continue
                given = {**given, name: kept[name]}
            if "actor" in names:
                own = {k: v for k, v in kept["policy"].items() if k.startswith("actor.")}
                given = {**given, "policy": {**given["policy"], **own}}
            original(self, given, **options)

        with mock.patch.object(BaseAlgorithm, "set_parameters", load):
            yield

    return inject


# Files of others


def loaded(seed: int) -> Iterator[Mapping[str, float]]:
    """A model that somebody shared is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path, ran = Path(folder) / "model.zip", Path(folder) / "ran"
        model = ppo("CartPole-v1", seed)
        if GIVEN.get("pickle"):
            model.shared = Attack(ran)  # whatever an attribute holds is saved with the model
        model.save(path)
        if GIVEN.get("torn"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        sb3.PPO.load(path, device="cpu")
        assert ran.is_dir() == bool(GIVEN.get("pickle")), "the attack had no effect"
        yield {}


cases = {
    "learner-tells-no-actor": Case(acts_first, rolled(), "what plays is a copy of the first policy", 1),
    "target-copies-itself": Case(targets(lambda own, its: None), replayed(dqn), "polyak_update does nothing"),
    "target-without-delay": Case(
        targets(lambda own, its: its.copy_(own)), replayed(sac), "polyak_update takes the weights at once"
    ),
    "optimizer-of-other-parameters": Case(other_parameters, rolled(), "the optimizer holds copies"),
    "clipped-action-stored": Case(clipped, rolled("Pendulum-v1"), "RolloutBuffer.add clips actions"),
    "trace-over-the-end": Case(estimated(np.zeros_like), rolled(), "advantages see no ends"),
    "ends-one-step-late": Case(estimated(_later), rolled(), "advantages look up ends one step late"),
    "value-after-the-end": Case(value_after_the_end, rolled(), "values are added at true ends"),
    "ends-not-in-the-targets": Case(all_go_on, replayed(dqn), "ReplayBuffer.add stores no ends"),
    "first-observation-for-last": Case(first_for_last, rolled(walk.Walk), "terminal_observation is the next first"),
    "one-seed-for-all-copies": Case(one_seed, rolled(walk.Walk), "VecEnv.seed gives all copies one seed"),
    "actor-random-after-resume": Case(
        without("actor"), resumed(sac, read_off_policy, 96), "set_parameters leaves the actor out"
    ),
    "optimizer-fresh-after-resume": Case(
        without("actor.optimizer", "critic.optimizer"), resumed(sac, read_off_policy, 96),
        "set_parameters leaves optimizers out",
    ),
    "normaliser-not-restored": Case(
        given(moments=False), resumed(normalised, read_on_policy, 512), "the user loads the model without VecNormalize"
    ),
    "replay-gone-after-resume": Case(
        given(replay=False), resumed(sac, read_off_policy, 96), "the user loads the model, as in the first example"
    ),
    "exploration-begins-anew": Case(
        given(reset=True), resumed(dqn, read_off_policy, 96), "learn() again with its default, reset_num_timesteps"
    ),
    "torn-checkpoint": Case(given(torn=True), loaded, "half of the archive"),
    "pickle-in-a-model": Case(given(pickle=True), loaded, "an attribute of the saved model is a pickle that calls"),
    **{
        name: Case(fault, checked, "as here; check_env, then PPO")
        for name, fault in walk.FAULTS.items()
        if name != "observation-buffer-reused"
    },
}  # fmt: skip
none = {
    "observation-buffer-reused": "copies what it is given",
    "path-out-of-the-folder": "extracts nothing",
    "normaliser-moves-too-early": "stores what was observed normalised",
    "returns-in-the-range-of-rewards": "no categorical critic",
    "reference-that-trains": "no reference",
    "seed-without-effect": "no comparison of runs",
    "one-seed": "no comparison of runs",
    "another-budget": "no comparison of runs",
}

if __name__ == "__main__":
    main("sb3", f"Stable-Baselines3 {sb3.__version__}, torch {torch.__version__}", cases, none, "control only")
