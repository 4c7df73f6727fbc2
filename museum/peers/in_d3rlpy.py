"""Exhibits in d3rlpy: `python museum/peers/in_d3rlpy.py [ID ...]`, in an environment that has it."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import d3rlpy as d3
import gymnasium as gym
import numpy as np
import torch
from d3rlpy import dataset
from d3rlpy.algos.qlearning.base import QLearningAlgoBase
from d3rlpy.logging.noop_adapter import NoopAdapter
from d3rlpy.models.encoders import VectorEncoderFactory
from d3rlpy.optimizers.optimizers import OptimizerFactory
from d3rlpy.torch_utility import Checkpointer
from frame import GIVEN, Attack, Case, beside, given, main

walk = beside("walk")

torch.set_num_threads(1)


class Noted(NoopAdapter):  # type: ignore[misc,name-defined]
    """Every number that is logged, by epoch."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def create(self, *_: Any, **__: Any) -> Noted:
        return self

    def before_write_metric(self, epoch: int, step: int) -> None:
        self.steps.append({})

    def write_metric(self, epoch: int, step: int, name: str, value: float) -> None:
        self.steps[-1][name] = float(value)


def seeded(seed: int) -> None:
    """Every generator that it draws from."""
    d3.seed(seed)
    np.random.seed(seed)


def dqn() -> Any:
    """DQN of 16 with a target that is copied every 16 updates."""
    return d3.algos.DQNConfig(
        batch_size=16, target_update_interval=16, encoder_factory=VectorEncoderFactory([16])
    ).create()


def sac() -> Any:
    """SAC of 16."""
    small = VectorEncoderFactory([16])
    return d3.algos.SACConfig(batch_size=16, actor_encoder_factory=small, critic_encoder_factory=small).create()


def online(algo: Any, environment: Any, seed: int, **options: Any) -> list[dict[str, float]]:
    """A hundred and sixty steps in epochs of thirty-two."""
    log = Noted()
    d3.envs.seed_env(environment, seed)
    options = {"buffer": dataset.create_fifo_replay_buffer(400, env=environment), **options}
    algo.fit_online(
        environment, n_steps=160, n_steps_per_epoch=32, random_steps=8, update_start_step=24, eval_env=None,
        show_progress=False, logger_adapter=log, with_timestamp=False, **options,
    )  # fmt: skip
    return log.steps


@cache
def acts(make: Callable[[], Any], name: str) -> Callable[[int], Iterator[Mapping[str, float]]]:
    """Learns from what it does."""

    def run(seed: int) -> Iterator[Mapping[str, float]]:
        seeded(seed)
        yield from online(make(), gym.make(name), seed)

    return run


def walks(seed: int) -> Iterator[Mapping[str, float]]:
    """DQN on the walk."""
    seeded(seed)
    yield from online(dqn(), walk.Walk(), seed)


def rows(seed: int) -> dict[str, Any]:
    """What chance did on cart-pole, 400 steps."""
    environment, found = gym.make("CartPole-v1"), []
    rng = np.random.default_rng(seed)
    seen, _ = environment.reset(seed=seed)
    for t in range(400):
        action = int(rng.integers(2))
        led, reward, ended, cut, _ = environment.step(action)
        found.append((seen, [action], float(reward), float(ended), float(cut or (t == 399 and not ended))))
        seen = environment.reset()[0] if ended or cut else led
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    columns = [np.array(column, np.float32) for column in zip(*found, strict=True)]
    return dict(zip(names, columns, strict=True))


def logged(seed: int) -> Iterator[Mapping[str, float]]:
    """DQN from logs, four epochs of thirty-two updates."""
    seeded(seed)
    columns = rows(seed)
    columns["actions"] = columns["actions"].astype(np.int64)
    if GIVEN.get("nan"):
        columns["observations"][7] = np.nan
    if GIVEN.get("ends") == "never":
        columns["timeouts"] = np.zeros_like(columns["timeouts"])
        columns["terminals"] = np.zeros_like(columns["terminals"])
    if GIVEN.get("ends") == "cut":
        columns["timeouts"] = np.maximum(columns["timeouts"], columns["terminals"])
        columns["terminals"] = np.zeros_like(columns["terminals"])
    if GIVEN.get("ends") == "limit":
        columns["terminals"] = np.maximum(columns["terminals"], columns["timeouts"])
        columns["timeouts"] = np.zeros_like(columns["timeouts"])
    if GIVEN.get("ends") == "late":
        for name in ("terminals", "timeouts"):
            columns[name] = np.roll(columns[name], 1)
    log = Noted()
    dqn().fit(
        dataset.MDPDataset(**columns), n_steps=128, n_steps_per_epoch=32, show_progress=False, logger_adapter=log,
        with_timestamp=False,
    )  # fmt: skip
    yield from log.steps


def targets(how: Callable[[Any, Any], None]) -> Callable[[], Any]:
    """Target networks follow in another way."""

    @contextmanager
    def inject() -> Iterator[None]:
        def update(slow: Any, own: Any, *_: Any) -> None:
            with torch.no_grad():
                for its, mine in zip(slow.parameters(), own.parameters(), strict=True):
                    how(its, mine)

        with mock.patch.multiple("d3rlpy.algos.qlearning.torch.dqn_impl", hard_sync=update), \
             mock.patch.multiple("d3rlpy.algos.qlearning.torch.ddpg_impl", soft_sync=update):  # fmt: skip
            yield

    return inject


@contextmanager
def other_parameters() -> Iterator[None]:
    """Optimizers are made of copies of the parameters."""
    original = OptimizerFactory.create

    def create(self: Any, named_modules: Any, **options: Any) -> Any:
        return original(self, [(name, copy.deepcopy(module)) for name, module in named_modules], **options)

    with mock.patch.object(OptimizerFactory, "create", create):
        yield


