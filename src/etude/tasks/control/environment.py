"""Environments of Gymnasium and EnvPool as tasks: `--task CartPole-v1`, `--task file.py:Class`."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from etude.core.control import ControlTask, VectorEnvironment
from etude.core.errors import ConfigError
from etude.core.fields import Positive
from etude.tasks.control import _names

if TYPE_CHECKING:
    import gymnasium as gym


class EnvironmentTask(ControlTask):
    """An environment by its name.

    Args:
        environment: an id (CartPole-v1, ALE/Pong-v5, module:Mine-v0), or module:Class or file.py:Class of a
            gymnasium.Env class, or of a function that returns such an environment.
        backend: where neither arguments nor workers are asked for, 'auto' takes the built-in arrays for CartPole-v1 and
            Pendulum-v1, and EnvPool where it is installed and has the id; Gymnasium otherwise.
        arguments: what the environment is made with, as in task.arguments={"gravity":1.6} or, one at a time,
            task.arguments.gravity=1.6; of EnvPool's environments its options (reward_clip, episodic_life, ...).
        workers: each environment in a process of its own: for slow ones, and those that may crash.
        step_timeout: seconds that one step of all environments may take.
        bounds: whether observations outside of the space's bounds stop the run. By default they do, unless the
            environment is one of Gymnasium's or EnvPool's own, some of which leave theirs.

    Raises: UnknownNameError with the closest ids, MissingExtraError for what is not installed, ConfigError for fields
    that contradict each other.

    Shapes: observations [M, E, ...], actions [M, E, A].

    >>> EnvironmentTask("CartPole-v1").make(seeds=[0, 1], count=3).reset().shape
    (2, 3, 4)
    """

    environment: str
    backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    workers: bool = False
    step_timeout: Positive = 60.0
    bounds: bool | None = None

    @property
    def id(self) -> str:  # type: ignore[override]  # depends on a field
        """What the command line calls it."""
        return self.environment

    def check(self) -> None:
        try:
            json.dumps(self.arguments)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"EnvironmentTask.arguments must be plain data: {error}.") from None
        if _names.is_id(self.environment):
            _names.check_known(self.environment, self.backend)
        elif self.backend == "envpool":
            raise ConfigError(f"{self.environment} is not an id of EnvPool: set task.backend=gymnasium.")
        if self._only_pool and self.workers:
            raise ConfigError(f"{self.environment} is EnvPool's, which takes no workers here: leave task.workers out.")
        if self.pooled and self.bounds:
            raise ConfigError("EnvPool's bounds are not those of its environments: leave task.bounds out.")
        if self.pooled and self.arguments:
            _names.check_envpool_arguments(self.environment, self.arguments)

    @property
    def _only_pool(self) -> bool:
        """Whether nobody but EnvPool can run it."""
        return self.backend == "envpool" or (self.backend == "auto" and _names.only_envpool(self.environment))

    @property
    def runs_on(self) -> str:
        """Who steps it: 'built-in', 'envpool' or 'gymnasium'."""
        return "built-in" if self.built_in else "envpool" if self.pooled else "gymnasium"

    @property
    def plain(self) -> bool:
        """Whether nothing is asked for that only Gymnasium gives."""
        return self.backend == "auto" and not self.arguments and not self.workers

    @property
    def built_in(self) -> bool:
        """Whether it runs over arrays here, which is several times faster than any pool at this size."""
        return self.plain and self.environment in _names.BUILT_IN

    @property
    def pooled(self) -> bool:
        """Whether EnvPool runs it."""
        if self.backend != "auto" or (self.arguments and not self.workers and self._only_pool):
            return self.backend != "gymnasium"
        plain = self.plain and not self.built_in and _names.is_id(self.environment)
        return plain and self.environment in _names.envpool_ids()

    def make(self, seeds: Sequence[int], count: int, purpose: str = "train") -> VectorEnvironment:
        if self.built_in:
            made: VectorEnvironment = _names.built_in(self.environment)(seeds, count, purpose)
            return made
        if self.pooled:
            from etude.experience.envpool_vector import EnvPoolVector

            return EnvPoolVector(
                self.environment, seeds, count, purpose, step_timeout=self.step_timeout, arguments=self.arguments
            )
        from etude.experience.gymnasium_vector import GymnasiumVector

        bounds = _names.own_bounds(self.environment) if self.bounds is None else self.bounds
        make = functools.partial(_names.open_environment, self.environment, self.arguments)
        return GymnasiumVector(
            make, seeds, count, purpose, name=self.environment, workers=self.workers, step_timeout=self.step_timeout,
            bounds=bounds,
        )  # fmt: skip

    def single(self, **arguments: object) -> gym.Env:
        """One environment of Gymnasium with these arguments too, as in `render_mode='rgb_array'`."""
        return _names.open_environment(self.environment, {**self.arguments, **arguments})

    def pictured(self, seed: int, purpose: str) -> VectorEnvironment | None:
        """One environment that nobody but EnvPool has, with `render`; None for what Gymnasium draws."""
        if not _names.only_envpool(self.environment):
            return None
        from etude.experience.envpool_pictures import EnvPoolPictures

        return EnvPoolPictures(self.environment, seed, purpose, self.arguments, self.step_timeout)