@contextmanager
def acts_first() -> Iterator[None]:
    """What plays is a copy of the network as it was at first."""
    original = QLearningAlgoBase.sample_action

    def sample(self: Any, x: Any) -> Any:
        now = self._impl
        self.first = getattr(self, "first", None) or copy.deepcopy(now)
        self._impl = self.first
        try:
            return original(self, x)
        finally:
            self._impl = now

    with mock.patch.object(QLearningAlgoBase, "sample_action", sample):
        yield


# Stopped and resumed


@cache
def resumed(make: Callable[[], Any], name: str) -> Callable[[int], Iterator[Mapping[str, float]]]:
    """Learns, is saved whole, and goes on; what is looked at comes after."""

    def run(seed: int) -> Iterator[Mapping[str, float]]:
        seeded(seed)
        algo, environment = make(), gym.make(name)
        buffer = dataset.create_fifo_replay_buffer(400, env=environment)
        online(algo, environment, seed, buffer=buffer)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "algo.d3")
            algo.save(path)
            again = d3.load_learnable(path)
        if GIVEN.get("replay") is False:
            buffer = dataset.create_fifo_replay_buffer(400, env=environment)
        yield from online(again, environment, seed + 1, buffer=buffer)

    return run


def without(part: str) -> Callable[[], Any]:
    """Parts of a saved algorithm are not taken from it."""

    @contextmanager
    def inject() -> Iterator[None]:
        original = Checkpointer.load

        def load(self: Any, f: Any) -> None:
            kept = {k: copy.deepcopy(v.state_dict()) for k, v in self.modules.items() if part in k}
            original(self, f)
            for name, state in kept.items():
                self.modules[name].load_state_dict(state)

        with mock.patch.object(Checkpointer, "load", load):
            yield

    return inject


# Files of others


def loaded(seed: int) -> Iterator[Mapping[str, float]]:
    """An algorithm that somebody shared is loaded."""
    seeded(seed)
    algo = dqn()
    algo.build_with_env(gym.make("CartPole-v1"))
    with tempfile.TemporaryDirectory() as folder:
        path, ran = Path(folder) / "algo.d3", Path(folder) / "ran"
        algo.save(str(path))
        if GIVEN.get("pickle"):
            path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), "more": Attack(ran)}))
        if GIVEN.get("torn"):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        d3.load_learnable(str(path))
        assert ran.is_dir() == bool(GIVEN.get("pickle")), "the attack had no effect"
    yield {}


cases = {
    "learner-tells-no-actor": Case(acts_first, acts(sac, "Pendulum-v1"), "what plays is a copy of the first policy", 1),
    "target-copies-itself": Case(targets(lambda its, own: None), logged, "hard_sync does nothing"),
    "target-without-delay": Case(
        targets(lambda its, own: its.copy_(own)), acts(sac, "Pendulum-v1"), "soft_sync takes the weights at once"
    ),
    "optimizer-of-other-parameters": Case(other_parameters, logged, "optimizers hold copies"),
    "ends-not-in-the-targets": Case(given(ends="cut"), logged, "the logs have every end as a timeout"),
    "ends-one-step-late": Case(given(ends="late"), logged, "the logs have ends one step late"),
    "time-limit-as-an-end": Case(walk.FAULTS["time-limit-as-an-end"], walks, "as here"),
    "episodes-without-end": Case(given(ends="never"), logged, "the logs have no ends"),
    "nan-observation": Case(given(nan=True), logged, "one row of the logs is NaN"),
    "observation-buffer-reused": Case(walk.FAULTS["observation-buffer-reused"], walks, "as here"),
    "seed-ignored": Case(walk.FAULTS["seed-ignored"], walks, "as here"),
    "seed-of-another-generator": Case(walk.FAULTS["seed-of-another-generator"], walks, "as here"),
    "one-generator-for-all": Case(walk.FAULTS["one-generator-for-all"], walks, "as here"),
    "actor-random-after-resume": Case(
        without("policy"), resumed(sac, "Pendulum-v1"), "Checkpointer.load leaves the policy out"
    ),
    "optimizer-fresh-after-resume": Case(
        without("optim"), resumed(sac, "Pendulum-v1"), "Checkpointer.load leaves optimizers out"
    ),
    "replay-gone-after-resume": Case(
        given(replay=False), resumed(sac, "Pendulum-v1"), "the user loads the algorithm; its buffer is another file"
    ),
    "torn-checkpoint": Case(given(torn=True), loaded, "half of the file"),
    "pickle-in-a-model": Case(given(pickle=True), loaded, "the saved algorithm is a pickle that calls"),
}  # fmt: skip
none = {
    "first-observation-for-last": "stores no last observation",
    "one-seed-for-all-copies": "one environment at a time",
    "trace-over-the-end": "no traces over steps of several episodes",
    "value-after-the-end": "no rollouts",
    "clipped-action-stored": "stores no log-probability",
    "reference-that-trains": "no reference",
    "returns-in-the-range-of-rewards": "no categorical critic",
    "normaliser-moves-too-early": "scalers are fitted once",
    "normaliser-not-restored": "scalers are part of the algorithm",
    "path-out-of-the-folder": "no archive",
    "seed-without-effect": "no comparison of runs",
    "one-seed": "no comparison of runs",
    "another-budget": "no comparison of runs",
}

if __name__ == "__main__":
    main("d3rlpy", f"d3rlpy {d3.__version__}, torch {torch.__version__}", cases, none, "control only")
